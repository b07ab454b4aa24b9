package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

// hold starts a run of that kind, and leases it.
func hold(t *testing.T, c *client.Client, kind string) api.Grant {
	t.Helper()
	if _, err := c.Start(t.Context(), perdure.Submission{Kind: kind}); err != nil {
		t.Fatal(err)
	}
	polled, err := c.Poll(t.Context(), "w", api.Poll{Kinds: []string{kind}, Slots: 1, Start: true})
	if err != nil || len(polled.Runs) != 1 {
		t.Fatalf("nothing to hold: %v", err)
	}
	return polled.Runs[0]
}

func commitOf(t *testing.T, c *client.Client, g api.Grant, in perdure.Commit) error {
	t.Helper()
	in.RunID, in.Epoch = g.RunID, g.Epoch
	res, err := c.Commit(t.Context(), "w", in)
	if err == nil && res[0].Error != nil {
		return errors.New(res[0].Error.Detail)
	}
	return err
}

func TestPeekShowsWhatARunIsDoing(t *testing.T) {
	c, _ := live(t)
	g := hold(t, c, "report")
	if _, err := c.Heartbeat(t.Context(), "w", api.Beat{RunID: g.RunID, Epoch: g.Epoch, Activity: "tool_executing\x1b[31m"}); err != nil {
		t.Fatal(err)
	}
	err := commitOf(t, c, g, perdure.Commit{ID: "c", Children: []perdure.Spawn{{Key: "k", Kind: "part"}},
		Waits:  []perdure.WaitSpec{{ID: "w", Type: perdure.WaitChildren, Keys: []string{"k"}}},
		Events: []perdure.Emitted{{Type: perdure.LineProgress, Data: json.RawMessage(`{"pages":3}`)}, {Type: perdure.LineDelta, Data: json.RawMessage(`"first line\nsecond"`)}}})
	if err != nil {
		t.Fatal(err)
	}
	out, _ := mustRun(t, 0, "peek", string(g.RunID))
	has(t, out, string(g.RunID), "report", "running", "attempt 1 of 3", "doing      tool_executing·[31m, for", `progress   {"pages":3}`, "waits for  all of 1 children, 0 have ended, at most ",
		"│ first line\n", "│ second\n", "run:heartbeat", "activity tool_executing·[31m", "Children (1 of 1):", "part  queued")
	if strings.Contains(out, "\x1b") {
		t.Errorf("what a run says reaches the terminal: %q", out)
	}
	out, _ = mustRun(t, 0, "peek", "--json", string(g.RunID))
	var a api.Activity
	if err := json.Unmarshal([]byte(out), &a); err != nil || a.RunID != g.RunID || a.Operation == nil {
		t.Errorf("%v: %s", err, out)
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
	if err := commitOf(t, c, g, perdure.Commit{ID: "end", CancelAck: true, Outcome: &perdure.Outcome{Type: perdure.OutcomeCancelled}}); err != nil {
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
		return commitOf(t, c, g, perdure.Commit{ID: id, Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(result)}})
	}
	if err := end("end", `"first"`); err != nil {
		t.Fatal(err)
	}
	for _, result := range []string{"second", "third"} {
		if err := end(result, `"`+result+`"`); err == nil {
			t.Fatal("it counts twice")
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
	for _, args := range [][]string{{"late"}, {"late", "x", "adopt"}, {"late", "x", "adopt", "none"}, {"late", "x", "burn", "1"}, {"late", "x", "adopt", "0"}} {
		mustRun(t, 2, args...)
	}
}

func TestThePolicyInTheFile(t *testing.T) {
	load := func(text string) (config, error) {
		path := writeFile(t, "[policy]\n"+text)
		return (&configFlags{file: &path}).load(func(string) string { return "" })
	}
	for _, text := range []string{"artifact_max_bytes = 12", "artifact_max_bytes = \"12\"", "artifact_max_bytes = 12\nartifact_total_bytes = \"12\"\nlease = \"2s\""} {
		if cfg, err := load(text); err != nil || cfg.policy.ArtifactMaxBytes != 12 {
			t.Errorf("%q: %d, %v", text, cfg.policy.ArtifactMaxBytes, err)
		}
	}
	for text, want := range map[string]string{
		"lease = 60":                      "policy.lease: \"60\" is not a duration",
		"lease = \"1ns\"":                 "policy.lease: must be at least 1ms",
		"lease = \"5ms\"":                 "policy.lease: must be at least 100ms",
		"lease = true":                    "a setting of the policy",
		"lease = [\"1m\"]":                "a setting of the policy",
		"artifact_max_bytes = 1.5":        "a setting of the policy",
		"artifact_max_bytes = -1":         "policy.artifact_max_bytes: must lie between",
		"artifact_total_bytes = 100":      "policy.artifact_max_bytes: must not be above artifact_total_bytes, 100",
		"artifact_max_bytes = 1000000000": "artifact_total_bytes",
		"retention = \"1h\"":              "policy.retention: must not be shorter",
		"nonsense = 1":                    "policy.nonsense",
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "invalid:") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestLivenessInTheFile(t *testing.T) {
	load := func(text string) (config, error) {
		path := filepath.Join(t.TempDir(), "perdure.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := &configFlags{file: &path}
		return c.load(func(string) string { return "" })
	}
	cfg, err := load(`
[liveness.activity.llm_thinking]
silent = "2m"
[liveness.kind.report]
dead = "1h"
[liveness.kind.report.activity."running tests"]
stale = "30m"
`)
	if err != nil {
		t.Fatal(err)
	}
	r := perdure.Run{Kind: "report", Activity: "running tests"}
	if got := cfg.policy.Thresholds(&r); got != (perdure.Thresholds{Silent: 30 * time.Second, NoProgress: 10 * time.Minute, Stale: 30 * time.Minute, Dead: time.Hour}) {
		t.Errorf("%+v", got)
	}
	r.Activity = "llm_thinking"
	if got := cfg.policy.Thresholds(&r); got.Silent != 2*time.Minute || got.Stale != 2*time.Minute {
		t.Errorf("%+v", got)
	}
	var out strings.Builder
	cfg.Liveness.print(&out)
	has(t, out.String(), "[liveness.kind.report]\ndead                       1h0m0s\n", "[liveness.activity.llm_thinking]\nsilent", `[liveness.kind.report.activity.running tests]`)
	for text, want := range map[string]string{
		"[liveness.kind.report]\nsilent = \"soon\"": "silent",
		"[liveness.kind.report]\nquiet = \"1m\"":    "quiet",
		"[liveness.kind.report]\nstale = \"20m\"":   "must be shorter",
		"[liveness.activity.a]\nsilent = \"-1m\"":   "silent",
		"[liveness.kind.\"\"]\nsilent = \"1m\"":     "liveness.kind",
		"[policy]\nstale_after = \"1h\"":            "stale_after",
		"[liveness.kinds.report]\nsilent = \"1m\"":  "kinds",
		"[liveness.kind.a]\nsilent = \"0s\"":        "must be positive",
		"[liveness.kind.a]\nsilent = 5":             "duration",
		"[liveness.kind.a]\nsilent = \"1ns\"":       "liveness.kind.a.silent: must be at least 1ms",
		"liveness = 5":                              "liveness",
		"[liveness]\nkind = 5":                      "liveness.kind is a section",
		"[liveness]\nkind = \"report\"":             "liveness.kind is a section",
		"[liveness]\nactivity = true":               "liveness.activity is a section",
		"[liveness.kind]\nreport = 5":               "liveness.kind.report",
		"[liveness.kind.report]\nactivity = [1]":    "liveness.kind.report.activity is a section",
		"[liveness.kind.report.activity]\na = 1":    "liveness.kind.report.activity.a",
		"[liveness.activity]\na = \"1m\"":           "liveness.activity.a",
		"[[liveness.kind]]\nsilent = \"1m\"":        "liveness.kind",
		"policy = 5":                                "policy is a section",
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
