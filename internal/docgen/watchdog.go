package main

import (
	"fmt"
	"strings"
	"time"

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

The watchdog and the engine decide by one struct, ` + "`perdure.Policy`" + ` in [policy.go](../policy.go). ` + "`DefaultPolicy`" + ` gives its defaults, and
` + "`Validate`" + ` refuses settings under which a run might not end. [Configuration](configuration.md#policy) has a row for each item.
`

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
