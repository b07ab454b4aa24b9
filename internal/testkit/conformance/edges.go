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
	"github.com/perdure/perdure/internal/server/store"
)

// quota limits the tenant's live runs.
func (w *World) quota(n int64) {
	w.t.Helper()
	w.do(setQuota{n})
}

// lastOfChord creates a chord whose only child is running.
func (w *World) lastOfChord() dispatch.Grant {
	w.t.Helper()
	w.on(w.thread(), perdure.Submission{Kind: "boss"})
	o := done(`1`)
	o.ContinueOn = []string{"a"}
	w.commit(w.takeKind("boss"), perdure.Commit{Children: []perdure.Spawn{{Key: "a", Kind: "kid",
		Timeout: perdure.Duration(time.Minute)}}, Outcome: o})
	return w.takeKind("kid")
}

var edgeScenarios = []Scenario{
	{"a commit and the grant that follows it share a batch: the grant has the step", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "a", Class: perdure.Agent})
		g := w.take("w1")
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "go"})
		c := w.commitOf(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "pay#1", Value: json.RawMessage(`1`)}},
			Waits: wait(perdure.WaitSpec{ID: "s", Type: perdure.WaitSignal, Name: "go"}), Outcome: suspend})
		claim := &dispatch.Claim{Tenant: tenant, Worker: "w2", Slots: 1, Start: true}
		for _, err := range w.E.Step(w.Now, c, claim) {
			w.check(err == nil, "%v", err)
		}
		w.check(len(claim.Grants) == 1 && len(claim.Grants[0].Journal) == 1,
			"the grant lacks what was recorded: %+v", claim.Grants)
		g = claim.Grants[0]
		c = w.commitOf(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "pay#2", Value: json.RawMessage(`2`)}}})
		claim = &dispatch.Claim{Tenant: tenant, Worker: "w3", Slots: 1, Start: true}
		for _, err := range w.E.Step(w.Now, c, &life.Release{Tenant: tenant, Worker: "w2",
			Leases: []life.Lease{lease(g)}}, claim) {
			w.check(err == nil, "%v", err)
		}
		w.check(len(claim.Grants) == 1 && len(claim.Grants[0].Journal) == 2, "%+v", claim.Grants)
	}},
	{"an end never fails for a quota", func(w *World) {
		c := w.lastOfChord()
		w.quota(1)
		w.complete(c, `1`)
		th := w.thread()
		w.quota(0)
		r := w.on(th, perdure.Submission{Kind: "boss2", Timeout: perdure.Duration(time.Minute)})
		w.takeKind("boss2")
		w.quota(1)
		w.do(&life.Continue{Tenant: tenant, RunID: r.ID, JobID: "j1", Status: "ok"})
		w.pass(2 * time.Minute)
		w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
		w.check(w.get(r.ID).ContinuedBy != "", "and its continuation is there")
	}},
	{"a rule that is refused holds nobody up", func(w *World) {
		// The child's end is refused, because the run that its chord would continue is hidden; an
		// earlier action of the same sweep writes its row.
		w.on(w.thread(), perdure.Submission{Kind: "boss"})
		o := done(`1`)
		o.ContinueOn = []string{"a", "b"}
		w.commit(w.takeKind("boss"), perdure.Commit{Children: []perdure.Spawn{{Key: "a", Kind: "kid",
			Timeout: perdure.Duration(time.Minute)}, {Key: "b", Kind: "kid2"}}, Outcome: o})
		w.complete(w.takeKind("kid2"), `1`)
		g := w.takeKind("kid")
		w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "g", Kind: "grandkid",
			Timeout: perdure.Duration(59 * time.Second)}},
			Waits: wait(perdure.WaitSpec{ID: "g", Type: perdure.WaitChildren, Keys: []string{"g"},
				Timeout: perdure.Never}), Outcome: suspend})
		boss := w.hide("boss")
		bystander := w.submit(perdure.Submission{Kind: "x", Timeout: perdure.Duration(2 * time.Minute)})
		w.sweep()
		w.offline(3 * time.Minute)
		w.sweep()
		w.ended(bystander.ID, perdure.TimedOut, perdure.CodeDeadline)
		w.check(w.get(g.Run.ID).State.Live(), "it can't end yet")
		boss()
		w.pass(2 * time.Minute)
		w.ended(g.Run.ID, perdure.TimedOut, perdure.CodeDeadline)
	}},
	{"a grant is bounded by what it hands over, not by how that is stored", func(w *World) {
		r := w.task()
		for i := range 12 {
			w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "s", Data: json.RawMessage(`"` +
				fmt.Sprint(i) + strings.Repeat("x", 200_000) + `"`)})
		}
		g := w.take("w1")
		have, next := len(g.Inbox), g.InboxNext
		w.check(next > 0 && have < 8, "%d items, next %d", have, next)
		for next > 0 {
			op := &life.Inbox{Tenant: tenant, RunID: r.ID, Epoch: g.Run.Epoch, After: next}
			w.do(op)
			have, next = have+len(op.Page), op.Next
		}
		w.check(have == 12, "%d in all", have)
	}},
	{"a run whose content is damaged blocks nobody, and reaches its end", func(w *World) {
		bad := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour),
			Input: json.RawMessage(`"` + strings.Repeat("x", store.InlineMax) + `"`)})
		good := w.task()
		content := w.blobs()
		w.do(corrupt{"UPDATE blobs SET content='damaged'", nil})
		g := w.poll("w1", 2)
		w.check(len(g) == 1 && g[0].Run.ID == good.ID, "the one behind it is granted: %+v", g)
		w.complete(g[0], `1`)
		for range 2000 {
			w.poll("w1", 1)
			if !w.storedState(bad.ID).Live() {
				break
			}
			w.pass(2 * time.Second)
		}
		w.check(w.storedState(bad.ID) == perdure.TimedOut, "a dead letter after ten deliveries: %s",
			w.storedState(bad.ID))
		w.do(corrupt{"UPDATE blobs SET content=?", []any{content}})
	}},
	{"outside work counts once, however long the run lives", func(w *World) {
		r := w.on(w.thread(), perdure.Submission{Kind: "boss", Timeout: perdure.Duration(20 * 24 * time.Hour)})
		w.commit(w.takeKind("boss"), perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "s",
			Type: perdure.WaitSignal, Name: "s", Timeout: perdure.Never}), Outcome: suspend})
		op := &life.Continue{Tenant: tenant, RunID: r.ID, JobID: "j1", Status: "ok"}
		w.do(op)
		w.Now = w.Now.Add(25 * time.Hour)
		w.sweep()
		w.sweep()
		w.do(op)
		w.check(!op.Created && w.get(r.ID).InboxSeq == 1, "counted twice")
	}},
	{"partial findings are handed over in full", func(w *World) {
		p, _ := w.family(1, perdure.ModeAll)
		g := w.takeKind("kid")
		big := `"` + strings.Repeat("found ", 30_000) + `"`
		w.do(&life.Heartbeat{Tenant: tenant, Worker: "w",
			Beats: []life.BeatOf{{Lease: lease(g), Progress: json.RawMessage(big)}}})
		no := false
		o := failed("x")
		o.Retryable = &no
		w.commit(g, perdure.Commit{Outcome: o})
		w.check(strings.Contains(string(w.get(g.Run.ID).Fallback), big), "%.200s", w.get(g.Run.ID).Fallback)
		parent := w.takeKind("parent")
		w.check(parent.Run.ID == p.ID && strings.Contains(string(parent.Inbox[0].Data), big), "%.200s",
			parent.Inbox[0].Data)
	}},
	{"long messages that a waiting run came with are there when its turn comes", func(w *World) {
		th := w.thread()
		w.on(th, perdure.Submission{})
		long := strings.Repeat("word ", 5000)
		w.on(th, perdure.Submission{Messages: user(long)})
		w.complete(w.take("w1"), `1`)
		w.check(len(w.messages(th)) == 1 && strings.Contains(string(w.messages(th)[0].Content), long), "%.100v",
			w.texts(th))
	}},
	{"another body under the commit_id of a late result is refused as such", func(w *World) {
		w.task()
		g := w.take("w1")
		w.complete(g, "1")
		late := w.commitOf(g, perdure.Commit{ID: "x", Outcome: done("2")})
		w.do(late)
		w.do(late)
		w.check(late.Refused != nil && late.Refused.Code == perdure.CodeStaleEpoch &&
			len(w.lates(g.Run.ID)) == 1, "the same again: %v", late.Refused)
		w.refuse(perdure.CodeReused, w.commitOf(g, perdure.Commit{ID: "x", Outcome: done("3")}))
	}},
	{"an interrupting run with a future run_at interrupts when it joins", func(w *World) {
		th := w.thread()
		a := w.on(th, perdure.Submission{})
		w.take("w1")
		w.on(th, perdure.Submission{Delay: perdure.Duration(10 * time.Second), MultitaskStrategy: "interrupt"})
		w.pass(9 * time.Second)
		w.check(w.get(a.ID).Cancel.RequestedAt == 0, "not before")
		w.pass(2 * time.Second)
		w.check(w.get(a.ID).Cancel.RequestedAt != 0, "the active run is asked to stop")
	}},
	{"a continuation of a process is a process", func(w *World) {
		r := w.on(w.thread(), perdure.Submission{Kind: "p", Class: perdure.Process})
		w.complete(w.takeKind("p"), "1")
		op := &life.Continue{Tenant: tenant, RunID: r.ID, JobID: "j"}
		w.do(op)
		w.check(w.get(op.Made).Options.Process, "its life is judged by its process")
	}},
	{"what has expired goes in bounded batches", func(w *World) {
		for i := range 3 {
			ops := make([]kernel.Op, 500)
			for k := range ops {
				ops[k] = &life.Submit{Tenant: tenant, Key: fmt.Sprint(i, "-", k),
					Submission: perdure.Submission{Kind: "x", Timeout: perdure.Duration(time.Second)}}
			}
			w.E.Step(w.Now, ops...)
		}
		w.pass(3 * time.Second)
		w.Now = w.Now.Add(25 * time.Hour)
		left := func() (n int) {
			w.view(func(v *store.View) error {
				return v.Rows("SELECT count(*) FROM idempotency", nil,
					func(scan func(...any) error) error { return scan(&n) })
			})
			return n
		}
		w.do(w.W.Pass())
		w.check(left() == 500, "%d are left after one pass", left())
		w.do(w.W.Pass())
		w.check(left() == 0, "%d are left after two", left())
	}},
}

// blobs gives the content of the only blob.
func (w *World) blobs() (content string) {
	w.t.Helper()
	w.view(func(v *store.View) error {
		return v.Rows("SELECT content FROM blobs", nil, func(scan func(...any) error) error { return scan(&content) })
	})
	return content
}

// storedState reads a run's state without its values.
func (w *World) storedState(id perdure.RunID) (s perdure.State) {
	w.t.Helper()
	w.view(func(v *store.View) error {
		r, _, err := v.Runs.Get(tenant, id)
		s = r.State
		return err
	})
	return s
}

// hide makes the run of a kind unreadable, as damage would, and gives a function that restores it.
func (w *World) hide(kind string) (back func()) {
	w.t.Helper()
	runs, err := w.E.Runs.List(w.ctx(), tenant, store.RunFilter{Kind: kind, Limit: 1})
	w.check(err == nil && len(runs) == 1, "runs of kind %s: %d, %v", kind, len(runs), err)
	const rename = "UPDATE %s SET id=? WHERE id=?"
	w.do(corrupt{fmt.Sprintf(rename, "runs"), []any{"hidden", string(runs[0].ID)}})
	return func() { w.do(corrupt{fmt.Sprintf(rename, "runs"), []any{string(runs[0].ID), "hidden"}}) }
}
