package main

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
)

// onHold creates a run that is on hold.
func onHold(t *testing.T, c *client.Client, kind string) string {
	t.Helper()
	g := hold(t, c, kind)
	err := commitOf(t, c, g, perdure.Commit{ID: "defect", Outcome: &perdure.Outcome{Type: perdure.OutcomeFail,
		Defect: true,
		Error:  &perdure.Failure{Code: "panic", Message: "it broke"}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(g.RunID)
}

func TestHeldRunsOnTheCommandLine(t *testing.T) {
	c, _ := live(t)
	id := onHold(t, c, "agent")
	has(t, first(mustRun(t, 0, "jobs")), id, "queued", "on hold: panic")
	has(t, first(mustRun(t, 0, "peek", id)), "attempt 1 of 3", "on hold", "panic, since", "defects: 1, tried again in",
		"run:held", "code panic")
	has(t, first(mustRun(t, 0, "release", id)), id+" queued")
	_, stderr := mustRun(t, 1, "release", id)
	has(t, stderr, "not on hold")

	other := onHold(t, c, "other")
	has(t, first(mustRun(t, 0, "dlq", "add", other)), other+" failed")
	has(t, first(mustRun(t, 0, "dlq", "show", other)), "panic", "held: panic: it broke")
	_, stderr = mustRun(t, 1, "dlq", "add", other)
	has(t, stderr, "not on hold")
	mustRun(t, 2, "release")
}
