package dispatch

import (
	"slices"

	"github.com/perdure/perdure"
)

// AddPlaceRule adds a rule about places, until undo is called.
func AddPlaceRule(reason perdure.WaitReason, place func(queue, kind string) bool) (undo func()) {
	return addRule(rule{reason: reason, place: func(_ *conditions, queue, kind string) *perdure.WaitingFor {
		return when(place(queue, kind), "nobody likes it", 0, 0)
	}})
}

// AddRunRule adds a rule about runs, until undo is called.
func AddRunRule(reason perdure.WaitReason, run func(*perdure.Run) bool) (undo func()) {
	return addRule(rule{reason: reason, run: func(_ *conditions, r *perdure.Run, _ string) *perdure.WaitingFor {
		return when(run(r), "nobody likes it", 0, 0)
	}})
}

func addRule(x rule) (undo func()) {
	before := reasons
	reasons = append(slices.Clone(reasons), x)
	return func() { reasons = before }
}
