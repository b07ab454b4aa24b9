package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/perdure/perdure/api"
)

func TestSchedulesOnTheCommandLine(t *testing.T) {
	live(t)
	has(t, first(mustRun(t, 0, "schedules")), "No schedules")
	out, _ := mustRun(t, 0, "schedules", "add", "nightly", "report", "--cron", "30 2 * * mon-fri",
		"--timezone", "Europe/Berlin", "--input", `{"for":"all"}`, "--overlap", "skip",
		"--description", "the\x1b[2J report")
	has(t, out, "nightly", "30 2 * * mon-fri Europe/Berlin", "active", "skip", `"for":"all"`, "the·[2J report")
	mustRun(t, 0, "schedules", "add", "poll", "check", "--every", "15m")
	out, _ = mustRun(t, 0, "schedules")
	has(t, out, "NAME", "nightly", "every 15m0s")
	out, _ = mustRun(t, 0, "schedules", "next", "nightly", "-n", "2")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "02:30:00") {
		t.Errorf("next = %q, want two instants at half past two", out)
	}
	out, _ = mustRun(t, 0, "schedules", "trigger", "nightly", "--json")
	var run api.Run
	if err := json.Unmarshal([]byte(out), &run); err != nil || run.ScheduleName != "nightly" {
		t.Errorf("trigger = %q (%v), want a run of nightly", out, err)
	}
	out, _ = mustRun(t, 0, "schedules", "pause", "poll")
	has(t, out, "paused")
	has(t, first(mustRun(t, 0, "schedules", "show", "poll")), "paused")
	has(t, first(mustRun(t, 0, "schedules", "resume", "poll")), "active")
	has(t, first(mustRun(t, 0, "schedules", "rm", "poll")), "poll is deleted")
	_, stderr := mustRun(t, 1, "schedules", "show", "poll")
	has(t, stderr, "no such schedule")
	_, stderr = mustRun(t, 1, "schedules", "add", "x", "y", "--cron", "30 2 30 2 *")
	has(t, stderr, "no day of the next 12 years")
	_, stderr = mustRun(t, exitUsage, "schedules", "add", "x", "y", "--every", "1h", "--end-at", "tomorrow")
	has(t, stderr, "--end-at takes an instant")
}
