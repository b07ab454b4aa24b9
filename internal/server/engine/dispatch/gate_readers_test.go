package dispatch_test

import (
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/store"
)

func submit(kind string) *life.Submit {
	return &life.Submit{Tenant: "a", Submission: perdure.Submission{Kind: kind}}
}

func poll(change ...func(*dispatch.Claim)) *dispatch.Claim {
	op := &dispatch.Claim{Tenant: "a", Worker: "w", Queues: []string{"default"}, Slots: 10, Start: true}
	for _, f := range change {
		f(op)
	}
	return op
}

func do(t *testing.T, e *engine.Engine, ops ...kernel.Op) {
	t.Helper()
	for i, err := range e.Step(1000, ops...) {
		if err != nil {
			t.Fatalf("operation %d: %v", i, err)
		}
	}
}

// A new reason to wait is one more row of rules: every way to a grant then goes by it, and every reader
// tells of it.
func TestNewRuleHoldsForEveryGrantAndReader(t *testing.T) {
	const madeUp = perdure.WaitReason("made_up")
	for name, add := range map[string]func() (undo func()){
		"of a place": func() func() {
			return dispatch.AddPlaceRule(madeUp, func(_, kind string) bool { return kind == "late" })
		},
		"of a queue": func() func() {
			return dispatch.AddPlaceRule(madeUp, func(queue, _ string) bool { return queue == "default" })
		},
		"of a run": func() func() {
			return dispatch.AddRunRule(madeUp, func(r *perdure.Run) bool { return r.Kind == "late" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := store.Open(store.Options{Hooks: store.Hooks{Clock: func() perdure.Instant { return 1000 }}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			e, err := engine.New(s, engine.Options{})
			if err != nil {
				t.Fatal(err)
			}
			undo := add()
			defer undo()
			standing := e.StandBy(poll())
			held := submit("late")
			held.Submission.Delay = perdure.Duration(time.Minute)
			op := submit("late")
			do(t, e, op, held)
			if got := standing.End(); len(got) > 0 {
				t.Errorf("a poll that stands by got %d runs, want none", len(got))
			}
			for way, change := range map[string]func(*dispatch.Claim){
				"a poll":                func(*dispatch.Claim) {},
				"a poll for the kind":   func(c *dispatch.Claim) { c.Kinds = []string{"late"} },
				"a poll for many":       func(c *dispatch.Claim) { c.Kinds = strings.Fields("a b c d e f g h late") },
				"a poll by id":          func(c *dispatch.Claim) { c.Runs = []perdure.RunID{op.Run.ID} },
				"a poll of all":         func(c *dispatch.Claim) { c.AnyTenant = true },
				"a poll with a build":   func(c *dispatch.Claim) { c.Build = "8" },
				"a poll for two queues": func(c *dispatch.Claim) { c.Queues = []string{"default", "other"} },
			} {
				claim := poll(change)
				if do(t, e, claim); len(claim.Grants) > 0 {
					t.Errorf("%s got %d runs, want none", way, len(claim.Grants))
				}
			}
			d, err := e.Runs.Get(t.Context(), "a", op.Run.ID)
			if err != nil || d.WaitingFor == nil || d.WaitingFor.Reason != madeUp {
				t.Errorf("the run waits for %+v (%v), want %s", d.WaitingFor, err, madeUp)
			}
			a, err := e.Runs.Activity(t.Context(), "a", op.Run.ID)
			if err != nil || a.WaitingFor == nil || a.WaitingFor.Reason != madeUp {
				t.Errorf("its activity waits for %+v (%v), want %s", a.WaitingFor, err, madeUp)
			}
			p, err := e.Runs.Page(t.Context(), "a", reads.RunFilter{Limit: 10})
			if err != nil || len(p.WaitingFor) != 2 || p.WaitingFor[1].Reason != madeUp {
				t.Errorf("the list waits for %+v (%v), want %s", p.WaitingFor, err, madeUp)
			}
			undo()
			claim := poll()
			if do(t, e, claim); len(claim.Grants) != 1 || claim.Grants[0].Run.ID != op.Run.ID {
				t.Errorf("without the rule a poll got %d runs, want the one", len(claim.Grants))
			}
		})
	}
}
