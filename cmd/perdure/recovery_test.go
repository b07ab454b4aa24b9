package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/wire/session"
)

func TestRecoveryShowsProcesses(t *testing.T) {
	workspace := filepath.Join(t.TempDir(), "workspace")
	if err := os.MkdirAll(filepath.Join(workspace, "jobs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(workspace, "jobs", "junk"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, _ := liveWith(t, embedded.Options{Workspace: workspace})
	out, _ := mustRun(t, 0, "recovery")
	has(t, out, "recovery", "finished", "set aside", "1", "0 fresh, 0 stale, 0 dead")
	run, err := c.Start(t.Context(), perdure.Submission{Kind: "exec", Class: perdure.Process})
	if err != nil {
		t.Fatal(err)
	}
	id := string(run.RunID)
	granted, err := session.Of(c).Poll(t.Context(), "runner", api.Poll{RunIDs: []perdure.RunID{run.RunID}, Slots: 1,
		Start: true})
	if err != nil || len(granted.Runs) != 1 {
		t.Fatalf("polled %+v: %v", granted, err)
	}
	has(t, first(mustRun(t, 0, "recovery", "heartbeats")), id, "fresh", "generic", "1 live: 1 fresh")
	has(t, first(mustRun(t, 0, "recovery", "stale")), "All processes are fresh")
	has(t, first(mustRun(t, 0, "recovery", "sentinels")), "RUN", "junk: is no folder of a job")
	has(t, first(mustRun(t, 0, "recovery", "failed")), "No process was lost")
	has(t, first(mustRun(t, 0, "recovery", "health", id)), "fresh", "folder", "false")
	has(t, first(mustRun(t, 0, "recovery", "log")), "recovery begins in "+workspace, "recovery has finished")
	has(t, first(mustRun(t, exitFail, "recovery", "resume", strings.Repeat("0", 8)+"-0000-0000-0000-000000000000")),
		"refused", "no such job")
	out, _ = mustRun(t, 0, "recovery", "status", "--json")
	var s api.RecoveryStatus
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.Recovery.State != "finished" ||
		s.Recovery.SetAside != 1 {
		t.Errorf("status = %s (%v), want it finished with one file set aside", out, err)
	}
	mustRun(t, 2, "recovery", "heartbeats", "more")
	mustRun(t, 2, "recovery", "failed", "-n", "0")
	mustRun(t, 2, "recovery", "resume")
	mustRun(t, 2, "recovery", "nonsense")
}
