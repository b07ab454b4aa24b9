package pgtest

import (
	"testing"
)

const timelineOf = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"

// follower makes a standby of a cluster that stops with the test.
func follower(t *testing.T, c *Cluster) *Cluster {
	t.Helper()
	s, err := c.Standby()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func do(t *testing.T, f func() error) {
	t.Helper()
	if err := f(); err != nil {
		t.Fatal(err)
	}
}

func TestPromotedStandbyLacksWhatItWasNotSent(t *testing.T) {
	t.Parallel()
	c := begin(t, Options{InMemory: true})
	run(t, connect(t, c.URL("postgres")), "CREATE TABLE t (v text); INSERT INTO t VALUES ('kept')")
	s := follower(t, c)
	do(t, s.CaughtUp)
	if got := ask(t, connect(t, s.URL("postgres")), "SELECT pg_is_in_recovery()::text"); got != "true" {
		t.Errorf("pg_is_in_recovery of a standby = %s, want true", got)
	}
	do(t, s.CutOff)
	run(t, connect(t, c.URL("postgres")), "INSERT INTO t VALUES ('lost')")
	do(t, func() error { return c.Halt(Kill) })
	do(t, s.Promote)
	const all = "SELECT string_agg(v, ',') FROM t"
	after := connect(t, s.URL("postgres"))
	if got := ask(t, after, all); got != "kept" {
		t.Errorf("rows of the promoted standby = %s, want kept", got)
	}
	run(t, after, "INSERT INTO t VALUES ('new')")
	do(t, c.Launch)
	before := connect(t, c.URL("postgres"))
	run(t, before, "INSERT INTO t VALUES ('stray')")
	if got := ask(t, before, all); got != "kept,lost,stray" {
		t.Errorf("rows of the old primary = %s, want kept,lost,stray: it knows of no promotion", got)
	}
	if o, n := ask(t, before, timelineOf), ask(t, after, timelineOf); o != "00000001" || n != "00000002" {
		t.Errorf("timelines = %s and %s, want 1 and 2", o, n)
	}
	const system = "SELECT system_identifier::text FROM pg_control_system()"
	if ask(t, before, system) != ask(t, after, system) {
		t.Error("the standby has another system identifier than its primary, want the same")
	}
}

func TestSynchronousStandbyHasEveryCommit(t *testing.T) {
	t.Parallel()
	c := begin(t, Options{InMemory: true})
	s := follower(t, c)
	do(t, func() error { return c.WaitsFor(true) })
	conn := connect(t, c.URL("postgres"))
	run(t, conn, "CREATE TABLE t (v text)")
	if got := ask(t, conn, "SELECT sync_state FROM pg_stat_replication"); got != "sync" {
		t.Errorf("sync_state = %s, want sync", got)
	}
	for range 50 {
		run(t, conn, "INSERT INTO t VALUES ('acknowledged')")
	}
	do(t, func() error { return c.Halt(Kill) })
	do(t, s.Promote)
	if got := ask(t, connect(t, s.URL("postgres")), "SELECT count(*)::text FROM t"); got != "50" {
		t.Errorf("%s rows after the failover, want 50", got)
	}
}

// An ordinary role may look up what a failover depends on, but not the state of each standby.
func TestOrdinaryRoleSeesTimelineAndStandbys(t *testing.T) {
	t.Parallel()
	c := begin(t, Options{InMemory: true})
	follower(t, c)
	conn := connect(t, c.URL("postgres"))
	run(t, conn, "CREATE ROLE app; SET ROLE app")
	if got := ask(t, conn, timelineOf); got != "00000001" {
		t.Errorf("timeline = %s, want 1", got)
	}
	// A standby answers before it has asked its primary for more.
	do(t, func() error {
		return eventually(func() bool { return ask(t, conn, "SELECT count(*)::text FROM pg_stat_replication") == "1" })
	})
	if got := ask(t, conn, "SELECT coalesce(sync_state, 'unknown') FROM pg_stat_replication"); got != "unknown" {
		t.Errorf("sync_state for an ordinary role = %s, want none", got)
	}
}
