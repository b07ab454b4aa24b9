package conformance

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// Of two decisions on two nodes the first counts. A different second one is refused.
func TestTwoNodesDecideAtOnce(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		r, id := b.askApproval()
		between.f = func() { b.do(b.decide(id, ada, perdure.Decision{Decision: perdure.Reject})) }
		if err := a.E.Step(a.Now, a.decide(id, eve, yes()))[0]; perdure.CodeOf(err) != perdure.CodeAlreadyDecided {
			t.Errorf("the second one: %v", err)
		}
		if got := b.approval(id); got.State != perdure.ApprovalRejected || got.DecidedBy.Name != "ada" ||
			b.get(r.ID).InboxSeq != 1 {
			t.Errorf("%+v", got)
		}
		b.complete(b.take("w1"), `1`)

		// The same said twice at once counts once.
		r, id = b.askApproval()
		between.f = func() { b.do(b.decide(id, ada, yes())) }
		a.do(a.decide(id, eve, yes()))
		if got := b.approval(id); got.DecidedBy.Name != "ada" || b.get(r.ID).InboxSeq != 1 ||
			b.count(r.ID, perdure.LineWaitSatisfied) != 1 {
			t.Errorf("%+v", got)
		}
		b.fsck()
	})
}

// A decision that comes while the wait ends is refused, and nothing of it is stored.
func TestAnApprovalsWaitEndsWhileSomebodyDecides(t *testing.T) {
	for name, timeout := range map[perdure.ApprovalState]perdure.Duration{
		perdure.ApprovalTimedOut: perdure.Duration(time.Second),
		perdure.ApprovalClosed:   perdure.Never, // until the run's own end
	} {
		t.Run(string(name), func(t *testing.T) {
			storetest.OnBoth(t, func(t *testing.T, at store.Options) {
				a, b, between := pair(t, at)
				_, id := b.askApproval(func(s *perdure.WaitSpec) { s.Timeout = timeout })
				a.Now, b.Now = dawn, b.approval(id).ExpiresAt
				between.f = func() { b.sweep() }
				if err := a.E.Step(a.Now, a.decide(id, ada, yes()))[0]; perdure.CodeOf(err) != perdure.CodeWaitClosed {
					t.Errorf("%v", err)
				}
				if got := b.approval(id); got.State != name || got.DecidedBy != nil {
					t.Errorf("%+v", got)
				}
				b.fsck()
			})
		})
	}
}

// An approval that does not go with its wait is found.
func TestAnApprovalThatOutlivesItsWaitIsFound(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := node(t, at)
		_, id := w.askApproval()
		found := func() (n int) {
			w.view(func(v *store.View) error {
				list, err := v.Check(nil)
				for _, x := range list {
					if x.ID == "P15" {
						n++
					}
				}
				return err
			})
			return n
		}
		if n := found(); n != 0 {
			t.Fatalf("%d before", n)
		}
		w.do(stage("UPDATE approvals SET state='closed' WHERE id='" + string(id) + "'"))
		if n := found(); n != 1 {
			t.Errorf("closed: %d", n)
		}
		w.do(stage("DELETE FROM approvals"))
		if n := found(); n != 1 {
			t.Errorf("gone: %d", n)
		}
	})
}

// stage is an operation that breaks something.
type stage string

func (stage) Needs() []store.Ref       { return nil }
func (s stage) Do(tx *kernel.Tx) error { tx.DB.Stage(string(s)); return nil }
