package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// lookupOp is an operation that declares its lookups.
type lookupOp struct {
	looks []Lookup
	do    func(tx *Tx) error
}

func (op lookupOp) Needs() (out []Ref) {
	for _, l := range op.looks {
		out = append(out, l.Ref)
	}
	return out
}
func (op lookupOp) Lookups() []Lookup { return op.looks }
func (op lookupOp) Do(tx *Tx) error   { return op.do(tx) }
func look(id string, c string, steps ...string) []Lookup {
	return []Lookup{{Ref{tenant, ref(id)}, c, steps}}
}

// queryCounter counts the queries per table.
type queryCounter struct {
	Conn
	asked map[string]int
}

func (c *queryCounter) Query(query string, args []any, row func(scan func(...any) error) error) error {
	for _, table := range []string{"runs", "commits", "journal", "idempotency"} {
		if strings.Contains(query, " FROM "+table+" ") {
			c.asked[table]++
		}
	}
	return c.Conn.Query(query, args, row)
}

// record stages a commit of a run with one step.
func record(tx *Tx, id, commit, key, digest string) error {
	r, _, err := tx.Runs.Get(tenant, ref(id))
	if err != nil {
		return err
	}
	r.Version++
	r.JournalSeq++
	tx.Runs.Put(r, nil)
	tx.Journal.Put(JournalRow{Tenant: tenant, RunID: r.ID, Seq: r.JournalSeq, Key: key, Value: "1", Digest: digest,
		At: tx.Now})
	return tx.Commits.Put(tenant, r.ID, perdure.Taken{ID: commit, Digest: "d", Answer: commit + " of " + id})
}

// found gives what a batch knows of a commit and a step.
func found(tx *Tx, id, commit, key string) (string, error) {
	r, _, err := tx.Runs.Get(tenant, ref(id))
	if err != nil {
		return "", err
	}
	c, _, err := tx.Commits.Answer(&r, commit)
	if err != nil {
		return "", err
	}
	steps, err := tx.Journal.Recorded(tenant, r.ID, []string{key})
	return c.Answer + "/" + steps[key], err
}

func must(t *testing.T, s *Store, ops ...Op) {
	t.Helper()
	for _, err := range s.Batch(s.Now(), ops...) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestBatchLooksUpForAllOperationsAtOnce(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		asked := make(map[string]int)
		at.Hooks.Wrap = func(s Conn) Conn { return &queryCounter{s, asked} }
		s := open(t, at)
		const runs = 50 // not one of the prepared sizes
		id := func(i int) string { return fmt.Sprintf("r%02d", i) }
		for i := range runs {
			must(t, s, insert(id(i)))
			must(t, s, opFunc(func(tx *Tx) error { return record(tx, id(i), "one", "a", "digest of "+id(i)) }))
			must(t, s, opFunc(func(tx *Tx) error { return record(tx, id(i), "two", "b", "other") }))
		}
		must(t, s, insert("fresh"), insert("new"))

		clear(asked)
		var ops []Op
		expect := func(id, commit, key, want string) {
			ops = append(ops, lookupOp{look(id, commit, key), func(tx *Tx) error {
				got, err := found(tx, id, commit, key)
				if got != want {
					t.Errorf("%s %s %s: %q, want %q", id, commit, key, got, want)
				}
				return err
			}})
		}
		for i := range runs / 2 {
			expect(id(i), "one", "a", "one of "+id(i)+"/digest of "+id(i))
		}
		for i := runs / 2; i < runs; i++ {
			expect(id(i), "three", "c", "/")
		}
		expect("fresh", "one", "a", "/") // has no commits
		expect("nobody", "one", "a", "/")
		must(t, s, ops...)
		if asked["commits"] != 1 || asked["journal"] != 1 {
			t.Errorf("queries per table = %v, want 1 of commits and 1 of journal", asked)
		}

		// Staged names are found, refused ones are not, and neither needs a query.
		clear(asked)
		ops = nil
		stage := func(id, commit, key string, refused bool) {
			ops = append(ops, lookupOp{look(id, commit, key), func(tx *Tx) error {
				if err := record(tx, id, commit, key, "staged"); err != nil || !refused {
					return err
				}
				return perdure.Errorf(perdure.CodeInvalid, "refused")
			}})
		}
		stage("r00", "three", "c", true)
		expect("r00", "three", "c", "/")
		stage("r01", "three", "c", false)
		stage("r01", "four", "d", false)
		expect("r01", "three", "c", "three of r01/staged")
		expect("r01", "four", "d", "four of r01/staged")
		expect("r01", "one", "a", "one of r01/digest of r01")
		stage("new", "one", "a", false)
		stage("new", "two", "b", false)
		expect("new", "one", "a", "one of new/staged")
		expect("new", "three", "c", "/")
		errs := s.Batch(s.Now(), ops...)
		for i, err := range errs {
			if (err != nil) != (i == 0) {
				t.Errorf("operation %d = %v, want only operation 0 refused", i, err)
			}
		}
		if asked["commits"] != 1 || asked["journal"] != 1 {
			t.Errorf("queries per table = %v, want 1 of commits and 1 of journal", asked)
		}
	})
}

// Another node records the commit between the lookup and the write. The batch is decided again, and
// finds it.
func TestRepeatedDecisionLooksUpAgain(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		a, b := open(t, at), open(t, at)
		must(t, a, insert("x"), insert("y"))
		must(t, a, opFunc(func(tx *Tx) error { return record(tx, "x", "one", "a", "first") }))
		must(t, a, opFunc(func(tx *Tx) error { return record(tx, "x", "two", "b", "first") }))
		var seen []string
		do := func(tx *Tx) error {
			got, err := found(tx, "x", "three", "c")
			if err != nil {
				return err
			}
			if seen = append(seen, got); len(seen) == 1 {
				must(t, b, opFunc(func(tx *Tx) error { return record(tx, "x", "three", "c", "theirs") }))
				must(t, b, opFunc(func(tx *Tx) error { return record(tx, "x", "four", "d", "theirs") }))
			}
			if got == "/" {
				return record(tx, "x", "three", "c", "ours")
			}
			return nil
		}
		must(t, a, lookupOp{look("x", "three", "c"), do}, insert("z"))
		if fmt.Sprint(seen) != "[/ three of x/theirs]" {
			t.Errorf("lookups of the two decisions = %q, want none, then the other node's", seen)
		}
		if n := count(t, a, "SELECT count(*) FROM journal WHERE run_id='x' AND key='c'"); n != 1 {
			t.Errorf("journal entries of key c = %d, want 1", n)
		}
	})
}

// keyedOp is an operation under an idempotency key.
type keyedOp struct {
	opFunc
	key string
}

func (op keyedOp) IdempotencyKey() (perdure.TenantID, string) { return tenant, op.key }

func TestBatchLooksUpAllKeysAtOnce(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		asked := make(map[string]int)
		at.Hooks.Wrap = func(s Conn) Conn { return &queryCounter{s, asked} }
		s := open(t, at)
		const keys = 32
		key := func(i int) string { return fmt.Sprintf("%sk%02d", RunKeys, i) }
		put := func(key, ref string) Op {
			return keyedOp{func(tx *Tx) error {
				tx.Idempotency.Put(IdempotencyRow{Tenant: tenant, Key: key, Ref: ref})
				return nil
			}, key}
		}
		for i := range keys {
			id := fmt.Sprintf("r%02d", i)
			must(t, s, insert(id), put(key(i), string(ref(id))))
		}
		expect := func(key, want string) Op {
			return keyedOp{func(tx *Tx) error {
				row, ok, err := tx.Idempotency.Get(tenant, key)
				if got := row.Ref; err != nil || got != want || ok != (want != "") {
					t.Errorf("key %s = %q, %t, %v, want %q", key, got, ok, err, want)
				}
				if ok && strings.HasPrefix(key, RunKeys) {
					_, ok, err = tx.Runs.Get(tenant, perdure.RunID(want))
					if err != nil || !ok {
						t.Errorf("run %s of key %s: %t, %v, want it found", want, key, ok, err)
					}
				}
				return nil
			}, key}
		}
		s.cache.clear() // cached runs are not read
		clear(asked)
		var ops []Op
		for i := range keys / 2 {
			ops = append(ops, expect(key(i), string(ref(fmt.Sprintf("r%02d", i)))))
		}
		for i := keys; i < keys+keys/2; i++ {
			ops = append(ops, expect(key(i), ""))
		}
		refused := keyedOp{func(tx *Tx) error {
			tx.Idempotency.Put(IdempotencyRow{Tenant: tenant, Key: "refused", Ref: "a"})
			return perdure.Errorf(perdure.CodeInvalid, "refused")
		}, "refused"}
		ops = append(ops, put("staged", "b"), expect("staged", "b"), refused, expect("refused", ""),
			expect(key(0), string(ref("r00"))))
		for i, err := range s.Batch(s.Now(), ops...) {
			if (err != nil) != (i == len(ops)-3) {
				t.Errorf("operation %d = %v, want only operation %d refused", i, err, len(ops)-3)
			}
		}
		if asked["idempotency"] != 1 || asked["runs"] != 1 {
			t.Errorf("queries per table = %v, want 1 of idempotency and 1 of runs", asked)
		}
		if n := count(t, s, "SELECT count(*) FROM idempotency WHERE key='refused'"); n != 0 {
			t.Errorf("keys of refused operations = %d, want none", n)
		}
	})
}

// lookupPlans are the indexes that lookups use.
var lookupPlans = []struct {
	table, from, sqlite, postgres string
	columns                       []string
}{
	{"commits", "SELECT tenant,run_id,commit_id", "USING PRIMARY KEY (tenant=? AND run_id=? AND commit_id=?)",
		"commits_pkey", []string{"tenant", "run_id", "commit_id"}},
	{"journal", "SELECT tenant, run_id, key, digest", "USING INDEX journal_key (tenant=? AND run_id=? AND key=?)",
		"journal_key", []string{"tenant", "run_id", "key"}},
	{"idempotency", "SELECT tenant,key,digest,ref,expires_at FROM idempotency JOIN",
		"USING PRIMARY KEY (tenant=? AND key=?)", "idempotency_pkey", []string{"tenant", "key"}},
}

// A lookup by the run alone would read its whole journal.
func TestSQLiteLookupsUseWholeKey(t *testing.T) {
	s := open(t, Options{})
	sess := s.lanes[LaneWork].write
	for _, p := range lookupPlans {
		for _, n := range s.dialect.sizes {
			part := make([][]any, n)
			for i := range part {
				part[i] = []any{"acme", "r", "k"}[:len(p.columns)]
			}
			plan := ""
			err := sess.Query("EXPLAIN QUERY PLAN SELECT * FROM "+p.table+" "+
				s.dialect.among(p.table, p.columns, s.dialect.rows(part)), s.dialect.args(part),
				func(scan func(...any) error) error {
					var a, b, c int
					line := ""
					err := scan(&a, &b, &c, &line)
					plan += line + "\n"
					return err
				})
			if err != nil || !strings.Contains(plan, "SEARCH "+p.table+" "+p.sqlite) {
				t.Errorf("plan of %d lookups in %s does not use the whole key (%v):\n%s", n, p.table, err, plan)
			}
		}
	}
}

func TestPostgreSQLLookupsUseWholeKey(t *testing.T) {
	t.Parallel()
	s := open(t, Options{URL: pgtest.New(t)})
	must(t, s, insert("x"))
	must(t, s, opFunc(func(tx *Tx) error { return record(tx, "x", "one", "a", "d") }))
	must(t, s, opFunc(func(tx *Tx) error { return record(tx, "x", "two", "b", "d") }))
	s.cache.clear() // cached names are not looked up
	must(t, s, opFunc(func(tx *Tx) error { _, err := found(tx, "x", "three", "c"); return err }))
	nothing := func(*Tx) error { return nil }
	must(t, s, keyedOp{nothing, "a"}, keyedOp{nothing, "b"})
	sess := s.lanes[LaneWork].write
	execDirect(t, s, "INSERT INTO journal SELECT 'acme', 'x', i, 'k'||i, '1', 'd', 0 FROM generate_series(10, 20000) i")
	execDirect(t, s, "INSERT INTO commits SELECT 'acme', 'x', 'k'||i, 'd', '', 0 FROM generate_series(10, 20000) i")
	execDirect(t, s, "INSERT INTO idempotency SELECT 'acme', 'k'||i, 'd', '', 0 FROM generate_series(10, 20000) i")
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			execDirect(t, s, "ANALYZE journal")
			execDirect(t, s, "ANALYZE commits")
			execDirect(t, s, "ANALYZE idempotency")
		}
		for _, p := range lookupPlans {
			plan, name := "", prepared(t, sess, p.from)
			given := strings.Join([]string{"array['acme']", "array['x']", "array['a']"}[:len(p.columns)], ",")
			err := sess.Query("EXPLAIN EXECUTE "+name+"("+given+")", nil,
				func(scan func(...any) error) error {
					line := ""
					err := scan(&line)
					plan += line + "\n"
					return err
				})
			if key := p.columns[len(p.columns)-1]; err != nil ||
				!strings.Contains(plan, p.postgres+" on "+p.table) || !strings.Contains(plan, "("+key+" = ") {
				t.Errorf("plan of lookups in %s does not use the whole key (%v):\n%s", p.table, err, plan)
			}
		}
	}
}
