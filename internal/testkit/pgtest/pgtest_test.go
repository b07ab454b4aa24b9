package pgtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A test that watches a process end starts this one again, with what it is to do in this variable.
const role = "PERDURE_PGTEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "victim":
		if err := victim(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "missing":
		debian = filepath.Join(os.TempDir(), "no-such-folder")
	}
	os.Exit(m.Run())
}

// victim starts a cluster, says where it is, and waits to be killed, or for the end of who should do that.
func victim() error {
	c, err := Start(Options{})
	if err != nil {
		return err
	}
	pid, dir, url := c.postmaster.pid(), c.folder.path, c.URL("postgres")
	runtime.GC() // nobody has to keep a cluster in mind for it to live
	runtime.GC()
	fmt.Println(pid, dir, url)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func begin(t *testing.T, o Options) *Cluster {
	t.Helper()
	c, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func run(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func ask(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	var answer string
	if err := conn.QueryRow(t.Context(), sql).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

func TestARestartKeepsWhatWasCommitted(t *testing.T) {
	for _, mode := range []Mode{Fast, Immediate, Kill} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			c := begin(t, Options{})
			conn := connect(t, c.URL("postgres"))
			if got := ask(t, conn, "SHOW synchronous_commit"); got != "on" {
				t.Errorf("synchronous_commit is %s", got)
			}
			run(t, conn, "CREATE TABLE t (v text); INSERT INTO t VALUES ('committed')")
			run(t, conn, "BEGIN; INSERT INTO t VALUES ('not committed')")
			children, err := childrenOf(c.postmaster.pid())
			if err != nil || len(children) < 2 {
				t.Fatalf("the server has the processes %v (%v)", children, err)
			}
			before := c.postmaster

			if err := c.Restart(mode); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), "SELECT 1"); err == nil {
				t.Error("a connection has outlived the restart")
			}
			for _, pid := range append(children, before.pid()) {
				if !ended(pid) {
					t.Errorf("process %d has outlived the restart", pid)
				}
			}
			if got := ask(t, connect(t, c.URL("postgres")), "SELECT string_agg(v, ',') FROM t"); got != "committed" {
				t.Errorf("after the restart there is %q", got)
			}
			log := c.Log()
			for line, want := range map[string]bool{
				"received fast shutdown request":      mode == Fast,
				"received immediate shutdown request": mode == Immediate,
				"automatic recovery in progress":      mode != Fast,
			} {
				if strings.Contains(log, line) != want {
					t.Errorf("the log says %q: %v\n%s", line, !want, log)
				}
			}
		})
	}
}

func TestAClusterFromStartToStop(t *testing.T) {
	c := begin(t, Options{Settings: map[string]string{"synchronous_commit": "off", "cluster_name": "it's"}})
	t.Run("settings are PostgreSQL's safest, or as asked for", func(t *testing.T) {
		conn := connect(t, c.URL("postgres"))
		for name, want := range map[string]string{"fsync": "on", "full_page_writes": "on", "synchronous_commit": "off",
			"cluster_name": "it's"} {
			if got := ask(t, conn, "SHOW "+name); got != want {
				t.Errorf("%s is %q, not %q", name, got, want)
			}
		}
	})
	t.Run("nobody gets in without the password", func(t *testing.T) {
		_, err := pgconn.Connect(t.Context(), strings.Replace(c.URL("postgres"), c.password, "guess", 1))
		if e := (*pgconn.PgError)(nil); !errors.As(err, &e) || e.Code != "28P01" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("an unknown way to restart changes nothing", func(t *testing.T) {
		conn := connect(t, c.URL("postgres"))
		if err := c.Restart("gently"); err == nil {
			t.Error("no error")
		}
		run(t, conn, "SELECT 1")
	})
	t.Run("what is stopped leaves nothing", func(t *testing.T) {
		if err := c.Stop(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(c.folder.path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the folder is left: %v", err)
		}
		if c.answers() == nil {
			t.Error("the server answers")
		}
	})
}

func TestClusterInMemoryKeepsTheSafeSettings(t *testing.T) {
	c := begin(t, Options{InMemory: true})
	conn := connect(t, c.URL("postgres"))
	want := memory
	if free(memory) < enough {
		want = os.TempDir()
	}
	if got := ask(t, conn, "SHOW data_directory"); !strings.HasPrefix(got, want+"/"+prefix) {
		t.Errorf("the data is in %s, want it below %s", got, want)
	}
	for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		if got := ask(t, conn, "SHOW "+name); got != "on" {
			t.Errorf("%s = %s, want on", name, got)
		}
	}
}

func TestOnlyMemoryCountsAsMemory(t *testing.T) {
	for _, folder := range []string{"/proc", "/no/such/folder"} {
		if got := free(folder); got != 0 {
			t.Errorf("free(%q) = %d, want 0: it is no folder in memory", folder, got)
		}
	}
}

func TestPasswordIsDerivedInOneRound(t *testing.T) {
	c := begin(t, Options{InMemory: true})
	got := ask(t, connect(t, c.URL("postgres")), "SELECT rolpassword FROM pg_authid WHERE rolname = 'postgres'")
	if !strings.HasPrefix(got, "SCRAM-SHA-256$1:") {
		t.Errorf("the stored password is %.20s…, want SCRAM-SHA-256 with one round", got)
	}
}

func TestAClusterIsGoneAfterAKill(t *testing.T) {
	// A place of its own for what is left, where no other process sweeps; PostgreSQL's user has to get in.
	tmp, err := os.MkdirTemp("", "pgtest-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"=victim", "TMPDIR="+tmp)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if _, err := cmd.StdinPipe(); err != nil { // open for as long as this process lives
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	var dir, url string
	if _, err := fmt.Sscan(line, &pid, &dir, &url); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	conn := connect(t, url)
	sweep(tmp)
	if got := ask(t, conn, "SHOW data_directory"); got != filepath.Join(dir, "data") || ended(pid) {
		t.Fatalf("the data is in %s, not in %s", got, dir)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("a sweep has taken a folder that is in use: %v", err)
	}

	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if err := eventually(func() bool { return ended(pid) }); err != nil {
		t.Errorf("the server outlives the process that started it: %v", err)
	}
	if _, err := pgconn.Connect(t.Context(), url); err == nil {
		t.Error("the server answers")
	}
	// Its last processes may still be writing.
	err = eventually(func() bool {
		sweep(tmp)
		_, err := os.Stat(dir)
		return errors.Is(err, os.ErrNotExist)
	})
	if err != nil {
		t.Errorf("%s is left: %v", dir, err)
	}
}

func TestATestWithoutPostgreSQLFails(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^TestDatabasesAreIndependent$")
	cmd.Env = append(os.Environ(), role+"=missing", "PATH=", Env+"=")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--- FAIL") ||
		!strings.Contains(string(out), "apt-get install postgresql") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestDatabasesAreIndependent(t *testing.T) {
	var urls []string
	t.Run("while the test runs", func(t *testing.T) {
		for range 2 {
			url := New(t)
			conn := connect(t, url)
			run(t, conn, "CREATE TABLE t (v text)") // fails where it is there already
			urls = append(urls, url)
		}
	})
	for _, url := range urls {
		_, err := pgconn.Connect(t.Context(), url)
		if e := (*pgconn.PgError)(nil); !errors.As(err, &e) || e.Code != "3D000" {
			t.Errorf("after the test its database is there: %v", err)
		}
	}
}

func TestTextDoesNotSortByItsBytes(t *testing.T) {
	if ask(t, connect(t, New(t)), "SELECT ('a' < 'B')::text") != "true" {
		t.Error("in this order a bug that comes from the collation does not show")
	}
}

// table prepares a database with two tables, one of them with a row.
func table(url string) error {
	return execute(url, "CREATE TABLE facts (k text PRIMARY KEY, v text); INSERT INTO facts VALUES ('schema', "+
		"'1'); CREATE TABLE things (v text)")
}

const rows = "SELECT (SELECT string_agg(k||'='||v, ',') FROM facts) || (SELECT count(*) FROM things)"

func TestAPoolGivesEveryTestTheSame(t *testing.T) {
	pool := &Pool{Prepare: table}
	seen := map[string]bool{}
	for range 3 {
		t.Run("test", func(t *testing.T) {
			url := pool.New(t)
			seen[url] = true
			conn := connect(t, url)
			if got := ask(t, conn, rows); got != "schema=10" {
				t.Errorf("there is %s", got)
			}
			run(t, conn, "DELETE FROM facts; INSERT INTO facts VALUES ('a', 'b'); INSERT INTO things VALUES "+
				"('c'), ('d')")
		})
	}
	if len(seen) != 1 {
		t.Errorf("%d databases were made", len(seen))
	}
}

// A planner that knows a table as empty joins it row by row, however many there are in the next test.
func TestPooledDatabaseForgetsItsStatistics(t *testing.T) {
	pool := &Pool{Prepare: table}
	for range 2 {
		t.Run("test", func(t *testing.T) {
			conn := connect(t, pool.New(t))
			for _, name := range []string{"facts", "things"} {
				if got := ask(t, conn, "SELECT reltuples::text FROM pg_class WHERE relname='"+name+"'"); got != "-1" {
					t.Errorf("the planner knows of %s rows in %s, want -1: that it knows nothing", got, name)
				}
			}
			run(t, conn, "INSERT INTO things SELECT i FROM generate_series(1, 1000) i")
			run(t, conn, "DELETE FROM things")
			run(t, conn, "VACUUM ANALYZE")
		})
	}
}

// kept is a connection that stays.
type kept struct{ conn *pgx.Conn }

func (k *kept) PIDs() []uint32 { return []uint32{k.conn.PgConn().PID()} }

func (k *kept) Close() { k.conn.Close(context.Background()) }

func TestKeptConnectionSpoilsNoDatabase(t *testing.T) {
	var k kept
	made := 0
	pool := &Pool{Prepare: table, Keep: func(url string) Kept {
		made++
		k.conn = connect(t, url)
		return &k
	}}
	for name, change := range map[string]string{
		"few rows":  "INSERT INTO things VALUES ('a')",
		"many rows": "INSERT INTO things SELECT i FROM generate_series(1, 10000) i",
	} {
		for range 2 {
			t.Run(name, func(t *testing.T) {
				pool.New(t)
				if got := ask(t, k.conn, rows); got != "schema=10" {
					t.Errorf("there is %s, want schema=10", got)
				}
				run(t, k.conn, change)
			})
		}
	}
	if made != 1 {
		t.Errorf("%d databases were made, want 1", made)
	}
}

func TestTwoTestsNeverShareADatabase(t *testing.T) {
	pool := &Pool{Prepare: table}
	for range 2 {
		t.Run("test", func(t *testing.T) {
			if a, b := pool.New(t), pool.New(t); a == b {
				t.Error("both have the same")
			}
		})
	}
}

func TestADatabaseThatIsSpoiledIsNotUsedAgain(t *testing.T) {
	for name, spoil := range map[string]string{
		"a column":     "ALTER TABLE things ADD COLUMN w text",
		"a table":      "CREATE TABLE more (v text)",
		"an index":     "CREATE INDEX i ON things (v)",
		"a constraint": "ALTER TABLE things ADD CHECK (v <> '')",
		"a connection": "SELECT 1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := &Pool{Prepare: table}
			var first string
			t.Run("first", func(inner *testing.T) {
				first = pool.New(inner)
				conn := connect(inner, first)
				if name == "a connection" {
					conn = connect(t, first) // closed after the test
				}
				run(inner, conn, spoil)
			})
			second := pool.New(t)
			if second == first {
				t.Error("the next test gets it")
			}
			if got := ask(t, connect(t, second), rows); got != "schema=10" {
				t.Errorf("there is %s", got)
			}
		})
	}
}

func TestAPoolSaysWhatItCannotSetBack(t *testing.T) {
	pool := &Pool{Prepare: func(url string) error { return execute(url, "CREATE SEQUENCE numbers") }}
	if _, err := pool.take(); err == nil || !strings.Contains(err.Error(), "numbers") {
		t.Errorf("got %v", err)
	}
}

// The time that a test takes for its database, with about as many tables and indexes as the store has.
func BenchmarkDatabase(b *testing.B) {
	prepare := func(url string) error {
		var sql strings.Builder
		for i := range 20 {
			fmt.Fprintf(&sql, "CREATE TABLE t%d (a text, b bigint, c text, PRIMARY KEY (a, b)); CREATE INDEX ON "+
				"t%d (c, b);", i, i)
		}
		return execute(url, sql.String())
	}
	each := func(b *testing.B, one func(testing.TB)) {
		for b.Loop() {
			one(b)
		}
	}
	b.Run("new", func(b *testing.B) {
		each(b, func(b testing.TB) {
			address, drop, err := create()
			if err = errors.Join(err, prepare(address), drop()); err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("pool", func(b *testing.B) {
		pool := &Pool{Prepare: prepare}
		each(b, func(b testing.TB) {
			s, err := pool.take()
			if err != nil {
				b.Fatal(err)
			}
			if err := errors.Join(execute(s.url, "INSERT INTO t1 SELECT i, i, i FROM generate_series(1, 100) i"),
				s.restore()); err != nil {
				b.Fatal(err)
			}
			pool.put(s)
		})
	})
}
