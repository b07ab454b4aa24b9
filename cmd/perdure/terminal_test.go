package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

// hostile is a text that writes the clipboard of a terminal (OSC 52), forges a row, changes the
// direction and hides characters. It also has a C1 control, DEL and a line separator.
const hostile = "a\x1b]52;c;ZXZpbA==\x07\r\nRUN\tforged\u009b31m\u202eback\u2066\u200bhidden\u2028\x7f\U000e0041"

// unsafeIn returns the first character of an output that is not plain, except line breaks.
func unsafeIn(out string) string {
	for i, r := range out {
		if r != '\n' && !unicode.IsPrint(r) {
			return fmt.Sprintf("%U in %q", r, out[max(0, i-30):min(len(out), i+30)])
		}
	}
	return ""
}

func TestForeignTextIsEscaped(t *testing.T) {
	for name, f := range map[string]func(string) string{"visible": visible, "literal": literal, "block": block,
		"safeJSON": func(s string) string {
			b, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			var back, want string
			safe := safeJSON(b)
			if err := errors.Join(json.Unmarshal(safe, &back), json.Unmarshal(b, &want)); err != nil || back != want {
				t.Errorf("safeJSON(%s) is the value %q, %v; want %q", b, back, err, want)
			}
			return string(safe)
		}} {
		for _, text := range []string{hostile, "a\xff\xfeb", "\u0085\u00a0\u061c\ufeff\u00ad", "Köln 東京 🙂"} {
			if bad := unsafeIn(f(text)); bad != "" {
				t.Errorf("%s(%q) has %s", name, text, bad)
			}
		}
		if got := f("Köln 東京 🙂"); !strings.Contains(got, "Köln 東京 🙂") {
			t.Errorf("%s changes what is plain: %q", name, got)
		}
	}
	if got, want := block("one\n\ttwo"), "one\n      two"; got != want {
		t.Errorf("block = %q, want %q", got, want)
	}
}

// No command prints text of a tenant, an agent or a worker without escaping it.
func TestNoCommandPrintsForeignTextRaw(t *testing.T) {
	c, _ := live(t)
	ctx := context.Background()
	text, no := json.RawMessage(mustJSON(hostile)), false
	submit := func(kind string) {
		t.Helper()
		if _, err := c.Start(ctx,
			perdure.Submission{Kind: kind, Input: text,
				Metadata: map[string]string{"k": strings.ReplaceAll(hostile, "\x00", "")}}); err != nil {
			t.Fatal(err)
		}
	}
	take := func(kind string) api.Grant {
		t.Helper()
		p, err := session.Of(c).Poll(ctx, "w", api.Poll{Kinds: []string{kind}, Slots: 1, Start: true})
		if err != nil || len(p.Runs) != 1 {
			t.Fatalf("poll: %v, want a run", err)
		}
		return p.Runs[0]
	}
	commit := func(g api.Grant, what perdure.Commit) {
		t.Helper()
		what.ID, what.RunID, what.Epoch = "c"+g.Kind, g.RunID, g.Epoch
		if _, err := session.Of(c).Commit(ctx, "w", what); err != nil {
			t.Fatalf("commit for kind %s: %v", g.Kind, err)
		}
	}
	submit("live")
	g := take("live")
	if _, err := session.Of(c).Heartbeat(ctx, "w",
		api.Beat{RunID: g.RunID, Epoch: g.Epoch, Activity: hostile, Progress: text}); err != nil {
		t.Fatal(err)
	}
	commit(g, perdure.Commit{Events: []perdure.Emitted{{Type: "x:evil", Data: text}},
		Views: []perdure.View{{Name: "evil", Value: text}},
		Waits: []perdure.WaitSpec{{ID: "a", Type: perdure.WaitApproval, Name: "ask",
			Approval: &perdure.ApprovalSpec{Title: hostile, Action: text}}}})
	submit("good")
	good := take("good")
	commit(good, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: text,
		Summary: hostile}})
	submit("bad")
	bad := take("bad")
	commit(bad, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeFail,
		Error: &perdure.Failure{Code: "boom", Message: hostile}, Retryable: &no}})
	submit("no")
	rejected := take("no")
	commit(rejected, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeReject, Reason: hostile}})
	mustRun(t, 0, "webhooks", "add", "http://127.0.0.1:1/", "--description",
		strings.NewReplacer("\r", "", "\x07", "").Replace(hostile))

	for _, args := range [][]string{
		{"jobs"}, {"view", string(g.RunID), "evil"}, {"view", string(g.RunID)}, {"peek", string(g.RunID)},
		{"logs", string(g.RunID)}, {"logs", string(good.RunID)},
		{"logs", string(bad.RunID)},
		{"wait", string(good.RunID)}, {"wait", string(bad.RunID)}, {"fg", string(good.RunID)},
		{"fg", string(bad.RunID)}, {"peek", string(bad.RunID)}, {"peek", string(good.RunID)},
		{"approve"}, {"dlq"}, {"dlq", "list"}, {"dlq", "show", string(rejected.RunID)}, {"webhooks"}, {"watchdog"},
		{"late", string(good.RunID)},
		{"artifacts", string(good.RunID)}, {"keys", "list"},
		{"kill", "--reason", hostile, "--wait", "0s", string(g.RunID)}, {"peek", hostile}, {"rm", hostile},
	} {
		for _, form := range [][]string{nil, {"--json"}} {
			if args[0] == "rm" && form != nil {
				continue
			}
			code, stdout, stderr := call(append(append([]string{}, args...), form...)...)
			if code == exitUsage {
				t.Errorf("perdure %q %v: wrong usage: %s", args, form, stderr)
			}
			for where, out := range map[string]string{"standard output": stdout, "standard error": stderr} {
				if bad := unsafeIn(out); bad != "" {
					t.Errorf("perdure %q %v: %s has %s", args[0], form, where, bad)
				}
			}
		}
	}
}

func mustJSON(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return b
}
