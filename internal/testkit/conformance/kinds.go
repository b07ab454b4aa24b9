package conformance

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
)

// announce registers a build's description of a kind.
func (w *World) announce(kind, build string, def perdure.KindDef) *rules.AnnounceKind {
	w.t.Helper()
	op := &rules.AnnounceKind{Tenant: tenant, Kind: kind, Build: build, Def: def}
	w.do(op)
	return op
}

// kind reads a kind that has to be there.
func (w *World) kind(kind string) reads.KindInfo {
	w.t.Helper()
	k, err := w.E.Kinds.Get(w.ctx(), tenant, kind)
	if err != nil {
		w.t.Fatalf("kind %s: %v", kind, err)
	}
	return k
}

// kindRows summarizes the stored rows of the registry.
func (w *World) kindRows() (out string) {
	w.t.Helper()
	w.view(func(v *store.View) error {
		for _, q := range []string{"SELECT count(*), coalesce(sum(version),0) FROM kinds",
			"SELECT count(*), coalesce(sum(last_seen),0) FROM kind_builds",
			"SELECT coalesce(sum(kinds),0), coalesce(sum(version),0) FROM kind_quota"} {
			if err := v.Rows(q, nil, func(scan func(...any) error) error {
				var a, b int64
				err := scan(&a, &b)
				out += fmt.Sprint(a, " ", b, ";")
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	})
	return out
}

func minutes(n int) perdure.Duration { return perdure.Duration(time.Duration(n) * time.Minute) }

var researcher = perdure.KindDef{Description: "finds things out", Class: perdure.Agent, Timeout: minutes(90),
	Retry: &perdure.KindRetry{MaxAttempts: 7, Backoff: minutes(1), MaxBackoff: minutes(3),
		NotRetried: []perdure.Code{"broke"}},
	InputSchema: json.RawMessage(`{"type":"object"}`)}

var kindScenarios = []Scenario{
	{"a submission takes from its kind what it does not say", func(w *World) {
		w.announce("research", "1", researcher)
		r := w.submit(perdure.Submission{Kind: "research"})
		w.check(r.Class == perdure.Agent && r.MaxAttempts == 7 && r.DeadlineAt == w.Now.Add(90*time.Minute),
			"run: class %s, %d attempts, deadline %s; want agent, 7, in 90 minutes", r.Class, r.MaxAttempts,
			r.DeadlineAt)
		r = w.submit(perdure.Submission{Kind: "research", Class: perdure.Task, Timeout: minutes(2), MaxAttempts: 1})
		w.check(r.Class == perdure.Task && r.MaxAttempts == 1 && r.DeadlineAt == w.Now.Add(2*time.Minute),
			"run that says everything: class %s, %d attempts, deadline %s", r.Class, r.MaxAttempts, r.DeadlineAt)
		p := w.E.Policy()
		r = w.submit(perdure.Submission{Kind: "research", Class: perdure.Task})
		w.check(r.DeadlineAt == w.Now.Add(p.Timeouts.Task.Max),
			"deadline of a task = %s, want the greatest of its class: the kind asks for more", r.DeadlineAt)

		w.announce("silent", "1", perdure.KindDef{Description: "says nothing"})
		r = w.submit(perdure.Submission{Kind: "silent"})
		w.check(r.Class == perdure.Task && r.MaxAttempts == p.MaxAttempts &&
			r.DeadlineAt == w.Now.Add(p.Timeouts.Task.Default), "run of a silent kind: %s, %d, %s; want the policy's",
			r.Class, r.MaxAttempts, r.DeadlineAt)
		th := w.thread()
		r = w.submit(perdure.Submission{Kind: "unknown", ThreadID: th})
		w.check(r.Class == perdure.Agent, "class of an unknown kind on a thread = %s, want agent", r.Class)
		w.announce("tool", "1", perdure.KindDef{Class: perdure.Task})
		r = w.submit(perdure.Submission{Kind: "tool", ThreadID: th})
		w.check(r.Class == perdure.Task, "class on a thread = %s, want that of the kind, task", r.Class)
	}},
	{"a child takes from its kind what its parent does not say", func(w *World) {
		w.announce("research", "1", researcher)
		w.announce("process", "1", perdure.KindDef{Class: perdure.Process})
		w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		g := w.take("w")
		ans := w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "a", Kind: "research"},
			{Key: "b", Kind: "research", Class: perdure.Task, Timeout: minutes(1), MaxAttempts: 2},
			{Key: "c", Kind: "process"}, {Key: "d", Kind: "unknown"}}})
		a, b := w.get(ans.Children[0].RunID), w.get(ans.Children[1].RunID)
		w.check(a.Class == perdure.Agent && a.MaxAttempts == 7 && a.DeadlineAt == w.Now.Add(90*time.Minute),
			"child: class %s, %d attempts, deadline %s; want those of its kind", a.Class, a.MaxAttempts, a.DeadlineAt)
		w.check(b.Class == perdure.Task && b.MaxAttempts == 2 && b.DeadlineAt == w.Now.Add(time.Minute),
			"child that says everything: class %s, %d attempts, deadline %s", b.Class, b.MaxAttempts, b.DeadlineAt)
		c, d := w.get(ans.Children[2].RunID), w.get(ans.Children[3].RunID)
		w.check(c.Class == perdure.Process && c.Options.Process, "child of a process kind: %s %v", c.Class, c.Options)
		w.check(d.ShownClass() == perdure.Open, "class of a child of an unknown kind = %s, want open", d.ShownClass())
	}},
	{"a repeated submission is the same run although its kind has changed", func(w *World) {
		first := &life.Submit{Tenant: tenant, Key: "k", Submission: perdure.Submission{Kind: "research"}}
		w.do(first)
		w.announce("research", "1", researcher)
		again := &life.Submit{Tenant: tenant, Key: "k", Submission: perdure.Submission{Kind: "research"}}
		w.do(again)
		w.check(!again.Created && again.Run.ID == first.Run.ID, "repeated submission: created %v, run %s, want %s",
			again.Created, again.Run.ID, first.Run.ID)
	}},
	{"the build that was first seen last counts", func(w *World) {
		w.announce("job", "1", perdure.KindDef{Timeout: minutes(1)})
		w.Now = w.Now.Add(time.Second)
		w.announce("job", "2", perdure.KindDef{Timeout: minutes(2)})
		w.Now = w.Now.Add(time.Second)
		old := w.announce("job", "1", perdure.KindDef{Timeout: minutes(11)})
		w.check(!old.Counts && w.kind("job").Def.Timeout == minutes(2) && w.kind("job").Build == "2",
			"after build 1 was started again: %+v, want build 2", w.kind("job"))
		w.check(w.submit(perdure.Submission{Kind: "job"}).DeadlineAt == w.Now.Add(2*time.Minute),
			"submission by build 2")
		w.announce("job", "2", perdure.KindDef{Timeout: minutes(22)})
		w.check(w.submit(perdure.Submission{Kind: "job"}).DeadlineAt == w.Now.Add(22*time.Minute),
			"a build that announces something else is not taken")
		for i := range perdure.KeptBuilds + 5 {
			w.Now = w.Now.Add(time.Second)
			w.announce("job", fmt.Sprintf("n%02d", i), perdure.KindDef{Timeout: minutes(3)})
		}
		k := w.kind("job")
		w.check(len(k.Builds) == perdure.KeptBuilds && k.Builds[0].Build == "n14" && k.Build == "n14",
			"%d builds are stored, want %d; the first is %s", len(k.Builds), perdure.KeptBuilds, k.Builds[0].Build)
	}},
	{"an announcement that says nothing new writes nothing for a minute", func(w *World) {
		w.announce("job", "1", researcher)
		before := w.kindRows()
		w.Now = w.Now.Add(59 * time.Second)
		w.announce("job", "1", researcher)
		w.check(w.kindRows() == before, "rows = %s, want %s", w.kindRows(), before)
		w.Now = w.Now.Add(time.Second)
		w.announce("job", "1", researcher)
		w.check(w.kindRows() != before, "a minute later nothing was written")
	}},
	{"the platform's kinds lie under every tenant's", func(w *World) {
		w.do(&rules.AnnounceKind{Tenant: "ops", Platform: true, Kind: "job", Build: "p",
			Def: perdure.KindDef{Class: perdure.Agent, Timeout: minutes(5), Retry: &perdure.KindRetry{MaxAttempts: 9}}})
		r := w.submit(perdure.Submission{Kind: "job"})
		w.check(r.Class == perdure.Agent && r.MaxAttempts == 9, "run: %s, %d attempts; want the platform's", r.Class,
			r.MaxAttempts)
		w.announce("job", "1", perdure.KindDef{Timeout: minutes(6)})
		r = w.submit(perdure.Submission{Kind: "job"})
		w.check(r.Class == perdure.Agent && r.DeadlineAt == w.Now.Add(6*time.Minute),
			"run: %s until %s; want the platform's class and the tenant's timeout", r.Class, r.DeadlineAt)
		k := w.kind("job")
		w.check(k.Sources["class"] == perdure.KindFromPlatform && k.Sources["timeout"] == perdure.KindFromWorker &&
			k.Sources["retry.max_attempts"] == perdure.KindFromPlatform && len(k.Sources) == 3, "sources = %v",
			k.Sources)
		w.check(k.Build == "1" && len(k.Builds) == 2, "build %s of %d, want 1 of 2", k.Build, len(k.Builds))

		// Another tenant sees the platform's alone.
		other, err := w.E.Kinds.Get(w.ctx(), "other", "job")
		w.check(err == nil && other.Def.Timeout == minutes(5) && other.Build == "p", "another tenant sees %+v, %v",
			other, err)
		_, err = w.E.Kinds.Get(w.ctx(), "other", "research")
		w.check(perdure.CodeOf(err) == perdure.CodeNotFound, "a kind that nobody announced: %v", err)

		w.do(&rules.DeleteKind{Tenant: "ops", Platform: true, Kind: "job"})
		w.check(w.submit(perdure.Submission{Kind: "job"}).Class == perdure.Task, "the platform's class still counts")
	}},
	{"an operator overrides single fields, and removes that again", func(w *World) {
		w.refuse(perdure.CodeNotFound, &rules.PatchKind{Tenant: tenant, Kind: "research",
			Def: perdure.KindDef{Timeout: minutes(1)}})
		w.announce("research", "1", researcher)
		w.do(&rules.PatchKind{Tenant: tenant, Kind: "research", Def: perdure.KindDef{Timeout: minutes(1),
			Retry: &perdure.KindRetry{MaxAttempts: 2, NotRetried: []perdure.Code{}}}})
		r := w.submit(perdure.Submission{Kind: "research"})
		w.check(r.MaxAttempts == 2 && r.DeadlineAt == w.Now.Add(time.Minute), "run: %d attempts until %s",
			r.MaxAttempts,
			r.DeadlineAt)
		k := w.kind("research")
		w.check(k.Sources["timeout"] == perdure.KindFromOperator &&
			k.Sources["retry.backoff"] == perdure.KindFromWorker &&
			len(k.Def.Retry.NotRetried) == 0 && k.Def.Retry.Backoff == minutes(1), "overridden: %+v, %v", k.Def,
			k.Sources)
		// A new build does not undo what the operator said.
		w.announce("research", "2", researcher)
		w.check(w.kind("research").Def.Timeout == minutes(1), "a new build undid the override")
		w.do(&rules.PatchKind{Tenant: tenant, Kind: "research", Remove: []string{"timeout", "retry.not_retried"}})
		k = w.kind("research")
		w.check(k.Def.Timeout == minutes(90) && k.Def.Retry.MaxAttempts == 2 && slices.Equal(k.Def.Retry.NotRetried,
			[]perdure.Code{"broke"}), "after the removal: %+v, %+v", k.Def, k.Def.Retry)
		w.do(&rules.PatchKind{Tenant: tenant, Kind: "research", Remove: []string{"retry"}})
		w.check(w.kind("research").Def.Retry.MaxAttempts == 7, "after the removal of retry: %+v",
			w.kind("research").Def.Retry)
		w.refuse(perdure.CodeInvalid, &rules.PatchKind{Tenant: tenant, Kind: "research", Remove: []string{"nothing"}})
		w.refuse(perdure.CodeInvalid, &rules.PatchKind{Tenant: tenant, Kind: "research",
			Def: perdure.KindDef{Class: "sprint"}})

		// With a key it counts once.
		set := &rules.PatchKind{Tenant: tenant, Kind: "research", Def: perdure.KindDef{Timeout: minutes(4)}, Key: "k"}
		w.do(set)
		w.do(&rules.PatchKind{Tenant: tenant, Kind: "research", Remove: []string{"timeout"}})
		w.do(set)
		w.check(w.kind("research").Def.Timeout == minutes(90), "the repeated call undid a later change")
	}},
	{"a failure that its kind does not retry ends the run, and backoffs are the kind's", func(w *World) {
		w.announce("job", "1", perdure.KindDef{Retry: &perdure.KindRetry{MaxAttempts: 5, Backoff: minutes(1),
			MaxBackoff: minutes(3), NotRetried: []perdure.Code{"refused", "lease_lost"}}})
		final := w.task()
		w.commit(w.take("w"), perdure.Commit{Outcome: failed("refused")})
		w.ended(final.ID, perdure.Failed, "refused")
		w.check(w.count(final.ID, perdure.LineDeadLettered) == 0, "a failure that is not retried left a dead letter")

		r := w.task()
		for _, want := range []time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute} {
			w.commit(w.take("w"), perdure.Commit{Outcome: failed("flaky")})
			got := w.state(r.ID, perdure.Queued)
			w.check(got.ReadyAt == w.Now.Add(want), "attempt %d comes in %s, want %s", got.Attempt,
				got.ReadyAt.Sub(w.Now), want)
			w.pass(want)
		}
		g := w.take("w")
		w.pass(w.E.Policy().Lease + time.Second)
		w.ended(g.Run.ID, perdure.Failed, "lease_lost")
		w.check(w.count(r.ID, perdure.LineDeadLettered) == 1, "a lost run that is not retried left no dead letter")
	}},
	{"a deleted kind is gone until it is announced again", func(w *World) {
		w.refuse(perdure.CodeNotFound, &rules.DeleteKind{Tenant: tenant, Kind: "research"})
		w.announce("research", "1", researcher)
		w.submit(perdure.Submission{Kind: "research"})
		w.refuse(perdure.CodeNotFound, &rules.DeleteKind{Tenant: "other", Kind: "research"})
		w.do(&rules.DeleteKind{Tenant: tenant, Kind: "research", Key: "k"})
		w.do(&rules.DeleteKind{Tenant: tenant, Kind: "research", Key: "k"})
		r := w.submit(perdure.Submission{Kind: "research"})
		w.check(r.ShownClass() == perdure.Open, "class of a deleted kind = %s, want open", r.ShownClass())
		_, err := w.E.Kinds.Get(w.ctx(), tenant, "research")
		w.check(perdure.CodeOf(err) == perdure.CodeNotFound, "a deleted kind: %v", err)
		again := w.announce("research", "1", researcher)
		w.check(again.FirstSeen == w.Now && w.kind("research").Build == "1", "announced again: %+v", again)

		// In one batch the second of the two is told to try again.
		errs := w.E.Step(w.Now, &rules.DeleteKind{Tenant: tenant, Kind: "research"},
			&rules.AnnounceKind{Tenant: tenant, Kind: "research", Build: "1", Def: researcher})
		w.check(errs[0] == nil && perdure.CodeOf(errs[1]) == perdure.CodeUnavailable, "deleted and announced: %v", errs)
		w.announce("research", "1", researcher)
		errs = w.E.Step(w.Now, &rules.AnnounceKind{Tenant: tenant, Kind: "research", Build: "2", Def: researcher},
			&rules.DeleteKind{Tenant: tenant, Kind: "research"})
		w.check(errs[0] == nil && perdure.CodeOf(errs[1]) == perdure.CodeUnavailable, "announced and deleted: %v", errs)
	}},
	{"a tenant has a bounded number of kinds, and a page of them a bounded size", func(w *World) {
		var ops []kernel.Op
		for i := range perdure.MaxKinds {
			ops = append(ops, &rules.AnnounceKind{Tenant: tenant, Kind: fmt.Sprintf("k%04d", i),
				Def: perdure.KindDef{Description: "d"}})
		}
		for _, err := range w.E.Step(w.Now, ops...) {
			w.check(err == nil, "announce: %v", err)
		}
		w.refuse(perdure.CodeQuota, &rules.AnnounceKind{Tenant: tenant, Kind: "more"})
		w.do(&rules.AnnounceKind{Tenant: "other", Kind: "more"})
		w.do(&rules.DeleteKind{Tenant: tenant, Kind: "k0500"})
		w.announce("more", "", perdure.KindDef{})
		w.refuse(perdure.CodeQuota, &rules.AnnounceKind{Tenant: tenant, Kind: "k0500"})

		seen, cursor := 0, ""
		for {
			page, next, err := w.E.Kinds.Page(w.ctx(), tenant, kernel.Page{After: cursor, Limit: 300, Bytes: 150_000})
			w.check(err == nil && len(page) <= 150, "page of %d kinds (%v)", len(page), err)
			seen += len(page)
			if cursor = next; next == "" {
				break
			}
		}
		w.check(seen == perdure.MaxKinds, "the pages have %d kinds, want %d", seen, perdure.MaxKinds)
		large := json.RawMessage(`{"x":"` + strings.Repeat("x", perdure.MaxKindBytes) + `"}`)
		w.refuse(perdure.CodeOverBound, &rules.AnnounceKind{Tenant: tenant, Kind: "k0001",
			Def: perdure.KindDef{InputSchema: large}})
	}},
	{"a kind that nobody serves is said", func(w *World) {
		w.announce("job", "1", perdure.KindDef{Class: perdure.Task})
		w.check(!w.kind("job").Served, "a kind that nobody polls for is served")
		r := w.submit(perdure.Submission{Kind: "job", Timeout: minutes(10)})
		unserved := func(id perdure.RunID) *perdure.Unserved {
			a, err := w.E.Runs.Activity(w.ctx(), tenant, id)
			w.check(err == nil, "activity: %v", err)
			return a.Unserved
		}
		u := unserved(r.ID)
		w.check(u != nil && u.Queue == "default" && u.LastPolledAt == 0, "activity of an unserved run: %+v", u)
		w.do(&dispatch.Claim{Tenant: tenant, Worker: "w", Kinds: []string{"other"}, Slots: 1})
		w.do(&dispatch.Claim{Tenant: tenant, Worker: "w", Kinds: []string{"job"}, Queues: []string{"slow"}, Slots: 1})
		w.check(unserved(r.ID) != nil, "a poll for another kind, and one for another queue, serve the run")
		w.check(w.kind("job").Served, "a kind that a worker polls for on some queue is not served")
		w.pass(10*time.Minute + time.Second)
		ended := w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
		w.check(strings.Contains(ended.Failure.Message, "no worker polls for kind job on queue default"),
			"the deadline's error: %q", ended.Failure.Message)

		// A worker that was there and is gone is dated.
		w.do(&dispatch.Claim{Tenant: tenant, Worker: "w", Kinds: []string{"job"}, Slots: 1})
		polled := w.Now
		r = w.submit(perdure.Submission{Kind: "job", Timeout: minutes(10)})
		w.check(unserved(r.ID) == nil && w.kind("job").Served, "a kind that is polled for is not served")
		w.pass(10*time.Minute + time.Second)
		ended = w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
		want := "since " + polled.Time().Format(time.RFC3339)
		w.check(strings.Contains(ended.Failure.Message, want), "the deadline's error: %q, want %q",
			ended.Failure.Message, want)
		w.check(!w.kind("job").Served && w.kind("job").LastPolledAt == polled, "after the worker has gone: %+v",
			w.kind("job"))

		// A run that a worker had is not said to be unserved.
		r = w.submit(perdure.Submission{Kind: "job", Timeout: minutes(10)})
		g := w.take("w")
		w.do(&life.Release{Tenant: tenant, Leases: []life.Lease{lease(g)}})
		w.pass(10*time.Minute + time.Second)
		ended = w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
		w.check(!strings.Contains(ended.Failure.Message, "worker"), "the deadline's error: %q", ended.Failure.Message)
	}},
	{"a worker that polls by turns serves all that it polls for, and one of all tenants serves each", func(w *World) {
		for range 3 { // one for tasks, one for agents, as the Go SDK does
			w.do(&dispatch.Claim{Tenant: tenant, Worker: "w", Kinds: []string{"task"}, Slots: 1})
			w.do(&dispatch.Claim{Tenant: tenant, Worker: "w", Kinds: []string{"agent"}, Slots: 1})
			w.Now = w.Now.Add(20 * time.Second)
		}
		w.do(&dispatch.Claim{Tenant: "ops", Worker: "p", AnyTenant: true, Kinds: []string{"shared"}, Slots: 1})
		w.do(&dispatch.Claim{Tenant: "ops", Worker: "q", Kinds: []string{"own"}, Slots: 1})
		for kind, want := range map[string]bool{"task": true, "agent": true, "shared": true, "own": false} {
			w.announce(kind, "", perdure.KindDef{})
			w.check(w.kind(kind).Served == want, "kind %s is served: %v, want %v", kind, !want, want)
		}
		w.poll("any", 1)
		w.check(w.kind("own").Served, "a worker of any kind does not serve all")
	}},
	{"a kind that nobody serves expires, unless a live run or an operator needs it", func(w *World) {
		p := w.E.Policy()
		p.Timeouts.Agent.Max, p.Retention = 400*24*time.Hour, 8*24*time.Hour
		listed := func() (names []string) {
			list, _, err := w.E.Kinds.Page(w.ctx(), tenant, store.Page{Limit: store.PageRows})
			w.check(err == nil, "kinds: %v", err)
			for _, k := range list {
				names = append(names, k.Kind)
			}
			return names
		}
		for _, kind := range []string{"announced", "live", "overridden", "served", "unused"} {
			w.announce(kind, "1", perdure.KindDef{Class: perdure.Agent})
		}
		w.do(&rules.AnnounceKind{Tenant: tenant, Platform: true, Kind: "platform", Build: "1"})
		w.do(&rules.PatchKind{Tenant: tenant, Kind: "overridden", Def: perdure.KindDef{Timeout: minutes(7)}})
		r := w.submit(perdure.Submission{Kind: "live", Timeout: perdure.Duration(300 * 24 * time.Hour)})
		begin := w.Now
		for w.Now < begin.Add(p.KindRetention-12*time.Hour) {
			w.leave(12 * time.Hour)
			op := &dispatch.Claim{Tenant: tenant, Worker: "w", Kinds: []string{"served"}, Slots: 1}
			w.do(op)
		}
		w.announce("announced", "1", perdure.KindDef{Class: perdure.Agent})
		w.check(len(listed()) == 6, "kinds before their time is over: %q", listed())
		w.leave(13 * time.Hour)
		w.check(slices.Equal(listed(), []string{"announced", "live", "overridden", "served"}),
			"kinds after their time: %q", listed())
		w.do(&life.Cancel{Tenant: tenant, RunID: r.ID})
		w.leave(2 * time.Hour)
		w.check(slices.Equal(listed(), []string{"announced", "overridden", "served"}), "without the live run: %q",
			listed())
		w.announce("unused", "1", perdure.KindDef{}) // it comes back
		w.leave(20 * 24 * time.Hour)
		w.check(slices.Equal(listed(), []string{"announced", "overridden", "served", "unused"}),
			"of a worker that was last seen 20 days ago: %q", listed())
		w.leave(11 * 24 * time.Hour)
		w.check(slices.Equal(listed(), []string{"overridden"}), "after all workers are gone: %q", listed())
		w.view(func(v *store.View) error {
			q, err := v.Kinds.Quota(tenant)
			w.check(q.Kinds == 1, "the quota counts %d kinds, want 1", q.Kinds)
			return err
		})
	}},
	{"many kinds expire in small steps", func(w *World) {
		for n := range 250 {
			w.announce(fmt.Sprintf("k%03d", n), "1", perdure.KindDef{})
		}
		w.Now = w.Now.Add(w.E.Policy().KindRetention + time.Hour)
		steps := w.retire()
		w.check(steps >= 3, "250 kinds went in %d steps, want several: a step is bounded", steps)
		list, _, err := w.E.Kinds.Page(w.ctx(), tenant, store.Page{Limit: store.PageRows})
		w.check(err == nil && len(list) == 0, "%d kinds are left, %v", len(list), err)
	}},
}
