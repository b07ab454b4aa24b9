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
)

// say appends a message of a user to a thread, from outside of any run.
func (w *World) say(th perdure.ThreadID, text string) int64 {
	w.t.Helper()
	op := &life.AppendMessage{Tenant: tenant, ThreadID: th, Message: user(text)[0]}
	w.do(op)
	return op.Seq
}

func forMessage(id string) perdure.WaitSpec {
	return perdure.WaitSpec{ID: id, Type: perdure.WaitMessage, Timeout: perdure.Never}
}

func forSignal(id, name string) perdure.WaitSpec {
	return perdure.WaitSpec{ID: id, Type: perdure.WaitSignal, Name: name, Timeout: perdure.Never}
}

// itemOf finds the item of a grant that bears a wait's id.
func (w *World) itemOf(g dispatch.Grant, wait string) perdure.Item {
	w.t.Helper()
	for _, i := range g.Inbox {
		if i.WaitID == wait {
			return i
		}
	}
	w.t.Fatalf("run %s: no inbox item for wait %q: %+v", g.Run.ID, wait, g.Inbox)
	return perdure.Item{}
}

var sdkWaitScenarios = []Scenario{
	{"a wait for a message takes the next message of a user", func(w *World) {
		th := w.thread()
		w.say(th, "before the run")
		r := w.on(th, perdure.Submission{Messages: user("opening")})
		g := w.take("w1")
		ans := w.commit(g, perdure.Commit{Waits: wait(forMessage("m1")), Messages: user("the run's own"),
			Outcome: suspend})
		w.check(ans.State == perdure.Suspended, "state with only old and own messages = %s, want suspended", ans.State)
		w.do(&life.AppendMessage{Tenant: tenant, ThreadID: th,
			Message: perdure.Message{Role: "assistant", Content: json.RawMessage(`"not a user"`)}})
		w.state(r.ID, perdure.Suspended)
		seq := w.say(th, "go left")
		w.state(r.ID, perdure.Queued)
		g = w.take("w1")
		i := w.itemOf(g, "m1")
		w.check(i.Type == perdure.ItemMessage && string(i.Data) == `"go left"` && i.MessageSeq == seq,
			"item of the message = %+v, want its content and number %d", i, seq)
		w.commit(g, perdure.Commit{Ack: []int64{i.Seq}, Outcome: done(`1`)})
		w.fsck()
	}},
	{"messages that come while no wait is open satisfy the next waits, in order", func(w *World) {
		th := w.thread()
		r := w.on(th, perdure.Submission{})
		g := w.take("w1")
		for n := range 3 {
			w.say(th, fmt.Sprint(n))
		}
		w.check(w.get(r.ID).InboxSeq == 0, "inbox of a run that waits for nothing has %d items, want none",
			w.get(r.ID).InboxSeq)
		for n := range 3 {
			id := fmt.Sprint("m", n)
			ans := w.commit(g, perdure.Commit{Waits: wait(forMessage(id)), Outcome: suspend})
			w.check(ans.State == perdure.Queued, "wait %s: state = %s, want queued", id, ans.State)
			g = w.take("w1")
			i := w.itemOf(g, id)
			w.check(string(i.Data) == fmt.Sprintf("%q", fmt.Sprint(n)), "wait %s took %s, want message %d", id,
				i.Data, n)
			w.commit(g, perdure.Commit{Ack: []int64{i.Seq}})
		}
		ans := w.commit(g, perdure.Commit{Waits: wait(forMessage("m3")), Outcome: suspend})
		w.check(ans.State == perdure.Suspended, "state after all were taken = %s, want suspended", ans.State)
		// Two waits at once: one message satisfies one of them, the older.
		w.say(th, "3")
		g = w.take("w1")
		w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{forMessage("b"), forMessage("a")}})
		w.say(th, "4")
		w.say(th, "5")
		w.say(th, "6")
		ans = w.commit(g, perdure.Commit{Outcome: suspend})
		w.check(ans.State == perdure.Queued, "state with satisfied waits = %s, want queued", ans.State)
		g = w.take("w1")
		w.check(string(w.itemOf(g, "a").Data) == `"4"` && string(w.itemOf(g, "b").Data) == `"5"`,
			"two waits have %s and %s, want the messages in order", w.itemOf(g, "a").Data, w.itemOf(g, "b").Data)
		w.complete(g, `1`)
		// The next run of the thread takes only what comes from then on.
		w.on(th, perdure.Submission{})
		g = w.take("w1")
		ans = w.commit(g, perdure.Commit{Waits: wait(forMessage("m")), Outcome: suspend})
		w.check(ans.State == perdure.Suspended, "state of the next run = %s, want suspended", ans.State)
		w.fsck()
	}},
	{"a message and the wait for it in one batch", func(w *World) {
		th := w.thread()
		r := w.on(th, perdure.Submission{})
		g := w.take("w1")
		say := func(text string) kernel.Op {
			return &life.AppendMessage{Tenant: tenant, ThreadID: th, Message: user(text)[0]}
		}
		for _, err := range w.E.Step(w.Now, say("first"),
			w.commitOf(g, perdure.Commit{Waits: wait(forMessage("m1"))}), say("second"),
			w.commitOf(g, perdure.Commit{Waits: wait(forMessage("m2"))}),
			w.commitOf(g, perdure.Commit{Waits: wait(forMessage("m3")),
				Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend, Waits: []string{"m3"}}}), say("third")) {
			w.check(err == nil, "batch of messages and waits: %v", err)
		}
		w.state(r.ID, perdure.Queued)
		g = w.take("w1")
		for n, want := range []string{`"first"`, `"second"`, `"third"`} {
			i := w.itemOf(g, fmt.Sprint("m", n+1))
			w.check(string(i.Data) == want, "wait %s took %s, want %s", i.WaitID, i.Data, want)
		}
		w.fsck()
	}},
	{"a wait for a message times out, and a large message comes by reference", func(w *World) {
		th := w.thread()
		r := w.on(th, perdure.Submission{Timeout: perdure.Duration(time.Hour)})
		g := w.take("w1")
		short := forMessage("m")
		short.Timeout = perdure.Duration(time.Minute)
		w.commit(g, perdure.Commit{Waits: wait(short), Outcome: suspend})
		w.pass(61 * time.Second)
		w.state(r.ID, perdure.Queued)
		g = w.take("w1")
		w.check(w.itemOf(g, "m").Type == perdure.ItemTimeout, "item of a wait in vain = %+v", w.itemOf(g, "m"))
		w.do(&life.AppendMessage{Tenant: tenant, ThreadID: th,
			Message: perdure.Message{Role: "user", Content: big("steer")}})
		w.commit(g, perdure.Commit{Waits: wait(forMessage("m2")), Outcome: suspend})
		g = w.take("w1")
		i := w.itemOf(g, "m2")
		w.check(string(i.Data) == string(big("steer")), "large message came as %.80s", i.Data)
		w.fsck()
	}},
	{"a run without a thread can't wait for messages", func(w *World) {
		w.task()
		g := w.take("w1")
		w.refuse(perdure.CodeNothingToWaitFor, w.commitOf(g, perdure.Commit{Waits: wait(forMessage("m"))}))
		named := forMessage("m")
		named.Name = "x"
		w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Waits: wait(named)}))
	}},
	{"a closed wait gives back the signal that had satisfied it", func(w *World) {
		r := w.task()
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{forSignal("s1", "s"), forSignal("s2", "other")}})
		for _, text := range []string{`1`, `2`} {
			w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "s", Data: json.RawMessage(text)})
		}
		w.commit(g, perdure.Commit{Close: []string{"s1", "s2"}})
		w.commit(g, perdure.Commit{Close: []string{"s1", "s2"}})
		open := w.get(r.ID)
		w.check(open.WaitsOpen == 0, "open waits = %d, want none", open.WaitsOpen)
		// The next wait of that name takes it before the one that came later.
		ans := w.commit(g, perdure.Commit{Waits: wait(forSignal("s3", "s")), Outcome: suspend})
		w.check(ans.State == perdure.Queued, "state = %s, want queued by the signal that was given back", ans.State)
		g = w.take("w1")
		i := w.itemOf(g, "s3")
		w.check(string(i.Data) == `1`, "wait s3 took %s, want the first signal", i.Data)
		// After its acknowledgement nothing is given back.
		w.commit(g, perdure.Commit{Ack: []int64{i.Seq}, Close: []string{"s3"}})
		ans = w.commit(g, perdure.Commit{Waits: wait(forSignal("s4", "s")), Outcome: suspend})
		w.check(ans.State == perdure.Queued, "state = %s, want queued by the second signal", ans.State)
		g = w.take("w1")
		w.check(string(w.itemOf(g, "s4").Data) == `2`, "wait s4 took %s, want the second signal",
			w.itemOf(g, "s4").Data)
		w.fsck()
	}},
	{"a signal that is given back satisfies another open wait, but none that is closed too", func(w *World) {
		r := w.task()
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{forSignal("a", "s"), forSignal("b", "s"),
			forSignal("c", "s")}})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "s", Data: json.RawMessage(`1`)})
		w.commit(g, perdure.Commit{Close: []string{"a", "b"}})
		ans := w.commit(g, perdure.Commit{Outcome: suspend})
		w.check(ans.State == perdure.Queued, "state = %s, want queued: the open wait has the signal", ans.State)
		g = w.take("w1")
		w.check(string(w.itemOf(g, "c").Data) == `1`, "wait c took %s, want the signal", w.itemOf(g, "c").Data)
		w.check(w.count(r.ID, perdure.LineWaitSatisfied) == 2, "lines of satisfied waits = %d, want those of a and c",
			w.count(r.ID, perdure.LineWaitSatisfied))
		w.fsck()
	}},
	{"a closed wait gives back a message, also to a later attempt", func(w *World) {
		th := w.thread()
		r := w.on(th, perdure.Submission{})
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{forMessage("m1"), forSignal("s", "s")}, Outcome: suspend})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "s"})
		w.say(th, "one")
		w.say(th, "two")
		g = w.take("w1")
		w.commit(g, perdure.Commit{Ack: []int64{w.itemOf(g, "s").Seq}, Close: []string{"m1"}})
		w.do(&life.Release{Tenant: tenant, Leases: []life.Lease{lease(g)}})
		g = w.take("w1")
		for n, want := range []string{`"one"`, `"two"`} {
			id := fmt.Sprint("n", n)
			w.commit(g, perdure.Commit{Waits: wait(forMessage(id)), Outcome: suspend})
			g = w.take("w1")
			w.check(string(w.itemOf(g, id).Data) == want, "wait %s took %s, want %s", id, w.itemOf(g, id).Data, want)
		}
		w.fsck()
	}},
	{"closing a wait for a callback, a child or a timer leaves its item", func(w *World) {
		w.task()
		g := w.take("w1")
		ans := w.commit(g, perdure.Commit{
			Children: []perdure.Spawn{{Key: "k", Kind: "part"}},
			Waits: []perdure.WaitSpec{{ID: "cb", Type: perdure.WaitCallback},
				{ID: "child", Type: perdure.WaitChildren, Keys: []string{"k"}, Mode: perdure.ModeAll}}})
		w.do(&life.Callback{Token: ans.Callbacks[0].Token, Result: json.RawMessage(`"paid"`)})
		w.complete(w.take("w2"), `"done"`)
		w.commit(g, perdure.Commit{Close: []string{"cb", "child"}})
		w.do(&life.Release{Tenant: tenant, Leases: []life.Lease{lease(g)}})
		g = w.take("w1")
		cb := w.itemOf(g, "cb")
		w.check(strings.Contains(string(cb.Data), "paid"), "callback's item = %s", cb.Data)
		w.itemOf(g, "child")
		known := false
		for _, i := range g.Inbox {
			known = known || i.Type == perdure.ItemChild && i.Name == "k"
		}
		w.check(known, "inbox %+v does not tell of the child's end", g.Inbox)
		w.fsck()
	}},
	{"a commit cancels single children, by key or id", func(w *World) {
		w.task()
		g := w.take("w1")
		ans := w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "a", Kind: "part"}, {Key: "b", Kind: "part"},
			{Key: "c", Kind: "part"}}})
		id := make(map[string]perdure.RunID)
		for _, c := range ans.Children {
			id[c.Key] = c.RunID
		}
		started := w.take("w2")
		for range 2 {
			w.commit(g, perdure.Commit{Cancel: []string{"a", string(id["b"])}})
		}
		live, ended := started.Run.ID, []perdure.RunID{}
		for _, key := range []string{"a", "b"} {
			if id[key] != live {
				ended = append(ended, id[key])
			}
		}
		for _, c := range ended {
			w.state(c, perdure.Cancelled)
		}
		if c := w.get(id["c"]); c.State.Terminal() || c.Cancel.RequestedAt != 0 {
			w.t.Errorf("child c is %s, cancel requested at %d; want it untouched", c.State, c.Cancel.RequestedAt)
		}
		if live == id["a"] {
			w.check(w.get(live).Cancel.RequestedAt != 0, "running child a has no cancel request")
			w.check(w.count(live, perdure.LineCancelRequested) == 1, "cancel requests in the log of a = %d, want 1",
				w.count(live, perdure.LineCancelRequested))
			w.commit(started, perdure.Commit{Outcome: stopped})
			// It has ended: nothing more happens.
			w.commit(g, perdure.Commit{Cancel: []string{"a"}})
		}
		w.fsck()
	}},
	{"a commit spawns, cancels and waits at once", func(w *World) {
		r := w.task()
		g := w.take("w1")
		ans := w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "a", Kind: "part"}}, Cancel: []string{"a"},
			Waits: wait(perdure.WaitSpec{ID: "w", Type: perdure.WaitChildren, Keys: []string{"a"},
				Mode: perdure.ModeAll}),
			Outcome: suspend})
		w.check(ans.State == perdure.Queued, "state = %s, want queued: the child has ended", ans.State)
		g = w.take("w1")
		w.check(g.Run.ID == r.ID && w.itemOf(g, "w").Outcome == perdure.WaitSatisfied, "%+v", g.Inbox)
		w.fsck()
	}},
	{"a commit cancels nobody else's children", func(w *World) {
		w.task()
		g := w.take("w1")
		w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "a", Kind: "part"}}})
		stranger := w.submit(perdure.Submission{Kind: "stranger"})
		for _, name := range []string{"b", string(stranger.ID), string(g.Run.ID), "no such run"} {
			w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Cancel: []string{"a", name}}))
		}
		w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Cancel: []string{""}}))
		w.refuse(perdure.CodeOverBound, w.commitOf(g, perdure.Commit{Cancel: make1000("a"),
			Close: []string{"x"}}))
	}},
}

// make1000 repeats a name as often as a commit takes entries.
func make1000(name string) []string {
	out := make([]string, perdure.MaxCommitEntries)
	for i := range out {
		out[i] = name
	}
	return out
}
