package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/sqlite"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/stage"
)

const tenant perdure.TenantID = "acme"

// opFunc is an operation made of a function.
type opFunc func(tx *Tx) error

func (opFunc) Needs() []Ref           { return nil }
func (f opFunc) Do(tx *Tx) error      { return f(tx) }
func ref(id string) (r perdure.RunID) { return perdure.RunID(id) }

func open(t *testing.T, opt Options) *Store {
	t.Helper()
	s, err := Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

var pool = pgtest.Pool{Prepare: func(url string) error {
	s, err := Open(Options{URL: url})
	if err != nil {
		return err
	}
	return s.Close()
}}

// both runs a test on SQLite and on PostgreSQL. at is a new database that several stores can open.
func both(t *testing.T, test func(t *testing.T, at Options)) {
	t.Helper()
	t.Run("SQLite", func(t *testing.T) {
		m, err := NewMemory()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		test(t, Options{Memory: m})
	})
	t.Run("PostgreSQL", func(t *testing.T) { test(t, Options{URL: pool.New(t)}) })
}

// execDirect changes the database without the store's knowledge.
func execDirect(t *testing.T, s *Store, query string) {
	t.Helper()
	if _, err := s.lanes[0].write.Exec(query, nil); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func newRun(id string, now perdure.Instant) perdure.Run {
	return perdure.Run{Tenant: tenant, ID: ref(id), RootID: ref(id), Kind: "job", Class: perdure.Task,
		Queue: "default", State: perdure.Queued, Version: 1,
		Attempt: 1, MaxAttempts: 3, CreatedAt: now, DeadlineAt: now.Add(time.Hour), Ready: true, ReadyAt: now,
		AlarmAt: now.Add(time.Minute), Seq: 1}
}

func insert(id string) opFunc {
	return func(tx *Tx) error {
		tx.Runs.Put(newRun(id, tx.Now), []perdure.Line{{Seq: 1, Type: perdure.LineCreated, At: tx.Now, Attempt: 1,
			Data: "{}"}})
		return nil
	}
}

func count(t *testing.T, s *Store, query string, args ...any) (n int) {
	t.Helper()
	err := s.View(context.Background(), func(v *View) error {
		return v.Rows(query, args, func(scan func(...any) error) error { return scan(&n) })
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestSecondServerOnSameFileIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.db")
	s := open(t, Options{Path: path})
	if _, err := Open(Options{Path: path}); err == nil ||
		!strings.Contains(err.Error(), "another server has this store open") {
		t.Fatalf("second Open = %v, want that another server has the store open", err)
	}
	s.Close()
	open(t, Options{Path: path})
}

func TestUnsafeSQLiteSettingsAreRefused(t *testing.T) {
	for _, level := range []string{"NORMAL", "OFF", "1", "full"} {
		_, err := Open(Options{Path: filepath.Join(t.TempDir(), "p.db"), Synchronous: level})
		if err == nil || !strings.Contains(err.Error(), "refusing to start") {
			t.Errorf("Open with synchronous=%s = %v, want refused", level, err)
		}
	}
	s := open(t, Options{Path: filepath.Join(t.TempDir(), "p.db"), Synchronous: "EXTRA"})
	for name, want := range map[string]string{"journal_mode": "wal", "synchronous": "3"} {
		var got string
		if err := s.lanes[0].write.Query("PRAGMA "+name, nil,
			func(scan func(...any) error) error { return scan(&got) }); err != nil || got != want {
			t.Errorf("%s = %s (%v), want %s", name, got, err, want)
		}
	}
}

func TestFileThatIsNoDatabaseIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("this is not a database. ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Path: path}); err == nil {
		t.Fatal("Open accepts a file that is no database")
	}
}

func TestClockFarBehindStoreIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.db")
	s := open(t, Options{Path: path})
	ahead := s.Now().Add(2 * time.Hour)
	if err := s.Batch(ahead, insert("a"))[0]; err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := Open(Options{Path: path}); err == nil ||
		!strings.Contains(err.Error(), "ahead of this machine's clock") {
		t.Fatalf("Open with a clock two hours behind = %v, want refused", err)
	}
}

func TestStoreClockAheadIsLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.db")
	var log logBuffer
	s := open(t, Options{Path: path, Logger: log.logger()})
	if ahead := s.Ahead(); ahead > ClockSlack || log.count("clock is ahead") != 0 {
		t.Errorf("a new store is ahead by %s: %s", ahead, log.text.String())
	}
	if err := s.Batch(s.Now().Add(40*time.Minute), insert("a"))[0]; err != nil {
		t.Fatal(err)
	}
	s.Close()
	if s = open(t, Options{Path: path, Logger: log.logger()}); s.Ahead() < 39*time.Minute ||
		log.count("clock is ahead") != 1 {
		t.Errorf("store is ahead by %s, want about 40m and one log line: %s", s.Ahead(), log.text.String())
	}
}

func TestClockNeverGoesBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.db")
	s := open(t, Options{Path: path})
	ahead := s.Now().Add(10 * time.Minute)
	if err := s.Batch(ahead, insert("a"))[0]; err != nil {
		t.Fatal(err)
	}
	var seen perdure.Instant
	s.Batch(ahead.Add(-time.Hour), opFunc(func(tx *Tx) error { seen = tx.Now; return nil }))
	if seen < ahead {
		t.Errorf("a batch at %s after one at %s", seen, ahead)
	}
	s.Close()
	s = open(t, Options{Path: path})
	if now := s.Now(); now < ahead {
		t.Errorf("the clock starts at %s, before the last stored instant %s", now, ahead)
	}
	if a, b := s.Now(), s.Now(); b < a {
		t.Errorf("the clock went back from %s to %s", a, b)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		open(t, at).Close() // a second migration has nothing to do
		execDirect(t, s, "UPDATE meta SET value='99' WHERE name IN ('schema','schema_oldest')")
		if _, err := Open(at); err == nil || !strings.Contains(err.Error(), "use a newer program") {
			t.Fatalf("Open of schema 99 = %v, want refused", err)
		}
	})
}

// A store that a newer release has only added to is accepted, unless it says that this program is too
// old. Tools that need the exact schema refuse it, and so does a backup, which would leave out what
// was added.
func TestNewerSchemaThatOnlyAddsIsAccepted(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		execDirect(t, s, "UPDATE meta SET value='99' WHERE name='schema'")
		newer := open(t, at)
		if err := newer.Batch(newer.Now(), insert("a"))[0]; err != nil {
			t.Errorf("a write to schema 99 = %v, want none", err)
		}
		if _, err := newer.Backup(t.Context(), filepath.Join(t.TempDir(), "backup"), nil); err == nil ||
			!strings.Contains(err.Error(), "the store has schema 99") {
			t.Errorf("Backup of schema 99 = %v, want refused", err)
		}
		exact := at
		exact.AsIs = true
		if _, err := Open(exact); err == nil || !strings.Contains(err.Error(), "this program checks schema") {
			t.Errorf("Open of schema 99 as it is = %v, want refused", err)
		}
		for oldest, want := range map[string]string{"98": "use a newer program", "none": "damaged", "100": "damaged"} {
			execDirect(t, s, "UPDATE meta SET value='"+oldest+"' WHERE name='schema_oldest'")
			if _, err := Open(at); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Open of schema 99 that needs %s = %v, want %q", oldest, err, want)
			}
		}
	})
}

func TestDatabaseRefusesLiveRunWithoutAlarm(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		for _, damage := range []func(*perdure.Run){
			func(r *perdure.Run) { r.AlarmAt = 0 },
			func(r *perdure.Run) { r.State = "sleeping" },
			func(r *perdure.Run) { r.State = perdure.Completed },
		} {
			err := s.Batch(s.Now(), opFunc(func(tx *Tx) error {
				r := newRun("a", tx.Now)
				damage(&r)
				tx.Runs.Put(r, nil)
				return nil
			}))[0]
			if perdure.CodeOf(err) != perdure.CodeUnavailable {
				t.Errorf("insert of an impossible run = %v, want unavailable", err)
			}
		}
		if n := count(t, s, "SELECT count(*) FROM runs"); n != 0 {
			t.Errorf("%d runs are stored, want 0", n)
		}
	})
}

func TestBadOperationDoesNotFailItsBatch(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		bad := opFunc(func(tx *Tx) error {
			r := newRun("bad", tx.Now)
			r.AlarmAt = 0 // the database refuses it when the batch is written
			tx.Runs.Put(r, nil)
			return nil
		})
		panics := opFunc(func(tx *Tx) error {
			insert("half").Do(tx)
			panic("a defect")
		})
		errs := s.Batch(s.Now(), insert("a"), bad, panics, insert("b"))
		if errs[0] != nil || errs[3] != nil || perdure.CodeOf(errs[1]) != perdure.CodeUnavailable ||
			perdure.CodeOf(errs[2]) != perdure.CodeInternal {
			t.Fatalf("batch = %v, want nil, unavailable, internal, nil", errs)
		}
		if n := count(t, s, "SELECT count(*) FROM runs WHERE id IN ('a','b')"); n != 2 {
			t.Errorf("%d of the runs a and b are stored, want 2", n)
		}
		if n := count(t, s, "SELECT count(*) FROM runs"); n != 2 {
			t.Errorf("%d runs are stored, want 2", n)
		}
	})
}

func TestConflictingWriteIsDecidedAgain(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		other := open(t, at)
		raced := 0
		var s *Store
		at.Hooks.BeforeWrite = func() {
			if raced++; raced <= 3 {
				other.Batch(perdure.Instant(s.last.Load()), bump("a"))
			}
		}
		s = open(t, at)
		raced = 100
		if err := s.Batch(s.Now(), insert("a"))[0]; err != nil {
			t.Fatal(err)
		}
		raced = 0
		decided := 0
		err := s.Batch(s.Now(), opFunc(func(tx *Tx) error {
			decided++
			return bump("a").Do(tx)
		}))[0]
		if err != nil || decided != 4 {
			t.Fatalf("batch = %v, decided %d times, want nil after 4", err, decided)
		}
		// Three writes by the other node, one by this: none was overwritten.
		if n := count(t, s, "SELECT version FROM runs"); n != 5 {
			t.Errorf("run a: version = %d, want 5", n)
		}
	})
}

// bump increments a run's version.
func bump(id string) opFunc {
	return func(tx *Tx) error {
		r, ok, err := tx.Runs.Get(tenant, ref(id))
		if err != nil || !ok {
			return errors.Join(err, perdure.Errorf(perdure.CodeNotFound, "no run"))
		}
		r.Version++
		tx.Runs.Put(r, nil)
		return nil
	}
}

func TestConcurrentOperationsShareCommits(t *testing.T) {
	groups := func(t *testing.T, at Options) {
		s := open(t, at)
		const n = 400
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if err := s.Do(context.Background(), insert(fmt.Sprint("r", i))); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got := count(t, s, "SELECT count(*) FROM runs"); got != n {
			t.Errorf("%d runs are stored, want %d", got, n)
		}
		if commits := s.commits.Load(); commits >= n {
			t.Errorf("%d commits for %d operations: nothing was grouped", commits, n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Do(context.Background(), insert("late")); perdure.CodeOf(err) != perdure.CodeUnavailable &&
			perdure.CodeOf(err) != perdure.CodeUnknown {
			t.Errorf("Do after Close = %v, want unavailable or unknown", err)
		}
	}
	t.Run("SQLite", func(t *testing.T) { groups(t, Options{Path: filepath.Join(t.TempDir(), "p.db")}) })
	t.Run("PostgreSQL", func(t *testing.T) { groups(t, Options{URL: pool.New(t)}) })
}

// faulty is a session in which one call fails.
type faulty struct {
	Conn
	commit    error
	after     bool
	failed    int
	failExec  int // the nth call from now fails
	afterExec bool
}

var errDisk = errors.New("disk I/O error")

func (f *faulty) Commit() error {
	if f.commit == nil {
		return f.Conn.Commit()
	}
	f.failed++
	if f.after {
		if err := f.Conn.Commit(); err != nil {
			return err
		}
	}
	return f.commit
}

func (f *faulty) Exec(q string, args []any) (int64, error) {
	if f.failExec > 0 {
		if f.failExec--; f.failExec == 0 {
			if f.afterExec {
				f.Conn.Exec(q, args)
			}
			return 0, errDisk
		}
	}
	return f.Conn.Exec(q, args)
}

func TestFailedSQLiteCommitIsNotAcknowledged(t *testing.T) {
	for _, after := range []bool{false, true} {
		m, err := NewMemory()
		if err != nil {
			t.Fatal(err)
		}
		var f *faulty
		s := open(t, Options{Memory: m, Hooks: Hooks{Wrap: func(x Conn) Conn {
			f = &faulty{Conn: x,
				after: after}
			return f
		}}})
		f.commit = errDisk
		errs := s.Batch(s.Now(), insert("a"), insert("b"))
		if perdure.CodeOf(errs[0]) != perdure.CodeUnknown || perdure.CodeOf(errs[1]) != perdure.CodeUnknown ||
			f.failed != 1 {
			t.Errorf("batch = %v after %d failed commits, want unknown after 1", errs, f.failed)
		}
		f.commit = nil
		if err := s.Batch(s.Now(), insert("c"))[0]; perdure.CodeOf(err) != perdure.CodeUnavailable || s.Err() == nil {
			t.Errorf("batch after a failed commit = %v, want unavailable: the file is in doubt", err)
		}
		s.Close()
		s = open(t, Options{Memory: m})
		want := 0
		if after {
			want = 2
		}
		if n := count(t, s, "SELECT count(*) FROM runs"); n != want {
			t.Errorf("after a restart there are %d runs, want %d", n, want)
		}
		m.Close()
	}
}

func TestFailedStatementRollsBack(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		for _, after := range []bool{false, true} {
			for n := 1; n < 20; n++ {
				var all []*faulty // Batch uses the first lane, whose session is opened first
				at.Hooks.Wrap = func(x Conn) Conn {
					f := &faulty{Conn: x, afterExec: after}
					all = append(all, f)
					return f
				}
				s := open(t, at)
				f, id := all[0], fmt.Sprint("r", after, n)
				f.failExec = n
				err := s.Batch(s.Now(), insert(id))[0]
				if f.failExec > 0 {
					if err != nil {
						t.Fatal(err)
					}
					break // there are no more statements to fail
				}
				if perdure.CodeOf(err) != perdure.CodeUnavailable {
					t.Fatalf("batch with a failing statement %d = %v, want unavailable", n, err)
				}
				if got := count(t, s, "SELECT count(*) FROM runs WHERE id=?", id); got != 0 {
					t.Errorf("statement %d failed and left %d runs", n, got)
				}
				if err := s.Batch(s.Now(), insert(id))[0]; err != nil {
					t.Errorf("batch after the failed one: %v", err)
				}
				s.Close()
			}
		}
	})
}

const secret = "hunter2-canary-7c1f"

// writeSecrets writes the secret into every kind of record, into a store with Redact.
func writeSecrets(t *testing.T, at Options) {
	t.Helper()
	at.Redact = func(text string) string { return strings.ReplaceAll(text, secret, "[redacted]") }
	s := open(t, at)
	big := strings.Repeat("x", InlineMax) + secret
	err := s.Batch(s.Now(), opFunc(func(tx *Tx) error {
		r := newRun("a", tx.Now)
		r.Input = tx.Values.Intern(tenant, "a", []byte(`"`+secret+`"`))
		r.Result = tx.Values.Intern(tenant, "a", []byte(`"`+big+`"`))
		r.Activity = "reading " + secret
		r.Failure = &perdure.Failure{Code: "x", Message: secret}
		tx.Runs.Put(r, []perdure.Line{{Seq: 1, Type: "run:created", Data: perdure.Object("k", secret)}})
		tx.Inbox.Put(perdure.Item{Tenant: tenant, RunID: "a", Seq: 1, Status: perdure.ItemDone,
			Data: perdure.Value(`"` + secret + `"`)})
		tx.Journal.Put(JournalRow{Tenant: tenant, RunID: "a", Seq: 1, Key: "k",
			Value: perdure.Value(`"` + secret + `"`)})
		tx.Threads.AddMessage(perdure.ThreadMessage{Tenant: tenant, ThreadID: "t", Seq: 1,
			Content: perdure.Value(`"` + secret + `"`)})
		if err := tx.Commits.Put(tenant, "a", perdure.Taken{ID: "c", Answer: secret}); err != nil {
			return err
		}
		return tx.Commits.Put(tenant, "a", perdure.Taken{ID: "d", Answer: secret})
	}))[0]
	if err != nil {
		t.Fatal(err)
	}
	err = s.View(context.Background(), func(v *View) error {
		r, _, err := v.Runs.Get(tenant, "a")
		if err != nil {
			return err
		}
		full, err := v.Values.Resolve(tenant, r.Result)
		if !strings.HasSuffix(string(full), `[redacted]"`) || r.Activity != "reading [redacted]" {
			t.Errorf("run a: result = %.40s…, activity = %s, want both redacted", full, r.Activity)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSecretsAreRedactedInFiles(t *testing.T) {
	dir := t.TempDir()
	writeSecrets(t, Options{Path: filepath.Join(dir, "p.db")})
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), secret) {
			t.Errorf("the secret is in %s", filepath.Base(f))
		}
	}
	if len(files) < 2 {
		t.Errorf("files of the store = %v, want at least 2", files)
	}
}

func TestSecretsAreRedactedBeforePostgreSQL(t *testing.T) {
	at := Options{URL: pool.New(t)}
	p := newWire(t, at.URL)
	at.URL = p.url
	writeSecrets(t, at)
	if sent := p.sent(); strings.Contains(sent, secret) || !strings.Contains(sent, "reading [redacted]") {
		t.Errorf("%d bytes were sent: they contain the secret, or not the redacted text", len(sent))
	}
}

func TestDamagedValueIsAnError(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		var v perdure.Value
		s.Batch(s.Now(), opFunc(func(tx *Tx) error {
			v = tx.Values.Intern(tenant, "a", []byte(`"`+strings.Repeat("x", InlineMax)+`"`))
			tx.Runs.Put(newRun("a", tx.Now), nil)
			return nil
		}))
		execDirect(t, s, "UPDATE blobs SET content=replace(content,'xx','xy')")
		err := s.View(context.Background(), func(view *View) error {
			_, err := view.Values.Resolve(tenant, v)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("Resolve of a damaged value = %v, want an error", err)
		}
	})
}

func TestEveryInvariantCanBeBroken(t *testing.T) {
	stage.NoRace(t)
	// A check that never finds anything proves nothing. Each query runs here, and those that a
	// single row can violate are violated.
	for id, damage := range map[string]string{
		"S4":  "UPDATE events SET type='run:suspended' WHERE seq=1",
		"S5":  "UPDATE events SET type='run:completed' WHERE seq=1",
		"S14": "UPDATE events SET seq=7",
		"P1":  "UPDATE ru" + "ns SET lease_until=1",
		"P3":  "UPDATE ru" + "ns SET state='suspended', ready=0",
		"P5":  "UPDATE ru" + "ns SET waits_open=1",
		"P12": "UPDATE ru" + "ns SET heard=1",
		"S12": "UPDATE ru" + "ns SET alarm_at=deadline_at+4000000000",
		"S19": "UPDATE ru" + "ns SET strikes=3",
		"P14": "INSERT INTO blob_refs VALUES ('acme','a','nowhere')",
		"P9":  "INSERT INTO threads (tenant,id,metadata,created_at,version,active,seq) VALUES ('acme','t','',1,1,'',5)",
		"P7": "INSERT INTO threads (tenant,id,metadata,created_at,version,active,seq) " +
			"VALUES ('acme','t','',1,1,'nobody',0)",
		"S18": "INSERT INTO dead_letters VALUES ('acme','a','k','q','c','',1,1,'')",
		"P10": "INSERT INTO gatherings VALUES ('acme','g','group','all','','open',1,1,NULL,0,1,0,0,'','a',0)",
	} {
		t.Run(id, func(t *testing.T) {
			both(t, func(t *testing.T, at Options) {
				s := open(t, at)
				if err := s.Batch(s.Now(), insert("a"))[0]; err != nil {
					t.Fatal(err)
				}
				check := func() (ids []string) {
					err := s.Audit(context.Background(), func(v *View) error {
						found, err := v.Check(nil)
						for _, x := range found {
							ids = append(ids, x.ID)
						}
						return err
					})
					if err != nil {
						t.Fatal(err)
					}
					return ids
				}
				if found := check(); len(found) > 0 {
					t.Fatalf("violations before the change = %v, want none", found)
				}
				execDirect(t, s, damage)
				if found := check(); !slices.Contains(found, id) {
					t.Errorf("violations = %v, want %s among them", found, id)
				}
			})
		})
	}
}

// A write waits for a lock that is held for a moment. TestForeignLockIsLoggedOnceAndFailsFast is
// about longer ones.
func TestWriteWaitsForForeignLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.db")
	decided := make(chan bool, 100)
	s := open(t, Options{Path: path, Hooks: Hooks{BeforeWrite: func() { decided <- true }, LockPatience: time.Minute}})
	other, err := sqlite.OpenPlain(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Begin(); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { written <- s.Batch(s.Now(), insert("a"))[0] }()
	<-decided
	if err := other.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil || s.Err() != nil {
		t.Errorf("batch after the lock is free = %v, Err = %v, want nil", err, s.Err())
	}
}
