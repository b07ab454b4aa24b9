package conformance

import (
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/storetest"
)

func TestAWebhookOfOneNodeIsKnownToTheOtherWithinASecond(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b := node(t, at), node(t, at)
		b.endingTold(0) // b has looked, and found none
		hook, _ := a.hook("")
		b.Now = b.Now.Add(time.Second)
		b.ending(hook.ID)
		a.do(&engine.DeleteWebhook{Tenant: tenant, ID: hook.ID})
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
		here := &engine.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "x", Webhook: sink}}
		there := &engine.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "x", Webhook: sink}}
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
		b.ending(hook.ID)
		var there []engine.Outgoing
		between.f = func() { there = b.taken(hook.ID, 5) }
		here := a.taken(hook.ID, 5)
		if len(there) != 1 || len(here) != 0 {
			t.Errorf("one took %d, the other %d", len(here), len(there))
		}
		// While one writes down that it failed, somebody wants it sent again.
		between.f = func() { b.do(&engine.Redeliver{Tenant: tenant, DeliveryID: there[0].ID()}) }
		if n := a.answer(there[0], 500, 0); n.AlarmAt != a.Now || n.Tries != 0 {
			t.Errorf("%+v", n)
		}
		b.fsck()
	})
}

func TestARunFromBeforeThereWereWebhooksNotifiesTheURLItHas(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := node(t, at)
		for asked, want := range map[string]int{`"https://example.com/a"`: 1, `{"url":"https://example.com/b"}`: 1, `{"url":"nothing"}`: 0, `7`: 0} {
			r := w.task()
			w.do(breakIt{"UPDATE runs SET rest=?, version=version+1 WHERE id=?", []any{fmt.Sprintf(`{"options":{"webhook":%q}}`, asked), string(r.ID)}})
			w.complete(w.take("w1"), `1`)
			if list := w.notes(r.ID, ""); len(list) != want {
				t.Errorf("%s: %+v", asked, list)
			}
		}
		w.fsck()
	})
}
