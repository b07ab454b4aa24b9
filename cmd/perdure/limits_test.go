package main

import "testing"

func TestLimitsOnTheCommandLine(t *testing.T) {
	live(t)
	has(t, first(mustRun(t, 0, "limits")), "No limits")
	out, _ := mustRun(t, 0, "limits", "set", "openai", "--rate", "500/1m", "--burst", "20",
		"--description", "the\x1b[2J key")
	has(t, out, "openai", "500 in 1m0s, burst 20", "the·[2J key")
	mustRun(t, 0, "limits", "set", "customer", "--concurrency", "5", "--per-key")
	has(t, first(mustRun(t, 0, "limits", "set", "customer", "--limit-key", "acme", "--concurrency", "20")), "acme",
		"20 at once")
	has(t, first(mustRun(t, 0, "limits", "keys", "customer")), "acme", "20 at once")
	has(t, first(mustRun(t, 0, "limits", "set", "customer", "--limit-key", "acme", "--as-others")), "acme")
	out, _ = mustRun(t, 0, "limits")
	has(t, out, "NAME", "openai", "5 at once")
	has(t, first(mustRun(t, 0, "limits", "close", "openai", "--for", "2m", "--reason", "429")), "closed until", "429")
	has(t, first(mustRun(t, 0, "limits", "show", "openai")), "closed until")
	mustRun(t, 0, "limits", "open", "openai")
	has(t, first(mustRun(t, 0, "limits", "rm", "openai")), "openai is deleted")
	_, stderr := mustRun(t, 1, "limits", "show", "openai")
	has(t, stderr, "no such limit")
	_, stderr = mustRun(t, 1, "limits", "set", "zero", "--concurrency", "0")
	has(t, stderr, "close the limit")
	_, stderr = mustRun(t, exitUsage, "limits", "set", "x", "--rate", "often")
	has(t, stderr, "--rate takes")
}
