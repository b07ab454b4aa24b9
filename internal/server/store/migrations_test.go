package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/server/store/pg"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// A committed migration is never edited: another store has applied it as it was.
func TestMigrationsAreNotEdited(t *testing.T) {
	sums, err := os.ReadFile("schema/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	files, err := migrations()
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for _, m := range files {
		fmt.Fprintf(&want, "%s  %s.sql\n", m.sum(), m.name)
	}
	if string(sums) != want.String() {
		t.Errorf("schema/SHA256SUMS =\n%s\nand the files are\n%s\nA file that is committed stays as it is; a new one "+
			"adds its line", sums, want.String())
	}
}

func TestMarksOfMigrations(t *testing.T) {
	for text, want := range map[string]string{
		"-- expand 0.2.0: why\nALTER":                       "expand 0.2.0 0",
		"-- contract 0.3.0, needs schema 31: why\nDROP":     "contract 0.3.0 31",
		"-- contract 0.3.0: why":                            "does not begin with",
		"-- expand 0.3.0, needs schema 31: why":             "does not begin with",
		"-- contract 0.3.0, needs schema 40: why":           "not older than itself",
		"CREATE TABLE a (b TEXT);\n-- expand 0.2.0: behind": "does not begin with",
	} {
		m, err := parseMigration(40, "0040_x", text)
		got := fmt.Sprint(m.kind, " ", m.release, " ", m.oldest)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("mark %q: %s, want %s", text, got, want)
		}
	}
}

// An expand leaves the oldest program as it is, and a contract raises it to what it says.
func TestContractRaisesTheOldestSchema(t *testing.T) {
	files, err := migrations()
	if err != nil {
		t.Fatal(err)
	}
	onOld(t, len(files), func(t *testing.T, old Conn, d *dialect, _ Options) {
		n := len(files)
		for _, x := range []struct {
			file   migration
			oldest int
		}{
			{migration{n: n + 1, text: "CREATE TABLE later (a BIGINT NOT NULL);\n", kind: expand}, firstMarked - 1},
			{migration{n: n + 2, text: "DROP TABLE later;\n", kind: contract, oldest: n + 1}, n + 1},
		} {
			if err := applyFile(old, x.file.text, &x.file); err != nil {
				t.Fatal(err)
			}
			if got, err := oldestSchema(old, x.file.n); err != nil || got != x.oldest {
				t.Errorf("oldest schema after %s %d = %d (%v), want %d", x.file.kind, x.file.n, got, err, x.oldest)
			}
		}
	})
}

// A log that tests read.
type notes struct{ lines chan string }

func (n notes) Enabled(context.Context, slog.Level) bool { return true }
func (n notes) WithAttrs([]slog.Attr) slog.Handler       { return n }
func (n notes) WithGroup(string) slog.Handler            { return n }
func (n notes) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	n.lines <- text
	return nil
}

// A start that waits for a lock says so, and ends when it is asked to. A start afterwards goes on.
func TestStartThatWaitsForALockCanBeStopped(t *testing.T) {
	t.Parallel()
	opt := olderStores(t)["PostgreSQL"]
	p := newPSQL(t, opt.URL)
	p.exec("BEGIN; LOCK TABLE workers IN ACCESS SHARE MODE")
	asked := ""
	opt.Migrating = func(why string) bool {
		asked = why
		return false
	}
	if s, err := Open(opt); !errors.Is(err, errMigrationStopped) {
		if err == nil {
			s.Close()
		}
		t.Errorf("a start that is stopped while it waits for a lock = %v, want %v", err, errMigrationStopped)
	}
	if !strings.Contains(asked, "0030_worker_library waits for a lock") {
		t.Errorf("the reason of the wait = %q, want the migration", asked)
	}
	p.exec("ROLLBACK; SELECT pg_advisory_lock(hashtext('perdure ' || current_schema()))")
	if s, err := Open(opt); !errors.Is(err, errMigrationStopped) || !strings.Contains(asked, "another node") {
		if err == nil {
			s.Close()
		}
		t.Errorf("a start that is stopped while another node migrates = %v, %q, want %v", err, asked,
			errMigrationStopped)
	}
	p.exec("SELECT pg_advisory_unlock_all()")
	open(t, opt)
}

// A migration that meets a lock gives it up after a while, so that callers behind it go on, says so,
// and goes on when the lock is free.
func TestMigrationAsksAgainForALock(t *testing.T) {
	url := pgtest.New(t)
	s := open(t, Options{URL: url})
	p, err := pg.Open(pg.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	other := p.Writer(pg.WriterOptions{Timeout: time.Minute})
	defer other.Close()
	if err := other.Begin(); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec("LOCK TABLE runs IN ACCESS SHARE MODE", nil); err != nil {
		t.Fatal(err)
	}
	sess, err := p.Migrator(func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer sess.Close()
	if _, err := sess.Exec("SET lock_timeout=20", nil); err != nil {
		t.Fatal(err)
	}
	m, err := newMigrator(sess, postgresDialect, nil)
	if err != nil {
		t.Fatal(err)
	}
	n, lines := len(m.list), make(chan string, 1000)
	m.log, m.every = slog.New(notes{lines}), 100*time.Millisecond
	m.list = append(m.list, migration{n: n + 1, name: "0099_late", kind: expand,
		text: "ALTER TABLE runs ADD COLUMN much_later BIGINT NOT NULL DEFAULT 0;\n"})
	done := make(chan error, 1)
	go func() { done <- m.run(false) }()
	for line := range lines {
		if strings.Contains(line, "waits for a lock") && strings.Contains(line, "0099_late") {
			break
		}
	}
	// Meanwhile the store takes writes.
	if err := s.Batch(s.Now(), insert("a"))[0]; err != nil {
		t.Errorf("a write while a migration waits for a lock = %v, want none", err)
	}
	if err := other.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("schema %d → %d: 0099_late, adds 1 column, ", n, n+1)
	for found := false; !found; {
		select {
		case line := <-lines:
			found = strings.HasPrefix(line, want)
		default:
			t.Fatalf("no line of the log begins with %q", want)
		}
	}
	if err := s.Batch(s.Now(), insert("b"))[0]; err != nil {
		t.Errorf("a write on the newer schema = %v, want none", err)
	}
}

// An index is built while others write. An index that a killed build has left is built anew.
func TestIndexIsBuiltConcurrentlyAndResumed(t *testing.T) {
	url := pgtest.New(t)
	s := open(t, Options{URL: url})
	p, err := pg.Open(pg.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	writer := p.Writer(pg.WriterOptions{Timeout: time.Minute})
	defer writer.Close()
	if err := writer.Begin(); err != nil { // it holds the build up, and the build holds up nobody
		t.Fatal(err)
	}
	if _, err := writer.Exec("LOCK TABLE runs IN ROW EXCLUSIVE MODE", nil); err != nil {
		t.Fatal(err)
	}
	f := migration{name: "0099_index", kind: expand,
		text: "-- expand 9.9.9: why\nCREATE INDEX {concurrently} runs_later ON runs (kind, id);\n"}
	build := func(sess Conn) error {
		m, err := newMigrator(sess, postgresDialect, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		f.n = len(m.list) + 1
		m.list = append(m.list, f)
		return m.run(false)
	}
	first, err := p.Migrator(func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- build(first) }()
	look := p.Reader(time.Minute)
	defer look.Close()
	pid := int64(0)
	eventually.True(t, "the index is being built", func() bool {
		err := look.Query("SELECT pid::bigint FROM pg_stat_progress_create_index WHERE datname=current_database() "+
			"AND phase LIKE 'waiting%'", nil, func(scan func(...any) error) error { return scan(&pid) })
		return err == nil && pid != 0
	})
	if err := s.Batch(s.Now(), insert("a"))[0]; err != nil {
		t.Errorf("a write while an index is built = %v, want none", err)
	}
	if _, err := writer.Exec("SELECT pg_terminate_backend(?::bigint::int)", []any{pid}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Fatal("the build went on after its session was ended")
	}
	first.Close()
	if err := writer.Rollback(); err != nil {
		t.Fatal(err)
	}
	invalid := func() (n int64) {
		err := look.Query(postgresDialect.invalidIndex, []any{"runs_later"},
			func(scan func(...any) error) error { return scan(&n) })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if invalid() != 1 {
		t.Error("the killed build has left no index: the test shows nothing")
	}
	again, err := p.Migrator(func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := build(again); err != nil {
		t.Fatal(err)
	}
	if n := invalid(); n != 0 {
		t.Errorf("unfinished indexes after the second build = %d, want none", n)
	}
	have, err := schemaVersion(look, postgresDialect)
	if err != nil || have != f.n {
		t.Errorf("schema after the second build = %d (%v), want %d", have, err, f.n)
	}
}
