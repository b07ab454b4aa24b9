package conformance

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// retire runs retention until it has gone through everything once.
func (w *World) retire() (steps int) {
	w.t.Helper()
	for steps = 1; steps < 10000; steps++ {
		op := w.W.Retire()
		w.do(op)
		w.Acted = append(w.Acted, op.Actions...)
		if !op.More {
			return steps
		}
	}
	w.t.Fatal("the retention does not come to rest")
	return 0
}

// passRetention advances the clock past the retention of ended runs, without a sweep in between.
func (w *World) passRetention() {
	w.Now = w.Now.Add(w.E.Policy().Retention + time.Minute)
}

// all runs many operations in one batch.
func (w *World) all(ops []kernel.Op) {
	w.t.Helper()
	for _, err := range w.E.Step(w.Now, ops...) {
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *World) exists(id perdure.RunID) (ok bool) {
	w.t.Helper()
	w.view(func(v *store.View) (err error) { _, ok, err = v.Runs.Get(tenant, id); return err })
	return ok
}

// rowsAbout gives the rows that contain a text, except in the tables named in may.
func (w *World) rowsAbout(of string, may ...string) (out []string) {
	w.t.Helper()
	w.view(func(v *store.View) error {
		all, err := storetest.Dump(v, "", may...)
		for _, row := range all {
			if strings.Contains(row, of) {
				out = append(out, row)
			}
		}
		return err
	})
	return out
}

const canary = "canary-of-what-is-gone"

// big makes a value that is stored by its hash and contains a canary.
func big(seed string) json.RawMessage {
	return json.RawMessage(`"` + canary + seed + strings.Repeat("x", store.InlineMax) + `"`)
}

// runInEveryTable creates an ended run with rows in every table.
func (w *World) runInEveryTable() perdure.Run {
	w.t.Helper()
	th := w.thread()
	w.do(&outbox.CreateWebhook{Tenant: tenant, URL: "https://1.1.1.1/"})
	r := w.submit(perdure.Submission{Kind: "rich", Class: perdure.Agent, ThreadID: th, Input: big("in"),
		Messages: []perdure.Message{{Role: "user", Content: json.RawMessage(`"hello"`)}}})
	g := w.takeKind("rich")
	w.put(g, "left.txt", []byte(strings.Repeat(canary, 20000)))
	w.commit(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "step", Value: big("step")}},
		Events: []perdure.Emitted{{Type: "x:said", Data: json.RawMessage(`{"a":"` + canary + `"}`)}},
		Views:  []perdure.View{{Name: "plan", Value: big("plan")}},
		Waits: []perdure.WaitSpec{{ID: "ok", Type: perdure.WaitApproval, Name: "approve_it",
			Approval: &perdure.ApprovalSpec{Title: "t", Action: big("act")}},
			{ID: "go", Type: perdure.WaitSignal, Name: "go"}},
		Children: []perdure.Spawn{{Key: "kid", Kind: "kid", Input: big("kid")}}})
	w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "go", Data: big("signal")})
	w.complete(w.takeKind("kid"), string(big("kid result")))
	w.commit(g, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeReject, Reason: canary}})
	w.do(w.commitOf(g, perdure.Commit{Outcome: done(string(big("late")))}))
	return w.get(r.ID).Run
}

var retentionScenarios = []Scenario{
	{"an ended run goes after the retention, with all that belongs to it", func(w *World) {
		same := w.submit(perdure.Submission{Kind: "other", Timeout: perdure.Duration(20 * 24 * time.Hour),
			Class: perdure.Agent, Input: big("in")})
		r := w.runInEveryTable()
		w.Now = w.Now.Add(w.E.Policy().Retention - time.Second)
		w.retire()
		w.check(w.exists(r.ID), "gone too early")
		w.Now = w.Now.Add(2 * time.Second)
		w.retire()
		// A webhook that nobody serves is still to be told, for a day.
		w.check(w.exists(r.ID), "a webhook could not be told any more")
		for _, h := range w.hooks() {
			w.do(&outbox.DeleteWebhook{Tenant: tenant, ID: h})
			w.do(&outbox.Deliver{Want: []outbox.Want{{Tenant: tenant, Webhook: h}}})
		}
		w.retire()
		w.check(!w.exists(r.ID), "still there")
		// Its thread stays, with the author of each message. So do values that a live run shares
		// with it.
		left := w.rowsAbout(string(r.ID), "messages", "watchdog_log")
		w.check(len(left) == 0, "left: %.300q", left)
		left = w.rowsAbout(canary, "messages")
		w.check(len(left) == 1 && strings.HasPrefix(left[0], "blobs "), "left: %d %.200q", len(left), left)
		w.check(len(w.messages(r.ThreadID)) > 0 && string(w.get(same.ID).InputText) == string(big("in")),
			"taken from somebody else")
		_, err := w.E.Runs.Get(w.ctx(), tenant, r.ID)
		w.check(perdure.CodeOf(err) == perdure.CodeNotFound, "%v", err)
		acted := w.Acted[len(w.Acted)-1]
		w.check(acted.Name == "retention" && acted.Rule == "W15", "%+v", acted)
	}},
	{"nothing goes that something live or open refers to", func(w *World) {
		long := perdure.Duration(25 * 24 * time.Hour)
		top := w.submit(perdure.Submission{Kind: "top", Class: perdure.Agent})
		g := w.takeKind("top")
		w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "mid", Kind: "mid", Class: perdure.Agent,
			OnParentEnd: perdure.DispositionContinue, Timeout: long}}})
		mid := w.takeKind("mid")
		kid := w.commit(mid, perdure.Commit{Children: []perdure.Spawn{{Key: "kid", Kind: "kid",
			Class: perdure.Agent, OnParentEnd: perdure.DispositionContinue, Timeout: long}}}).Children[0].RunID
		w.complete(mid, `1`)
		w.complete(g, `1`)

		retried := w.submit(perdure.Submission{Kind: "retried"})
		w.complete(w.takeKind("retried"), `1`)
		again := &life.Retry{Tenant: tenant, RunID: retried.ID}
		w.do(again)
		w.do(&life.Cancel{Tenant: tenant, RunID: again.Run.ID}) // it lasts ten minutes: it is made anew below
		grouped := w.submit(perdure.Submission{Kind: "grouped"})
		w.complete(w.takeKind("grouped"), `1`)
		open := w.submit(perdure.Submission{Kind: "open", Class: perdure.Agent, Timeout: long})
		group := &life.CreateGroup{Tenant: tenant, RunIDs: []perdure.RunID{grouped.ID, open.ID}}
		w.do(group)

		th := w.thread()
		turn := w.submit(perdure.Submission{Kind: "turn", ThreadID: th})
		g = w.takeKind("turn")
		ans := w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "a", Kind: "a"},
			{Key: "b", Kind: "b", Class: perdure.Agent, Timeout: long}}})
		w.complete(w.takeKind("a"), string(big("a")))
		w.commit(g, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete,
			Result: json.RawMessage(`1`), ContinueOn: []string{"a", "b"}}})

		w.Now = w.Now.Add(w.E.Policy().Retention - 5*time.Minute)
		w.do(again)
		w.Now = w.Now.Add(6 * time.Minute)
		w.retire()
		for name, id := range map[string]perdure.RunID{"the root of a live run": top.ID,
			"its parent": mid.Run.ID, "what a live retry retries": retried.ID,
			"a member of an open group":     grouped.ID,
			"a run that is to be continued": turn.ID, "a child whose result is to be told": ans.Children[0].RunID} {
			w.check(w.exists(id), "%s is gone", name)
		}
		// A week after these runs end, everything is removed.
		for _, id := range []perdure.RunID{kid, again.Run.ID, open.ID} {
			w.do(&life.Cancel{Tenant: tenant, RunID: id})
		}
		w.do(&life.Cancel{Tenant: tenant, RunID: ans.Children[1].RunID})
		next := w.takeKind("turn")
		w.check(next.Run.ContinuationOf == turn.ID, "%+v", next.Run)
		w.check(strings.Contains(string(w.messages(th)[0].Content), canary), "its result was lost")
		w.complete(next, `1`)
		w.passRetention()
		w.retire()
		w.check(w.rows("runs") == 0 && w.rows("events") == 0 && w.rows("gatherings") == 0 &&
			w.rows("members") == 0, "left: %d runs, %d lines, %d gatherings, %d members",
			w.rows("runs"), w.rows("events"), w.rows("gatherings"), w.rows("members"))
	}},
	{"many runs go in many small steps, of all tenants", func(w *World) {
		for _, t := range []perdure.TenantID{tenant, "b", "c"} {
			submits, commits := make([]kernel.Op, 230), make([]kernel.Op, 230)
			for i := range submits {
				submits[i] = &life.Submit{Tenant: t, Submission: perdure.Submission{Kind: "job"}}
			}
			w.all(submits)
			op := &dispatch.Claim{Tenant: t, Worker: "w", Slots: len(submits), Start: true}
			w.do(op)
			for i, g := range op.Grants {
				commits[i] = &life.Commit{Tenant: t, Worker: "w", Commit: perdure.Commit{ID: "c",
					RunID: g.Run.ID, Epoch: g.Run.Epoch, Outcome: done(`1`)}}
			}
			w.all(commits)
		}
		live := w.task()
		w.passRetention()
		for w.rows("runs") > 1 {
			runs, lines := w.rows("runs"), w.rows("events")
			w.do(w.W.Retire())
			w.check(runs-w.rows("runs") <= 100 && lines-w.rows("events") <= 5000,
				"a step took %d runs and %d lines", runs-w.rows("runs"), lines-w.rows("events"))
		}
		w.retire()
		w.check(w.exists(live.ID) && w.rows("events") == 1 && w.rows("removals") == 0, "%d lines, %d removals",
			w.rows("events"), w.rows("removals"))
	}},
	{"a run with a long log goes in parts", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job"})
		g := w.take("w1")
		lines := make([]perdure.Emitted, perdure.MaxList)
		for i := range lines {
			lines[i] = perdure.Emitted{Type: "x:l", Data: json.RawMessage(`1`)}
		}
		for range 12 {
			w.commit(g, perdure.Commit{Events: lines})
		}
		w.complete(g, `1`)
		w.passRetention()
		before := w.rows("events")
		steps := 0
		for ; w.rows("events") > 0; steps++ {
			w.do(w.W.Retire())
			w.check(before-w.rows("events") <= 5000, "a step took %d lines", before-w.rows("events"))
			before = w.rows("events")
		}
		w.check(steps >= 4 && !w.exists(r.ID), "%d steps", steps)
		w.retire()
	}},
	{"threads that were made for children go with their root, in small steps", func(w *World) {
		root, threads := w.treeWithThreads(40)
		own := w.thread() // somebody's own
		w.do(&life.AppendMessage{Tenant: tenant, ThreadID: own, Message: user("hello")[0]})
		// Somebody goes on talking on one of them, and a run of theirs is live on another.
		w.Now = w.Now.Add(w.E.Policy().Retention / 2)
		w.do(&life.AppendMessage{Tenant: tenant, ThreadID: threads[3], Message: user("and now?")[0]})
		live := w.on(threads[39], perdure.Submission{Kind: "chat", Timeout: perdure.Duration(30 * 24 * time.Hour)})
		w.Now = w.Now.Add(w.E.Policy().Retention/2 + time.Minute)
		before := w.rows("threads")
		for range 1000 {
			op := w.W.Retire()
			w.do(op)
			n := w.rows("threads")
			w.check(before-n <= 16, "a step removed %d threads", before-n)
			if before = n; !op.More {
				break
			}
		}
		w.check(!w.exists(root), "the root is still there")
		w.check(w.hasThreads(threads...) == 2 && w.hasThreads(threads[3], threads[39], own) == 3,
			"%d threads of children are left, want the two that are in use", w.hasThreads(threads...))
		w.Now = w.Now.Add(w.E.Policy().Retention/2 + time.Hour)
		w.retire()
		w.check(w.hasThreads(threads...) == 1 && w.hasThreads(threads[39]) == 1, "the one with the live run is left")
		w.do(&life.Cancel{Tenant: tenant, RunID: live.ID})
		w.Now = w.Now.Add(w.E.Policy().Retention + 2*time.Hour)
		w.retire()
		w.check(w.hasThreads(threads...) == 0 && w.hasThreads(own) == 1 && w.rows("messages") == 1 &&
			w.rows("tree_threads") == 0, "%d threads of children, %d messages, %d rows of trees are left",
			w.hasThreads(threads...), w.rows("messages"), w.rows("tree_threads"))
	}},
	{"a tree with a live run or a live retry keeps its threads", func(w *World) {
		root, threads := w.treeWithThreads(2)
		retry := &life.Retry{Tenant: tenant, RunID: root}
		w.do(retry)
		w.do(&dispatch.Claim{Tenant: tenant, Worker: "w", Kinds: []string{"parent"}, Slots: 1, Start: true})
		w.do(&life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "other"}})
		g := w.takeKind("other")
		outlives := perdure.Spawn{Key: "k", Kind: "outlives", NewThread: true, Class: perdure.Agent,
			OnParentEnd: perdure.DispositionContinue, Timeout: perdure.Duration(30 * 24 * time.Hour)}
		kid := w.get(w.commit(g, perdure.Commit{Children: []perdure.Spawn{outlives}}).Children[0].RunID)
		w.complete(g, `1`)
		w.passRetention()
		w.retire()
		w.check(w.exists(root) && w.hasThreads(threads...) == 2, "a live retry refers to the tree")
		w.check(w.exists(g.Run.ID) && w.hasThreads(kid.ThreadID) == 1, "a child lives on")
	}},
}

// treeWithThreads makes a tree that has ended, with so many threads of children and of a child of one.
func (w *World) treeWithThreads(n int) (root perdure.RunID, threads []perdure.ThreadID) {
	w.t.Helper()
	r := w.submit(perdure.Submission{Kind: "parent", Class: perdure.Agent})
	g := w.takeKind("parent")
	spawn := func(g dispatch.Grant, n int, kind string) {
		var list []perdure.Spawn
		for i := range n {
			list = append(list, perdure.Spawn{Key: fmt.Sprint(i), Kind: kind, NewThread: true})
		}
		for _, c := range w.commit(g, perdure.Commit{Children: list}).Children {
			threads = append(threads, w.get(c.RunID).ThreadID)
		}
	}
	spawn(g, n-1, "kid")
	kid := w.takeKind("kid")
	spawn(kid, 1, "grandkid")
	w.complete(w.takeKind("grandkid"), `1`)
	w.complete(kid, `1`)
	for range n - 2 {
		w.complete(w.takeKind("kid"), `1`)
	}
	w.complete(g, `1`)
	return r.ID, threads
}

// hasThreads counts those of some threads that are there.
func (w *World) hasThreads(ids ...perdure.ThreadID) (n int) {
	w.t.Helper()
	w.view(func(v *store.View) error {
		for _, id := range ids {
			_, ok, err := v.Threads.Get(tenant, id)
			if err != nil {
				return err
			}
			if ok {
				n++
			}
		}
		return nil
	})
	return n
}

func (w *World) hooks() (out []perdure.WebhookID) {
	w.t.Helper()
	w.view(func(v *store.View) error {
		list, err := v.Webhooks.List(tenant)
		for _, h := range list {
			out = append(out, h.ID)
		}
		return err
	})
	return out
}

var deletionScenarios = []Scenario{
	{"an ended run is deleted, and nothing of it is left", func(w *World) {
		r := w.runInEveryTable()
		w.do(&upkeep.DeleteRun{Tenant: tenant, RunID: w.childOf(r.ID)})
		del := &upkeep.DeleteRun{Tenant: tenant, RunID: r.ID, Key: "k"}
		w.refuse(perdure.CodeNotFound, &upkeep.DeleteRun{Tenant: "other", RunID: r.ID})
		w.check(w.E.Delete(w.ctx(), del) == nil, "refused")
		w.do(del)
		w.refuse(perdure.CodeNotFound, &upkeep.DeleteRun{Tenant: tenant, RunID: r.ID})
		w.refuse(perdure.CodeNotFound, &life.Retry{Tenant: tenant, RunID: r.ID})
		w.refuse(perdure.CodeNotFound, &life.Cancel{Tenant: tenant, RunID: r.ID})
		w.retire()
		left := append(w.rowsAbout(string(r.ID), "messages", "watchdog_log", "idempotency"),
			w.rowsAbout(canary, "messages")...)
		w.check(len(left) == 0, "left: %.300q", left)
		w.check(w.E.Delete(w.ctx(), &upkeep.DeleteThread{Tenant: tenant, ThreadID: r.ThreadID}) == nil, "refused")
		w.check(len(w.rowsAbout(canary)) == 0 && w.rows("messages") == 0, "left: %.300q", w.rowsAbout(canary))
	}},
	{"a deleted root takes the threads of its children along", func(w *World) {
		root, threads := w.treeWithThreads(20)
		kids, err := w.E.Runs.List(w.ctx(), tenant, store.RunFilter{ParentID: root, Limit: 1})
		w.check(err == nil && len(kids) == 1, "%v", err)
		w.do(&upkeep.DeleteRun{Tenant: tenant, RunID: kids[0].ID})
		w.check(w.hasThreads(threads...) == 20, "a child takes no thread along")
		w.check(w.E.Delete(w.ctx(), &upkeep.DeleteRun{Tenant: tenant, RunID: root}) == nil, "refused")
		w.check(w.hasThreads(threads...) == 0 && w.rows("tree_threads") == 0, "%d threads of children are left",
			w.hasThreads(threads...))
		w.retire()
		w.check(w.rows("messages") == 0, "%d messages are left", w.rows("messages"))
	}},
	{"what lives, or is needed, is not deleted", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "parent"})
		w.refuse(perdure.CodeWrongState, &upkeep.DeleteRun{Tenant: tenant, RunID: r.ID})
		g := w.takeKind("parent")
		w.refuse(perdure.CodeWrongState, &upkeep.DeleteRun{Tenant: tenant, RunID: r.ID})
		kid := w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "k", Kind: "kid",
			OnParentEnd: perdure.DispositionContinue}}}).Children[0].RunID
		w.complete(g, `1`)
		w.refuse(perdure.CodeInUse, &upkeep.DeleteRun{Tenant: tenant, RunID: r.ID})
		w.complete(w.takeKind("kid"), `1`)
		w.do(&upkeep.DeleteRun{Tenant: tenant, RunID: r.ID})
		w.do(&upkeep.DeleteRun{Tenant: tenant, RunID: kid})
		done := w.task()
		w.complete(w.take("w"), `1`)
		other := w.task()
		w.do(&life.CreateGroup{Tenant: tenant, RunIDs: []perdure.RunID{done.ID, other.ID}})
		w.refuse(perdure.CodeInUse, &upkeep.DeleteRun{Tenant: tenant, RunID: done.ID})
		w.complete(w.take("w"), `1`)
		w.do(&upkeep.DeleteRun{Tenant: tenant, RunID: done.ID})
	}},
	{"a thread is deleted when no live run needs it", func(w *World) {
		th := w.thread()
		w.do(&outbox.CreateWebhook{Tenant: tenant, URL: "https://1.1.1.1/", ThreadID: th})
		w.do(&life.AppendMessage{Tenant: tenant, ThreadID: th, Message: perdure.Message{Role: "user",
			Content: big("message")}})
		del := &upkeep.DeleteThread{Tenant: tenant, ThreadID: th}
		w.refuse(perdure.CodeNotFound, &upkeep.DeleteThread{Tenant: "other", ThreadID: th})
		later := w.submit(perdure.Submission{Kind: "later", ThreadID: th, Delay: perdure.Duration(time.Hour)})
		w.refuse(perdure.CodeInUse, del)
		w.do(&life.Cancel{Tenant: tenant, RunID: later.ID})
		r := w.submit(perdure.Submission{Kind: "turn", ThreadID: th})
		w.refuse(perdure.CodeInUse, del)
		g := w.takeKind("turn")
		w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "a", Kind: "a"}},
			Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, ContinueOn: []string{"a"}}})
		w.refuse(perdure.CodeInUse, del) // it goes on there
		w.complete(w.takeKind("a"), `1`)
		w.refuse(perdure.CodeInUse, del)
		w.complete(w.takeKind("turn"), `1`)
		w.check(w.E.Delete(w.ctx(), del) == nil, "refused")
		w.refuse(perdure.CodeNotFound, del)
		w.refuse(perdure.CodeNotFound, &life.AppendMessage{Tenant: tenant, ThreadID: th,
			Message: perdure.Message{Role: "user", Content: json.RawMessage(`1`)}})
		w.refuse(perdure.CodeNotFound, &life.Submit{Tenant: tenant,
			Submission: perdure.Submission{Kind: "turn", ThreadID: th}})
		w.check(w.rows("messages") == 0 && len(w.rowsAbout(canary)) == 0 && len(w.hooks()) == 0, "left: %.300q",
			w.rowsAbout(canary))
		w.check(w.exists(r.ID), "its runs stay")
	}},
	{"no part of a removal has many bytes", func(w *World) {
		const most = 5 << 20 // of small runs together, of one that goes alone, and of values
		bytes := func() (n int64) {
			w.view(func(v *store.View) error {
				return v.Rows("SELECT CAST(coalesce(sum(octet_length(data)),0) AS BIGINT) FROM events", nil,
					func(scan func(...any) error) error { return scan(&n) })
			})
			return n
		}
		text := json.RawMessage(`"` + strings.Repeat("x", 60<<10) + `"`)
		talk := func(lines int) perdure.RunID {
			r := w.task()
			g := w.take("w")
			for range lines / 10 {
				var some []perdure.Emitted
				for range 10 {
					some = append(some, perdure.Emitted{Type: "x:said", Data: text})
				}
				w.commit(g, perdure.Commit{Events: some})
			}
			w.complete(g, `1`)
			return r.ID
		}
		r := talk(100)
		w.do(&upkeep.DeleteRun{Tenant: tenant, RunID: r})
		step := &upkeep.Clear{Tenant: tenant, Kind: store.RemoveRun, ID: string(r), More: true}
		for have := bytes(); step.More; have = bytes() {
			w.do(step)
			w.check(have-bytes() <= most/2, "%d bytes at once", have-bytes())
		}
		w.check(bytes() == 0 && w.rows("removals") == 0, "%d bytes are left", bytes())
		for range 3 {
			talk(50)
		}
		w.passRetention()
		for have, more := bytes(), true; more; have = bytes() {
			op := w.W.Retire()
			w.do(op)
			more = op.More
			w.check(have-bytes() <= most, "%d bytes at once", have-bytes())
		}
		w.check(bytes() == 0 && w.rows("removals") == 0, "%d bytes are left", bytes())
	}},
	{"what is deleted in the moment in which somebody needs it stays", func(w *World) {
		r := w.task()
		w.complete(w.take("w"), `1`)
		del := &upkeep.DeleteRun{Tenant: tenant, RunID: r.ID}
		again := &life.Retry{Tenant: tenant, RunID: r.ID}
		errs := w.E.Step(w.Now, again, del)
		w.check(errs[0] == nil && perdure.CodeOf(errs[1]) == perdure.CodeInUse, "%v", errs)
		w.complete(w.take("w"), `2`)
		errs = w.E.Step(w.Now, del, again)
		w.check(errs[0] == nil && perdure.CodeOf(errs[1]) == perdure.CodeNotFound, "%v", errs)
		w.check(!w.exists(r.ID), "deleted")
	}},
}

// childOf gives the only child of a run.
func (w *World) childOf(id perdure.RunID) (child perdure.RunID) {
	w.t.Helper()
	runs, err := w.E.Runs.List(w.ctx(), tenant, store.RunFilter{ParentID: id, Limit: 10})
	if err != nil || len(runs) != 1 {
		w.t.Fatal(fmt.Sprint(len(runs), " children"), err)
	}
	return runs[0].ID
}
