package conformance

import (
	"testing"

	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/storetest"
	"github.com/perdure/perdure/internal/watchdog"
)

// Whatever a rule acts on, two nodes that sweep at once act on it once: one of them sweeps between the other's deciding
// and its writing.
func TestTwoNodesSweepOnce(t *testing.T) {
	for i := range watchdog.Rules {
		rule := &watchdog.Rules[i]
		t.Run(rule.ID+"_"+rule.Name, func(t *testing.T) {
			t.Parallel()
			storetest.OnBoth(t, func(t *testing.T, at store.Options) {
				a, b, between := pair(t, at)
				x := traps[rule.Name](b)
				b.waits(rule, x)
				since, swept := len(b.Acted), false
				b.Now = max(b.Now, x.due)
				a.Now = b.Now
				between.f = func() { b.look(x); swept = true }
				a.look(x)
				if !swept {
					t.Fatal("it had nothing to write")
				}
				if ours, theirs := a.did(rule, 0), b.did(rule, since); len(ours)+len(theirs) != 1 {
					t.Errorf("one did %v, the other %v", ours, theirs)
				}
				b.view(func(v *store.View) error {
					listed, err := v.Watched(store.WatchFilter{Rule: rule.Name, Limit: 10})
					if len(listed) != 1 {
						t.Errorf("the log has %v", listed)
					}
					return err
				})
				x.then()
				b.fsck()
			})
		})
	}
}
