package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

func TestJournalOnTheCommandLine(t *testing.T) {
	c, _ := live(t)
	ctx := t.Context()
	run := submit(t, c, perdure.Submission{Kind: "agent", Class: perdure.Agent})
	id := string(run)
	has(t, first(mustRun(t, 0, "journal", id)), "Nothing is recorded yet.")
	has(t, first(mustRun(t, 0, "journal", id, "--inbox")), "Nothing has come yet.")
	if out, _ := mustRun(t, 0, "journal", id, "--json"); out != "" {
		t.Errorf("an empty journal as JSON lines = %q, want none", out)
	}
	polled, err := session.Of(c).Poll(ctx, "w", api.Poll{Slots: 1, Start: true})
	if err != nil || len(polled.Runs) != 1 {
		t.Fatalf("polled %+v: %v", polled, err)
	}
	large := strings.Repeat("x", 5000)
	commit := perdure.Commit{ID: "c", RunID: run, Epoch: polled.Runs[0].Epoch}
	const many = 250 // more than a page
	for i := range many {
		value := fmt.Sprint(i)
		if i == 1 {
			value = `"` + large + `"`
		}
		commit.Journal = append(commit.Journal, perdure.JournalEntry{Key: fmt.Sprintf("step#%d", i),
			Value: json.RawMessage(value)})
	}
	if res, err := session.Of(c).Commit(ctx, "w", commit); err != nil || !res[0].OK {
		t.Fatalf("commit = %+v, %v, want it taken", res, err)
	}
	if _, err := c.Signal(ctx, run, "go", json.RawMessage(`{"a":1}`)); err != nil {
		t.Fatal(err)
	}

	lines := strings.Split(strings.TrimSpace(first(mustRun(t, 0, "journal", id))), "\n")
	if len(lines) != many+1 {
		t.Fatalf("%d lines, want a heading and %d entries", len(lines), many)
	}
	has(t, lines[0], "STEP", "BYTES", "VALUE")
	has(t, lines[2], "step#1", "5002", "xxx…")
	if strings.Contains(lines[2], strings.Repeat("x", 200)) {
		t.Errorf("row = %s, want the value shortened", lines[2])
	}
	has(t, lines[many], fmt.Sprint("step#", many-1))
	lines = strings.Split(strings.TrimSpace(first(mustRun(t, 0, "journal", "--json", id))), "\n")
	var step api.Step
	if err := json.Unmarshal([]byte(lines[many-1]), &step); err != nil || len(lines) != many || step.Seq != many ||
		string(step.Value) != fmt.Sprint(many-1) {
		t.Errorf("%d lines, the last %s (%v), want %d", len(lines), lines[len(lines)-1], err, many)
	}
	if out, _ := mustRun(t, 0, "journal", id, "--entry", "2"); strings.TrimSpace(out) != `"`+large+`"` {
		t.Errorf("entry 2 = %.80q…, want the whole value", out)
	}
	out, _ := mustRun(t, 0, "journal", id, "--entry", "2", "--json")
	if err := json.Unmarshal([]byte(out), &step); err != nil || step.Key != "step#1" || len(step.Value) != 5002 {
		t.Errorf("entry 2 = %.200s (%v), want it with its key", out, err)
	}

	has(t, first(mustRun(t, 0, "journal", id, "--inbox")), "TYPE", "signal", "go", "pending", `{"a":1}`)
	if out, _ := mustRun(t, 0, "journal", id, "--inbox", "--entry", "1"); strings.TrimSpace(out) != `{"a":1}` {
		t.Errorf("item 1 = %q, want the signal's value", out)
	}
	var item api.InboxItem
	out, _ = mustRun(t, 0, "journal", id, "--inbox", "--json")
	if err := json.Unmarshal([]byte(out), &item); err != nil || item.Name != "go" || item.Seq != 1 {
		t.Errorf("inbox = %s (%v), want one item as it is", out, err)
	}
}

func TestJournalRefusesWithAReason(t *testing.T) {
	c, _ := live(t)
	id := string(submit(t, c, perdure.Submission{Kind: "agent"}))
	for _, x := range []struct {
		code int
		args string
		says string
	}{
		{2, "journal", "RUN is missing"},
		{2, "journal a b", "b is one argument too many"},
		{2, "journal " + id + " --entry x", "flag -entry"},
		{2, "journal " + id + " --entry 0", "--entry takes a number from 1 on"},
		{2, "journal " + id + " --entry -3", "--entry takes a number from 1 on"},
		{1, "journal " + id + " --entry 7", "not_found"},
		{1, "journal " + id + " --inbox --entry 7", "not_found"},
		{1, "journal nobody", "not_found"},
		{1, "journal nobody --inbox", "not_found"},
	} {
		code, out, errs := call(strings.Fields(x.args)...)
		if code != x.code || out != "" || !strings.Contains(errs, x.says) {
			t.Errorf("perdure %s: exit code %d, %q, %q; want %d with %q", x.args, code, out, errs, x.code, x.says)
		}
	}
	keyWith(t, c, perdure.ScopeCreate)
	_, errs := mustRun(t, exitFail, "journal", id)
	has(t, errs, "runs:read")
}

// An exported file has everything: more journal than one answer, the input, the inbox and the waits.
func TestJournalIsExported(t *testing.T) {
	c, _ := live(t)
	ctx := t.Context()
	run := submit(t, c, perdure.Submission{Kind: "agent", Class: perdure.Agent,
		Input: json.RawMessage(`{"to":"Lisbon"}`)})
	polled, err := session.Of(c).Poll(ctx, "w", api.Poll{Slots: 1, Start: true})
	if err != nil || len(polled.Runs) != 1 {
		t.Fatalf("polled %+v: %v", polled, err)
	}
	large := strings.Repeat("x", 700_000) // two of them need two answers
	commit := perdure.Commit{ID: "c", RunID: run, Epoch: polled.Runs[0].Epoch,
		Waits:   []perdure.WaitSpec{{ID: "signal:go#1", Type: perdure.WaitSignal, Name: "go", Timeout: perdure.Never}},
		Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend, Waits: []string{"signal:go#1"}}}
	for i := range 3 {
		commit.Journal = append(commit.Journal, perdure.JournalEntry{Key: fmt.Sprintf("step#%d", i),
			Value: json.RawMessage(`{"ok":"` + large + `"}`)})
	}
	if res, err := session.Of(c).Commit(ctx, "w", commit); err != nil || !res[0].OK {
		t.Fatalf("commit = %+v, %v, want it taken", res, err)
	}
	if _, err := c.Signal(ctx, run, "other", json.RawMessage(`{"a":1}`)); err != nil {
		t.Fatal(err)
	}
	before, err := c.Get(ctx, run)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "run.json")
	has(t, first(mustRun(t, 0, "journal", string(run), "--export", file)), "3 of its journal, 1 of its inbox")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := api.ParseReplay(text)
	if err != nil {
		t.Fatal(err)
	}
	wait := api.ReplayWait{ID: "signal:go#1", Type: perdure.WaitSignal, Name: "go", Asleep: true}
	if r.RunID != run || r.State != perdure.Suspended || string(r.Input) != `{"to":"Lisbon"}` || len(r.Journal) != 3 ||
		len(r.Journal[2].Value) < len(large) || len(r.Inbox) != 1 || r.Inbox[0].Name != "other" ||
		len(r.Waits) != 1 || r.Waits[0] != wait || r.JournalNext != 0 {
		t.Errorf("exported run = %.400s, want its input, 3 large entries, the signal and the wait", text)
	}
	if mode, err := os.Stat(file); err != nil || mode.Mode().Perm() != 0o600 {
		t.Errorf("the file has the mode %v (%v), want that only its owner reads it", mode.Mode(), err)
	}
	if after, err := c.Get(ctx, run); err != nil || after.LastSeq != before.LastSeq || after.Epoch != before.Epoch {
		t.Errorf("the export has changed the run: %+v (%v), want %+v", after, err, before)
	}
	if out, _ := mustRun(t, 0, "journal", string(run), "--export", "-"); out != string(text) {
		t.Errorf("--export - prints %.100s, want what the file has", out)
	}
	mustRun(t, 2, "journal", string(run), "--export", file, "--inbox")
	mustRun(t, 1, "journal", string(run), "--export", filepath.Join(file, "none"))
}
