package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/session"
)

// hold starts a run of a kind, and leases it.
func hold(t *testing.T, c *client.Client, kind string) api.Grant {
	t.Helper()
	if _, err := c.Start(t.Context(), perdure.Submission{Kind: kind}); err != nil {
		t.Fatal(err)
	}
	polled, err := session.Of(c).Poll(t.Context(), "w", api.Poll{Kinds: []string{kind}, Slots: 1, Start: true})
	if err != nil || len(polled.Runs) != 1 {
		t.Fatalf("poll for a run of kind %s: %v, want one run", kind, err)
	}
	return polled.Runs[0]
}

func commitOf(t *testing.T, c *client.Client, g api.Grant, in perdure.Commit) error {
	t.Helper()
	in.RunID, in.Epoch = g.RunID, g.Epoch
	res, err := session.Of(c).Commit(t.Context(), "w", in)
	if err == nil && res[0].Error != nil {
		return errors.New(res[0].Error.Detail)
	}
	return err
}

func TestPeekShowsWhatARunIsDoing(t *testing.T) {
	c, _ := live(t)
	g := hold(t, c, "report")
	if _, err := session.Of(c).Heartbeat(t.Context(), "w",
		api.Beat{RunID: g.RunID, Epoch: g.Epoch, Activity: "tool_executing\x1b[31m"}); err != nil {
		t.Fatal(err)
	}
	err := commitOf(t, c, g, perdure.Commit{ID: "c", Children: []perdure.Spawn{{Key: "k", Kind: "part"}},
		Waits: []perdure.WaitSpec{{ID: "w", Type: perdure.WaitChildren, Keys: []string{"k"}}},
		Events: []perdure.Emitted{{Type: perdure.LineProgress, Data: json.RawMessage(`{"pages":3}`)},
			{Type: perdure.LineDelta, Data: json.RawMessage(`"first line\nsecond"`)}}})
	if err != nil {
		t.Fatal(err)
	}
	out, _ := mustRun(t, 0, "peek", string(g.RunID))
	has(t, out, string(g.RunID), "report", "running", "attempt 1 of 3", "doing      tool_executing·[31m, for",
		`progress   {"pages":3}`, "waits for  all of 1 children, 0 have ended, at most ",
		"│ first line\n", "│ second\n", "run:heartbeat", "activity tool_executing·[31m", "Children (1 of 1):",
		"part  queued")
	if strings.Contains(out, "\x1b") {
		t.Errorf("peek printed %q, want the run's text escaped", out)
	}
	out, _ = mustRun(t, 0, "peek", "--json", string(g.RunID))
	var a api.Activity
	if err := json.Unmarshal([]byte(out), &a); err != nil || a.RunID != g.RunID || a.Operation == nil {
		t.Errorf("peek --json: %v, want run %s with an operation: %s", err, g.RunID, out)
	}
	mustRun(t, 1, "peek", "01999999-9999-7999-8999-999999999999")
	mustRun(t, 2, "peek")
}

func TestKillShowsTheProof(t *testing.T) {
	c, _ := live(t)
	g := hold(t, c, "job")
	out, _ := mustRun(t, 0, "kill", "--wait", "0", string(g.RunID))
	has(t, out, "running", "requested ", " → not delivered → not acknowledged → not stopped (perdure kill)")
	answered := make(chan string)
	go func() {
		_, out, _ := call("kill", "--wait", "1m", string(g.RunID))
		answered <- out
	}()
	if err := commitOf(t, c, g,
		perdure.Commit{ID: "end", CancelAck: true,
			Outcome: &perdure.Outcome{Type: perdure.OutcomeCancelled}}); err != nil {
		t.Fatal(err)
	}
	has(t, <-answered, "cancelled", " → delivered +", " → acknowledged +", " → stopped +")
	done, err := c.Start(context.Background(), perdure.Submission{Kind: "job"})
	if err != nil {
		t.Fatal(err)
	}
	out, _ = mustRun(t, 0, "kill", string(done.RunID))
	has(t, out, "cancelled", " → not delivered → not acknowledged → stopped +")
}

func TestLateListsAdoptsAndDiscards(t *testing.T) {
	c, _ := live(t)
	g := hold(t, c, "job")
	out, _ := mustRun(t, 0, "late", string(g.RunID))
	has(t, out, "No late results.")
	end := func(id, result string) error {
		return commitOf(t, c, g,
			perdure.Commit{ID: id, Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete,
				Result: json.RawMessage(result)}})
	}
	if err := end("end", `"first"`); err != nil {
		t.Fatal(err)
	}
	for _, result := range []string{"second", "third"} {
		if err := end(result, `"`+result+`"`); err == nil {
			t.Fatal("the late result was committed a second time, want a refusal")
		}
	}
	out, _ = mustRun(t, 0, "late", string(g.RunID))
	has(t, out, "N  STATE  AGE", `"second"`, `"third"`, "  1    1      w     8      ")
	out, _ = mustRun(t, 0, "late", string(g.RunID), "adopt", "1")
	has(t, out, "completed")
	mustRun(t, 0, "late", string(g.RunID), "discard", "2")
	mustRun(t, 1, "late", string(g.RunID), "adopt", "2")
	mustRun(t, 1, "late", string(g.RunID), "adopt", "3")
	out, _ = mustRun(t, 0, "late", "--json", string(g.RunID))
	has(t, out, `"adopted"`, `"discarded"`, `"size": 8`)
	for _, args := range [][]string{{"late"}, {"late", "x", "adopt"}, {"late", "x", "adopt", "none"},
		{"late", "x", "burn", "1"}, {"late", "x", "adopt", "0"}} {
		mustRun(t, 2, args...)
	}
}
