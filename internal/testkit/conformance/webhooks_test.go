package conformance

import (
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

func TestAWebhookOfOneNodeIsKnownToTheOtherWithinASecond(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b := node(t, at), node(t, at)
		b.endingTold(0) // b has looked, and found none
		hook, _ := a.hook("")
		b.Now = b.Now.Add(time.Second)
		b.endedRun(hook.ID)
		a.do(&outbox.DeleteWebhook{Tenant: tenant, ID: hook.ID})
		b.Now = b.Now.Add(time.Second)
		b.endingTold(0)
		b.fsck()
	})
}

// endingTold has a run end of which so many notifications are to be sent.
func (w *World) endingTold(want int) {
	w.t.Helper()
	r := w.task()
	w.complete(w.take("w1"), `1`)
	if got := w.notes(r.ID, ""); len(got) != want {
		w.t.Fatalf("%d notifications, want %d: %+v", len(got), want, got)
	}
}

func TestTwoNodesThatAreGivenOneURLMakeOneWebhook(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		here := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "x", Webhook: sink}}
		there := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "x", Webhook: sink}}
		between.f = func() { b.do(there) }
		a.do(here)
		if here.WebhookSecret != "" || there.WebhookSecret == "" {
			t.Errorf("who came first is shown %q, the other %q", there.WebhookSecret, here.WebhookSecret)
		}
		if here.Run.Options.Webhook != there.Run.Options.Webhook {
			t.Errorf("%s and %s", here.Run.Options.Webhook, there.Run.Options.Webhook)
		}
		b.fsck()
	})
}

func TestWhatTwoNodesFindDueOneOfThemTakes(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		hook, _ := b.hook("")
		b.endedRun(hook.ID)
		var there []outbox.Outgoing
		between.f = func() { there = b.takeDue(hook.ID, 5) }
		here := a.takeDue(hook.ID, 5)
		if len(there) != 1 || len(here) != 0 {
			t.Errorf("one took %d, the other %d", len(here), len(there))
		}
		// While one writes down that it failed, somebody wants it sent again.
		between.f = func() { b.do(&outbox.Redeliver{Tenant: tenant, DeliveryID: there[0].ID()}) }
		if n := a.answer(there[0], 500, 0); n.AlarmAt != a.Now || n.Tries != 0 {
			t.Errorf("%+v", n)
		}
		b.fsck()
	})
}

func TestARunFromBeforeThereWereWebhooksNotifiesTheURLItHas(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := node(t, at)
		for asked, want := range map[string]int{`"https://example.com/a"`: 1, `{"url":"https://example.com/b"}`: 1,
			`{"url":"nothing"}`: 0, `7`: 0} {
			r := w.task()
			w.do(corrupt{"UPDATE runs SET rest=?, version=version+1 WHERE id=?",
				[]any{fmt.Sprintf(`{"options":{"webhook":%q}}`, asked), string(r.ID)}})
			w.complete(w.take("w1"), `1`)
			if list := w.notes(r.ID, ""); len(list) != want {
				t.Errorf("%s: %+v", asked, list)
			}
		}
		w.fsck()
	})
}

func TestTwoNodesThatFanTheSameEventsOutMakeOneNotificationEach(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		b.hooksFor(30, "x:*")
		r := b.task()
		b.commit(b.take("w1"), lines(20))
		between.f = func() { b.do(&outbox.FanOut{}) }
		a.fanOut()
		if got := len(b.notes(r.ID, "")); got != 600 || b.rows("fanouts") != 0 {
			t.Errorf("run %s: %d notifications and %d events that wait, want 600 and none", r.ID, got,
				b.rows("fanouts"))
		}
		b.fsck()
	})
}

func TestARunThatIsRemovedWhileItsEventsAreFannedOutLeavesNothing(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		b.hooksFor(30, "x:*")
		r := b.task()
		g := b.take("w1")
		b.commit(g, lines(10))
		b.complete(g, `1`)
		between.f = func() {
			b.do(&upkeep.DeleteRun{Tenant: tenant, RunID: r.ID})
			b.retire()
		}
		a.fanOut()
		b.retire()
		if b.rows("outbox")+b.rows("fanouts")+b.rows("removals") != 0 {
			t.Errorf("run %s: %d notifications and %d events are left", r.ID, b.rows("outbox"), b.rows("fanouts"))
		}
		b.fsck()
	})
}

func TestTheQuotaOfWebhooksHoldsForOneBatchAndForTwoNodes(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		first := b.hooksFor(perdure.MaxWebhooks-2, "x:*")[0]
		var ops []kernel.Op
		for range 5 {
			ops = append(ops, &outbox.CreateWebhook{Tenant: tenant, URL: sink})
		}
		between.f = func() { b.hook("") } // the last but one
		made := 0
		for _, err := range a.E.Step(a.Now, ops...) {
			if err == nil {
				made++
			} else if perdure.CodeOf(err) != perdure.CodeQuota {
				t.Errorf("a webhook too many: %v, want %s", err, perdure.CodeQuota)
			}
		}
		if n := b.rows("webhooks WHERE deleted_at=0"); made != 1 || n != perdure.MaxWebhooks {
			t.Errorf("%d of 5 were made, and the tenant has %d webhooks, want 1 and %d", made, n, perdure.MaxWebhooks)
		}
		// One that is deleted makes room, in the same batch too.
		errs := a.E.Step(a.Now, &outbox.DeleteWebhook{Tenant: tenant, ID: first},
			&outbox.CreateWebhook{Tenant: tenant, URL: sink}, &outbox.CreateWebhook{Tenant: tenant, URL: sink})
		if errs[0] != nil || errs[1] != nil || perdure.CodeOf(errs[2]) != perdure.CodeQuota {
			t.Errorf("after one was deleted: %v", errs)
		}
		b.fsck()
	})
}

func TestTheQuotaOfURLsThatRunsNameIsPerHour(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		submit := func(n int) *life.Submit {
			return &life.Submit{Tenant: tenant,
				Submission: perdure.Submission{Kind: "x", Webhook: fmt.Sprint(sink, n)}}
		}
		a.do(submit(1))
		a.do(corrupt{"UPDATE webhook_quota SET made=made+?", []any{int64(perdure.MaxRunWebhooks - 3)}})
		between.f = func() { b.do(submit(2)) }
		errs := a.E.Step(a.Now, submit(3), submit(4), submit(1))
		if errs[0] != nil || perdure.CodeOf(errs[1]) != perdure.CodeQuota || errs[2] != nil {
			t.Errorf("the last new URL, one too many, and a known one: %v", errs)
		}
		b.Now = b.Now.Add(perdure.RunWebhooksIn)
		b.do(submit(4))
		b.fsck()
	})
}
