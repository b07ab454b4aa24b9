package main

import (
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/watchdog"
)

const watchdogIntro = `# The watchdog

<!-- printed from watchdog.Rules and perdure.DefaultPolicy by internal/docgen; change those, then run "make docs" -->

The watchdog is the safety net: a table of rules, one sweep that finds whose alarm has rung and does what the
rule says, and one loop that sleeps until the next alarm. There is no special recovery at start: a server that comes
back sweeps, and that is all. Every action is the same guarded write as any other, so that any number of nodes
may sweep at once without doing anything twice.

Each action is an entry of the watchdog's log, written in the same transaction, that says what was done and why: ` + "`perdure watchdog`" + ` lists it, and
` + "`perdure_watchdog_actions_total`" + ` counts it by rule and name; see [metrics](metrics.md).

## Rules

Condition, action, bound. Those that are called by a run's [clock](lifecycle.md#clocks) stand first, in the order in which they
are tried. *Held* rules judge by silence and wait after a gap, see below.

`

const gapText = `
## After a gap

Workers can't be heard while no server runs. When nobody has swept for %s (%s), the rules marked *held* do nothing until
one lease (%s) after the first sweep; runs whose alarm rings meanwhile are looked at again then. A deadline is not held,
with one exception: a run that was leased when the gap began, and whose deadline came later, is spared for %s (%s), so that a result its worker has
kept is taken. One gap after the other spares it no longer. A restart, however long it takes, costs nobody anything but their deadline.

When somebody last swept is one row of the store, so a second node that goes on sweeping means that there is no gap.

Who makes leases shorter than that makes this shorter too: a lease that is over before anybody notices that no server ran is lost. A server that starts again and again,
and is never away for that long, makes no gap either: if hardly any heartbeat gets through meanwhile, leases are lost.

## Why every run ends

- Every live run has an alarm, and the deadline is one of its clocks in every live state. Nothing extends a deadline.
- The rules that end a run or take it from its holder lower its rank: attempts left, deliveries left, distance of the state
  from an end, compared in that order.
- The others only make a run runnable, or look again strictly later.

`

const configText = `## Configuration

The watchdog and the engine decide by one struct, ` + "`perdure.Policy`" + ` in [policy.go](../policy.go); ` + "`DefaultPolicy`" + ` gives what stands here and
` + "`Validate`" + ` refuses settings under which a run might not end. *Also known as* gives the names of the same settings in other
systems with such a net, for those who come from there.

`

// elsewhere are the bounds that are no items: they are asked for where they are used.
var elsewhere = [][4]string{
	{"a worker's long poll", "30 s", "`wait` of a poll, at most a minute", "worker long poll"},
	{"a wait", "`suspend_timeout`", "`timeout` of a wait is exact; `never` lasts until the run's deadline; of the `tool` that it is for and the default the greater one counts", "`options.suspend_timeout_seconds`, `options.timeout_seconds` of a tool definition"},
	{"a wait for `start_task`", "", "for the signal or the approval of that name, unless the wait says otherwise", "orchestrator wait, `event:{project_id}:start_task`"},
	{"a wait for `approve_push`", "", "the same", "approval wait, `event:{project_id}:approve_push`"},
}

func safetyNet(w *strings.Builder) {
	p := perdure.DefaultPolicy()
	w.WriteString(watchdogIntro)
	header(w, "rule", "name", "condition", "action", "bound", "held")
	for _, r := range watchdog.Rules {
		held := ""
		if r.Held {
			held = "held"
		}
		row(w, r.ID, code(r.Name), r.Condition, r.Action, r.Bound, held)
	}
	w.WriteString("\n" + "The part of W15 that fires schedules comes with that\nfeature; see the status table in the [README](../README.md#status).\n")
	fmt.Fprintf(w, gapText, duration(p.GapAfter), code("gap_after"), code("lease"), duration(p.GapSpare), code("gap_spare"))
	w.WriteString(configText)
	header(w, "item", "default", "what it says", "also known as")
	for _, i := range items(&p) {
		row(w, code(i.name), i.value, i.note, i.alias)
	}
	w.WriteString("\nSome are no items but are asked for where they are used:\n\n")
	header(w, "of what", "default", "asked for by", "also known as")
	for _, e := range elsewhere {
		for name, d := range perdure.WaitTimeouts {
			if strings.HasSuffix(e[0], code(name)) {
				e[1] = duration(d)
			}
		}
		row(w, e[:]...)
	}
}

// An item is one field of the policy.
type item struct{ name, value, note, alias string }

// notes say what each item of the policy is for, and what else it is called. The page can't be printed if
// one is missing.
var notes = map[string]struct{ note, alias string }{
	"lease":                    {"a worker's right to execute, from each sign of life", "`job:{job_id}:lease`"},
	"cancel_grace":             {"a cancel request that nobody acknowledges is enforced after this", ""},
	"cleanup_grace":            {"an acknowledged one has this long to clean up", ""},
	"dispatched_retry":         {"a grant that is not heard from may be granted again after this, doubling", "`pmo.dispatched_retry_seconds`"},
	"dispatched_retry_max":     {"the longest that doubles to", ""},
	"dispatched_timeout":       {"a grant that is not heard from goes back to the queue after this", "`pmo.dispatched_timeout_seconds`"},
	"max_deliveries":           {"grants in a row that nobody was heard from, before the run ends as a dead letter", ""},
	"inbox_processing_timeout": {"an inbox item in the hands of a holder that is gone is looked at after this", "`worker.inbox_processing_timeout_seconds`"},
	"suspend_timeout":          {"the timeout of a wait that has none of its own", "`worker.suspend_timeout_seconds`"},
	"pending_wakeup":           {"an inbox item that may satisfy a wait is looked at again after this", "`pmo.pending_wakeup_seconds`"},
	"pending_wakeup_skip":      {"an item of a run that has ended is given up after this", "`pmo.pending_wakeup_skip_seconds`"},
	"active_reap":              {"a running run without any sign of life ends after this; the net under the lease", "`pmo.active_reap_seconds`"},
	"queued_alert":             {"a claimable run that nobody takes is reported after this", ""},
	"silent":                   {"a running run without a sign of life is reported after this", ""},
	"no_progress":              {"one that beats and does not move is reported after this", ""},
	"stale_after":              {"a running run without a sign of life is `stale`, and reported, after this", ""},
	"dead_after":               {"and `dead` after this; a process is given up then", ""},
	"liveness":                 {"the last four for some kinds and activities, see [liveness](liveness.md)", ""},
	"worker_offline":           {"a worker without a sign of life is shown as offline after this", "`worker:{worker_id}:heartbeat`"},
	"backoff_base":             {"the first retry waits this long, each further one twice as long", ""},
	"backoff_max":              {"the longest that doubles to", ""},
	"backoff_jitter":           {"the share by which a backoff varies, up or down", ""},
	"max_attempts":             {"attempts that may be lost in a row, without committed progress; a run may ask for another number", "`retry_count`"},
	"timeouts":                 {"the timeout of a run that asks for none, and the greatest that it may ask for", "`timeout_sec`, job max"},
	"beat_every":               {"a heartbeat that says nothing new makes a line in the log at most this often", ""},
	"waiter_ttl":               {"a node's word that somebody waits for a run holds this long", ""},
	"detach_grace":             {"a dropped connection defers the run after this", ""},
	"dead_letter_ttl":          {"how long a dead letter is kept", "`job_dlq:{tenant_id}`"},
	"idempotency_ttl":          {"how long an idempotency key is kept, and at least as long as its run lives", "`job:idempotency:{key}`"},
	"audit_retention":          {"how long an entry of the [audit log](audit.md) is kept", ""},
	"retention":                {"how long a run is kept after its end, see [retention](retention.md)", "`job:{job_id}:result`"},
	"artifact_max_bytes":       {"how large an [artifact](artifacts.md) may be", ""},
	"artifact_total_bytes":     {"how large all that a run leaves may be together", ""},
	"watchdog_interval":        {"the longest that the watchdog sleeps", "`pmo.watchdog_interval_seconds`, `worker.watchdog_interval_seconds`"},
	"gap_after":                {"nobody has swept for this long: it was a gap", ""},
	"gap_spare":                {"after a gap, the deadline of a run that was leased waits this long", ""},
	"patrol_every":             {"how often a stretch of the live runs is walked through, to mend what should not be", ""},
}

// items lists the policy, field by field.
func items(p *perdure.Policy) []item {
	var out []item
	v := reflect.ValueOf(*p)
	for i := range v.NumField() {
		name := snake(v.Type().Field(i).Name)
		n, ok := notes[name]
		if !ok {
			panic("the policy has an item that internal/docgen says nothing about: " + name)
		}
		out = append(out, item{name, value(v.Field(i).Interface()), n.note, n.alias})
	}
	return out
}

func value(v any) string {
	switch v := v.(type) {
	case time.Duration:
		return duration(v)
	case float64:
		return fmt.Sprintf("± %g %%", v*100)
	case perdure.Liveness:
		return "none"
	case map[perdure.Class]perdure.TimeoutLimits:
		var parts []string
		for _, c := range []perdure.Class{perdure.Task, perdure.Agent, perdure.Process} {
			parts = append(parts, fmt.Sprintf("%s %s, at most %s", c, duration(v[c].Default), duration(v[c].Max)))
		}
		return strings.Join(parts, "; ")
	}
	return fmt.Sprint(v)
}

// duration writes a duration as people do: "500 ms", "10 min", "30 d".
func duration(d time.Duration) string {
	for _, u := range []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if d >= u.of && d%u.of == 0 && (u.name != "d" || d > 24*time.Hour) {
			return fmt.Sprintf("%d %s", d/u.of, u.name)
		}
	}
	return d.String()
}

// snake turns WatchdogInterval into watchdog_interval, and DeadLetterTTL into dead_letter_ttl.
func snake(s string) string {
	var b strings.Builder
	runes := []rune(s)
	for i, c := range runes {
		if unicode.IsUpper(c) && i > 0 && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}
