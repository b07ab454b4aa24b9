package chaos

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/perdure/perdure"
)

// This file has the model of a run's leases. The lines of the run's log are its transitions, in their order: a
// grant, a holder that is lost, a suspend, an end. They have to fit together. Each answer that a worker or a
// reader got is an observation of the state between two of them. Porcupine looks for an instant within each
// call at which its answer is right. A line takes effect at some instant after its own, because the store
// takes its time before it commits.

// A lease is the state of a run: who may write.
type lease struct {
	line  int // index of the next line
	epoch int64
	held  bool // somebody holds the run under the epoch
	heard bool // and was heard from, so that only an expiry, an end or the holder itself takes it away
	ended bool
}

// clockSlack is how far the clocks of the store and of this process may be apart.
const clockSlack = 50 * time.Millisecond

// A transition is a line of the log that changes the state, with its place among these.
type transition struct {
	place int
	line  Line
}

// leaseLines are the types of lines that are transitions.
var leaseLines = []perdure.LineType{perdure.LineDispatched, perdure.LineReclaimed, perdure.LineSuspended,
	perdure.LineRetrying, perdure.LineHeld, perdure.LineCompleted, perdure.LineFailed, perdure.LineTimedOut,
	perdure.LineCancelled}

func terminal(t perdure.LineType) bool {
	return slices.Contains([]perdure.LineType{perdure.LineCompleted, perdure.LineFailed, perdure.LineTimedOut,
		perdure.LineCancelled}, t)
}

// move applies a line. It returns false if the line can't follow.
func (s lease) move(t transition) (lease, bool) {
	if s.line != t.place || s.ended {
		return s, false
	}
	next, e := s, t.line.Epoch
	next.line, next.epoch, next.held, next.heard = s.line+1, e, false, false
	switch typ := t.line.Type; {
	case typ == perdure.LineDispatched:
		next.held = true
		return next, e > s.epoch && !(s.held && s.heard)
	case typ == perdure.LineReclaimed:
		return next, e > s.epoch
	case typ == perdure.LineSuspended:
		return next, e == s.epoch && s.held
	case typ == perdure.LineRetrying:
		return next, e == s.epoch // after a reclaim nobody holds it, else its holder has failed
	case terminal(typ):
		next.ended = true
		return next, e >= s.epoch
	}
	return next, e >= s.epoch // held by a defect
}

// observe judges an answer.
func (s lease) observe(o Op) (lease, bool) {
	holds := s.epoch == o.Epoch && s.held && !s.ended
	switch {
	case o.Call == read:
		return s, o.Epoch == s.epoch && s.ended == perdure.State(o.State).Terminal()
	case o.Answer == refused:
		return s, !holds
	case o.Call == grant:
		return s, holds
	default:
		s.heard = s.heard || holds
		return s, holds
	}
}

// leaseModel is the model for porcupine.
var leaseModel = porcupine.Model{
	Init: func() any { return lease{} },
	Step: func(state, input, _ any) (bool, any) {
		var next lease
		var fits bool
		switch in := input.(type) {
		case transition:
			next, fits = state.(lease).move(in)
		case Op:
			next, fits = state.(lease).observe(in)
		}
		return fits, next
	},
}

// leaseBudget is how long porcupine may look at one run.
const leaseBudget = 20 * time.Second

// leaseOps are the operations about one run for the model.
func (h *History) leaseOps(run string, ops []Op) (out []porcupine.Operation) {
	place := 0
	for _, l := range h.Stored.Runs[run].Lines {
		if slices.Contains(leaseLines, l.Type) {
			out = append(out, porcupine.Operation{Input: transition{place, l}, Return: math.MaxInt64,
				Call: h.Clocks.mono(l.At) - int64(clockSlack)})
			place++
		}
	}
	first := make(map[string]int64) // when a commit was sent first, by its id
	answered := make(map[string]bool)
	for _, o := range ops {
		if o.Call == commit && (first[o.Key] == 0 || o.Begin < first[o.Key]) {
			first[o.Key] = o.Begin
		}
	}
	for _, o := range ops {
		if !o.aboutLease() {
			continue
		}
		if o.Call == commit {
			// The answer is that of the first time, which may have been lost.
			o.Begin = first[o.Key]
			if o.Answer == ok && answered[o.Key] {
				continue
			}
			answered[o.Key] = o.Answer == ok
		}
		out = append(out, porcupine.Operation{Input: o, Call: o.Begin, Return: o.End})
	}
	return out
}

// aboutLease tells whether an operation says who holds its run. Other refusals, such as that a run may not
// suspend while it is being cancelled, say nothing.
func (o Op) aboutLease() bool {
	switch o.Call {
	case grant, read:
		return o.Answer == ok
	case begin, beat, commit, release:
		return o.Answer == ok || o.Answer == refused &&
			(o.Code == string(perdure.CodeStaleEpoch) || o.Code == string(perdure.CodeWrongState))
	}
	return false
}

// leases has porcupine judge every run.
func (h *History) leases() (found []violation) {
	for _, run := range h.runs() {
		ops := h.leaseOps(run, h.byRun[run])
		switch porcupine.CheckOperationsTimeout(leaseModel, ops, leaseBudget) {
		case porcupine.Ok:
			h.Checked.Leases++
		case porcupine.Unknown:
			found = append(found, violation{Rule: "leases", Run: run, Text: "porcupine did not come to an end with it"})
		default:
			found = append(found, violation{Rule: "leases", Run: run, Text: "no order of its log and the answers to " +
				"its workers fits; the shortest part that does not:\n" + describe(shortest(ops))})
		}
	}
	return found
}

// shortest removes operations as long as the rest does not fit: first from the end, then single ones. Lines
// of the log before another line stay, or that one would not fit for another reason.
func shortest(ops []porcupine.Operation) []porcupine.Operation {
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	wrong := func(ops []porcupine.Operation) bool {
		return porcupine.CheckOperationsTimeout(leaseModel, ops, time.Second) == porcupine.Illegal
	}
	for len(ops) > 1 && wrong(ops[:len(ops)-1]) {
		ops = ops[:len(ops)-1]
	}
	for i := len(ops) - 1; i >= 0; i-- {
		if _, line := ops[i].Input.(transition); line {
			continue
		}
		if less := slices.Delete(slices.Clone(ops), i, i+1); wrong(less) {
			ops = less
		}
	}
	return ops
}

// describe prints operations for people.
func describe(ops []porcupine.Operation) string {
	var b strings.Builder
	for _, o := range ops {
		switch in := o.Input.(type) {
		case transition:
			fmt.Fprintf(&b, "  %.3f            the log   %s epoch=%d %s\n", float64(o.Call+int64(clockSlack))/1e9,
				in.line.Type, in.line.Epoch, in.line.Data)
		case Op:
			in.Begin = o.Call
			fmt.Fprintf(&b, "  %s\n", in)
		}
	}
	return b.String()
}
