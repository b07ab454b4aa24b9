package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// psql is a session beside the store.
type psql struct {
	t    *testing.T
	conn *pgconn.PgConn
}

func newPSQL(t *testing.T, url string) *psql {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return &psql{t, conn}
}

// exec executes statements and gives the rows of the last one.
func (p *psql) exec(format string, args ...any) (rows [][]string) {
	p.t.Helper()
	text := fmt.Sprintf(format, args...)
	results, err := p.conn.Exec(context.Background(), text).ReadAll()
	if err != nil {
		p.t.Fatalf("%s: %v", text, err)
	}
	for _, r := range results[len(results)-1].Rows {
		row := make([]string, len(r))
		for i, v := range r {
			row[i] = string(v)
		}
		rows = append(rows, row)
	}
	return rows
}

// touching is a table that stages one of its rows as it is.
type touching interface {
	theLayout() *layout
	touch(tx *Tx, where string) error
}

func (t *table[T]) touch(tx *Tx, where string) error {
	v, ok, err := t.one(tx.sess, where)
	if err != nil || !ok {
		return fmt.Errorf("no row %s: %w", where, err)
	}
	s := new(staged[string, T])
	openRows(s, &tx.base, t)
	absorbRow(s, "", v, true)
	putRow(s, "", v)
	return nil
}

// fillTables inserts two rows into every table but runs, whose texts are all a and all b. They are no
// sensible records, so that the checks of the tables go.
func fillTables(p *psql) (tables []string) {
	for _, row := range p.exec("SELECT conrelid::regclass, conname FROM pg_constraint WHERE contype='c' " +
		"AND connamespace=current_schema()::regnamespace") {
		p.exec("ALTER TABLE %s DROP CONSTRAINT %s", row[0], row[1])
	}
	for _, row := range p.exec("SELECT c.table_name, string_agg(column_name,',' ORDER BY ordinal_position), " +
		"string_agg(CASE data_type WHEN 'bigint' THEN '1' WHEN 'integer' THEN '1' " +
		"WHEN 'bytea' THEN '''\\x61''' ELSE '''?''' END,',' " +
		"ORDER BY ordinal_position) FROM information_schema.columns c WHERE table_schema=current_schema() GROUP BY 1") {
		if tables = append(tables, row[0]); row[0] == "runs" {
			continue
		}
		for _, value := range []string{"a", "b"} {
			p.exec("INSERT INTO %s (%s) VALUES (%s)", row[0], row[1], strings.ReplaceAll(row[2], "?", value))
		}
	}
	return tables
}

// condition selects the row of fillTables with a value.
func condition(table, value string) string {
	column := keyColumns(table)[0]
	if table == "runs" {
		column = "id"
	}
	return fmt.Sprintf("%s='%s'", column, value)
}

// Every table of the schema has a row that another session locks. An operation on that row is refused,
// and one on another row of the table is written in the same batch. A table that is added to the
// schema is covered here without a change.
func TestLockedRowOfEveryTableHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t)
	var writes atomic.Int64
	s := open(t, Options{URL: url, Hooks: Hooks{BeforeWrite: func() { writes.Add(1) },
		Age: func() time.Duration { return 0 }}})
	for _, err := range s.Batch(s.Now(), insert("a"), insert("b")) {
		if err != nil {
			t.Fatal(err)
		}
	}
	p := newPSQL(t, url)
	all := fillTables(p)
	slices.Sort(all)
	if want := tableNames(); !slices.Equal(all, want) {
		t.Fatalf("tables of the schema = %v, and the store knows the keys of %v", all, want)
	}
	p.exec("BEGIN")
	for _, table := range all {
		p.exec("SELECT 1 FROM %s WHERE %s FOR UPDATE", table, condition(table, "a"))
	}
	type change struct {
		name string
		op   func(value string) opFunc
	}
	changes := func(table string) (out []change) {
		key := keyColumns(table)
		given := func(value string) (args []any) {
			for _, row := range p.exec("SELECT %s FROM %s WHERE %s", strings.Join(key, ","), table,
				condition(table, value)) {
				for i, k := range key {
					if v := any(row[i]); slices.Contains([]string{"seq", "n", "at"}, k) {
						args = append(args, int64(1))
					} else {
						args = append(args, v)
					}
				}
			}
			return args
		}
		stage := func(format string) func(string) opFunc {
			return func(value string) opFunc {
				args := given(value)
				return func(tx *Tx) error {
					tx.Stage(fmt.Sprintf(format, table, key[0], strings.Join(key, "=? AND ")+"=?"), args...)
					return nil
				}
			}
		}
		out = append(out, change{"UPDATE", stage("UPDATE %[1]s SET %[2]s=%[2]s WHERE %[3]s")})
		if len(key) > ownerColumns { // a statement about all rows of an owner
			out = append(out, change{"UPDATE of an owner's", func(value string) opFunc {
				args := given(value)[:ownerColumns]
				return func(tx *Tx) error {
					tx.Stage(fmt.Sprintf("UPDATE %[1]s SET %[2]s=%[2]s WHERE %[2]s=? AND %[3]s=?",
						table, key[0], key[1]), args...)
					return nil
				}
			}})
		}
		var known touching // a second one of this name has the columns of an update alone
		for _, x := range tables {
			x := x.(touching)
			if l := x.theLayout(); l.name == table && (known == nil || len(l.cols) > len(known.theLayout().cols)) {
				known = x
			}
		}
		if known != nil {
			l := known.theLayout()
			if !l.once && (!l.quiet || l.lockColumn != "") { // others wait for no row that exists
				out = append(out, change{"rows", func(value string) opFunc {
					return func(tx *Tx) error { return known.touch(tx, "WHERE "+condition(table, value)) }
				}})
			}
		}
		if table == "runs" {
			out = append(out, change{"rows", func(value string) opFunc { return bump(value) }})
		}
		return append(out, change{"DELETE", stage("DELETE FROM %[1]s WHERE %[3]s")})
	}
	lane := s.lanes[LaneWork]
	waited := 0
	for _, table := range all {
		for _, c := range changes(table) {
			writes.Store(0)
			errs := lane.batchIn(s.Now(), []Op{c.op("a"), c.op("b")})
			if !Locked(errs[0]) || errs[1] != nil {
				t.Errorf("%s, %s of a locked row and of another one = %v, want the first refused as locked", table,
					c.name, errs)
			}
			if writes.Load() > 1 {
				waited++
			}
		}
	}
	// The first batch waits for a lock. The others look before they write.
	if waited != 1 {
		t.Errorf("%d batches ran into a lock, want 1", waited)
	}
	rows := s.LockedRows()
	if len(rows) != len(all) {
		t.Errorf("%d rows are known to be locked, want one of each of %d tables: %v", len(rows), len(all), rows)
	}
	eventually.True(t, "the session that holds the rows is known, and what it does now", func() bool {
		rows = s.LockedRows()
		return !slices.ContainsFunc(rows, func(r LockedRow) bool {
			return r.By.PID != int64(p.conn.PID()) || r.By.State == "active"
		})
	})
	by := rows[0].By.String()
	if !strings.Contains(by, "idle in transaction") || !strings.Contains(by, "query: SELECT ") {
		t.Errorf("the blocker = %q, want its state and its query", by)
	}
	p.exec("ROLLBACK")
	eventually.True(t, "nothing is locked any more", func() bool { return len(s.LockedRows()) == 0 })
	for _, table := range all {
		for _, c := range changes(table) {
			if err := lane.batchIn(s.Now(), []Op{c.op("a")})[0]; err != nil {
				t.Errorf("%s, %s after the lock is free: %v", table, c.name, err)
			}
		}
	}
}

// idempotent inserts an idempotency key.
func idempotent(key string) opFunc {
	return func(tx *Tx) error {
		tx.Idempotency.Put(IdempotencyRow{Tenant: tenant, Key: key})
		return nil
	}
}

// A key that another session has inserted and not committed can't be seen. The operation that inserts
// it too is found and refused, and the others of its batch are written.
func TestUncommittedKeyHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	url := pool.New(t)
	var writes atomic.Int64
	s := open(t, Options{URL: url, Hooks: Hooks{BeforeWrite: func() { writes.Add(1) },
		Age: func() time.Duration { return 0 }}})
	p := newPSQL(t, url)
	p.exec("BEGIN; INSERT INTO idempotency (tenant,key,digest,ref,expires_at) " +
		"VALUES ('acme','k7','','',0),('acme','late0','','',0),('acme','late1','','',0),('acme','late2','','',0)," +
		"('acme','late3','','',0),('acme','late4','','',0)")
	lane := s.lanes[LaneWork]
	batch := func(from int) (errs []error) {
		ops := []Op{idempotent("k7")}
		for i := range 20 {
			ops = append(ops, idempotent(fmt.Sprint("other", from+i)))
		}
		return lane.batchIn(s.Now(), ops)
	}
	for i := range 3 {
		writes.Store(0)
		errs := batch(100 * i)
		for j, err := range errs {
			if got := Locked(err); got != (j == 0) || j > 0 && err != nil {
				t.Errorf("batch %d, operation %d = %v, want only the first refused as locked", i, j, err)
			}
		}
		if n := writes.Load(); i > 0 && n != 1 {
			t.Errorf("batch %d was written in %d attempts, want 1: the key is known to be locked", i, n)
		}
	}
	// Who holds a key is seen while an operation waits for it. A busy machine may miss that, and not five times.
	held := func() bool {
		return slices.ContainsFunc(s.LockedRows(), func(r LockedRow) bool {
			return r.Table == "idempotency" && r.By.PID == int64(p.conn.PID())
		})
	}
	for i := 0; !held() && i < 5; i++ {
		if err := lane.batchIn(s.Now(), []Op{idempotent(fmt.Sprint("late", i))})[0]; !Locked(err) {
			t.Errorf("an insertion of a key that another session has inserted = %v, want it refused as locked", err)
		}
	}
	if !held() {
		t.Errorf("locked rows = %+v, want the key, and who holds it", s.LockedRows())
	}
	done := make(chan error)
	go func() { done <- s.Do(t.Context(), idempotent("k7")) }()
	p.exec("ROLLBACK")
	if err := <-done; err != nil {
		t.Errorf("an operation that waits for the key, after the other session has let go: %v", err)
	}
}

// A table that is locked as a whole is named, with the session that holds it. A call that needs it is refused,
// and the rest goes on.
func TestLockedTableIsNamed(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name, lock string
		reads      bool // reads go on
	}{
		{"LOCK TABLE", "LOCK TABLE threads IN ACCESS EXCLUSIVE MODE", false},
		{"an index is built", "CREATE INDEX built ON threads (id)", true},
		{"ALTER TABLE", "ALTER TABLE threads ADD COLUMN more BIGINT", false},
	} {
		t.Run(x.name, func(t *testing.T) {
			url := pool.New(t)
			s := open(t, Options{URL: url, Hooks: Hooks{Age: func() time.Duration { return 0 }}})
			p := newPSQL(t, url)
			p.exec("BEGIN; %s", x.lock)
			thread := opFunc(func(tx *Tx) error {
				tx.Threads.Put(perdure.Thread{Tenant: tenant, ID: "t1"})
				return nil
			})
			lane := s.lanes[LaneWork]
			errs := lane.batchIn(s.Now(), []Op{thread, insert("a")})
			if !Outage(errs[0]) || Locked(errs[0]) || errs[1] != nil {
				t.Errorf("an operation on the locked table and another one = %v, want the first refused", errs)
			}
			got := s.LockedTables()
			if len(got) != 1 || got[0].Table != "threads" || got[0].By.PID != int64(p.conn.PID()) || got[0].Waits {
				t.Fatalf("locked tables = %+v, want threads, held by %d", got, p.conn.PID())
			}
			if text := got[0].String(); !strings.Contains(text, "the table threads is locked as a whole") ||
				!strings.Contains(text, x.lock) {
				t.Errorf("description = %q", text)
			}
			err := s.View(t.Context(), func(v *View) error {
				_, _, err := v.Threads.Get(tenant, "t1")
				return err
			})
			if x.reads != (err == nil) || err != nil && perdure.CodeOf(err) != perdure.CodeUnavailable {
				t.Errorf("a read of the locked table: %v, want success: %v, or unavailable", err, x.reads)
			}
			p.exec("ROLLBACK")
			eventually.True(t, "no table is locked any more", func() bool { return len(s.LockedTables()) == 0 })
			if err := lane.batchIn(s.Now(), []Op{thread})[0]; err != nil {
				t.Errorf("after the lock is free: %v", err)
			}
		})
	}
}

// Everything waits behind a session that waits for a whole table. Both are named.
func TestWaitingLockOfTableIsNamed(t *testing.T) {
	t.Parallel()
	url := pool.New(t)
	s := open(t, Options{URL: url, Hooks: Hooks{Age: func() time.Duration { return 0 }}})
	reader, owner := newPSQL(t, url), newPSQL(t, url)
	reader.exec("BEGIN; SELECT 1 FROM threads")
	altered := make(chan struct{})
	go func() {
		defer close(altered)
		owner.conn.Exec(context.Background(), "ALTER TABLE threads ADD COLUMN more BIGINT").ReadAll()
	}()
	eventually.True(t, "the table waits to be altered", func() bool {
		return len(reader.exec("SELECT 1 FROM pg_locks WHERE relation='threads'::regclass AND NOT granted")) == 1
	})
	err := s.lanes[LaneWork].batchIn(s.Now(), []Op{opFunc(func(tx *Tx) error {
		tx.Threads.Put(perdure.Thread{Tenant: tenant, ID: "t1"})
		return nil
	})})[0]
	if !Outage(err) {
		t.Errorf("an operation behind the waiting lock = %v, want a refusal", err)
	}
	got := s.LockedTables()
	if len(got) != 1 || !got[0].Waits || got[0].By.PID != int64(owner.conn.PID()) || len(got[0].For) != 1 ||
		got[0].For[0].PID != int64(reader.conn.PID()) {
		t.Errorf("locked tables = %+v, want threads, for which %d waits behind %d", got, owner.conn.PID(),
			reader.conn.PID())
	}
	reader.exec("ROLLBACK")
	<-altered
}
