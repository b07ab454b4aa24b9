package agenttest

import (
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// Excuses are the differences between two trials that are not the agent's decision.
//
//   - A child that its parent asked to stop, such as a loser of FirstOK, may have completed before the
//     request came. So it is cancelled or completed, and what it did until then may differ.
//   - A run that fails in every attempt ends with the error of the last one. If the crash took that one,
//     the error says so. The run has failed all the same.
type excuses struct {
	// stopped has the names of children that were asked to stop, in one trial at least.
	stopped []string
	// spent has the names of runs that have failed with all their attempts, in both.
	spent []string
	// root is the name of the scenario's run.
	root string
	// notes has the notes of children that were asked to stop, and of no others.
	notes map[string]bool
}

func excusesOf(a, b *End) *excuses {
	x := &excuses{notes: make(map[string]bool)}
	for _, e := range []*End{a, b} {
		for name, r := range e.Tree {
			if r.RunID == e.Run.RunID {
				x.root = name
			} else if r.Cancel != nil && !slices.Contains(x.stopped, name) {
				x.stopped = append(x.stopped, name)
			}
		}
	}
	for name, r := range a.Tree {
		if other := b.Tree[name]; r.State == perdure.Failed && other.State == perdure.Failed &&
			r.Attempt >= r.MaxAttempts && other.Attempt >= other.MaxAttempts {
			x.spent = append(x.spent, name)
		}
	}
	for _, e := range []*End{a, b} {
		for what := range e.Notes {
			by := slices.Concat(a.noters[what], b.noters[what])
			x.notes[what] = len(by) > 0 && !slices.ContainsFunc(by, func(run string) bool { return !x.isStopped(run) })
		}
	}
	return x
}

// isStopped tells whether a run, or one above it, was asked to stop by its parent.
func (x *excuses) isStopped(run string) bool {
	return slices.ContainsFunc(x.stopped, func(name string) bool {
		return run == name || strings.HasPrefix(run, name+"/")
	})
}

// cover tells whether a difference in a field is excused.
func (x *excuses) cover(field, want, is string) bool {
	if what, ok := strings.CutPrefix(field, "noted: "); ok {
		return x.notes[what]
	}
	for _, name := range x.stopped {
		if field == name+": state" {
			return mayEnd(want) && mayEnd(is)
		}
		if strings.HasPrefix(field, name+": ") || strings.HasPrefix(field, name+"/") {
			return true
		}
	}
	for _, name := range x.spent {
		if field == name+": error" || name == x.root && strings.HasPrefix(field, "deliverable: ") {
			return true
		}
	}
	return false
}

// mayEnd tells whether a child that is asked to stop may end so.
func mayEnd(state string) bool {
	return state == string(perdure.Cancelled) || state == string(perdure.Completed)
}
