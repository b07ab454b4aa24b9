package conformance

import (
	"fmt"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/store"
)

// workers gives the ids of the listed workers.
func (w *World) workers() (out []string) {
	w.t.Helper()
	w.view(func(v *store.View) error {
		list, _, err := v.Workers.Page(tenant, store.Page{Limit: store.PageRows})
		for _, x := range list {
			out = append(out, x.ID)
		}
		return err
	})
	return out
}

// hasWebhook tells whether the store has a webhook's row.
func (w *World) hasWebhook(id perdure.WebhookID) (ok bool) {
	w.t.Helper()
	w.view(func(v *store.View) (err error) { _, ok, err = v.Webhooks.Get(tenant, id); return err })
	return ok
}

// withWebhook submits a run with a webhook. It gives the webhook's id, and its secret if it is new.
func (w *World) withWebhook(url string, timeout time.Duration) (run perdure.Run, id perdure.WebhookID, secret string) {
	w.t.Helper()
	op := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job", Class: perdure.Agent,
		Webhook: url, Timeout: perdure.Duration(timeout)}}
	w.do(op)
	return op.Run, perdure.WebhookID(op.Run.Options.Webhook), op.WebhookSecret
}

// leave advances the clock, sweeps, and runs retention once.
func (w *World) leave(d time.Duration) {
	w.t.Helper()
	w.Now = w.Now.Add(d)
	w.sweep()
	w.retire()
}

var unusedScenarios = []Scenario{
	{"a worker that is gone is listed for a day", func(w *World) {
		p := w.E.Policy()
		for i := range 600 {
			w.poll(fmt.Sprintf("gone-%03d", i), 1)
		}
		w.poll("stays", 1)
		w.Now = w.Now.Add(p.WorkerOffline + time.Second)
		for range 10 {
			w.sweep()
		}
		w.Now = w.Now.Add(p.WorkerRetention - p.WorkerOffline - 2*time.Second)
		w.retire()
		w.check(len(w.workers()) == 601, "workers before their time is over = %d, want 601", len(w.workers()))
		w.poll("stays", 1)
		w.Now = w.Now.Add(2 * time.Second)
		steps := w.retire()
		w.check(slices.Equal(w.workers(), []string{"stays"}),
			"%d workers after their time, want the one that polled", len(w.workers()))
		w.check(steps > 1, "600 workers went in %d step, want several: a step is bounded", steps)
		w.poll("gone-001", 1)
		w.check(slices.Equal(w.workers(), []string{"gone-001", "stays"}), "workers after one came back = %q",
			w.workers())
	}},
	{"a revoked or expired key is listed for a while", func(w *World) {
		p := w.E.Policy()
		make := func(name string, ttl time.Duration) *access.CreateKey {
			op := &access.CreateKey{Tenant: tenant, Name: name, Scopes: []perdure.Scope{perdure.ScopeRead},
				TTL: perdure.Duration(ttl)}
			w.do(op)
			return op
		}
		revoked, expired, valid := make("revoked", 0), make("expired", time.Second), make("valid", 0)
		w.do(&access.RevokeKey{Tenant: tenant, ID: revoked.Key.ID})
		listed := func() (names []string) {
			w.view(func(v *store.View) error {
				list, _, err := v.Keys.Page(tenant, true, store.Page{Limit: store.PageRows})
				for _, k := range list {
					names = append(names, k.Name)
				}
				return err
			})
			slices.Sort(names)
			return names
		}
		w.Now = w.Now.Add(p.KeyRetention - time.Second)
		w.retire()
		w.check(len(listed()) == 3, "keys before their time is over: %q, want all three", listed())
		w.Now = w.Now.Add(3 * time.Second)
		w.retire()
		w.check(slices.Equal(listed(), []string{"valid"}), "keys after their time: %q, want the valid one", listed())
		for _, k := range []*access.CreateKey{revoked, expired} {
			_, err := w.E.Keys.Authenticate(w.ctx(), k.Secret)
			w.check(perdure.CodeOf(err) == perdure.CodeNotFound, "key %s: %v, want not found", k.Key.Name, err)
		}
		_, err := w.E.Keys.Authenticate(w.ctx(), valid.Secret)
		w.check(err == nil, "the valid key: %v", err)
		w.refuse(perdure.CodeNotFound, &access.RevokeKey{Tenant: tenant, ID: revoked.Key.ID})
	}},
	{"a deleted webhook stays as long as its deliveries do", func(w *World) {
		p := w.E.Policy()
		hook, _ := w.hook("")
		n := w.endedRun(hook.ID)
		stays, _ := w.hook("")
		w.do(&outbox.DeleteWebhook{Tenant: tenant, ID: hook.ID})
		// An open group keeps the run, and its deliveries with it.
		long := perdure.Duration(60 * 24 * time.Hour)
		w.E.Policy().Timeouts.Agent = perdure.TimeoutLimits{Default: time.Hour, Max: time.Duration(long)}
		open := w.submit(perdure.Submission{Kind: "open", Class: perdure.Agent, Timeout: long})
		w.do(&life.CreateGroup{Tenant: tenant, RunIDs: []perdure.RunID{n.RunID, open.ID}})
		w.leave(p.WebhookRetention + time.Hour)
		w.check(w.exists(n.RunID) && w.hasWebhook(hook.ID), "a deleted webhook went before its deliveries")
		w.do(&life.Cancel{Tenant: tenant, RunID: open.ID})
		w.leave(p.WebhookRetention)
		w.leave(time.Second)
		w.check(!w.exists(n.RunID) && !w.hasWebhook(hook.ID), "the deleted webhook is still there")
		w.check(w.hasWebhook(stays.ID), "a registered webhook went")
	}},
	{"the webhook of runs stays while a run that came with it may live, and goes when none is kept", func(w *World) {
		p := w.E.Policy()
		p.WebhookRetention = time.Hour // it is at least the retention
		long := 29 * 24 * time.Hour
		r, id, _ := w.withWebhook(sink, long)
		_, again, secret := w.withWebhook(sink, time.Minute) // a shorter one does not shorten its life
		w.check(id == again && secret == "", "the same URL has two webhooks: %s and %s", id, again)
		w.Now = w.Now.Add(long - time.Hour)
		w.retire()
		w.check(w.hasWebhook(id), "it went while a run that came with it lives")
		w.leave(2 * time.Hour)
		w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
		w.check(w.lineTypes(r.ID, id) != "", "its end is not told")
		for _, o := range w.takeDue(id, 10) {
			w.answer(o, 200, 0)
		}
		retry := &life.Retry{Tenant: tenant, RunID: r.ID} // a retry needs it as well
		w.do(retry)
		w.do(&life.Cancel{Tenant: tenant, RunID: retry.Run.ID})
		for _, o := range w.takeDue(id, 10) {
			w.answer(o, 200, 0)
		}
		w.leave(p.Retention + 2*time.Hour)
		w.leave(time.Second)
		w.check(!w.exists(r.ID) && !w.exists(retry.Run.ID), "the runs are still there")
		w.check(w.hasWebhook(id), "it went before the deadline of the retry")
		w.leave(long + 2*time.Hour)
		w.check(!w.hasWebhook(id), "it is still there: %+v", w.rowsAbout(string(id), "watchdog_log"))
	}},
	{"a webhook of runs that was removed comes back with another secret", func(w *World) {
		p := w.E.Policy()
		r, id, first := w.withWebhook(sink, time.Minute)
		w.do(&life.Cancel{Tenant: tenant, RunID: r.ID})
		w.do(&outbox.DeleteWebhook{Tenant: tenant, ID: id})
		w.leave(p.WebhookRetention + 2*time.Hour)
		w.leave(time.Second)
		w.check(!w.hasWebhook(id), "it is still there")
		_, back, second := w.withWebhook(sink, time.Minute)
		w.check(back == id && second != "" && second != first,
			"webhook %s with secret %q, want %s with another one than %q", back, second, id, first)
	}},
	{"a webhook of runs that somebody disabled is not forgotten", func(w *World) {
		p := w.E.Policy()
		r, id, _ := w.withWebhook(sink, time.Minute)
		w.do(&life.Cancel{Tenant: tenant, RunID: r.ID})
		w.do(&outbox.UpdateWebhook{Tenant: tenant, ID: id, Disabled: new(true), Reason: "disabled by hand"})
		w.leave(p.WebhookRetention + 2*time.Hour)
		w.leave(time.Second)
		w.check(!w.exists(r.ID), "the run is still there")
		w.check(w.hasWebhook(id) && w.webhook(id).DisabledAt != 0, "the next run with its URL would enable it")
	}},
}
