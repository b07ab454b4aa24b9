package conformance

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

// fanOut runs FanOut until no event is left, and gives the number of notifications of each step.
func (w *World) fanOut() (made []int) {
	w.t.Helper()
	op := &outbox.FanOut{}
	for range 1000 {
		op = &outbox.FanOut{After: op.Last}
		w.do(op)
		if made = append(made, op.Made); !op.More {
			return made
		}
	}
	w.t.Fatal("the fan-out does not come to rest")
	return nil
}

// lines makes a commit of n events.
func lines(n int) (c perdure.Commit) {
	for i := range n {
		c.Events = append(c.Events, perdure.Emitted{Type: perdure.LineType(fmt.Sprint("x:", i))})
	}
	return c
}

// hooksFor registers n endpoints for events.
func (w *World) hooksFor(n int, events ...string) (out []perdure.WebhookID) {
	w.t.Helper()
	for range n {
		h, _ := w.hook("", events...)
		out = append(out, h.ID)
	}
	return out
}

var fanOutScenarios = []Scenario{
	{"an operation writes a bounded number of notifications, and the others follow, one for each endpoint",
		func(w *World) {
			hooks := w.hooksFor(20, "x:*")
			there, _ := w.hook(w.thread(), "x:*")
			r := w.submit(perdure.Submission{Kind: "job", Webhook: sink, WebhookEvents: []string{"x:*"}})
			g := w.take("w1")
			w.commit(g, lines(100))
			w.check(w.rows("outbox") <= 64, "a commit wrote %d notifications, want at most 64", w.rows("outbox"))
			w.check(w.rows("outbox")/21+w.rows("fanouts") == 100,
				"%d notifications and %d events that wait, of 100 events for 21 endpoints", w.rows("outbox"),
				w.rows("fanouts"))
			w.fsck()
			w.do(&outbox.DeleteWebhook{Tenant: tenant, ID: hooks[0]})
			w.do(&outbox.UpdateWebhook{Tenant: tenant, ID: hooks[1], Disabled: new(true)})
			w.Now = w.Now.Add(time.Second)
			later, _ := w.hook("", "x:*")
			for _, n := range w.fanOut() {
				w.check(n <= 200, "a step made %d notifications, want at most 200", n)
			}
			w.check(w.rows("fanouts") == 0, "%d events wait", w.rows("fanouts"))
			for _, id := range append(hooks[1:], perdure.RunWebhookID(tenant,
				sink, "")) { // one that was disabled meanwhile is given up by the deliverer
				got := w.notes(r.ID, id)
				w.check(len(got) == 100, "run %s: %s has %d notifications, want 100", r.ID, id, len(got))
			}
			for _, id := range []perdure.WebhookID{later.ID, there.ID} {
				w.check(len(w.notes(r.ID, id)) == 0, "run %s: %s has %d notifications, want none", r.ID, id,
					len(w.notes(r.ID, id)))
			}
			w.check(len(w.notes(r.ID, hooks[0])) == 3,
				"one that was deleted before the fan-out has %d notifications, want those from before",
				len(w.notes(r.ID, hooks[0])))
			w.takeDue(hooks[1], 1)
			for _, n := range w.notes(r.ID, hooks[1]) {
				w.check(n.State == perdure.NoteDead, "of a disabled endpoint, %s is %s", n.ID(), n.State)
			}
		}},
	{"an event for one endpoint never waits for a fan-out", func(w *World) {
		w.hook("", "x:*")
		w.task()
		w.commit(w.take("w1"), lines(200))
		w.check(w.rows("outbox") == 200 && w.rows("fanouts") == 0, "%d notifications, %d events wait",
			w.rows("outbox"), w.rows("fanouts"))
	}},
	{"events of one tenant that wait delay no other tenant's", func(w *World) {
		w.hooksFor(25, "x:*")
		w.task()
		w.commit(w.take("w1"), lines(100))
		for range 3 {
			w.do(&outbox.CreateWebhook{Tenant: "zoo", URL: sink, Events: []string{"x:*"}})
		}
		sub := &life.Submit{Tenant: "zoo", Submission: perdure.Submission{Kind: "job"}}
		w.do(sub)
		claim := &dispatch.Claim{Tenant: "zoo", Worker: "w", Slots: 1, Start: true}
		w.do(claim)
		said := w.commitOf(claim.Grants[0], lines(30))
		said.Tenant = "zoo"
		w.do(said)
		before := w.rows("fanouts WHERE tenant='zoo'")
		w.check(before > 0, "no event of the other tenant waits")
		step := &outbox.FanOut{}
		w.do(step)
		w.check(w.rows("fanouts WHERE tenant='zoo'") == 0 && step.Made <= 200,
			"%d of the other tenant's %d events wait after a step that made %d",
			w.rows("fanouts WHERE tenant='zoo'"), before, step.Made)
		w.fanOut()
		w.check(w.rows("outbox WHERE tenant='zoo'") == 90 && w.rows("outbox WHERE tenant='acme'") == 2500,
			"%d and %d notifications, want 90 and 2500",
			w.rows("outbox WHERE tenant='zoo'"), w.rows("outbox WHERE tenant='acme'"))
	}},
	{"an event with more endpoints than a step's share goes on where it was cut", func(w *World) {
		w.hooksFor(60, "x:*")
		for i := range 8 { // they share a step
			t := perdure.TenantID(fmt.Sprint("t", i))
			for range 2 {
				w.do(&outbox.CreateWebhook{Tenant: t, URL: sink, Events: []string{"run:created"}})
			}
			w.do(manyRuns{t})
		}
		w.task()
		g := w.take("w1")
		w.commit(g, lines(3))
		w.check(w.rows("fanouts WHERE tenant='acme'") == 2, "%d events wait", w.rows("fanouts WHERE tenant='acme'"))
		w.do(&outbox.FanOut{})
		cut := w.rows("fanouts WHERE tenant='acme' AND after<>''")
		w.check(cut == 1, "%d events were cut, want 1", cut)
		w.fsck()
		w.fanOut()
		w.check(w.rows("outbox WHERE tenant='acme'") == 180, "%d notifications, want 180",
			w.rows("outbox WHERE tenant='acme'"))
	}},
	{"events that wait go with their run, and keep it from its retention", func(w *World) {
		w.hooksFor(40, "x:*")
		kept, gone := w.task(), w.task()
		for range 2 {
			g := w.take("w1")
			w.commit(g, lines(5))
			w.complete(g, `1`)
		}
		w.do(&upkeep.DeleteRun{Tenant: tenant, RunID: gone.ID})
		w.check(w.rows("fanouts") == 8, "%d events wait", w.rows("fanouts"))
		w.retire()
		w.check(w.rows("fanouts") == 4 && len(w.notes(gone.ID, "")) == 0,
			"%d events wait after one of two runs is gone", w.rows("fanouts"))
		w.passRetention()
		w.do(corrupt{"DELETE FROM outbox", nil})
		w.retire()
		w.check(w.exists(kept.ID), "run %s is gone, and its events were told to nobody", kept.ID)
		w.fanOut()
		w.check(w.rows("outbox") == 160, "%d notifications, want 160", w.rows("outbox"))
	}},
}

// manyRuns stages many events for FanOut, without an operation that causes so many.
type manyRuns struct{ t perdure.TenantID }

func (manyRuns) Needs() []store.Ref { return nil }

func (c manyRuns) Do(tx *kernel.Tx) error {
	op := &life.Submit{Tenant: c.t, Submission: perdure.Submission{Kind: "x"}}
	for range 40 {
		if err := op.Do(tx); err != nil {
			return err
		}
	}
	return nil
}
