package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/internal/wire/session"
)

// keyWith makes a key of the tenant with these scopes, and has the commands use it.
func keyWith(t *testing.T, c *client.Client, scopes ...perdure.Scope) {
	t.Helper()
	in := api.CreateKey{Name: "limited"}
	for _, s := range scopes {
		in.Scopes = append(in.Scopes, string(s))
	}
	k, err := admin.New(c).CreateKey(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PERDURE_KEY", k.Secret)
}

func submit(t *testing.T, c *client.Client, sub perdure.Submission) perdure.RunID {
	t.Helper()
	r, err := c.Start(t.Context(), sub)
	if err != nil {
		t.Fatal(err)
	}
	return r.RunID
}

func TestQueuesOnTheCommandLine(t *testing.T) {
	c, _ := live(t)
	has(t, first(mustRun(t, 0, "queues")), "No queues")
	if out, _ := mustRun(t, 0, "queues", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("queues --json without queues = %q, want []", out)
	}
	submit(t, c, perdure.Submission{Kind: "job", Queue: "slow"})
	submit(t, c, perdure.Submission{Kind: "job"})

	out, _ := mustRun(t, 0, "kinds", "pause", "job", "--reason", "a bad build")
	has(t, out, "job is paused since ", ": a bad build")
	out, _ = mustRun(t, 0, "kinds", "drain", "job", "--wait", "--json")
	has(t, out, `"leased": 0`, `"name": "job"`)
	has(t, first(mustRun(t, 0, "kinds", "resume", "job")), "job is not paused")
	held, err := session.Of(c).Poll(t.Context(), "w", api.Poll{Slots: 1, Queues: []string{"default"}, Start: true})
	if err != nil || len(held.Runs) != 1 {
		t.Fatalf("poll: %+v, %v; want a run", held, err)
	}
	has(t, first(mustRun(t, 0, "queues", "drain", "default")), "default is paused since ", "1 runs are still leased")
	has(t, first(mustRun(t, 0, "queues", "resume", "default")), "default is not paused")

	out, _ = mustRun(t, 0, "queues", "pause", "slow", "--reason", "the model\x1b[2J is down", "--for", "30m")
	has(t, out, "slow is paused since ", " by the platform", ", until ", ": the model·[2J is down")
	var list []api.Queue
	text, _ := mustRun(t, 0, "queues", "list", "--json")
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) != 2 || list[0].Paused != nil ||
		list[1].Paused == nil || list[1].Claimable != 1 {
		t.Errorf("queues = %s (%v), want default, and slow paused with one claimable run", text, err)
	}
	lines := strings.Split(first(mustRun(t, 0, "queues")), "\n")
	if len(lines) != 4 || !strings.HasSuffix(lines[1], " -") || !strings.HasPrefix(lines[2], "slow ") {
		t.Fatalf("table = %q, want a heading, default without a pause, and slow", lines)
	}
	has(t, lines[2], " since ", "until ", "the model·[2J is down")
	if p, err := session.Of(c).Poll(t.Context(), "w", api.Poll{Slots: 5, Queues: []string{"slow"},
		Wait: perdure.Duration(time.Millisecond)}); err != nil || len(p.Runs) != 0 {
		t.Errorf("poll of the paused queue: %+v, %v; want nothing", p, err)
	}

	var paused api.QueuePaused
	end := time.Now().Add(24 * time.Hour).Truncate(time.Second).In(time.FixedZone("", 3600))
	text, _ = mustRun(t, 0, "queues", "pause", "slow", "--until", end.Format(time.RFC3339), "--json")
	if err := json.Unmarshal([]byte(text), &paused); err != nil || paused.Paused == nil ||
		!paused.Paused.Until.Time().Equal(end) || paused.Paused.Reason != "" {
		t.Errorf("paused anew: %s (%v), want the other end and no reason", text, err)
	}
	has(t, first(mustRun(t, 0, "queues", "resume", "slow")), "slow is not paused")
	has(t, first(mustRun(t, 0, "queues", "resume", "slow")), "slow is not paused") // again
	has(t, first(mustRun(t, 0, "queues", "pause", "a/b #1")), "a/b #1 is paused since ")
	has(t, first(mustRun(t, 0, "queues", "resume", "a/b #1")), "a/b #1 is not paused")
	text, _ = mustRun(t, 0, "queues", "resume", "never-heard-of", "--json")
	has(t, text, `"name": "never-heard-of"`)
	if strings.Contains(text, "paused") {
		t.Errorf("a queue that is not paused: %s, want no pause", text)
	}
}

func TestQueuesRefusesWithAReason(t *testing.T) {
	c, _ := live(t)
	submit(t, c, perdure.Submission{Kind: "job"})
	for _, x := range []struct {
		code int
		args string
		says string
	}{
		{2, "queues pause", "QUEUE is missing"},
		{2, "queues resume a b", "b is one argument too many"},
		{2, "queues list more", "more is one argument too many"},
		{2, "queues puase slow", "did you mean pause?"},
		{2, "queues pause slow --until tomorrow", "--until takes an instant"},
		{2, "queues pause slow --for never", "flag -for"},
		{1, "queues pause slow --for -5m", "for"},
		{1, "queues pause slow --until 2020-01-01T00:00:00Z", "until: has passed"},
		{1, "queues pause slow --for 1h --until 2026-12-31T18:00:00Z", "give either until or for"},
		{1, "queues pause $x", "name"},
		{1, "queues resume .x", "name"},
	} {
		code, out, errs := call(strings.Fields(x.args)...)
		if code != x.code || out != "" || !strings.Contains(errs, x.says) {
			t.Errorf("perdure %s: exit code %d, %q, %q; want %d with %q", x.args, code, out, errs, x.code, x.says)
		}
	}
	keyWith(t, c, perdure.ScopeRead)
	has(t, first(mustRun(t, 0, "queues")), "default")
	for _, verb := range []string{"pause", "resume"} {
		_, errs := mustRun(t, exitFail, "queues", verb, "default")
		has(t, errs, "runs:control")
	}
	keyWith(t, c, perdure.ScopeCreate)
	_, errs := mustRun(t, exitFail, "queues")
	has(t, errs, "runs:read")
}
