package main

import (
	"regexp"
	"testing"
)

func TestRetryOnTheCommandLine(t *testing.T) {
	c, _ := live(t)
	a, b := writeDeadLetter(t, c, "job", "broken"), writeDeadLetter(t, c, "job", "broken")
	out, _ := mustRun(t, 0, "retry", a, b, "--from", "start")
	has(t, out, a+" is run ", b+" is run ")
	made := regexp.MustCompile(a + ` is run ([0-9a-f-]+)`).FindStringSubmatch(out)
	if made == nil {
		t.Fatal(out)
	}
	has(t, first(mustRun(t, 1, "retry", made[1])), made[1]+" wrong_state")
	has(t, first(mustRun(t, 1, "retry", a, "--from", "none#1")), a+" from_invalid", "none#1")
	has(t, first(mustRun(t, 0, "retry", a, "--json")), `"retried_by_run_id": "`, `"done": 1`)
	has(t, first(mustRun(t, 1, "dlq", "redrive", a, "--from", "none#1")), a+" from_invalid")
	has(t, first(mustRun(t, 0, "dlq", "redrive", a, "--from", "journal")), a+" is run ")
	mustRun(t, 2, "retry")
}
