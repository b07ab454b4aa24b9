package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perdure/perdure"

	"github.com/perdure/perdure/internal/server/fair"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// After a commit without an answer, the session asks for the outcome by the number of the
// transaction. A committed transaction is not written again, and one that was not committed is.
func TestCommitWithLostAnswerIsResolved(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name    string
		cut     cutting
		decided []int // how often the operation may be decided
	}{
		{"it never arrived", cutBefore, []int{2}},
		{"it was committed", cutAnswered, []int{1}},
		{"nobody knows", cutAfter, []int{1, 2}},
	} {
		t.Run(x.name, func(t *testing.T) {
			at := Options{URL: pool.New(t)}
			w := newWire(t, at.URL)
			at.URL = w.url
			// On a busy machine a decision may become too old and be repeated.
			at.Hooks.Age = func() time.Duration { return 0 }
			s := open(t, at)
			if err := s.Batch(s.Now(), insert("a"))[0]; err != nil {
				t.Fatal(err)
			}
			for range 5 {
				hit := false
				w.set(func(toServer bool, b []byte) cutting {
					if hit || !toServer || !bytes.Contains(b, []byte("COMMIT\x00")) {
						return forward
					}
					hit = true
					return x.cut
				})
				decided, before := 0, count(t, s, "SELECT version FROM runs")
				err := s.Batch(s.Now(), opFunc(func(tx *Tx) error {
					decided++
					return bump("a").Do(tx)
				}))[0]
				w.set(nil)
				if err != nil || !hit || decided < x.decided[0] || decided > x.decided[len(x.decided)-1] {
					t.Fatalf("batch = %v, decided %d times, want nil after one of %v; cut: %t", err, decided,
						x.decided, hit)
				}
				if after := count(t, s, "SELECT version FROM runs"); after != before+1 {
					t.Fatalf("run a: version after one write = %d, want %d", after, before+1)
				}
			}
		})
	}
}

// Wherever a connection is cut, reads and writes succeed, and nothing is written twice.
func TestConnectionCutAnywhereIsReplaced(t *testing.T) {
	at := Options{URL: pool.New(t)}
	w := newWire(t, at.URL)
	at.URL = w.url
	s := open(t, at)
	if err := s.Batch(s.Now(), insert("a"))[0]; err != nil {
		t.Fatal(err)
	}
	// The nth piece of data, in either direction, is the last of its connection.
	for n, hit := 1, true; hit; n++ {
		for _, how := range []cutting{cutBefore, cutAfter} {
			seen := 0
			w.set(func(bool, []byte) cutting {
				if seen++; seen == n {
					return how
				}
				return forward
			})
			before := 0
			version := opFunc(func(tx *Tx) error {
				r, _, err := tx.Runs.Get(tenant, "a")
				before = int(r.Version)
				return err
			})
			if err := s.Batch(s.Now(), version)[0]; err != nil {
				t.Fatalf("reading, cut at piece %d: %v", n, err)
			}
			if err := s.Batch(s.Now(), bump("a"))[0]; err != nil {
				t.Fatalf("writing, cut at piece %d: %v", n, err)
			}
			w.set(nil)
			if after := count(t, s, "SELECT version FROM runs"); after != before+1 {
				t.Fatalf("cut at piece %d: version of run a after one write = %d, want %d", n, after, before+1)
			}
			hit = seen >= n
		}
		if n > 200 {
			t.Fatal("more than 200 pieces were sent for one read and one write")
		}
	}
}

func TestFailedPostgreSQLCommitIsNotAcknowledged(t *testing.T) {
	for _, after := range []bool{false, true} {
		at := Options{URL: pool.New(t)}
		var all []*faulty
		at.Hooks.Wrap = func(x Conn) Conn {
			f := &faulty{Conn: x, after: after}
			all = append(all, f)
			return f
		}
		s := open(t, at)
		all[0].commit = errDisk
		errs := s.Batch(s.Now(), insert("a"), insert("b"))
		if perdure.CodeOf(errs[0]) != perdure.CodeUnknown || perdure.CodeOf(errs[1]) != perdure.CodeUnknown ||
			all[0].failed != 1 {
			t.Errorf("batch = %v after %d failed commits, want unknown after 1", errs, all[0].failed)
		}
		// The server owns the file: only the batch is in doubt.
		all[0].commit = nil
		if err := s.Batch(s.Now(), insert("c"))[0]; err != nil || s.Err() != nil {
			t.Errorf("next batch = %v, Err = %v, want nil: the server owns the file", err, s.Err())
		}
		want := 1
		if after {
			want = 3
		}
		if n := count(t, s, "SELECT count(*) FROM runs"); n != want {
			t.Errorf("there are %d runs, want %d", n, want)
		}
	}
}

// as gives the address of another role or database.
func as(t *testing.T, address string, change func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	change(u)
	return u.String()
}

func TestUnsafePostgreSQLSettingsAreRefused(t *testing.T) {
	t.Parallel()
	c, err := pgtest.Start(pgtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	address := c.URL("postgres")
	ctx, cancel := context.WithTimeout(context.Background(), eventually.Left(t))
	defer cancel()
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	say := func(query string) {
		t.Helper()
		if _, err := conn.Exec(ctx, query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	set := func(name, value string) {
		t.Helper()
		say("ALTER SYSTEM SET " + name + "=" + value)
		say("SELECT pg_reload_conf()")
		for now := ""; now != value; {
			if err := conn.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&now); err != nil {
				t.Fatal(err)
			}
		}
	}
	refused := func(address, want string) {
		t.Helper()
		s, err := Open(Options{URL: address})
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), conn.Config().Password) {
			t.Errorf("opened, or refused for another reason than %q: %v", want, err)
		}
	}
	for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		set(name, "off")
		refused(address, "refusing to start: "+name+" is off")
		set(name, "on")
	}
	say("CREATE ROLE hasty SUPERUSER LOGIN PASSWORD '" + conn.Config().Password + "'")
	say("ALTER ROLE hasty SET synchronous_commit=off")
	refused(as(t, address, func(u *url.URL) { u.User = url.UserPassword("hasty", conn.Config().Password) }),
		"refusing to start: synchronous_commit is off")

	latin := "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
	if _, err := conn.Exec(ctx, latin+" LOCALE_PROVIDER libc"); err != nil { // unknown to versions before 15
		say(latin)
	}
	refused(c.URL("latin"), "encoding is LATIN1")

	say("CREATE DATABASE still")
	say("ALTER DATABASE still SET default_transaction_read_only=on")
	refused(c.URL("still"), "takes no writes")

	// With the default settings the server is accepted.
	s := open(t, Options{URL: address})
	if err := s.Batch(s.Now(), insert("a"))[0]; err != nil {
		t.Errorf("batch with default settings: %v", err)
	}
	// A later change of the server's default affects neither an open store nor its next
	// connections.
	set("synchronous_commit", "off")
	say("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'perdure/%'")
	level := opFunc(func(tx *Tx) error {
		level := ""
		err := tx.sess.Query("SELECT current_setting('synchronous_commit')", nil,
			func(scan func(...any) error) error { return scan(&level) })
		if level != "on" {
			return errors.Join(err, fmt.Errorf("synchronous_commit is %q", level))
		}
		return err
	})
	if err := s.Batch(s.Now(), level)[0]; err != nil {
		t.Errorf("after the server's default was turned off: %v", err)
	}
}

func TestViewIsConsistentAfterLostConnection(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t)
	s := open(t, Options{URL: url})
	moments := func(suffix string) {
		t.Helper()
		var seen [2]string
		err := s.View(context.Background(), func(v *View) error {
			for i := range seen {
				// Another text each time, so that it has to be prepared, which finds the connection
				// lost.
				q := fmt.Sprintf("SELECT now()::text||'%s'||''", strings.Repeat("'||'", i)+suffix)
				if err := v.Rows(q, nil, func(scan func(...any) error) error { return scan(&seen[i]) }); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil || seen[0] != seen[1] {
			t.Errorf("now() of two queries of one view = %v (%v), want equal", seen, err)
		}
	}
	onEachSession(t, s.View, readers, func(i int) { moments(fmt.Sprint("a", i)) })
	end(t, url)
	onEachSession(t, s.View, readers, func(i int) { moments(fmt.Sprint("b", i)) })
}

// A connection costs its start, and every statement that is prepared on it.
func TestReadsOneAfterAnotherUseOneConnection(t *testing.T) {
	t.Parallel()
	s := open(t, Options{URL: pool.New(t)})
	backends := make(map[int]bool)
	for range 2 * readers {
		err := s.View(t.Context(), func(v *View) error {
			return v.Rows("SELECT pg_backend_pid()", nil, func(scan func(...any) error) error {
				pid := 0
				err := scan(&pid)
				backends[pid] = true
				return err
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(backends) != 1 {
		t.Errorf("%d reads one after another used %d connections, want 1", 2*readers, len(backends))
	}
}

// end closes all connections to a database.
func end(t *testing.T, url string) {
	t.Helper()
	c, err := pgconn.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	_, err = c.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "+
		"WHERE datname=current_database() AND pid<>pg_backend_pid()").ReadAll()
	if err != nil {
		t.Fatal(err)
	}
}

// The server keeps plans. A plan for a small table would read all of a large one, so that sessions
// discard plans.
func TestPlansAreRenewedAsTablesGrow(t *testing.T) {
	t.Parallel()
	s := open(t, Options{URL: pgtest.New(t)})
	made := 0
	more := func(n int) {
		t.Helper()
		for range n / 500 {
			ops := make([]Op, 500)
			for i := range ops {
				made++
				id := fmt.Sprintf("%06d", made)
				ops[i] = opFunc(func(tx *Tx) error {
					r := newRun(id, tx.Now)
					r.ParentID, r.JournalKey = "boss", id
					tx.Runs.Put(r, nil)
					return nil
				})
			}
			for _, err := range s.Batch(s.Now(), ops...) {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	lookUp := func() {
		t.Helper()
		err := s.Batch(s.Now(), opFunc(func(tx *Tx) error {
			_, err := tx.Runs.Children(tenant, "boss", []string{"a", "b"})
			return err
		}))[0]
		if err != nil {
			t.Fatal(err)
		}
	}
	more(500)
	lookUp()
	more(15000)
	lookUp()
	sess := s.lanes[LaneWork].write
	plan, name := "", prepared(t, sess, "parent_id<>''")
	err := sess.Query("EXPLAIN EXECUTE "+name+"(array['acme'],array['boss'],array['a'])", nil,
		func(scan func(...any) error) error {
			line := ""
			err := scan(&line)
			plan += line + "\n"
			return err
		})
	if err != nil || !strings.Contains(plan, "runs_parent") {
		t.Errorf("the plan for the grown table does not use runs_parent (%v):\n%s", err, plan)
	}
}

// prepared gives the name of a session's prepared statement by a part of its text.
func prepared(t *testing.T, sess Conn, part string) (name string) {
	t.Helper()
	err := sess.Query("SELECT name FROM pg_prepared_statements WHERE position(?::text IN statement)>0", []any{part},
		func(scan func(...any) error) error { return scan(&name) })
	if err != nil || name == "" {
		t.Fatalf("the session has no prepared statement with %q: %v", part, err)
	}
	return name
}

// An operation on a locked row is refused. The others of its batch are written, and a poll skips
// the row.
func TestLockedRowRefusesOnlyItsOperation(t *testing.T) {
	url := pool.New(t)
	s := open(t, Options{URL: url})
	for _, err := range s.Batch(s.Now(), insert("a"), insert("b"), insert("c")) {
		if err != nil {
			t.Fatal(err)
		}
	}
	psql, err := pgconn.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer psql.Close(context.Background())
	if err := psql.Exec(t.Context(), "BEGIN; SELECT 1 FROM runs WHERE id='a' FOR UPDATE").Close(); err != nil {
		t.Fatal(err)
	}
	l := s.lanes[LaneSweep] // the lane with the shortest lock timeout
	errs := l.batchIn(s.Now(), []Op{bump("a"), bump("b"), bump("c")})
	if !Locked(errs[0]) || perdure.CodeOf(errs[0]) != perdure.CodeUnavailable || errs[1] != nil || errs[2] != nil {
		t.Errorf("batch with run a locked = %v, want only the first refused as locked", errs)
	}
	claim := func() (ids []perdure.RunID) {
		t.Helper()
		err := l.batchIn(s.Now(), []Op{opFunc(func(tx *Tx) error {
			ids = nil
			q := tx.Claims.Queue(Ready{tenant, "default", "job"}, nil)
			for {
				r, ok, known := q.Peek()
				switch {
				case !known:
					if err := q.Read(2); err != nil {
						return err
					}
				case !ok:
					return nil
				default:
					q.Take(&r)
					ids = append(ids, r.ID)
				}
			}
		})})[0]
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	if got := claim(); len(got) != 2 || got[0] != "b" || got[1] != "c" {
		t.Errorf("claimable with run a locked = %v, want [b c]", got)
	}
	if err := psql.Exec(t.Context(), "ROLLBACK").Close(); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "run a is not locked any more", func() bool { return len(s.LockedRows()) == 0 })
	if err := l.batchIn(s.Now(), []Op{bump("a")})[0]; err != nil {
		t.Errorf("write to run a after the lock is free: %v", err)
	}
	if got := claim(); len(got) != 3 {
		t.Errorf("claimable after the lock is free = %v, want 3 runs", got)
	}
}

type slowOp struct{ heavy }

func (slowOp) Slow() bool { return true }

// On PostgreSQL a slow operation of one tenant does not delay the light ones of another.
func TestLightOperationsDoNotWaitForSlowOnes(t *testing.T) {
	s := open(t, Options{URL: pgtest.New(t)})
	begun, end := make(chan struct{}), make(chan struct{})
	done := make(chan error)
	go func() {
		done <- s.Do(fair.With(t.Context(), "a"), slowOp{heavy{rows: heavyRows + 1, opFunc: func(*Tx) error {
			close(begun)
			<-end
			return nil
		}}})
	}()
	<-begun
	ctx, cancel := context.WithTimeout(fair.With(t.Context(), "b"), eventually.Within)
	defer cancel()
	if err := s.Do(ctx, opFunc(func(*Tx) error { return nil })); err != nil {
		t.Errorf("the light operation: %v, want it done during the slow one", err)
	}
	close(end)
	if err := <-done; err != nil {
		t.Errorf("the slow operation: %v", err)
	}
}
