package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

const lifecycleIntro = `# The life of a run

<!-- printed from perdure.Transitions and perdure.Clocks by internal/tools/docgen: run "make docs" after a change -->

One table decides what may happen to a run: ` + "`Transitions`" + ` in [transition.go](../transition.go). A
pair of state
and event that has no row can't happen; asking for it is refused and changes nothing. This page is printed
from that table.

Four states are live, four are ends. An end is final. A run that a worker has is *dispatched* until the worker
says that it begins, then *running*; one that waits for children, a signal, a timer or a callback is
*suspended* and holds no worker. Resuming is queueing: nothing goes from suspended to running.

`

func lifecycle(w *strings.Builder) {
	everywhere, everyLive, everyEnd, own := groupTransitions()
	w.WriteString(lifecycleIntro)
	diagram(w, everyLive, own)

	for _, s := range perdure.States {
		if s.Terminal() {
			continue
		}
		fmt.Fprintf(w, "\n## %s\n\n%s\n\n", s, stateNotes[s])
		header(w, "event", "leads to", "who says so", "what it means")
		for _, t := range own {
			if t.From == s {
				row(w, code(t.On), target(t), t.Who, t.Note)
			}
		}
	}

	w.WriteString("\n## In every live state\n\n")
	header(w, "event", "leads to", "who says so", "what it means")
	for _, t := range everyLive {
		row(w, code(t.On), target(t), t.Who, t.Note)
	}

	w.WriteString("\n## In every state\n\nThese hold for ended runs too.\n\n")
	header(w, "event", "leads to", "who says so", "what it means")
	for _, t := range everywhere {
		row(w, code(t.On), target(t), t.Who, t.Note)
	}

	w.WriteString("\n## Ends\n\nNothing leads out of an end: ")
	var ends []string
	for _, s := range perdure.States {
		if s.Terminal() {
			ends = append(ends, code(string(s)))
		}
	}
	w.WriteString(strings.Join(ends, ", ") +
		". What happens to an ended run\nleaves its state as it is. Beside the events of every state, these are:\n\n")
	header(w, "event", "of a run that is", "who says so", "what it means")
	for _, t := range everyEnd {
		row(w, code(t.On), "ended", t.Who, t.Note)
	}
	ofSomeEnds(w, own)
	clocks(w)
}

// ofSomeEnds writes the rows that hold in some of the terminal states, one for each event.
func ofSomeEnds(w *strings.Builder, own []perdure.Transition) {
	in := make(map[string][]string)
	var firsts []perdure.Transition
	for _, t := range own {
		if t.From.Live() {
			continue
		}
		if in[t.On] == nil {
			firsts = append(firsts, t)
		}
		in[t.On] = append(in[t.On], code(string(t.From)))
	}
	for _, t := range firsts {
		row(w, code(t.On), strings.Join(in[t.On], ", "), t.Who, t.Note)
	}
}

var stateNotes = map[perdure.State]string{
	perdure.Queued: "It waits for a worker: at once, after a delay or a backoff, or behind the active run of " +
		"its thread.",
	perdure.Dispatched: "A poll has granted it to a worker that has not begun. Until the worker is heard from, the " +
		"grant may be repeated.",
	perdure.Running: "A worker executes it under a lease that every sign of life renews.",
	perdure.Suspended: "It sleeps on its open waits. It keeps its thread and its deadline; it holds no lease and " +
		"no worker.",
}

// groupTransitions separates the rows that hold in every state, in every live state and in every terminal state from
// those of single states.
func groupTransitions() (everywhere, everyLive, everyEnd, own []perdure.Transition) {
	live := 0
	for _, s := range perdure.States {
		if s.Live() {
			live++
		}
	}
	// The same event with the same meaning: the target is the same, or the state it came from.
	type meaning struct {
		on, who, note string
		to            perdure.State
	}
	of := func(t perdure.Transition) meaning {
		m := meaning{t.On, t.Who, t.Note, t.To}
		if t.To == t.From {
			m.to = ""
		}
		return m
	}
	from := make(map[meaning][]perdure.State)
	for _, t := range perdure.Transitions {
		from[of(t)] = append(from[of(t)], t.From)
	}
	done := make(map[meaning]bool)
	for _, t := range perdure.Transitions {
		m := of(t)
		shared := perdure.Transition{On: t.On, To: m.to, Who: t.Who, Note: t.Note}
		switch n := len(from[m]); {
		case done[m]:
		case n == len(perdure.States):
			everywhere = append(everywhere, shared)
			done[m] = true
		case n == live && !slices.ContainsFunc(from[m], perdure.State.Terminal):
			everyLive = append(everyLive, shared)
			done[m] = true
		case n == len(perdure.States)-live && !slices.ContainsFunc(from[m], perdure.State.Live):
			everyEnd = append(everyEnd, shared)
			done[m] = true
		default:
			own = append(own, t)
		}
	}
	return everywhere, everyLive, everyEnd, own
}

func target(t perdure.Transition) string {
	if t.To == "" || t.To == t.From {
		return "the same state"
	}
	return code(string(t.To))
}

// diagram draws the way from state to state while a run lives, and lists the ways to its ends.
func diagram(w *strings.Builder, everyLive, own []perdure.Transition) {
	w.WriteString("```mermaid\nstateDiagram-v2\n    direction LR\n    [*] --> queued : accepted\n")
	var leaving []perdure.State // that have ways of their own to an end
	names := []string{"end", "from any live state"}
	for _, s := range perdure.States {
		ends := false
		for _, to := range perdure.States {
			labels := events(own, s, to)
			if to.Live() && len(labels) > 0 {
				fmt.Fprintf(w, "    %s --> %s : %s\n", s, to, strings.Join(labels, ", "))
			}
			ends = ends || to.Terminal() && len(labels) > 0
		}
		if ends {
			leaving = append(leaving, s)
			names = append(names, "from "+string(s))
		}
	}
	w.WriteString("```\n\nAnd from there to the four ends:\n\n")
	header(w, names...)
	for _, to := range perdure.States {
		if !to.Terminal() {
			continue
		}
		cells := []string{code(string(to)), inType(events(everyLive, "", to))}
		for _, s := range leaving {
			cells = append(cells, inType(events(own, s, to)))
		}
		row(w, cells...)
	}
}

func inType(names []string) string {
	var out []string
	for _, n := range names {
		out = append(out, code(n))
	}
	return strings.Join(out, ", ")
}

// events names what leads from one state to another.
func events(rows []perdure.Transition, from, to perdure.State) []string {
	var out []string
	for _, t := range rows {
		if t.From == from && t.To == to && t.To != t.From {
			out = append(out, t.On)
		}
	}
	return out
}

func clocks(w *strings.Builder) {
	w.WriteString(`
## Clocks

Every live run carries its next alarm: the earliest of these clocks. There is no live state without one, the
deadline runs in all of them, so no run can be forgotten. When an alarm rings, the first clock in this order that
has rung decides; the [watchdog](watchdog.md)'s rule of that number says what happens.

`)
	live := []string{"clock", "rule", "rings at"}
	var states []perdure.State
	for _, s := range perdure.States {
		if s.Live() {
			states = append(states, s)
			live = append(live, string(s))
		}
	}
	header(w, live...)
	for i := range perdure.Clocks {
		c := &perdure.Clocks[i]
		cells := []string{code(c.Name), c.Rule, c.Note}
		for _, s := range states {
			mark := ""
			if runsIn(c, s) {
				mark = "✓"
			}
			cells = append(cells, mark)
		}
		row(w, cells...)
	}
}

// runsIn tells whether a clock can run in a state: whether some run in that state has an instant for it.
func runsIn(c *perdure.Clock, s perdure.State) bool {
	p := perdure.DefaultPolicy()
	for bits := range 1 << 5 {
		r := perdure.Run{State: s, DeadlineAt: 1, LeaseUntil: 1, FirstGrantAt: 1, GrantedAt: 1, SeenAt: 1, MovedAt: 1,
			WaitAt: 1, ReadyAt: 1, Grants: 1,
			HolderSeen: bits&1 != 0, Ready: bits&2 != 0, Turn: perdure.TurnActive,
			Hold: &perdure.Hold{Since: 1, Until: 1}}
		if bits&4 != 0 {
			r.Cancel.RequestedAt = 1
		}
		if bits&8 != 0 {
			r.Cancel.AckedAt = 1
		}
		r.Options.Process = bits&16 != 0
		if c.At(&p, &r) != 0 {
			return true
		}
	}
	return false
}
