package store

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// The possible loss of a failover follows from two settings, whether the role may see the standbys or not.
func TestLossByFailover(t *testing.T) {
	hidden := []Standby{{Name: "b"}}
	for _, x := range []struct {
		of   Replication
		want string // in the reason; empty: nothing is lost
	}{
		{Replication{Commit: "on"}, "there is no standby"},
		{Replication{Commit: "on", Standbys: []Standby{{Name: "b", State: "streaming", Sync: "async"}}},
			"no standby is synchronous"},
		{Replication{Commit: "on", Waits: "b", Standbys: []Standby{{Name: "b", State: "streaming", Sync: "sync"}}}, ""},
		{Replication{Commit: "remote_apply", Waits: "ANY 1 (b, c)", Standbys: hidden}, ""},
		{Replication{Commit: "on", Waits: "b"}, ""}, // commits wait for it
		{Replication{Commit: "remote_write", Waits: "b", Standbys: hidden}, "remote_write"},
		{Replication{Commit: "local", Waits: "b", Standbys: hidden}, "synchronous_commit is local"},
	} {
		if got := x.of.Loss(); !strings.Contains(got, x.want) || (got == "") != (x.want == "") {
			t.Errorf("what %+v may lose = %q, want %q", x.of, got, x.want)
		}
	}
	r := Replication{Standbys: append(hidden, Standby{Name: "c", Sync: "quorum"})}
	if r.Count("hidden") != 1 || r.Count("quorum") != 1 || r.Count("sync") != 0 {
		t.Errorf("counts of %+v: %d hidden, %d quorum, %d sync; want 1, 1, 0", r.Standbys, r.Count("hidden"),
			r.Count("quorum"), r.Count("sync"))
	}
}

// A node on a PostgreSQL without standbys says once what may be lost. A command that reads the store does not.
func TestNodeSaysWhatAFailoverLoses(t *testing.T) {
	t.Parallel()
	url := pool.New(t)
	for _, tool := range []bool{false, true} {
		var log bytes.Buffer
		open(t, Options{URL: url, AsIs: tool, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		want := 1
		if tool {
			want = 0
		}
		got := strings.Count(log.String(), "level=WARN msg=\"a failover of PostgreSQL may lose acknowledged work\" "+
			"why=\"there is no standby")
		if got != want {
			t.Errorf("lines about what a failover loses = %d (a command: %v), want %d:\n%s", got, tool, want,
				log.String())
		}
	}
}
