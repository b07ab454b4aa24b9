package conformance

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

// stepsDone makes journal entries with values that tell their keys.
func stepsDone(keys ...string) (out []perdure.JournalEntry) {
	for _, key := range keys {
		out = append(out, perdure.JournalEntry{Key: key, Value: json.RawMessage(`"done ` + key + `"`)})
	}
	return out
}

// forGood is a failure that is not retried. Its cause is an entry of the journal, if one is named.
func forGood(code, cause string) *perdure.Outcome {
	no := false
	return &perdure.Outcome{Type: perdure.OutcomeFail, Retryable: &no,
		Error: &perdure.Failure{Code: perdure.Code(code), Message: "it broke", CauseKey: cause}}
}

// failedAfter makes a run of a class that has failed after some steps.
func (w *World) failedAfter(class perdure.Class, cause string, keys ...string) perdure.Run {
	w.t.Helper()
	r := w.submit(perdure.Submission{Kind: "worker", Class: class, Input: json.RawMessage(`{"n":1}`)})
	g := w.takeKind("worker")
	w.commit(g, perdure.Commit{Journal: stepsDone(keys...)})
	w.commit(g, perdure.Commit{Outcome: forGood("broken", cause)})
	return w.state(r.ID, perdure.Failed)
}

// retry retries a run.
func (w *World) retry(id perdure.RunID, from string) perdure.Run {
	w.t.Helper()
	op := &life.Retry{Tenant: tenant, RunID: id, From: from}
	w.do(op)
	return op.Run
}

// keysOf gives the keys of a grant's journal.
func keysOf(g dispatch.Grant) string {
	var keys []string
	for _, j := range g.Journal {
		keys = append(keys, j.Key)
	}
	return strings.Join(keys, " ")
}

// begins checks the journal with which a retry is granted, and completes the retry.
func (w *World) begins(r perdure.Run, keys string) dispatch.Grant {
	w.t.Helper()
	w.check(r.Ready, "the retry %s is not claimable: %+v", r.ID, r)
	g := w.takeKind("worker")
	w.check(g.Run.ID == r.ID && keysOf(g) == keys, "run %s begins with %q, want %s with %q", g.Run.ID, keysOf(g),
		r.ID, keys)
	for i, j := range g.Journal {
		w.check(j.Seq == int64(i)+1 && string(j.Value) == `"done `+j.Key+`"`, "entry %d: %+v", i+1, j)
	}
	w.complete(g, `1`)
	return g
}

var retryFromScenarios = []Scenario{
	{"a retry from the journal begins with all recorded steps", func(w *World) {
		orig := w.failedAfter(perdure.Agent, "", "a", "b", "c")
		r := w.retry(orig.ID, life.FromJournal)
		w.check(r.RetryOf == orig.ID && r.OriginID == orig.ID && r.FirstEpoch == orig.Epoch+1 && r.ParentID == "",
			"%+v", r)
		g := w.begins(r, "a b c")
		w.check(g.Run.Epoch == orig.Epoch+1, "epoch %d, want %d", g.Run.Epoch, orig.Epoch+1)
		w.check(len(w.lates(orig.ID)) == 1, "its result is no late result of the original")
		w.fsck()
	}},
	{"a recorded step of the original is recorded in its retry too", func(w *World) {
		orig := w.failedAfter(perdure.Agent, "", "a")
		w.retry(orig.ID, life.FromJournal)
		g := w.takeKind("worker")
		w.commit(g, perdure.Commit{Journal: stepsDone("a", "b")})
		w.check(w.get(g.Run.ID).JournalSeq == 2, "%d entries, want 2", w.get(g.Run.ID).JournalSeq)
		w.refuse(perdure.CodeNondeterminism, w.commitOf(g, perdure.Commit{
			Journal: []perdure.JournalEntry{{Key: "a", Value: json.RawMessage(`"something else"`)}}}))
		w.fsck()
	}},
	{"a retry from the start begins with an empty journal", func(w *World) {
		orig := w.failedAfter(perdure.Agent, "", "a", "b")
		r := w.retry(orig.ID, life.FromStart)
		w.check(r.OriginID == orig.ID && r.FirstEpoch == 0, "%+v", r)
		w.begins(r, "")
	}},
	{"a retry from a step begins with those before it", func(w *World) {
		orig := w.failedAfter(perdure.Agent, "", "a", "b", "c")
		w.begins(w.retry(orig.ID, "b"), "a")
		w.begins(w.retry(orig.ID, "a"), "")
		w.refuse(perdure.CodeFrom, &life.Retry{Tenant: tenant, RunID: orig.ID, From: "d"})
		w.refuse(perdure.CodeInvalid, &life.Retry{Tenant: tenant, RunID: orig.ID, From: "\x01"})
		w.fsck()
	}},
	{"without a from an agent begins with its journal, and a task or a process at the start", func(w *World) {
		w.begins(w.retry(w.failedAfter(perdure.Agent, "", "a").ID, ""), "a")
		w.begins(w.retry(w.failedAfter(perdure.Task, "", "a").ID, ""), "")
		w.begins(w.retry(w.failedAfter(perdure.Task, "", "a").ID, life.FromJournal), "a")
		p := w.failedAfter(perdure.Process, "", "a")
		w.begins(w.retry(p.ID, ""), "")
		w.begins(w.retry(p.ID, life.FromStart), "")
		w.refuse(perdure.CodeFrom, &life.Retry{Tenant: tenant, RunID: p.ID, From: life.FromJournal})
		w.refuse(perdure.CodeFrom, &life.Retry{Tenant: tenant, RunID: p.ID, From: "a"})
	}},
	{"a failure that the journal records is not repeated by a retry", func(w *World) {
		orig := w.failedAfter(perdure.Agent, "b", "a", "b", "c")
		w.check(orig.Failure.CauseKey == "b", "the cause is not stored: %+v", orig.Failure)
		w.refuse(perdure.CodeWouldRepeat, &life.Retry{Tenant: tenant, RunID: orig.ID, From: life.FromJournal})
		w.begins(w.retry(orig.ID, ""), "a")
		w.begins(w.retry(orig.ID, "c"), "a b")
		// A cause that the journal does not have says nothing.
		w.begins(w.retry(w.failedAfter(perdure.Agent, "x", "a", "b").ID, life.FromJournal), "a b")
		r := w.submit(perdure.Submission{Kind: "worker"})
		g := w.takeKind("worker")
		w.check(g.Run.ID == r.ID, "another run")
		w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Outcome: forGood("broken", "\x01")}))
	}},
	{"a redrive begins where it is told to", func(w *World) {
		letter := func() perdure.RunID {
			r := w.submit(perdure.Submission{Kind: "worker", Class: perdure.Agent, MaxAttempts: 1})
			g := w.takeKind("worker")
			w.commit(g, perdure.Commit{Journal: stepsDone("a", "b"), Outcome: failed("broken")})
			return r.ID
		}
		for _, x := range []struct{ from, want string }{{"", "a b"}, {life.FromJournal, "a b"},
			{life.FromStart, ""}, {"b", "a"}} {
			id := letter()
			op := &upkeep.Redrive{Tenant: tenant, RunID: id, From: x.from, Key: "k"}
			w.do(op)
			w.begins(op.Run, x.want)
			w.refuse(perdure.CodeReused, &upkeep.Redrive{Tenant: tenant, RunID: id, From: "other", Key: "k"})
		}
		w.refuse(perdure.CodeFrom, &upkeep.Redrive{Tenant: tenant, RunID: letter(), From: "z"})
	}},
	{"a retry under a key is one retry, and begins at one place", func(w *World) {
		orig := w.failedAfter(perdure.Agent, "", "a", "b")
		op := &life.Retry{Tenant: tenant, RunID: orig.ID, From: "b", Key: "k"}
		w.do(op)
		first := op.Run.ID
		w.do(op)
		w.check(!op.Created && op.Run.ID == first, "a second run: %+v", op.Run)
		for _, from := range []string{"", "a", life.FromJournal} {
			w.refuse(perdure.CodeReused, &life.Retry{Tenant: tenant, RunID: orig.ID, From: from, Key: "k"})
		}
	}},
	{"a chain of retries has one origin and one journal", func(w *World) {
		r := w.failedAfter(perdure.Agent, "", "a")
		origin := r.ID
		for _, step := range []string{"b", "c", "d"} {
			next := w.retry(r.ID, "")
			w.check(next.OriginID == origin && next.RetryOf == r.ID && next.FirstEpoch > r.Epoch, "%+v", next)
			g := w.takeKind("worker")
			w.check(g.Run.Epoch >= next.FirstEpoch, "epoch %d, want at least %d", g.Run.Epoch, next.FirstEpoch)
			w.commit(g, perdure.Commit{Journal: stepsDone(step)})
			w.commit(g, perdure.Commit{Outcome: forGood("broken", "")})
			r = w.state(next.ID, perdure.Failed)
		}
		w.begins(w.retry(r.ID, ""), "a b c d")
		w.fsck()
	}},
	{"a retry numbers its inbox from where the original's ended, and has children of its own", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "worker", Class: perdure.Agent})
		g := w.takeKind("worker")
		w.commit(g, perdure.Commit{Journal: stepsDone("a"), Children: []perdure.Spawn{{Key: "k", Kind: "kid"}}})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "go"})
		w.complete(w.takeKind("kid"), `1`)
		w.commit(g, perdure.Commit{Outcome: forGood("broken", "")})
		orig := w.state(r.ID, perdure.Failed)
		w.check(orig.InboxSeq == 2, "%d items, want 2", orig.InboxSeq)

		again := w.retry(r.ID, "")
		g = w.takeKind("worker")
		w.check(len(g.Inbox) == 0 && g.Run.InboxSeq == 2, "it has items of the original: %+v", g.Inbox)
		kid := w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "k", Kind: "kid"}},
			Waits:   wait(perdure.WaitSpec{ID: "j", Type: perdure.WaitChildren, Keys: []string{"k"}}),
			Outcome: suspend}).Children[0].RunID
		w.check(w.get(kid).ParentID == again.ID, "the child has another parent: %+v", w.get(kid).Run)
		w.complete(w.takeKind("kid"), `2`)
		g = w.takeKind("worker")
		w.check(len(g.Inbox) > 0 && g.Inbox[0].Seq == 3, "%+v", g.Inbox)
		w.commit(g, perdure.Commit{Ack: []int64{3}})
		w.complete(g, `1`)
		w.fsck()
	}},
	{"a retry keeps what it has of an original that is deleted", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "worker", Class: perdure.Agent})
		g := w.takeKind("worker")
		w.commit(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "a", Value: big("a")}}})
		w.commit(g, perdure.Commit{Outcome: forGood("broken", "")})
		second := w.retry(r.ID, "")
		w.refuse(perdure.CodeInUse, &upkeep.DeleteRun{Tenant: tenant, RunID: r.ID})
		w.commit(w.takeKind("worker"), perdure.Commit{Outcome: forGood("broken", "")})
		w.check(w.E.Delete(w.ctx(), &upkeep.DeleteRun{Tenant: tenant, RunID: r.ID}) == nil, "it can't be deleted")
		third := w.retry(second.ID, "")
		w.check(third.OriginID == r.ID, "the origin is forgotten: %+v", third)
		g = w.takeKind("worker")
		w.check(keysOf(g) == "a" && string(g.Journal[0].Value) == string(big("a")), "%.100v", g.Journal)
		w.complete(g, `1`)
		for _, id := range []perdure.RunID{second.ID, third.ID} {
			w.check(w.E.Delete(w.ctx(), &upkeep.DeleteRun{Tenant: tenant, RunID: id}) == nil, "%s can't be deleted", id)
		}
		w.check(len(w.rowsAbout(canary)) == 0, "left: %.200q", w.rowsAbout(canary))
		w.fsck()
	}},
	{"one part at a time is copied for all retries of a tenant", func(w *World) {
		const entries, retries = 200, 5
		orig := w.longJournal(entries)
		copied := func(ids []perdure.RunID) (n int64) {
			for _, id := range ids {
				n += w.get(id).JournalSeq
			}
			return n
		}
		var ids []perdure.RunID
		for range retries {
			ids = append(ids, w.retry(orig, "").ID)
		}
		before, steps := copied(ids), 0
		w.check(before <= 16*retries, "%d entries were copied at once", before)
		for ; before < entries*retries && steps < 100; steps++ {
			w.Now = w.Now.Add(perdure.CopyPause)
			w.do(w.W.Pass())
			now := copied(ids)
			w.check(now-before <= 128, "%d entries in one step", now-before)
			before = now
		}
		w.check(before == entries*retries && steps <= 3*retries, "%d entries are copied after %d steps", before, steps)
		for range retries {
			g := w.takeKind("worker")
			w.check(g.Run.JournalSeq == entries, "granted with %d entries", g.Run.JournalSeq)
			w.complete(g, `1`)
		}
	}},
	{"a large journal is copied in steps before the retry is claimable", func(w *World) {
		const entries = 5000
		orig := w.longJournal(entries)
		r := w.retry(orig, "")
		w.check(!r.Ready && r.Copying() && r.JournalSeq > 0 && r.CopyTo == entries, "%+v", r)
		w.check(len(w.poll("w", 10)) == 0, "it is granted without its journal")
		w.refuse(perdure.CodeInUse, &upkeep.DeleteRun{Tenant: tenant, RunID: orig})
		steps := 0
		for ; w.get(r.ID).Copying(); steps++ {
			w.check(!w.get(r.ID).Ready, "it is claimable before its journal is whole")
			// Another tenant's run is due at the same time, and one sweep takes both.
			other := &life.Submit{Tenant: "other", Submission: perdure.Submission{Kind: "job",
				Delay: perdure.Duration(perdure.CopyPause)}}
			w.do(other)
			before := w.get(r.ID).JournalSeq
			w.Now = w.Now.Add(perdure.CopyPause)
			op := w.W.Pass()
			w.do(op)
			w.Acted = append(w.Acted, op.Actions...)
			copied := w.get(r.ID).JournalSeq - before
			w.check(copied > 0 && copied <= 128, "%d entries in one step", copied)
			w.view(func(v *store.View) error {
				x, _, err := v.Runs.Get("other", other.Run.ID)
				w.check(x.Ready, "the run of the other tenant waits for the copy")
				return err
			})
		}
		w.check(steps >= 10, "copied in %d steps", steps)
		told := 0
		for _, a := range w.Acted {
			if a.Run == r.ID {
				told++
			}
		}
		w.check(told == 1, "the watchdog's log has %d entries about it, want 1", told)
		g := w.takeKind("worker")
		w.check(g.Run.ID == r.ID && g.Run.JournalSeq == entries && g.Journal[0].Key == "s0", "%+v", g.Run)
		w.complete(g, `1`)
		w.fsck()
	}},
	{"a retry whose journal is being copied can be cancelled, and ends by its deadline", func(w *World) {
		orig := w.longJournal(1000)
		r := w.retry(orig, "")
		w.check(r.Copying(), "copied at once: %+v", r)
		w.do(&life.Cancel{Tenant: tenant, RunID: r.ID})
		w.state(r.ID, perdure.Cancelled)
		// Its own journal is a part of the original's, so it is no place to begin with.
		w.refuse(perdure.CodeWrongState, &life.Retry{Tenant: tenant, RunID: r.ID})
		w.begins(w.retry(r.ID, life.FromStart), "")
		late := w.retry(orig, "")
		w.offline(late.DeadlineAt.Sub(w.Now) + time.Hour)
		w.sweep()
		w.Now = w.Now.Add(time.Hour)
		w.sweep()
		w.ended(late.ID, perdure.TimedOut, perdure.CodeDeadline)
		w.fsck()
	}},
	{"a retry waits for its turn on the thread, and for its journal", func(w *World) {
		th := w.thread()
		orig := w.longJournalOn(th, 1000)
		active := w.submit(perdure.Submission{Kind: "chat", Class: perdure.Agent, ThreadID: th})
		r := w.retry(orig, "")
		w.check(r.Turn == perdure.TurnWaiting && r.Copying(), "%+v", r)
		g := w.takeKind("chat")
		w.check(g.Run.ID == active.ID, "another run")
		w.complete(g, `1`)
		x := w.get(r.ID)
		w.check(x.Turn == perdure.TurnActive && !x.Ready, "claimable without its journal: %+v", x.Run)
		w.pass(time.Second)
		g = w.takeKind("worker")
		w.check(g.Run.ID == r.ID && g.Run.JournalSeq == 1000, "%+v", g.Run)
		w.complete(g, `1`)
		w.fsck()
	}},
}

// longJournal makes a failed agent's run with so many entries s0, s1, …
func (w *World) longJournal(n int) perdure.RunID { return w.longJournalOn("", n) }

// longJournalOn is longJournal on a thread.
func (w *World) longJournalOn(th perdure.ThreadID, n int) perdure.RunID {
	w.t.Helper()
	r := w.submit(perdure.Submission{Kind: "worker", Class: perdure.Agent, ThreadID: th})
	g := w.takeKind("worker")
	for from := 0; from < n; from += 500 {
		keys := make([]string, min(500, n-from))
		for i := range keys {
			keys[i] = fmt.Sprintf("s%d", from+i)
		}
		w.commit(g, perdure.Commit{Journal: stepsDone(keys...)})
	}
	w.commit(g, perdure.Commit{Outcome: forGood("broken", "")})
	return r.ID
}
