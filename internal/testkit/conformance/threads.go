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
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

func user(text string) []perdure.Message {
	b, _ := json.Marshal(text)
	return []perdure.Message{{Role: "user", Content: b}}
}

func (w *World) on(th perdure.ThreadID, s perdure.Submission) perdure.Run {
	w.t.Helper()
	s.ThreadID = th
	if s.Kind == "" {
		s.Kind = "chat"
	}
	return w.submit(s)
}

func (w *World) texts(th perdure.ThreadID) (out []string) {
	w.t.Helper()
	for _, m := range w.messages(th) {
		out = append(out, string(m.Role)+" "+string(m.Content))
	}
	return out
}

// found lists the threads of a page that match, and gives its cursor.
func (w *World) found(p store.Page, f reads.ThreadFilter) (ids []perdure.ThreadID, next string) {
	w.t.Helper()
	list, next, err := w.E.Threads.Page(w.ctx(), tenant, p, f)
	w.check(err == nil, "threads by %+v: %v", f, err)
	for i := range list {
		ids = append(ids, list[i].ID)
	}
	return ids, next
}

var threadScenarios = []Scenario{
	{"threads are found by their status", func(w *World) {
		want := make(map[perdure.ThreadStatus][]perdure.ThreadID) // newest first
		on := func(status perdure.ThreadStatus, s perdure.Submission) perdure.ThreadID {
			w.Now = w.Now.Add(time.Second)
			th := w.thread()
			want[status] = append([]perdure.ThreadID{th}, want[status]...)
			if s.Kind != "" {
				w.on(th, s)
			}
			return th
		}
		check := func(when string) {
			w.t.Helper()
			for _, status := range perdure.ThreadStatuses {
				got, next := w.found(store.Page{Limit: 10}, reads.ThreadFilter{Status: status})
				w.check(slices.Equal(got, want[status]) && next == "",
					"%s, %s: threads %v and next %q, want %v and none", when, status, got, next, want[status])
			}
		}
		no := false
		breaks := failed("boom")
		breaks.Retryable = &no
		on(perdure.ThreadIdle, perdure.Submission{})
		bad := on(perdure.ThreadError, perdure.Submission{Kind: "bad"})
		w.commit(w.takeKind("bad"), perdure.Commit{Outcome: breaks})
		on(perdure.ThreadWaiting, perdure.Submission{Kind: "asks"})
		w.commit(w.takeKind("asks"), perdure.Commit{Waits: []perdure.WaitSpec{forYes("ok")}, Outcome: suspend})
		on(perdure.ThreadWaiting, perdure.Submission{Kind: "root"})
		w.commit(w.takeKind("root"), perdure.Commit{Children: []perdure.Spawn{{Key: "c", Kind: "low"}},
			Waits:   wait(perdure.WaitSpec{ID: "join", Type: perdure.WaitChildren, Keys: []string{"c"}}),
			Outcome: suspend})
		w.commit(w.takeKind("low"), perdure.Commit{Waits: []perdure.WaitSpec{forYes("ok")}, Outcome: suspend})
		on(perdure.ThreadBusy, perdure.Submission{Kind: "sleeps"})
		w.commit(w.takeKind("sleeps"), perdure.Commit{Outcome: suspend, Waits: wait(perdure.WaitSpec{ID: "t",
			Type: perdure.WaitTimer, Timeout: perdure.Duration(time.Hour)})})
		on(perdure.ThreadBusy, perdure.Submission{Kind: "queued"})
		check("at first")

		ops := make([]kernel.Op, 101)
		for i := range ops {
			ops[i] = &life.CreateThread{Tenant: tenant}
		}
		w.Now = w.Now.Add(time.Second)
		w.E.DoAll(w.ctx(), ops...)
		over := reads.ThreadFilter{Status: perdure.ThreadError, Over: func() bool { return true }}
		got, next := w.found(store.Page{Limit: 10}, over)
		w.check(len(got) == 0 && next != "", "a page whose time is over: %v and next %q, want none and a cursor", got,
			next)
		got, next = w.found(store.Page{After: next, Limit: 10}, over)
		w.check(slices.Equal(got, []perdure.ThreadID{bad}) && next == "", "the page after it: %v and next %q, want %s",
			got, next, bad)

		w.on(bad, perdure.Submission{Kind: "good"})
		w.complete(w.takeKind("good"), `1`)
		got, _ = w.found(store.Page{Limit: 10}, reads.ThreadFilter{Status: perdure.ThreadError})
		w.check(len(got) == 0, "threads in error after the next run completed: %v, want none", got)
	}},
	{"threads are found by their metadata", func(w *World) {
		var ids []perdure.ThreadID
		for _, metadata := range []string{`{"team":"red","n":1}`, `{"team":"blue","n":1.0,"ok":true}`,
			`{"team":["red"],"n":"1"}`, fmt.Sprintf(`{"team":"red","more":%s}`, big("x"))} {
			w.Now = w.Now.Add(time.Second)
			op := &life.CreateThread{Tenant: tenant, Metadata: json.RawMessage(metadata)}
			w.do(op)
			ids = append(ids, op.Thread.ID)
		}
		for _, c := range []struct {
			entries map[string]string
			want    []perdure.ThreadID
		}{
			{map[string]string{"team": "red"}, []perdure.ThreadID{ids[3], ids[0]}},
			{map[string]string{"n": "1"}, []perdure.ThreadID{ids[2], ids[1], ids[0]}},
			{map[string]string{"ok": "true", "team": "blue"}, []perdure.ThreadID{ids[1]}},
			{map[string]string{"ok": "true", "team": "red"}, nil},
			{map[string]string{"none": ""}, nil},
		} {
			got, next := w.found(store.Page{Limit: 10}, reads.ThreadFilter{Metadata: c.entries})
			w.check(slices.Equal(got, c.want) && next == "", "threads with %v: %v and next %q, want %v", c.entries, got,
				next, c.want)
		}
		red := reads.ThreadFilter{Metadata: map[string]string{"team": "red"}}
		got, next := w.found(store.Page{Limit: 1}, red)
		w.check(slices.Equal(got, ids[3:]), "the first page: %v, want %s", got, ids[3])
		got, _ = w.found(store.Page{Limit: 1, After: next}, red)
		w.check(slices.Equal(got, ids[:1]), "the second page: %v, want %s", got, ids[0])
	}},
	{"threads are listed by their last activity, with a title, the last message and the live run", func(w *World) {
		named := &life.CreateThread{Tenant: tenant, Metadata: json.RawMessage(`{"title":"named"}`)}
		w.do(named)
		w.Now = w.Now.Add(time.Second)
		chat := w.thread()
		w.Now = w.Now.Add(time.Second)
		r := w.submit(perdure.Submission{Kind: "chat", ThreadID: chat,
			Messages: []perdure.Message{{Role: "user", Content: json.RawMessage(`"where is\n Oslo?"`)}}})
		list := func() (out []string) {
			w.view(func(v *store.View) error {
				page, _, err := v.Threads.Page(tenant, store.Page{Limit: 10}, true)
				for _, th := range page {
					live, err := v.Runs.Live(tenant, []perdure.RunID{th.Active})
					w.check(err == nil, "live runs: %v", err)
					last, err := v.Threads.LastMessages(tenant, []perdure.ThreadID{th.ID})
					w.check(err == nil, "last messages: %v", err)
					out = append(out, fmt.Sprintf("%s: %s: %s %s", th.Title, last[th.ID].Role, last[th.ID].Text,
						live[th.Active].State))
				}
				return err
			})
			return out
		}
		want := []string{"where is Oslo?: user: where is Oslo? queued", "named: :  "}
		w.check(slices.Equal(list(), want), "threads: %q, want %q", list(), want)
		w.Now = w.Now.Add(time.Second)
		w.do(&life.AppendMessage{Tenant: tenant, ThreadID: named.Thread.ID,
			Message: perdure.Message{Role: "user", Content: big("said")}})
		w.check(strings.HasPrefix(list()[0], "named: user: "+canary), "threads: %q, want the named one first", list())
		w.Now = w.Now.Add(time.Second)
		g := w.take("w1")
		w.check(g.Run.ID == r.ID, "leased %s, want %s", g.Run.ID, r.ID)
		w.commit(g, perdure.Commit{Messages: []perdure.Message{{Role: "assistant",
			Content: json.RawMessage(`[{"type":"text","text":"north"}]`)}}, Outcome: done(`1`)})
		w.check(list()[0] == "where is Oslo?: assistant: north ",
			"threads: %q, want the one whose run has ended first", list())
		w.do(&upkeep.DeleteThread{Tenant: tenant, ThreadID: chat})
		w.check(len(list()) == 1, "threads: %q, want the named one", list())
	}},
	{"a thread has one active run; the others wait their turn", func(w *World) {
		th := w.thread()
		a := w.on(th, perdure.Submission{Messages: user("one")})
		w.check(a.Class == perdure.Agent, "a run on a thread is an agent")
		w.Now = w.Now.Add(time.Second)
		b := w.on(th, perdure.Submission{Messages: user("two")})
		g := w.poll("w1", 10)
		w.check(len(g) == 1 && g[0].Run.ID == a.ID, "the first alone")
		w.check(len(w.messages(th)) == 1, "a waiting run's messages are appended when it becomes active: %v",
			w.texts(th))
		w.commit(g[0], perdure.Commit{Waits: wait(forGo), Outcome: suspend})
		w.check(len(w.poll("w1", 10)) == 0, "a suspended run holds its thread")
		w.do(&life.Signal{Tenant: tenant, RunID: a.ID, Name: "start_task"})
		g = w.poll("w1", 10)
		w.commit(g[0], perdure.Commit{Messages: []perdure.Message{{Role: "assistant",
			Content: json.RawMessage(`"answer"`)}}, Outcome: done(`1`)})
		g = w.poll("w1", 10)
		w.check(len(g) == 1 && g[0].Run.ID == b.ID, "then the second")
		got := w.texts(th)
		w.check(len(got) == 3 && got[0] == `user "one"` && got[1] == `assistant "answer"` &&
			got[2] == `user "two"`, "%v", got)
	}},
	{"reject and interrupt", func(w *World) {
		th := w.thread()
		a := w.on(th, perdure.Submission{})
		w.Now = w.Now.Add(time.Second)
		waiting := w.on(th, perdure.Submission{})
		w.refuse(perdure.CodeThreadBusy, &life.Submit{Tenant: tenant,
			Submission: perdure.Submission{Kind: "chat", ThreadID: th, MultitaskStrategy: "reject"}})
		g := w.take("w1")
		w.Now = w.Now.Add(time.Second)
		c := w.on(th, perdure.Submission{MultitaskStrategy: "interrupt", Messages: user("stop")})
		w.check(c.Turn == perdure.TurnWaiting && w.get(a.ID).Cancel.RequestedAt != 0, "the active one is asked to stop")
		w.commit(g, perdure.Commit{Outcome: stopped})
		g = w.take("w1")
		w.check(g.Run.ID == c.ID, "and the interrupter goes first")
		w.complete(g, `1`)
		w.check(w.take("w1").Run.ID == waiting.ID, "then who waited")
	}},
	{"interrupting a run that has not started takes its place at once", func(w *World) {
		th := w.thread()
		a := w.on(th, perdure.Submission{})
		c := w.on(th, perdure.Submission{MultitaskStrategy: "interrupt", Messages: user("now")})
		w.state(a.ID, perdure.Cancelled)
		w.check(c.Turn == perdure.TurnActive && c.Ready, "%+v", c.Turn)
		w.check(w.types(c.ID)[0] == "run:created", "%v", w.types(c.ID))
		w.check(w.take("w1").Run.ID == c.ID, "claimable")
	}},
	{"reject is fine on a free thread", func(w *World) {
		th := w.thread()
		w.complete(func() dispatch.Grant {
			w.on(th, perdure.Submission{MultitaskStrategy: "reject"})
			return w.take("w1")
		}(), `1`)
		w.on(th, perdure.Submission{MultitaskStrategy: "reject"})
	}},
	{"a run with a future run_at joins its thread then", func(w *World) {
		th := w.thread()
		later := w.on(th, perdure.Submission{Delay: perdure.Duration(time.Minute), Messages: user("later")})
		w.check(later.Turn == perdure.TurnLater && len(w.messages(th)) == 0, "not yet on it")
		now := w.on(th, perdure.Submission{Messages: user("now")})
		g := w.take("w1")
		w.check(g.Run.ID == now.ID, "does not hold it up")
		w.pass(30 * time.Second)
		w.beat(g)
		w.pass(31 * time.Second)
		w.check(w.get(later.ID).Turn == perdure.TurnWaiting, "queues up behind the active one")
		w.complete(g, `1`)
		w.check(w.take("w1").Run.ID == later.ID, "its turn")
		w.check(w.texts(th)[1] == `user "later"`, "%v", w.texts(th))
	}},
	{"every end without a result says so in the thread", func(w *World) {
		th := w.thread()
		r := w.on(th, perdure.Submission{Timeout: perdure.Duration(time.Minute)})
		w.pass(61 * time.Second)
		w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
		w.on(th, perdure.Submission{})
		no := false
		o := failed("boom")
		o.Retryable = &no
		w.commit(w.take("w1"), perdure.Commit{Outcome: o})
		c := w.on(th, perdure.Submission{})
		w.cancel(c.ID)
		got := w.texts(th)
		w.check(len(got) == 3 && got[0] == `system "This run ran out of time: the run was not done by its deadline"` &&
			got[1] == `system "This run failed: it broke"` &&
			got[2] == `system "This run was cancelled: not needed"`, "%v", got)
		last := w.lines(r.ID)
		w.check(last[len(last)-1].Type == "run:timed_out", "and the log ends with the end: %v", w.types(r.ID))
	}},
	{"a notice is short and has no stack trace", func(w *World) {
		th := w.thread()
		no := false
		for _, c := range []struct {
			code    perdure.Code
			message string
			want    string
		}{
			{"panic", "panic: index out of range\n\ngoroutine 1 [running]:\nmain.main()",
				"there is an error in its program"},
			{perdure.CodeNondeterminism, "step pay#1 is recorded with another result",
				"there is an error in its program"},
			{"boom", "no route to host\n  at connect (net.js:12)", "no route to host"},
			{"boom", strings.Repeat("é", 500), strings.Repeat("é", 199) + "…"},
			{"boom", " \n at once", "at once"},
			{"boom", "", ""},
		} {
			r := w.on(th, perdure.Submission{})
			w.commit(w.take("w1"), perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeFail, Retryable: &no,
				Error: &perdure.Failure{Code: c.code, Message: c.message}}})
			want := "This run failed: " + c.want
			if c.want == "" {
				want = "This run failed"
			}
			all := w.messages(th)
			m := all[len(all)-1]
			var text string
			w.check(json.Unmarshal([]byte(m.Content), &text) == nil && text == want,
				"notice of %s %.40q = %s, want %q", c.code, c.message, m.Content, want)
			w.check(m.Role == perdure.RoleSystem && strings.Contains(string(m.Metadata), `"notice":true`),
				"notice has role %s and metadata %s", m.Role, m.Metadata)
			w.check(w.get(r.ID).Failure.Message == c.message, "the run's error has lost its message: %q",
				w.get(r.ID).Failure.Message)
		}
	}},
	{"a child never uses a live ancestor's thread", func(w *World) {
		th := w.thread()
		w.on(th, perdure.Submission{})
		g := w.take("w1")
		w.refuse(perdure.CodeThreadBusy, w.commitOf(g,
			perdure.Commit{Children: []perdure.Spawn{{Key: "a", Kind: "kid", ThreadID: th}}}))
		other := w.thread()
		ans := w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "a", Kind: "kid", ThreadID: other}}})
		k := w.takeKind("kid")
		w.check(k.Run.ID == ans.Children[0].RunID, "another thread is fine")
		w.refuse(perdure.CodeThreadBusy, w.commitOf(k,
			perdure.Commit{Children: []perdure.Spawn{{Key: "b", Kind: "kid", ThreadID: th}}}))
	}},
	{"a child gets a thread of its own, once", func(w *World) {
		r := w.task()
		g := w.take("w1")
		w.refuse(perdure.CodeInvalid, w.commitOf(g,
			perdure.Commit{Children: []perdure.Spawn{{Key: "a", Kind: "kid", ThreadID: w.thread(), NewThread: true}}}))
		spawn := []perdure.Spawn{{Key: "a", Kind: "kid", NewThread: true}}
		ans := w.commit(g, perdure.Commit{Children: spawn})
		k := w.get(ans.Children[0].RunID)
		w.check(k.ThreadID != "" && k.Class == perdure.Agent, "thread of the child = %q, class = %s; want a thread of "+
			"an agent", k.ThreadID, k.Class)
		w.do(&life.AppendMessage{Tenant: tenant, ThreadID: k.ThreadID, Message: user("hello")[0]})
		w.refuse(perdure.CodeNotFound, &life.AppendMessage{Tenant: "other", ThreadID: k.ThreadID,
			Message: user("hello")[0]})
		again := w.commit(g, perdure.Commit{Children: spawn})
		w.check(again.Children[0].RunID == k.ID && w.get(k.ID).ThreadID == k.ThreadID && w.get(r.ID).Children == 1,
			"a second spawn of run %s gave run %s on thread %s, want the same run on thread %s", k.ID,
			again.Children[0].RunID, w.get(k.ID).ThreadID, k.ThreadID)
	}},
	{"messages belong to runs on threads, and threads to tenants", func(w *World) {
		w.task()
		g := w.take("w1")
		w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Messages: user("hi")}))
		w.refuse(perdure.CodeNotFound, &life.Submit{Tenant: tenant,
			Submission: perdure.Submission{Kind: "chat", ThreadID: "no-such-thread"}})
		th := w.thread()
		w.refuse(perdure.CodeNotFound, &life.Submit{Tenant: "other",
			Submission: perdure.Submission{Kind: "chat", ThreadID: th}})
		w.refuse(perdure.CodeNotFound, &life.AppendMessage{Tenant: "other", ThreadID: th, Message: user("x")[0]})
		w.do(&life.AppendMessage{Tenant: tenant, ThreadID: th, Message: user("x")[0]})
		w.check(len(w.messages(th)) == 1, "appended")
	}},
	{"an end takes its waiters along", func(w *World) {
		left := w.submit(perdure.Submission{Kind: "left", Foreground: true})
		r := w.submit(perdure.Submission{Kind: "job", Foreground: true})
		for _, node := range []string{"n1", "n2"} {
			w.do(&life.Attach{Tenant: tenant, Node: node, RunIDs: []perdure.RunID{r.ID, left.ID}})
		}
		w.do(&life.Cancel{Tenant: tenant, RunID: r.ID})
		w.view(func(v *store.View) error {
			for id, want := range map[perdure.RunID]int{r.ID: 0, left.ID: 2} {
				waiters, err := v.Waiters.Of(tenant, id)
				if err != nil {
					return err
				}
				w.check(len(waiters) == want, "run %s has %d waiters, want %d", id, len(waiters), want)
			}
			return nil
		})
	}},
	{"deferral is about attention, never about work", func(w *World) {
		th := w.thread()
		r := w.on(th, perdure.Submission{})
		g := w.take("w1")
		w.do(&life.Attach{Tenant: tenant, Node: "n1", RunIDs: []perdure.RunID{r.ID}})
		w.do(&life.Attach{Tenant: tenant, Node: "n2", RunIDs: []perdure.RunID{r.ID}})
		w.do(&life.Defer{Tenant: tenant, RunID: r.ID, Node: "n1", Reason: "timeout"})
		w.check(w.get(r.ID).Status() == "running", "somebody else waits")
		w.do(&life.Defer{Tenant: tenant, RunID: r.ID, Node: "n2", Reason: "timeout"})
		d := w.get(r.ID)
		w.check(d.Status() == "deferred" && d.State == perdure.Running, "deferred and running")
		w.check(len(w.messages(th)) == 1, "the thread is told: %v", w.texts(th))
		w.do(&life.Attach{Tenant: tenant, Node: "n1", RunIDs: []perdure.RunID{r.ID}})
		w.check(w.get(r.ID).Status() == "running", "re-attached")
		w.do(&life.Defer{Tenant: tenant, RunID: r.ID, Node: "n1", Reason: "detached"})
		w.check(len(w.messages(th)) == 1 && w.get(r.ID).Status() == "deferred",
			"the first deferral alone tells the thread")
		w.complete(g, `1`)
		w.check(w.get(r.ID).Status() == "completed", "it ends as it would have")
		w.do(&life.Defer{Tenant: tenant, RunID: r.ID, Node: "n1", Reason: "timeout"})
		w.check(w.count(r.ID, "run:deferred") == 2 && w.count(r.ID, "run:reattached") == 1, "%v", w.types(r.ID))
		w.view(func(v *store.View) error {
			runs, err := v.Runs.List(tenant, store.RunFilter{Status: []string{"deferred"}, Limit: 10})
			w.check(len(runs) == 0, "no longer listed as deferred")
			return err
		})
	}},
	{"a dropped connection, and a dead node", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		w.do(&life.Attach{Tenant: tenant, Node: "n1", RunIDs: []perdure.RunID{r.ID}})
		w.do(&life.Defer{Tenant: tenant, RunID: r.ID, Node: "n1", Reason: "disconnect"})
		w.pass(9 * time.Second)
		w.check(w.get(r.ID).Status() == "queued", "it may come back")
		w.pass(2 * time.Second)
		w.check(w.get(r.ID).Status() == "deferred", "the last waiter has been gone for ten seconds")
		w.do(&life.Attach{Tenant: tenant, Node: "n2", RunIDs: []perdure.RunID{r.ID}})
		w.pass(31 * time.Second)
		w.check(w.get(r.ID).Status() == "deferred", "nobody vouches for the waiter of a dead node")

		w.do(&life.Attach{Tenant: tenant, Node: "n1", RunIDs: []perdure.RunID{r.ID}})
		w.do(&life.Defer{Tenant: tenant, RunID: r.ID, Reason: "detached"})
		w.check(w.get(r.ID).Status() == "queued", "somebody else waits")
		w.do(&life.Defer{Tenant: tenant, RunID: r.ID, Node: "n1", Reason: "disconnect"})
		w.do(&life.Defer{Tenant: tenant, RunID: r.ID, Reason: "detached"})
		w.check(w.get(r.ID).Status() == "deferred", "one who was cut off does not keep others from saying so")
	}},
	{"a node vouches for many at once", func(w *World) {
		var ids []perdure.RunID
		for range 5 {
			ids = append(ids, w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)}).ID)
		}
		w.do(&life.Attach{Tenant: tenant, Node: "n1", RunIDs: ids[:4]})
		w.do(&life.Defer{Tenant: tenant, RunID: ids[0], Node: "n1", Reason: "timeout"})
		for range 4 {
			w.pass(10 * time.Second)
			op := &life.Renew{Tenant: tenant, Node: "n1", RunIDs: ids}
			w.do(op)
			w.check(slices.Equal(op.Lost, []perdure.RunID{ids[0], ids[4]}),
				"one was let go, and one never waited for: %v", op.Lost)
		}
		for i, id := range ids {
			w.check((w.get(id).Status() == "deferred") == (i == 0), "run %d is %s", i, w.get(id).Status())
		}
		w.do(&life.Renew{Tenant: "other", Node: "n1", RunIDs: ids})
		w.do(&life.Renew{Tenant: tenant, Node: "n2", RunIDs: ids})
		w.pass(31 * time.Second)
		op := &life.Renew{Tenant: tenant, Node: "n1", RunIDs: ids}
		w.do(op)
		w.check(len(op.Lost) == 5 && w.get(ids[1]).Status() == "deferred",
			"what has expired is not renewed: %v", op.Lost)
	}},
}
