package conformance

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// A message that is appended on one node while another opens the wait for it is not missed, in
// whichever order they come.
func TestMessageAndItsWaitOnTwoNodesAtOnce(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		waits := perdure.Commit{Waits: wait(forMessage("m")), Outcome: suspend}

		th := b.thread()
		r := b.on(th, perdure.Submission{})
		g := b.take("w1")
		between.f = func() { b.say(th, "hello") }
		a.commit(g, waits)
		b.state(r.ID, perdure.Queued)
		b.complete(b.take("w1"), `1`)

		r = b.on(th, perdure.Submission{})
		g = b.take("w1")
		between.f = func() { b.commit(g, waits) }
		a.say(th, "again")
		b.state(r.ID, perdure.Queued)
		if i := b.itemOf(b.take("w1"), "m"); string(i.Data) != `"again"` {
			t.Errorf("run %s: the wait took %s, want the message of the other node", r.ID, i.Data)
		}
		b.fsck()
	})
}
