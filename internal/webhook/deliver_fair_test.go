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
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/storetest"
)

// late answers 200, as late as it may.
func late(context.Context) Result {
	time.Sleep(14 * time.Second)
	return Result{Status: 200}
}

// of is another tenant in the same world.
func (w *world) of(t perdure.TenantID) *world { return &world{w.t, w.e, t} }

// prompt has a run end, and says if an endpoint does not hear of it within two seconds.
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
			w.t.Fatalf("%s was told nothing within two seconds", url)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestEndpointsThatAnswerLateDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		other := w.of("other")
		sink := &receiver{answer: make(map[string]func(context.Context) Result)}
		mine, theirs := w.hook("https://mine.example/", "run:completed"), other.hook("https://theirs.example/", "run:completed")
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

func TestATenantWhoseRunsHaveThousandsOfEndpointsThatHangDelaysNobodyElse(t *testing.T) {
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
			evil.do(&engine.Submit{Tenant: "evil", Submission: perdure.Submission{Kind: "job", Webhook: url, WebhookEvents: []string{"run:created"}}})
		}
		for i := range 20 {
			time.Sleep(17 * time.Second)
			w.prompt(sink, fine.URL)
			fresh := w.hook(fmt.Sprintf("https://fresh%d.example/", i), "run:completed")
			w.prompt(sink, fresh.URL)
		}
	})
}

func TestAnEndpointThatRefusesOneTypeOfEventIsSentTheOthers(t *testing.T) {
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
			w.commit(g, "c2", perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(`1`)}})
			time.Sleep(time.Minute)
		}
		arrived := make(map[perdure.RunID]bool)
		for _, n := range w.deliveries(hook.ID, perdure.NoteDelivered) {
			arrived[n.RunID] = true
			if got := w.attempts(n); len(got) != 1 || got[0].At.Sub(n.CreatedAt) > 2*time.Second {
				t.Fatalf("%s of %s: %+v", n.Type, n.CreatedAt, got)
			}
		}
		if len(arrived) != minutes {
			t.Errorf("%d of %d ends have arrived", len(arrived), minutes)
		}
		time.Sleep(30 * time.Hour)
		if n := len(w.deliveries(hook.ID, perdure.NoteDead)); n != 5*minutes {
			t.Errorf("%d of %d that were refused are given up", n, 5*minutes)
		}
		storetest.Check(t, w.e.Store())
	})
}

func TestAReceiverThatAsksForTimeAgainAndAgainIsGivenUpAfterADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{judge: func(Message) Result { return Result{Status: 429, RetryAfter: 8 * time.Hour} }}
		hook := w.hook("https://a.example/")
		w.deliver(Options{Sender: sink, Look: time.Minute})
		w.end()
		time.Sleep(30 * time.Hour)
		dead := w.deliveries(hook.ID, perdure.NoteDead)
		if got, _ := sink.of(hook.URL); len(got) != 4 || len(dead) != 1 {
			t.Fatalf("sent %d times, %+v", len(got), w.deliveries(hook.ID, ""))
		}
		// One that is redelivered has a day of its own.
		w.do(&engine.Redeliver{Tenant: tenant, DeliveryID: dead[0].ID()})
		time.Sleep(20 * time.Hour)
		if got, _ := sink.of(hook.URL); len(got) != 7 || len(w.deliveries(hook.ID, perdure.NotePending)) != 1 {
			t.Errorf("redelivered %d times", len(got)-4)
		}
		time.Sleep(10 * time.Hour)
		if got, _ := sink.of(hook.URL); len(got) != 8 || len(w.deliveries(hook.ID, perdure.NoteDead)) != 1 {
			t.Errorf("redelivered %d times", len(got)-4)
		}
	})
}

func TestWhatNobodyTriedForADayIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{}
		hook := w.hook("https://a.example/", "x:*", "run:completed")
		w.many(2500)
		time.Sleep(29*time.Hour + time.Minute) // no node is there
		w.deliver(Options{Sender: sink})
		w.end()
		time.Sleep(time.Second)
		if got, _ := sink.of(hook.URL); len(got) != 1 || len(w.deliveries(hook.ID, perdure.NoteDead)) != 2500 {
			t.Fatalf("sent %d, and %d are dead", len(got), len(w.deliveries(hook.ID, perdure.NoteDead)))
		}
		n := w.deliveries(hook.ID, perdure.NoteDead)[0]
		sink.mu.Lock()
		sink.answer = map[string]func(context.Context) Result{hook.URL: always(500)}
		sink.mu.Unlock()
		w.do(&engine.Redeliver{Tenant: tenant, DeliveryID: n.ID()})
		time.Sleep(10 * time.Minute)
		if got := w.deliveries(hook.ID, perdure.NotePending); len(got) != 1 || len(w.attempts(n)) != 3 {
			t.Errorf("redelivered, it was sent %d times: %+v", len(w.attempts(n)), got)
		}
		storetest.Check(t, w.e.Store())
	})
}

// lost takes lines out of the store.
type lost struct{ run perdure.RunID }

func (lost) Needs() []store.Ref { return nil }

func (l lost) Do(tx *engine.Tx) error {
	tx.Stage("DELETE FROM events WHERE run_id=?", string(l.run))
	return nil
}

func TestALineThatIsGoneIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{}
		hook := w.hook("https://a.example/")
		w.do(lost{w.end()})
		w.deliver(Options{Sender: sink})
		time.Sleep(time.Second)
		list := w.deliveries(hook.ID, "")
		if len(list) != 1 || list[0].State != perdure.NoteDead || list[0].Error != "the event is no longer there" || len(w.attempts(list[0])) != 0 {
			t.Fatalf("%+v, %d attempts", list, len(w.attempts(list[0])))
		}
		w.end()
		synctest.Wait()
		if got, _ := sink.of(hook.URL); len(got) != 1 {
			t.Errorf("then it was sent %d", len(got))
		}
	})
}

// hidden puts the lines of all runs where nobody finds them.
type hidden struct{}

func (hidden) Needs() []store.Ref { return nil }

func (hidden) Do(tx *engine.Tx) error {
	tx.Stage("ALTER TABLE events RENAME TO elsewhere")
	return nil
}

func TestALineThatCannotBeReadIsLeftAloneForLongerAndLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{}
		hook := w.hook("https://a.example/")
		w.end()
		w.do(hidden{})
		w.deliver(Options{Sender: sink})
		time.Sleep(time.Hour)
		list := w.deliveries(hook.ID, "")
		if len(list) != 1 || list[0].State != perdure.NotePending || list[0].Attempts != 4 || len(w.attempts(list[0])) != 0 {
			t.Fatalf("%+v, %d attempts", list, len(w.attempts(list[0])))
		}
		if got := w.webhook(hook.ID); got.FailingAt != 0 {
			t.Errorf("the receiver is said to fail: %+v", got)
		}
		time.Sleep(29 * time.Hour)
		if list := w.deliveries(hook.ID, perdure.NoteDead); len(list) != 1 {
			t.Errorf("after a day: %+v", w.deliveries(hook.ID, ""))
		}
	})
}

func (w *world) webhook(id perdure.WebhookID) (out perdure.Webhook) {
	w.t.Helper()
	if err := w.e.Store().View(context.Background(), func(v *store.View) (err error) { out, _, err = v.Webhook(w.who, id); return err }); err != nil {
		w.t.Fatal(err)
	}
	return out
}

func TestWhatTheBatchHasTakenHidesNothingThatIsDue(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := newWorld(t, at)
		hook := w.hook("https://a.example/", "x:*")
		if err := Settle(t.Context(), w.e); err != nil {
			t.Fatal(err)
		}
		w.many(2)
		want := []engine.Want{{Tenant: tenant, Webhook: hook.ID, Most: 1}}
		first, second := &engine.Deliver{Want: want}, &engine.Deliver{Want: want}
		now := w.e.Store().Now()
		for _, err := range w.e.Step(now, first, second) {
			if err != nil {
				t.Fatal(err)
			}
		}
		if len(first.Taken) != 1 || len(second.Taken) != 0 || len(second.Again) != 1 || second.Again[0].Due > now {
			t.Errorf("took %d and %d, then %+v", len(first.Taken), len(second.Taken), second.Again)
		}
	})
}

func TestMailboxesAreFoundInPages(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := newWorld(t, at)
		for i := range 40 {
			who := perdure.TenantID(fmt.Sprintf("t%d", i%3))
			w.do(&engine.Submit{Tenant: who, Submission: perdure.Submission{Kind: "job", Webhook: fmt.Sprintf("https://a%d.example/", i/6), WebhookEvents: []string{"run:created"}}})
		}
		var all []store.Mailbox
		pages := 0
		err := w.e.Store().View(t.Context(), func(v *store.View) error {
			for after := (store.Mailbox{}); ; pages++ {
				list, err := v.Mailboxes(after, 4)
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
			t.Fatalf("%d in %d pages: %+v", len(all), pages, all)
		}
		for i, m := range all[1:] {
			if p := all[i]; m.Due == 0 || m.Tenant < p.Tenant || (m.Tenant == p.Tenant && m.Webhook <= p.Webhook) {
				t.Errorf("%+v after %+v", m, p)
			}
		}
	})
}

func TestWhatIsKnownOfEndpointsIsBounded(t *testing.T) {
	d := New(virtual(t).e, Options{})
	const now = perdure.Instant(1000)
	known := func(who string, i int) *queue {
		return d.queue(box{perdure.TenantID(who), perdure.WebhookID(fmt.Sprint("wh_", i))}, now)
	}
	for i := range 10 {
		known("fine", i).known = quick
	}
	known("evil", -1).known = quick
	had := 0
	for i := range 3 * maxBoxes {
		if q := known("evil", i); q != nil {
			q.ring(now)
			had++
		}
	}
	if len(d.boxes) != maxBoxes || had != maxBoxes-11 {
		t.Fatalf("%d are known, %d of them of one tenant", len(d.boxes), had)
	}
	clear(d.full)
	for i := range 20 { // somebody else still finds room, and nobody who is quick is forgotten
		if q := known("fine", i); q == nil || (i < 10 && q.known != quick) {
			t.Errorf("endpoint %d: %+v", i, q)
		}
	}
	for _, q := range d.boxes { // one that has nothing to send now makes room for one that has
		if q.tenant == "evil" && q.known != quick {
			q.hold = now + 1
			break
		}
	}
	if clear(d.full); known("evil", -2) == nil || len(d.boxes) != maxBoxes || known("evil", -1).known != quick {
		t.Errorf("no room for one that is due, or that of a quick one: %d are known", len(d.boxes))
	}
	for _, q := range d.boxes { // where all are quick, one of them makes room
		q.known, q.due = quick, 0
	}
	if clear(d.full); known("evil", -3) == nil || len(d.boxes) != maxBoxes {
		t.Errorf("no room among quick ones: %d are known", len(d.boxes))
	}
	if n := d.shares["evil"].boxes + d.shares["fine"].boxes; n != maxBoxes || d.shares["fine"].boxes != 20 {
		t.Errorf("%d are counted, %d of them quick", n, d.shares["fine"].boxes)
	}
}

func TestWhatIsNotDueIsLookedAtWhenItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		for i := range 2*page + 10 {
			w.do(&engine.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job", Webhook: fmt.Sprintf("https://a%d.example/", i), WebhookEvents: []string{"run:created"}}})
		}
		w.e.TakePosted()
		w.do(later{perdure.At(time.Now().Add(20 * time.Second))})
		d := New(w.e, Options{Sender: &receiver{}})
		for i, want := range []time.Duration{0, 0, 5 * time.Second} { // the first time all of them, one page after the other
			if pause, err := d.pass(t.Context(), t.Context()); err != nil || pause != want {
				t.Errorf("look %d: the next one after %s, %v", i+1, pause, err)
			}
		}
		time.Sleep(19 * time.Second)
		for i, want := range []time.Duration{time.Second, time.Second, time.Second} {
			if pause, err := d.pass(t.Context(), t.Context()); err != nil || pause != want {
				t.Errorf("look %d after 19 s: the next one after %s, %v", i+1, pause, err)
			}
			if len(d.boxes) != 0 && i == 0 {
				t.Errorf("%d are known that are not due", len(d.boxes))
			}
			time.Sleep(time.Second)
		}
		if len(d.boxes) == 0 {
			t.Error("nothing is found")
		}
	})
}

// later has everything due at an instant.
type later struct{ at perdure.Instant }

func (later) Needs() []store.Ref { return nil }

func (l later) Do(tx *engine.Tx) error {
	tx.Stage("UPDATE outbox SET alarm_at=?", int64(l.at))
	return nil
}
