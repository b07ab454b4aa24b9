package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

func TestArtifactsAndRmOnTheCommandLine(t *testing.T) {
	c, _ := live(t)
	ctx := context.Background()
	thread, err := c.CreateThread(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, _ := mustRun(t, 0, "run", "-d", "job")
	id := strings.TrimSpace(out)
	polled, err := session.Of(c).Poll(ctx, "w", api.Poll{Slots: 1, Start: true})
	if err != nil || len(polled.Runs) != 1 {
		t.Fatal(polled, err)
	}
	lease := api.Lease{RunID: polled.Runs[0].RunID, Epoch: polled.Runs[0].Epoch}
	if _, err := session.Of(c).PutArtifact(ctx, lease, "notes.txt", "text/plain",
		strings.NewReader("so far\n")); err != nil {
		t.Fatal(err)
	}
	has(t, first(mustRun(t, 0, "artifacts", id)), "NAME", "notes.txt", "text/plain")
	has(t, first(mustRun(t, 0, "artifacts", id, "--json")), `"sha256"`)
	if out, _ := mustRun(t, 0, "artifacts", id, "notes.txt"); out != "so far\n" {
		t.Errorf("artifacts printed %q, want the content", out)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "mine")
	mustRun(t, 0, "artifacts", id, "notes.txt", "-o", file)
	if b, err := os.ReadFile(file); err != nil || string(b) != "so far\n" {
		t.Errorf("file = %q (error %v), want the content", b, err)
	}
	_, errs := mustRun(t, 1, "artifacts", id, "other", "-o", filepath.Join(dir, "other"))
	has(t, errs, "not_found")
	mustRun(t, 2, "artifacts")
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("files after the command = %v (error %v), want only the artifact", left, err)
	}

	_, errs = mustRun(t, 1, "rm", id)
	has(t, errs, "wrong_state")
	done := perdure.Commit{ID: "end", RunID: lease.RunID, Epoch: lease.Epoch,
		Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(`1`)}}
	if _, err := session.Of(c).Commit(ctx, "w", done); err != nil {
		t.Fatal(err)
	}
	has(t, first(mustRun(t, 0, "rm", id)), id+" is deleted")
	mustRun(t, 1, "rm", id)
	has(t, first(mustRun(t, 0, "rm", "--thread", string(thread.ThreadID))), "is deleted")
	mustRun(t, 2, "rm")
}
