package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

func TestKindsCommand(t *testing.T) {
	c, _ := live(t)
	out, _ := mustRun(t, 0, "kinds")
	has(t, out, "No kinds")
	_, err := session.Of(c).AnnounceKind(t.Context(), "research", api.AnnounceKind{Build: "b1",
		KindDef: perdure.KindDef{
			Description: "finds\x1b[31m things out\nin depth", Class: perdure.Agent,
			Timeout: perdure.Duration(time.Hour), Retry: &perdure.KindRetry{MaxAttempts: 5},
			InputSchema: json.RawMessage(`{"type":"object"}`)}})
	if err != nil {
		t.Fatal(err)
	}
	out, _ = mustRun(t, 0, "kinds")
	has(t, out, "KIND", "research", "agent", "1h0m0s", "5", "no", "finds·[31m things out")
	if strings.Contains(out, "\x1b") || strings.Contains(out, "in depth") {
		t.Errorf("kinds printed %q, want one escaped line", out)
	}
	out, _ = mustRun(t, 0, "kinds", "set", "research", "--timeout", "5m", "--not-retried", "a, b",
		"--hold-defects=false")
	has(t, out, "timeout", "5m0s", "(operator)", "not retried", "a, b", "hold defects", "false", "class", "(worker)",
		`{"type":"object"}`, "builds", "b1")
	out, _ = mustRun(t, 0, "kinds", "set", "research", "--unset", "timeout,retry.not_retried")
	has(t, out, "1h0m0s")
	if strings.Contains(out, "not retried") {
		t.Errorf("after --unset: %s, want no codes", out)
	}
	out, _ = mustRun(t, 0, "kinds", "show", "--json", "research")
	var k api.Kind
	if err := json.Unmarshal([]byte(out), &k); err != nil || k.Kind != "research" ||
		k.Sources["hold_defects"] != "operator" {
		t.Errorf("kinds show --json = %s (%v), want the kind", out, err)
	}
	_, complaint := mustRun(t, 2, "kinds", "set", "research")
	has(t, complaint, "say what to set")
	out, _ = mustRun(t, 0, "kinds", "rm", "research")
	has(t, out, "research deleted")
	mustRun(t, 1, "kinds", "show", "research")
}

// An operator sets the schemas of a kind from files.
func TestKindsSetTakesSchemas(t *testing.T) {
	c, _ := live(t)
	if _, err := session.Of(c).AnnounceKind(t.Context(), "order", api.AnnounceKind{KindDef: perdure.KindDef{
		Signals: map[string]json.RawMessage{"old": json.RawMessage(`{"type":"string"}`)}}}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	paid := file("paid.json", `{"type":"object","required":["amount"]}`)
	out, _ := mustRun(t, 0, "kinds", "set", "order", "--input-schema", file("in.json", `{"type": "object"}`),
		"--output-schema", file("out.json", `{"type":"integer"}`), "--signal", "paid="+paid,
		"--signal", "stop="+file("stop.json", `{"type":"null"}`))
	has(t, out, "input", `{"type":"object"}`, "output", `{"type":"integer"}`, "signal paid", `"required":["amount"]`,
		"signal stop", "(operator)")
	if strings.Contains(out, "signal old") {
		t.Errorf("kinds set printed %s, want the signals of the operator alone", out)
	}
	run, err := c.Start(t.Context(), perdure.Submission{Kind: "order"})
	if err != nil {
		t.Fatal(err)
	}
	_, complaint := mustRun(t, 1, "signal", string(run.RunID), "paid", `{"sum":1}`)
	has(t, complaint, "amount")
	mustRun(t, 0, "signal", string(run.RunID), "paid", `{"amount":1}`)
	out, _ = mustRun(t, 0, "kinds", "set", "order", "--unset", "input_schema,output_schema,signals")
	if strings.Contains(out, "operator") || !strings.Contains(out, "signal old") {
		t.Errorf("kinds set --unset printed %s, want what the worker has announced", out)
	}
	for _, x := range []struct{ flag, value, want string }{
		{"--input-schema", filepath.Join(dir, "none.json"), "no such file"},
		{"--output-schema", file("half.json", `{"type":`), "no JSON"},
		{"--input-schema", file("list.json", `[1]`), "input_schema"},
		{"--signal", "paid", "name=file"},
		{"--signal", "=" + paid, "name=file"},
	} {
		code := 2
		if strings.HasSuffix(x.value, "list.json") {
			code = 1 // the server says so
		}
		_, complaint := mustRun(t, code, "kinds", "set", "order", x.flag, x.value)
		has(t, complaint, x.want)
	}
	_, complaint = mustRun(t, 2, "kinds", "set", "order", "--signal", "paid="+paid, "--signal", "paid="+paid)
	has(t, complaint, "given twice")
}

func TestRunTakesClassFromTheRegistry(t *testing.T) {
	c, _ := live(t)
	if _, err := session.Of(c).AnnounceKind(t.Context(), "research",
		api.AnnounceKind{KindDef: perdure.KindDef{Class: perdure.Agent}}); err != nil {
		t.Fatal(err)
	}
	out, _ := mustRun(t, 0, "run", "research", "-d")
	run, err := c.Get(t.Context(), perdure.RunID(strings.TrimSpace(out)))
	if err != nil || run.Class != perdure.Agent {
		t.Errorf("run: %+v (%v), want class agent", run, err)
	}
}

// A wait that is shorter than the time after which the kind is looked up is no reason to keep silent.
func TestUnservedKindIsSaidBeforeShortWaitEnds(t *testing.T) {
	live(t)
	_, stderr := mustRun(t, exitDeferred, "run", "nobody", "--wait", "1ms")
	if n := strings.Count(stderr, "no worker polls for kind nobody on queue default"); n != 1 {
		t.Errorf("said %d times, want once:\n%s", n, stderr)
	}
}

func TestUnservedKindIsSaid(t *testing.T) {
	c, _ := live(t)
	defer func(d time.Duration) { waitingAfter = d }(waitingAfter)
	waitingAfter = time.Millisecond
	_, stderr := mustRun(t, exitDeferred, "run", "nobody", "--wait", "1s")
	has(t, stderr, "no worker polls for kind nobody on queue default")
	if n := strings.Count(stderr, "no worker"); n != 1 {
		t.Errorf("said %d times, want once:\n%s", n, stderr)
	}
	run, err := c.Start(t.Context(), perdure.Submission{Kind: "nobody"})
	if err != nil {
		t.Fatal(err)
	}
	out, _ := mustRun(t, 0, "peek", string(run.RunID))
	has(t, out, "waits  no worker polls for kind nobody on queue default")
	if _, err := session.Of(c).Poll(t.Context(), "w", api.Poll{Kinds: []string{"nobody"}, Slots: 1}); err != nil {
		t.Fatal(err)
	}
	run, err = c.Start(t.Context(), perdure.Submission{Kind: "nobody"})
	if err != nil {
		t.Fatal(err)
	}
	if out, _ := mustRun(t, 0, "peek", string(run.RunID)); strings.Contains(out, "no worker polls") {
		t.Errorf("peek = %s, want nothing about workers: one polls", out)
	}
}
