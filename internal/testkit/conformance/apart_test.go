package conformance

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/pairs"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// Pairs that a refusal keeps apart.
//
// For each of them the first feature is brought into force on a run, and the second is asked for.
// The answer has to be the code that docs/pairs.md names. A refusal of a field that no operation of
// the engine has is tried by package httpd, with the same list.

// An attempt asks for a feature on a run that has another one, and returns the refusal.
type attempt func(x *subject) error

// inForce brings a feature into force on a run that is to be made.
func (x *subject) inForce(f pairs.Feature) {
	x.t.Helper()
	m := moves[f]
	if err := x.create(m, move{}); err != nil {
		x.t.Fatalf("%s: %v", x.name, err)
	}
	if m.do != nil {
		if err := m.do(x); err != nil {
			x.t.Fatalf("%s: %v", x.name, err)
		}
	}
}

// after gives the attempt on a run that has a feature.
func after(f pairs.Feature, do attempt) attempt {
	return func(x *subject) error {
		x.t.Helper()
		x.inForce(f)
		return do(x)
	}
}

// unleased sends a commit for a run that nobody holds.
func unleased(c perdure.Commit) attempt {
	return func(x *subject) error {
		x.t.Helper()
		return x.answer(dispatch.Grant{Run: x.run()}, c)
	}
}

// answer sends a commit, and returns its refusal.
func (x *subject) answer(g dispatch.Grant, c perdure.Commit) error {
	x.t.Helper()
	g.Run.Epoch = max(g.Run.Epoch, 1)
	op := x.commitOf(g, c)
	if err := x.try(op); err != nil {
		return err
	}
	if op.Refused == nil {
		return nil
	}
	return op.Refused
}

// deletes asks for the removal of a run before its time.
func deletes(x *subject) error {
	x.t.Helper()
	return x.try(&upkeep.DeleteRun{Tenant: tenant, RunID: x.id})
}

// falls asks for a suspension.
func falls(x *subject) error {
	x.t.Helper()
	return x.commits(perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "w", Type: perdure.WaitTimer,
		Timeout: minutes(1)}), Outcome: suspend})
}

// apartAttempts has an attempt for each pair. A pair with retention needs none: the run is to be
// deleted.
var apartAttempts = map[pairs.Pair]attempt{
	{First: pairs.Retry, Then: pairs.Redrive}: after(pairs.Retry, func(x *subject) error {
		return x.try(&upkeep.Redrive{Tenant: tenant, RunID: x.id})
	}),
	{First: pairs.Cancel, Then: pairs.Suspend}:  after(pairs.Cancel, falls),
	{First: pairs.Cleanup, Then: pairs.Suspend}: after(pairs.Cleanup, falls),
	{First: pairs.Suspend, Then: pairs.Process}: after(pairs.Process, falls),
	{First: pairs.Suspend, Then: pairs.Pool}:    after(pairs.Pool, falls),
	{First: pairs.Delay, Then: pairs.Suspend}: after(pairs.Delay, unleased(perdure.Commit{
		Waits: wait(perdure.WaitSpec{ID: "w", Type: perdure.WaitTimer, Timeout: minutes(1)}), Outcome: suspend})),
	{First: pairs.Delay, Then: pairs.Parent}: after(pairs.Delay, unleased(perdure.Commit{
		Children: []perdure.Spawn{{Key: "own", Kind: "own"}}})),
	{First: pairs.Delay, Then: pairs.Saga}: after(pairs.Delay, unleased(perdure.Commit{Journal: steps("pay#1")})),
	{First: pairs.Delay, Then: pairs.Artifact}: after(pairs.Delay, func(x *subject) error {
		return x.try(&life.BeginArtifact{Tenant: tenant, RunID: x.id, Epoch: 1, Name: "left.txt", Size: 1})
	}),
	{First: pairs.Delay, Then: pairs.View}: after(pairs.Delay, unleased(perdure.Commit{
		Views: []perdure.View{{Name: "plan", Value: json.RawMessage(`1`)}}})),
	{First: pairs.Delay, Then: pairs.LateResult}: after(pairs.Delay, unleased(perdure.Commit{Outcome: done(`1`)})),
	{First: pairs.Delay, Then: pairs.Approval}: after(pairs.Delay, unleased(perdure.Commit{
		Waits: wait(perdure.WaitSpec{ID: "ok", Type: perdure.WaitApproval, Name: "approve_it", Timeout: minutes(1),
			Approval: &perdure.ApprovalSpec{Title: "Go on?", Action: json.RawMessage(`{"a":1}`)}})})),
	{First: pairs.Delay, Then: pairs.Callback}: after(pairs.Delay, unleased(perdure.Commit{
		Waits: wait(perdure.WaitSpec{ID: "cb", Type: perdure.WaitCallback, Timeout: minutes(1)})})),
	{First: pairs.Child, Then: pairs.Anew}: after(pairs.Child, func(x *subject) error {
		g, err := x.leased()
		if err != nil {
			return err
		}
		return x.answer(g, perdure.Commit{Outcome: anew(`1`, `2`)})
	}),
	{First: pairs.OneAttempt, Then: pairs.LostLease}: after(pairs.OneAttempt, func(x *subject) error {
		if _, err := x.leased(); err != nil {
			return err
		}
		for range 30 {
			if x.pass(time.Minute); x.run().State.Terminal() {
				return &perdure.Error{Code: x.last.Failure.Code}
			}
		}
		return nil
	}),
	{First: pairs.LateResult, Then: pairs.StandingPoll}: after(pairs.StandingPoll, func(x *subject) error {
		g := *x.grant
		x.do(&life.Release{Tenant: tenant, Worker: g.Run.Worker, Leases: []life.Lease{lease(g)}})
		return x.answer(g, perdure.Commit{Outcome: done(`"late"`)})
	}),
}

func TestRefusalsKeepPairsApart(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := pairsWorld(t, at)
		for _, p := range pairs.Refused() {
			want := perdure.Code(pairs.CellOf(p).Code)
			do := apartAttempts[p]
			switch {
			case do != nil:
			case want == perdure.CodeInvalid:
				continue // a field that the call does not have: see package httpd
			case p.First == pairs.Retention:
				do = after(p.Then, deletes)
			case p.Then == pairs.Retention:
				do = after(p.First, deletes)
			}
			t.Run(p.String(), func(t *testing.T) {
				if do == nil {
					t.Fatalf("nothing provokes the refusal %s that docs/pairs.md names", want)
				}
				w.t = t
				x := w.subject(p.String())
				x.look()
				err := do(x)
				if got := perdure.CodeOf(err); got != want {
					t.Errorf("refusal of both = %s (%v), want %s", got, err, want)
				}
				if x.look(); x.met[p] || x.met[pairs.Pair{First: p.Then, Then: p.First}] {
					t.Errorf("both are in force on run %s in spite of the refusal", x.id)
				}
				if x.nodes == 2 {
					x.E, x.W, x.Other.E, x.Other.W = x.Other.E, x.Other.W, x.E, x.W
				}
				if x.limited {
					x.quota(0)
				}
			})
		}
		w.t = t
		w.fsck()
	})
}
