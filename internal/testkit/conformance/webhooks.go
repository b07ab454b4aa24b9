package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/store"
)

const sink = "https://example.com/hook"

// hook registers an endpoint, and gives its secret.
func (w *World) hook(thread perdure.ThreadID, events ...string) (perdure.Webhook, string) {
	w.t.Helper()
	op := &outbox.CreateWebhook{Tenant: tenant, URL: sink, ThreadID: thread, Events: events}
	w.do(op)
	return op.Webhook, op.Secret
}

// notes gives a run's notifications: of one endpoint, or of all.
func (w *World) notes(run perdure.RunID, of perdure.WebhookID) (out []perdure.Notification) {
	w.t.Helper()
	w.view(func(v *store.View) (err error) { out, err = v.Outbox.OfRun(tenant, run); return err })
	return slices.DeleteFunc(out, func(n perdure.Notification) bool { return of != "" && n.Webhook != of })
}

// lineTypes gives the types of the log lines that an endpoint was notified of.
func (w *World) lineTypes(run perdure.RunID, of perdure.WebhookID) string {
	w.t.Helper()
	var types []string
	for _, n := range w.notes(run, of) {
		types = append(types, strings.TrimPrefix(string(n.Type), "run:"))
	}
	return strings.Join(types, " ")
}

// takeDue leases the due notifications of an endpoint.
func (w *World) takeDue(id perdure.WebhookID, most int) []outbox.Outgoing {
	w.t.Helper()
	op := &outbox.Deliver{Want: []outbox.Want{{Tenant: tenant, Webhook: id, Most: most}}}
	w.do(op)
	return op.Taken
}

// answer records a receiver's answer.
func (w *World) answer(o outbox.Outgoing, status int, after time.Duration) perdure.Notification {
	w.t.Helper()
	s := outbox.Sent{Notification: o.Notification, At: w.Now, Took: time.Second, Status: status,
		RetryAfter: after, Response: "ok"}
	if !s.OK() {
		s.Error = fmt.Sprint("it answered ", status)
	}
	w.do(&outbox.Deliver{Sent: []outbox.Sent{s}})
	return w.note(o.ID())
}

func (w *World) note(id string) (n perdure.Notification) {
	w.t.Helper()
	w.view(func(v *store.View) error {
		got, ok, err := v.Outbox.Delivery(tenant, id)
		w.check(ok, "no delivery %s", id)
		n = got
		return err
	})
	return n
}

func (w *World) webhook(id perdure.WebhookID) (out perdure.Webhook) {
	w.t.Helper()
	w.view(func(v *store.View) error {
		got, ok, err := v.Webhooks.Get(tenant, id)
		w.check(ok, "no webhook %s", id)
		out = got
		return err
	})
	return out
}

func (w *World) attempts(n perdure.Notification) (out []perdure.WebhookAttempt) {
	w.t.Helper()
	w.view(func(v *store.View) (err error) { out, err = v.Outbox.Attempts(&n); return err })
	return out
}

// endedRun ends a run, and gives the notification of its end.
func (w *World) endedRun(id perdure.WebhookID) perdure.Notification {
	w.t.Helper()
	r := w.task()
	w.complete(w.take("w1"), `1`)
	list := w.notes(r.ID, id)
	w.check(len(list) == 1, "%+v", list)
	return list[0]
}

var webhookScenarios = []Scenario{
	{"a notification is staged with the line it is about: for the run, its thread and its tenant", func(w *World) {
		here, there := w.thread(), w.thread()
		all, _ := w.hook("")
		some, _ := w.hook("", "run:started", "run:created", "x:*")
		much, _ := w.hook("", "*")
		mine, _ := w.hook(here)
		w.hook(there, "*")
		r := w.submit(perdure.Submission{Kind: "job", ThreadID: here, Webhook: sink,
			WebhookEvents: []string{"run:started", "run:completed"}})
		g := w.take("w1")
		w.commit(g, perdure.Commit{Events: []perdure.Emitted{{Type: "x:mine"}, {Type: perdure.LineDelta,
			Data: []byte(`{"text":"a"}`)}}})
		w.complete(g, `1`)
		for _, c := range []struct {
			of   perdure.WebhookID
			want string
		}{
			{perdure.RunWebhookID(tenant, sink, ""), "started completed"}, {all.ID, "completed"},
			{mine.ID, "completed"},
			{much.ID, "created dispatched started x:mine completed"}, {some.ID, "created started x:mine"},
		} {
			got := w.lineTypes(r.ID, c.of)
			w.check(got == c.want, "%s was told %q, want %q", c.of, got, c.want)
		}
		for _, n := range w.notes(r.ID, "") {
			w.check(n.State == perdure.NotePending && n.AlarmAt == w.Now && n.Webhook != "", "%+v", n)
		}
		w.check(len(w.notes(w.task().ID, mine.ID)) == 0, "a run without that thread")
	}},
	{"a run's webhook is made once, with a secret that is shown once; a continuation and a retry have it too",
		func(w *World) {
			first := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job", Webhook: sink,
				WebhookEvents: []string{"run:*"}}}
			w.do(first)
			second := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "other", Webhook: sink}}
			w.do(second)
			id := perdure.RunWebhookID(tenant, sink, "")
			w.check(strings.HasPrefix(first.WebhookSecret, "whsec_") && second.WebhookSecret == "", "%q, then %q",
				first.WebhookSecret, second.WebhookSecret)
			hook := w.webhook(id)
			w.check(w.E.Webhooks.Secrets(&hook, w.Now)[0] == first.WebhookSecret, "another secret signs")
			w.complete(w.takeKind("job"), `1`)
			again := &life.Retry{Tenant: tenant, RunID: first.Run.ID}
			w.do(again)
			w.complete(w.takeKind("job"), `1`)
			w.check(strings.Contains(w.lineTypes(again.Run.ID, id), "started"), "the retry told %q",
				w.lineTypes(again.Run.ID, id))

			w.do(&outbox.DeleteWebhook{Tenant: tenant, ID: id})
			w.check(w.notes(first.Run.ID, id)[0].State == perdure.NoteDropped, "%+v", w.notes(first.Run.ID, id))
			back := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "other", Webhook: sink}}
			w.do(back)
			w.check(back.WebhookSecret != "" && back.WebhookSecret != first.WebhookSecret, "it came back with %q",
				back.WebhookSecret)
			w.complete(w.takeKind("other"), `1`)
			w.check(w.notes(second.Run.ID, id)[0].State == perdure.NotePending, "told again")
		}},
	{"a webhook that is changed is known as soon as that is answered", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job"}) // nobody wants to know of it
		hook, _ := w.hook("")
		g := w.take("w1")
		w.do(&outbox.UpdateWebhook{Tenant: tenant, ID: hook.ID, Disabled: new(true), Reason: "enough"})
		w.complete(g, `1`)
		w.check(w.lineTypes(r.ID, "") == "", "told %q", w.lineTypes(r.ID, ""))
		w.check(w.webhook(hook.ID).DisabledReason == "enough", "%+v", w.webhook(hook.ID))
		w.do(&outbox.UpdateWebhook{Tenant: tenant, ID: hook.ID, Disabled: new(false)})
		w.endedRun(hook.ID)
		none := []string{"run:failed"}
		w.do(&outbox.UpdateWebhook{Tenant: tenant, ID: hook.ID, Events: &none})
		r = w.task()
		w.complete(w.take("w1"), `1`)
		w.check(w.lineTypes(r.ID, "") == "", "told %q", w.lineTypes(r.ID, ""))
		w.do(&outbox.DeleteWebhook{Tenant: tenant, ID: hook.ID})
		w.refuse(perdure.CodeNotFound, &outbox.DeleteWebhook{Tenant: tenant, ID: hook.ID})
		w.refuse(perdure.CodeNotFound, &outbox.UpdateWebhook{Tenant: tenant, ID: hook.ID})
		w.refuse(perdure.CodeNotFound, &outbox.RotateWebhook{Tenant: tenant, ID: hook.ID})
		w.refuse(perdure.CodeNotFound, &outbox.UpdateWebhook{Tenant: tenant, ID: hook.ID, Disabled: new(false)})
	}},
	{"a webhook's bad input", func(w *World) {
		for field, bad := range map[string]*outbox.CreateWebhook{
			"url":         {URL: "example.com"},
			"url ":        {URL: "ftp://example.com"},
			"url  ":       {URL: "https://example.com/" + strings.Repeat("a", perdure.MaxURL)},
			"events":      {URL: sink, Events: []string{"llm:delta"}},
			"events ":     {URL: sink, Events: []string{"run:nothing"}},
			"events  ":    {URL: sink, Events: []string{"nothing:*"}},
			"events   ":   {URL: sink, Events: []string{"llm:*"}},
			"events    ":  {URL: sink, Events: []string{"x:a b"}},
			"events     ": {URL: sink, Events: make([]string, perdure.MaxEventNames+1)},
			"description": {URL: sink, Description: "\x00"},
			"thread_id":   {URL: sink, ThreadID: "../x"},
		} {
			bad.Tenant = tenant
			err := w.E.Step(w.Now, bad)[0]
			e, _ := err.(*perdure.Error)
			w.check(e != nil && e.Code == perdure.CodeInvalid && e.Field == strings.TrimSpace(field), "%s: %v",
				field, err)
		}
		for range perdure.MaxWebhooks {
			w.hook("")
		}
		w.refuse(perdure.CodeQuota, &outbox.CreateWebhook{Tenant: tenant, URL: sink})
		w.do(&outbox.CreateWebhook{Tenant: "other", URL: sink})
		w.submit(perdure.Submission{Kind: "job", Webhook: sink}) // that of a run does not count
		w.refuse(perdure.CodeNotFound, &outbox.Redeliver{Tenant: tenant, DeliveryID: "msg_nothing"})
		w.refuse(perdure.CodeWrongState, &outbox.UpdateWebhook{Tenant: tenant, ID: perdure.RunWebhookID(tenant,
			sink, ""), URL: new(string)})
	}},
	{"what fails is sent again over a day, and then it is dead, until somebody redelivers it", func(w *World) {
		hook, _ := w.hook("")
		n := w.endedRun(hook.ID)
		began := w.Now
		for i, want := range []time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour,
			5 * time.Hour, 10 * time.Hour, 14 * time.Hour,
			20 * time.Hour, 24 * time.Hour} {
			out := w.takeDue(hook.ID, 10)
			w.check(len(out) == 1 && out[0].ID() == n.ID(), "attempt %d: %+v", i+1, out)
			w.check(len(w.takeDue(hook.ID, 10)) == 0, "it is in somebody's hands")
			n = w.answer(out[0], 500, 0)
			w.check(n.State == perdure.NotePending && n.AlarmAt.Sub(began) == want && n.Status == 500,
				"after attempt %d: %+v, want it after %s", i+1, n, want)
			w.Now = n.AlarmAt.Add(-time.Microsecond)
			w.check(len(w.takeDue(hook.ID, 10)) == 0, "too early")
			w.Now = n.AlarmAt
		}
		n = w.answer(w.takeDue(hook.ID, 10)[0], 0, 0)
		w.check(n.State == perdure.NoteDead && n.Attempts == 10 && w.webhook(hook.ID).FailingAt == began, "%+v", n)
		w.check(len(w.attempts(n)) == 10, "%+v", w.attempts(n))

		redo := &outbox.Redeliver{Tenant: tenant, DeliveryID: n.ID()}
		w.do(redo)
		out := w.takeDue(hook.ID, 10)
		w.check(len(out) == 1 && out[0].ID() == n.ID() && out[0].Attempts == 11, "%+v", out)
		n = w.answer(out[0], 500, 0)
		w.check(n.AlarmAt.Sub(w.Now) == 5*time.Second, "its schedule begins again: %+v", n)
		w.Now = n.AlarmAt
		n = w.answer(w.takeDue(hook.ID, 10)[0], 204, 0)
		w.check(n.State == perdure.NoteDelivered && n.AlarmAt == 0 && n.Error == "" &&
			w.webhook(hook.ID).FailingAt == 0, "%+v", n)
		got := w.attempts(n)
		w.check(len(got) == 12 && got[11].Status == 204 && got[11].Response == "ok" &&
			got[11].Took == time.Second && got[9].Error != "", "%+v", got)
		w.do(redo) // what was delivered can be sent again too
		w.answer(w.takeDue(hook.ID, 10)[0], 200, 0)
	}},
	{"a receiver's Retry-After counts, and 410 disables it", func(w *World) {
		hook, _ := w.hook("")
		n := w.endedRun(hook.ID)
		n = w.answer(w.takeDue(hook.ID, 1)[0], 429, time.Hour)
		w.check(n.AlarmAt.Sub(w.Now) == time.Hour, "%+v", n)
		w.Now = n.AlarmAt
		n = w.answer(w.takeDue(hook.ID, 1)[0], 503, 100*time.Hour)
		w.check(n.AlarmAt.Sub(w.Now) == 24*time.Hour, "%+v", n)
		w.Now = n.AlarmAt
		n = w.answer(w.takeDue(hook.ID, 1)[0], 503, time.Second)
		w.check(n.AlarmAt.Sub(w.Now) > time.Minute, "a receiver can't be called more often than planned: %+v", n)

		other := w.endedRun(hook.ID)
		out := w.takeDue(hook.ID, 1)
		w.answer(out[0], 410, 0)
		for _, id := range []string{n.ID(), other.ID()} {
			w.check(w.note(id).State == perdure.NoteDead, "%+v", w.note(id))
		}
		h := w.webhook(hook.ID)
		w.check(h.DisabledAt == w.Now && h.DisabledReason == "the receiver answered 410", "%+v", h)
		r := w.task()
		w.complete(w.take("w1"), `1`)
		w.check(w.lineTypes(r.ID, "") == "", "it is told nothing any more")
		w.refuse(perdure.CodeWrongState, &outbox.Redeliver{Tenant: tenant, DeliveryID: n.ID()})
		w.do(&outbox.UpdateWebhook{Tenant: tenant, ID: hook.ID, Disabled: new(false)})
		w.do(&outbox.Redeliver{Tenant: tenant, DeliveryID: n.ID()})
		n = w.answer(w.takeDue(hook.ID, 1)[0], 200, 0)
		w.check(n.State == perdure.NoteDelivered, "%+v", n)
	}},
	{"what a dead node took is due again, and its word comes too late", func(w *World) {
		hook, _ := w.hook("")
		n := w.endedRun(hook.ID)
		first := w.takeDue(hook.ID, 1)[0]
		w.Now = w.Now.Add(outbox.SendLease)
		second := w.takeDue(hook.ID, 1)[0]
		w.check(first.ID() == second.ID() && second.Attempts == 2, "%+v", second)
		w.check(w.answer(first, 500, 0).AlarmAt == second.AlarmAt, "who lost it decides nothing")
		w.check(w.answer(second, 200, 0).State == perdure.NoteDelivered, "delivered")
		w.check(w.answer(second, 200, 0).State == perdure.NoteDelivered, "said twice")
		w.check(len(w.attempts(n)) == 2, "%+v", w.attempts(n))

		n = w.endedRun(hook.ID)
		out := w.takeDue(hook.ID, 1)[0]
		w.do(&outbox.UpdateWebhook{Tenant: tenant, ID: hook.ID, Disabled: new(true)})
		w.check(w.note(n.ID()).State == perdure.NoteDead, "%+v", w.note(n.ID()))
		w.check(w.answer(out, 200, 0).State == perdure.NoteDelivered, "it has arrived all the same")

		w.do(&outbox.UpdateWebhook{Tenant: tenant, ID: hook.ID, Disabled: new(false)})
		n = w.endedRun(hook.ID)
		out = w.takeDue(hook.ID, 1)[0]
		w.do(&outbox.Deliver{Sent: []outbox.Sent{{Notification: out.Notification, At: w.Now,
			Error: "the node stops", Stopped: true}}})
		out = w.takeDue(hook.ID, 1)[0]
		w.check(out.Attempts == 2 && out.Tries == 1, "an attempt that the node gave up does not count: %+v", out)
		w.do(&outbox.Redeliver{Tenant: tenant, DeliveryID: n.ID()})
		w.check(w.answer(out, 200, 0).State == perdure.NotePending, "somebody wants it sent again")
		again := w.takeDue(hook.ID, 1)[0]
		w.check(w.answer(out, 500, 0).AlarmAt == again.AlarmAt, "it is in other hands, at the same instant")
		w.answer(again, 200, 0)
	}},
	{"the secret before the last rotation signs for a day", func(w *World) {
		hook, secret := w.hook("")
		rotate := &outbox.RotateWebhook{Tenant: tenant, ID: hook.ID}
		w.do(rotate)
		w.check(rotate.Secret != secret, "another one")
		hook = w.webhook(hook.ID)
		w.check(slices.Equal(w.E.Webhooks.Secrets(&hook, w.Now), []string{rotate.Secret, secret}), "both")
		w.check(slices.Equal(w.E.Webhooks.Secrets(&hook, w.Now.Add(24*time.Hour)), []string{rotate.Secret}),
			"the new one alone")
		w.restart()
		w.check(slices.Equal(w.E.Webhooks.Secrets(&hook, w.Now), []string{rotate.Secret, secret}),
			"the same after a restart")
	}},
	{"what can't be told any more is given up in portions", func(w *World) {
		hook, _ := w.hook("", "x:*")
		r := w.task()
		g := w.take("w1")
		for range 25 {
			events := make([]perdure.Emitted, 100)
			for i := range events {
				events[i].Type = "x:many"
			}
			w.commit(g, perdure.Commit{Events: events})
		}
		count := func(state string) (n int) {
			w.view(func(v *store.View) error {
				list, err := v.Outbox.Deliveries(tenant, hook.ID, state, "", 10000)
				n = len(list)
				return err
			})
			return n
		}
		w.check(count(perdure.NotePending) == 2500, "%d are pending", count(perdure.NotePending))
		out := w.takeDue(hook.ID, 1)[0]
		w.answer(out, 500, 0)
		w.Now = w.Now.Add(28 * time.Hour)
		w.answer(w.takeDue(hook.ID, 1)[0], 500, 0)
		w.check(count(perdure.NoteDead) == 0, "%d are dead", count(perdure.NoteDead))
		w.Now = w.Now.Add(2 * time.Hour)
		w.check(len(w.takeDue(hook.ID, 1)) == 0, "what is that old is not sent")
		w.check(count(perdure.NoteDead) == 500, "after more than a day without a word %d are dead",
			count(perdure.NoteDead))
		w.do(&outbox.DeleteWebhook{Tenant: tenant, ID: hook.ID})
		w.check(count(perdure.NoteDropped) == 64, "%d are dropped", count(perdure.NoteDropped))
		op := &outbox.Deliver{Want: []outbox.Want{{Tenant: tenant, Webhook: hook.ID, Most: 1}}}
		for range 4 { // 500 each
			w.do(op)
		}
		w.check(len(op.Taken) == 0 && len(op.More) == 0 && count(perdure.NotePending) == 0, "%d are left",
			count(perdure.NotePending))
		w.complete(g, `1`)
		w.check(w.get(r.ID).State == perdure.Completed, "the run never notices")

		var pages []perdure.Notification
		w.view(func(v *store.View) error {
			for cursor := ""; ; {
				list, err := v.Outbox.Deliveries(tenant, hook.ID, "", cursor, 700)
				if err != nil || len(list) == 0 {
					return err
				}
				pages = append(pages, list...)
				cursor = list[len(list)-1].ID()
			}
		})
		w.check(len(pages) == 2500 && slices.IsSortedFunc(pages,
			func(a, b perdure.Notification) int { return int(b.Seq - a.Seq) }), "%d in pages", len(pages))
	}},
	{"twelve minutes of silent thinking kill nothing, and a stall is told once", func(w *World) {
		hook, _ := w.hook("")
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		g := w.take("w1")
		for range 12 * 60 / 15 {
			w.pass(15 * time.Second)
			w.do(&life.Heartbeat{Tenant: tenant, Worker: "w1",
				Beats: []life.BeatOf{{Lease: lease(g), Activity: "thinking"}}})
		}
		w.state(r.ID, perdure.Running)
		w.check(w.count(r.ID, perdure.LineSlow) == 1 && w.lineTypes(r.ID, hook.ID) == "slow", "it told %q",
			w.lineTypes(r.ID, hook.ID))
		w.answer(w.takeDue(hook.ID, 1)[0], 200, 0)
		w.complete(g, `1`)
		w.check(w.lineTypes(r.ID, hook.ID) == "slow completed" && w.get(r.ID).Attempt == 1, "it told %q",
			w.lineTypes(r.ID, hook.ID))
	}},
}
