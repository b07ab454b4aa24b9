package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// late answers 200, just within the timeout.
func late(context.Context) Result {
	time.Sleep(14 * time.Second)
	return Result{Status: 200}
}

// of returns the same world for another tenant.
func (w *world) of(t perdure.TenantID) *world { return &world{w.t, w.e, t} }

// prompt ends a run, and fails the test if the endpoint gets no message within two seconds.
func (w *world) prompt(sink *receiver, url string) {
	w.t.Helper()
	before, _ := sink.of(url)
	began := time.Now()
	w.end()
	for {
		if got, _ := sink.of(url); len(got) > len(before) {
			return
		}
		if time.Since(began) > 2*time.Second {
			w.t.Fatalf("%s got no message within two seconds", url)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestSlowEndpointsDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		other := w.of("other")
		sink := &receiver{answer: make(map[string]func(context.Context) Result)}
		mine := w.hook("https://mine.example/", "run:completed")
		theirs := other.hook("https://theirs.example/", "run:completed")
		w.deliver(Options{Sender: sink})
		w.prompt(sink, mine.URL)
		other.prompt(sink, theirs.URL)
		for i := range 90 {
			url := fmt.Sprintf("https://late%d.example/", i)
			sink.mu.Lock()
			sink.answer[url] = late
			sink.mu.Unlock()
			w.hook(url, "x:*")
		}
		w.many(100)
		for range 10 {
			time.Sleep(9 * time.Second)
			other.prompt(sink, theirs.URL)
			w.prompt(sink, mine.URL)
		}
	})
}

func TestThousandsOfHangingEndpointsDelayNoOtherTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		evil := w.of("evil")
		sink := &receiver{answer: make(map[string]func(context.Context) Result)}
		fine := w.hook("https://fine.example/", "run:completed")
		w.deliver(Options{Sender: sink})
		w.prompt(sink, fine.URL)
		for i := range 2500 {
			url := fmt.Sprintf("https://hangs%d.example/", i)
			sink.mu.Lock()
			sink.answer[url] = hangs
			sink.mu.Unlock()
			sub := perdure.Submission{Kind: "job", Webhook: url, WebhookEvents: []string{"run:created"}}
			evil.do(&life.Submit{Tenant: "evil", Submission: sub})
		}
		for i := range 20 {
			time.Sleep(17 * time.Second)
			w.prompt(sink, fine.URL)
			fresh := w.hook(fmt.Sprintf("https://fresh%d.example/", i), "run:completed")
			w.prompt(sink, fresh.URL)
		}
	})
}

func TestRefusedEventsDoNotDelayOthersOfTheEndpoint(t *testing.T) {
	minutes := 6 * 60
	if testing.Short() {
		minutes = 60
	}
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{judge: func(m Message) Result {
			if strings.Contains(string(m.Body), `"type":"x:`) {
				return Result{Status: 400}
			}
			return Result{Status: 200}
		}}
		hook := w.hook("https://a.example/", "x:*", "run:completed")
		w.deliver(Options{Sender: sink, Look: time.Minute})
		for range minutes {
			g := w.start("job")
			events := make([]perdure.Emitted, 5)
			for i := range events {
				events[i].Type = "x:mine"
			}
			w.commit(g, "c1", perdure.Commit{Events: events})
			done := &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(`1`)}
			w.commit(g, "c2", perdure.Commit{Outcome: done})
			time.Sleep(time.Minute)
		}
		arrived := make(map[perdure.RunID]bool)
		for _, n := range w.deliveries(hook.ID, perdure.NoteDelivered) {
			arrived[n.RunID] = true
			if got := w.attempts(n); len(got) != 1 || got[0].At.Sub(n.CreatedAt) > 2*time.Second {
				t.Fatalf("%s of %s: attempts %+v, want one within 2s", n.Type, n.CreatedAt, got)
			}
		}
		if len(arrived) != minutes {
			t.Errorf("%d of %d run:completed have arrived", len(arrived), minutes)
		}
		time.Sleep(30 * time.Hour)
		if n := len(w.deliveries(hook.ID, perdure.NoteDead)); n != 5*minutes {
			t.Errorf("%d refused messages are dead, want %d", n, 5*minutes)
		}
		storetest.Check(t, w.e.Store())
	})
}

func TestRetryAfterDoesNotExtendTheDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{judge: func(Message) Result { return Result{Status: 429, RetryAfter: 8 * time.Hour} }}
		hook := w.hook("https://a.example/")
		w.deliver(Options{Sender: sink, Look: time.Minute})
		w.end()
		time.Sleep(30 * time.Hour)
		dead := w.deliveries(hook.ID, perdure.NoteDead)
		if got, _ := sink.of(hook.URL); len(got) != 4 || len(dead) != 1 {
			t.Fatalf("sent %d times, deliveries %+v, want 4 times and dead", len(got), w.deliveries(hook.ID, ""))
		}
		// A redelivery has a day of its own.
		w.do(&outbox.Redeliver{Tenant: tenant, DeliveryID: dead[0].ID()})
		time.Sleep(20 * time.Hour)
		if got, _ := sink.of(hook.URL); len(got) != 7 || len(w.deliveries(hook.ID, perdure.NotePending)) != 1 {
			t.Errorf("20 h after the redelivery: sent %d times, want 3 and pending", len(got)-4)
		}
		time.Sleep(10 * time.Hour)
		if got, _ := sink.of(hook.URL); len(got) != 8 || len(w.deliveries(hook.ID, perdure.NoteDead)) != 1 {
			t.Errorf("30 h after the redelivery: sent %d times, want 4 and dead", len(got)-4)
		}
	})
}

func TestUntriedMessagesAreGivenUpAfterADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{}
		hook := w.hook("https://a.example/", "x:*", "run:completed")
		w.many(2500)
		time.Sleep(29*time.Hour + time.Minute) // no node runs
		w.deliver(Options{Sender: sink})
		w.end()
		time.Sleep(time.Second)
		if got, _ := sink.of(hook.URL); len(got) != 1 || len(w.deliveries(hook.ID, perdure.NoteDead)) != 2500 {
			t.Fatalf("%d messages were sent and %d are dead, want 1 and 2500",
				len(got), len(w.deliveries(hook.ID, perdure.NoteDead)))
		}
		n := w.deliveries(hook.ID, perdure.NoteDead)[0]
		sink.mu.Lock()
		sink.answer = map[string]func(context.Context) Result{hook.URL: always(500)}
		sink.mu.Unlock()
		w.do(&outbox.Redeliver{Tenant: tenant, DeliveryID: n.ID()})
		time.Sleep(10 * time.Minute)
		if got := w.deliveries(hook.ID, perdure.NotePending); len(got) != 1 || len(w.attempts(n)) != 3 {
			t.Errorf("10 minutes after a redelivery: %d attempts, pending %+v, want 3 attempts and one pending",
				len(w.attempts(n)), got)
		}
		storetest.Check(t, w.e.Store())
	})
}

// lost is an operation that deletes the lines of a run.
type lost struct{ run perdure.RunID }

func (lost) Needs() []store.Ref { return nil }

func (l lost) Do(tx *kernel.Tx) error {
	tx.DB.Stage("DELETE FROM events WHERE run_id=?", string(l.run))
	return nil
}

func TestMessageOfADeletedLineIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{}
		hook := w.hook("https://a.example/")
		w.do(lost{w.end()})
		w.deliver(Options{Sender: sink})
		time.Sleep(time.Second)
		list := w.deliveries(hook.ID, "")
		if len(list) != 1 || list[0].State != perdure.NoteDead || list[0].Error != "the event is no longer there" ||
			len(w.attempts(list[0])) != 0 {
			t.Fatalf("deliveries %+v, %d attempts, want one dead without attempts", list, len(w.attempts(list[0])))
		}
		w.end()
		synctest.Wait()
		if got, _ := sink.of(hook.URL); len(got) != 1 {
			t.Errorf("the next event was sent %d times, want 1", len(got))
		}
	})
}

// hidden is an operation that renames the table of lines, so that reading it fails.
type hidden struct{}

func (hidden) Needs() []store.Ref { return nil }

func (hidden) Do(tx *kernel.Tx) error {
	tx.DB.Stage("ALTER TABLE events RENAME TO elsewhere")
	return nil
}

func TestMessageOfAnUnreadableLineBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{}
		hook := w.hook("https://a.example/")
		w.end()
		w.do(hidden{})
		w.deliver(Options{Sender: sink})
		time.Sleep(time.Hour)
		list := w.deliveries(hook.ID, "")
		if len(list) != 1 || list[0].State != perdure.NotePending || list[0].Attempts != 4 ||
			len(w.attempts(list[0])) != 0 {
			t.Fatalf("deliveries %+v, %d recorded attempts, want one pending, claimed 4 times, without attempts",
				list, len(w.attempts(list[0])))
		}
		if got := w.webhook(hook.ID); got.FailingAt != 0 {
			t.Errorf("webhook %+v counts as failing, want not", got)
		}
		time.Sleep(29 * time.Hour)
		if list := w.deliveries(hook.ID, perdure.NoteDead); len(list) != 1 {
			t.Errorf("after a day: %+v, want one dead", w.deliveries(hook.ID, ""))
		}
	})
}

func (w *world) webhook(id perdure.WebhookID) (out perdure.Webhook) {
	w.t.Helper()
	err := w.e.Store().View(context.Background(), func(v *store.View) (err error) {
		out, _, err = v.Webhooks.Get(w.who, id)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func TestSecondClaimInABatchIsToldOfDueMessages(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := newWorld(t, at)
		hook := w.hook("https://a.example/", "x:*")
		if err := Settle(t.Context(), w.e); err != nil {
			t.Fatal(err)
		}
		w.many(2)
		want := []outbox.Want{{Tenant: tenant, Webhook: hook.ID, Most: 1}}
		first, second := &outbox.Deliver{Want: want}, &outbox.Deliver{Want: want}
		now := w.e.Store().Now()
		for _, err := range w.e.Step(now, first, second) {
			if err != nil {
				t.Fatal(err)
			}
		}
		if len(first.Taken) != 1 || len(second.Taken) != 0 || len(second.Again) != 1 || second.Again[0].Due > now {
			t.Errorf("claimed %d and %d, then again %+v, want 1, 0, and one that is due", len(first.Taken),
				len(second.Taken), second.Again)
		}
	})
}

func TestMailboxesAreFoundInPages(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := newWorld(t, at)
		for i := range 40 {
			who := perdure.TenantID(fmt.Sprintf("t%d", i%3))
			w.do(&life.Submit{Tenant: who, Submission: perdure.Submission{Kind: "job",
				Webhook: fmt.Sprintf("https://a%d.example/", i/6), WebhookEvents: []string{"run:created"}}})
		}
		var all []store.Mailbox
		pages := 0
		err := w.e.Store().View(t.Context(), func(v *store.View) error {
			for after := (store.Mailbox{}); ; pages++ {
				list, err := v.Outbox.Mailboxes(after, 4)
				if err != nil || len(list) == 0 {
					return err
				}
				all, after = append(all, list...), list[len(list)-1]
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(all) != 3*7 || pages != 6 {
			t.Fatalf("%d mailboxes in %d pages, want 21 in 6: %+v", len(all), pages, all)
		}
		for i, m := range all[1:] {
			if p := all[i]; m.Due == 0 || m.Tenant < p.Tenant || (m.Tenant == p.Tenant && m.Webhook <= p.Webhook) {
				t.Errorf("mailbox %+v comes after %+v, want them sorted and due", m, p)
			}
		}
	})
}

func TestKnownEndpointsAreBounded(t *testing.T) {
	d := New(virtual(t).e, Options{})
	const now = perdure.Instant(1000)
	known := func(who string, i int) *queue {
		return d.queue(endpoint{perdure.TenantID(who), perdure.WebhookID(fmt.Sprint("wh_", i))}, now)
	}
	for i := range 10 {
		known("fine", i).known = quick
	}
	known("evil", -1).known = quick
	had := 0
	for i := range 3 * maxEndpoints {
		if q := known("evil", i); q != nil {
			q.ring(now)
			had++
		}
	}
	if len(d.endpoints) != maxEndpoints || had != maxEndpoints-11 {
		t.Fatalf("%d endpoints are known, %d were added for one tenant, want %d and %d",
			len(d.endpoints), had, maxEndpoints, maxEndpoints-11)
	}
	clear(d.full)
	for i := range 20 { // another tenant still finds room, and no quick endpoint is forgotten
		if q := known("fine", i); q == nil || (i < 10 && q.known != quick) {
			t.Errorf("endpoint %d of the other tenant: %+v, want it known, the first ten as quick", i, q)
		}
	}
	for _, q := range d.endpoints { // an endpoint with nothing to send now is forgotten for one that has something
		if q.tenant == "evil" && q.known != quick {
			q.hold = now + 1
			break
		}
	}
	if clear(d.full); known("evil", -2) == nil || len(d.endpoints) != maxEndpoints || known("evil", -1).known != quick {
		t.Errorf("no room for an endpoint that is due, or a quick one was forgotten: %d are known", len(d.endpoints))
	}
	for _, q := range d.endpoints { // if all are quick, one of them is forgotten
		q.known, q.due = quick, 0
	}
	if clear(d.full); known("evil", -3) == nil || len(d.endpoints) != maxEndpoints {
		t.Errorf("no room among quick endpoints: %d are known, want %d", len(d.endpoints), maxEndpoints)
	}
	if n := d.shares["evil"].endpoints + d.shares["fine"].endpoints; n != maxEndpoints ||
		d.shares["fine"].endpoints != 20 {
		t.Errorf("%d endpoints are counted, %d of the other tenant, want %d and 20",
			n, d.shares["fine"].endpoints, maxEndpoints)
	}
}

func TestLooksFollowTheNextAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		for i := range 2*page + 10 {
			w.do(&life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job",
				Webhook: fmt.Sprintf("https://a%d.example/", i), WebhookEvents: []string{"run:created"}}})
		}
		w.e.TakePosted()
		w.do(later{perdure.At(time.Now().Add(20 * time.Second))})
		d := New(w.e, Options{Sender: &receiver{}})
		for i, want := range []time.Duration{0, 0, 5 * time.Second} { // at first all pages follow at once
			if pause, err := d.pass(t.Context(), t.Context()); err != nil || pause != want {
				t.Errorf("look %d: the next one after %s, %v, want %s", i+1, pause, err, want)
			}
		}
		time.Sleep(19 * time.Second)
		for i, want := range []time.Duration{time.Second, time.Second, time.Second} {
			if pause, err := d.pass(t.Context(), t.Context()); err != nil || pause != want {
				t.Errorf("look %d after 19 s: the next one after %s, %v, want %s", i+1, pause, err, want)
			}
			if len(d.endpoints) != 0 && i == 0 {
				t.Errorf("%d endpoints are known before they are due, want 0", len(d.endpoints))
			}
			time.Sleep(time.Second)
		}
		if len(d.endpoints) == 0 {
			t.Error("no endpoint is known although all are due")
		}
	})
}

// later is an operation that sets all alarms to an instant.
type later struct{ at perdure.Instant }

func (later) Needs() []store.Ref { return nil }

func (l later) Do(tx *kernel.Tx) error {
	tx.DB.Stage("UPDATE outbox SET alarm_at=?", int64(l.at))
	return nil
}
