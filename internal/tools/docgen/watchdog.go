package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/watchdog"
)

const watchdogIntro = `# The watchdog

<!-- printed from watchdog.Rules and perdure.DefaultPolicy by internal/tools/docgen: run "make docs" after a change -->

The watchdog is the safety net: a table of rules, a sweep that applies them to everything whose
alarm is due, and a loop that sleeps until the next alarm. There is no separate recovery at start: a
server that starts again sweeps, and that is all. Every action is the same guarded write as any
other, so any number of nodes may sweep at once without doing anything twice.

Each action is an entry of the watchdog's log, written in the same transaction, that says what was
done and why. ` + "`perdure watchdog`" + ` lists the entries, and ` + "`perdure_watchdog_actions_total`" + `
counts them by
rule and name; see [metrics](metrics.md).

## Rules

Each rule has a condition, an action and a bound. Rules that are called by a run's
[clock](lifecycle.md#clocks) come first, in the order in which they are tried. *Postponed* rules
judge by silence and wait after a gap, see below.

Several rules share a number, W15 above all, so each has a name of its own. Metrics and stored
entries have the number and the name. Where the name is short, the second line is the full name,
which the server's log adds as ` + "`full_name`" + `. ` + "`perdure watchdog --rule`" + ` and
` + "`GET /api/admin/watchdog?rule=`" + ` take the number, the name or the full name.

The settings in bounds are those of the [policy](configuration.md). ` + "`perdure watchdog --rules`" + ` and the
dashboard show the rules with the values that a server goes by; ` + "`GET /api/admin/policy`" + ` lists the
settings. A value can differ for a kind: thresholds of [liveness](liveness.md) have sections for kinds
and activities, and a [kind](kinds.md) can have its own ` + "`hold_timeout`" + `.

`

const gapText = `
## After a gap

Workers can't be heard while no server runs. If no node has swept for %s (%s), that is a gap. The
rules marked *postponed* then do nothing until one lease (%s) after the first sweep. Runs whose alarm
is due before that are looked at again at its end.

A deadline is not postponed, with one exception. A run that was leased when the gap began, and whose
deadline came later, is spared for %s (%s), so that a result its worker has kept is taken. A second
gap does not spare it again. A restart, however long it takes, costs a run nothing but its deadline.

The time of the last sweep is one row of the store, so a second node that goes on sweeping means that
there is no gap.

If you make leases shorter than ` + "`gap_after`" + `, make that shorter too: a lease that expires before a gap
is noticed is lost. A server that starts again and again, and is never away for that long, makes no
gap either. If hardly any heartbeat gets through meanwhile, leases are lost.

## Why every run ends

- Every live run has an alarm, and the deadline is one of its clocks in every live state. Nothing
  extends a deadline.
- The rules that end a run or take it from its holder lower its rank: attempts left, deliveries left,
  distance of the state from an end, compared in that order.
- The others only make a run runnable, or move its alarm strictly later.

`

const configText = `## Configuration

The watchdog and the engine decide by one struct, ` + "`perdure.Policy`" + ` in [policy.go](../policy.go).
` + "`DefaultPolicy`" + ` gives its defaults, and ` + "`Validate`" + ` refuses settings under which a run might not end.
[Configuration](configuration.md#policy) has a row for each item.
`

// safetyNet prints docs/watchdog.md.
func safetyNet(w *strings.Builder) {
	p := perdure.DefaultPolicy()
	w.WriteString(watchdogIntro)
	header(w, "rule", "name", "condition", "action", "bound", "after a gap")
	for i := range watchdog.Rules {
		r := &watchdog.Rules[i]
		name, postponed := code(r.Name), ""
		if r.FullName != "" {
			name += "<br>" + code(r.FullName)
		}
		if r.Postponed {
			postponed = "postponed"
		}
		row(w, r.ID, name, r.Condition, r.Action, r.Bound, postponed)
	}
	w.WriteString("\nThe part of W15 that fires schedules comes with that feature; see the status table in the\n" +
		"[README](../README.md#status).\n")
	fmt.Fprintf(w, gapText, duration(p.GapAfter), code("gap_after"), code("lease"),
		duration(p.GapSpare), code("gap_spare"))
	w.WriteString(configText)
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
