package conformance

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

var inputScenarios = []Scenario{
	{"submit is idempotent by its key", func(w *World) {
		op := &life.Submit{Tenant: tenant, Key: "k", Submission: perdure.Submission{Kind: "job",
			Input: json.RawMessage(`1`), Metadata: map[string]string{"a": "1", "b": "2"}}}
		w.do(op)
		first := op.Run.ID
		w.do(op)
		w.check(!op.Created && op.Run.ID == first, "the same run")
		w.refuse(perdure.CodeReused, &life.Submit{Tenant: tenant, Key: "k",
			Submission: perdure.Submission{Kind: "job", Input: json.RawMessage(`2`)}})
		other := &life.Submit{Tenant: "other", Key: "k", Submission: perdure.Submission{Kind: "job"}}
		w.do(other)
		w.check(other.Created, "keys belong to their tenant")
		same := []kernel.Op{&life.Submit{Tenant: tenant, Key: "k2", Submission: perdure.Submission{Kind: "job"}},
			&life.Submit{Tenant: tenant, Key: "k2", Submission: perdure.Submission{Kind: "job"}}}
		for _, err := range w.E.Step(w.Now, same...) {
			w.check(err == nil, "%v", err)
		}
		w.check(same[0].(*life.Submit).Run.ID == same[1].(*life.Submit).Run.ID, "in one batch too")
	}},
	{"a key lasts at least as long as its run", func(w *World) {
		op := &life.Submit{Tenant: tenant, Key: "k", Submission: perdure.Submission{Kind: "job",
			Class: perdure.Agent, Timeout: perdure.Duration(72 * time.Hour)}}
		w.do(op)
		first := op.Run.ID
		w.Now = w.Now.Add(48 * time.Hour)
		w.sweep()
		w.do(op)
		w.check(op.Run.ID == first, "the run lives")
		w.Now = w.Now.Add(48 * time.Hour)
		w.sweep()
		w.Now = w.Now.Add(48 * time.Hour)
		w.sweep()
		w.do(op)
		w.check(op.Created && op.Run.ID != first, "expired with its run")
	}},
	{"what a run can't be asked for", func(w *World) {
		for _, s := range []perdure.Submission{
			{}, {Kind: "a\x00b"}, {Kind: "job", Class: perdure.Task, Timeout: perdure.Duration(2 * time.Hour)},
			{Kind: "job", Timeout: perdure.Duration(time.Nanosecond)},
			{Kind: "job", Class: perdure.Agent, Timeout: perdure.Duration(31 * 24 * time.Hour)},
			{Kind: "job", Timeout: perdure.Never},
			{Kind: "job", Input: json.RawMessage(`"\u0000"`)},
			{Kind: "job", RunAt: w.Now.Add(400 * 24 * time.Hour)},
			{Kind: "job", Delay: perdure.Duration(400 * 24 * time.Hour)},
			{Kind: "job", Priority: 101},
		} {
			w.refuse(perdure.CodeInvalid, &life.Submit{Tenant: tenant, Submission: s})
		}
		w.refuse(perdure.CodeTooLarge, &life.Submit{Tenant: tenant,
			Submission: perdure.Submission{Kind: "job", Input: json.RawMessage(`"` +
				strings.Repeat("a", perdure.MaxValue) + `"`)}})
	}},
	{"another tenant's run is not there", func(w *World) {
		r := w.task()
		g := w.take("w1")
		for _, op := range []kernel.Op{
			&life.Cancel{Tenant: "other", RunID: r.ID}, &life.Signal{Tenant: "other", RunID: r.ID,
				Name: "s"}, &life.Retry{Tenant: "other", RunID: r.ID},
			&upkeep.Redrive{Tenant: "other", RunID: r.ID}, &upkeep.DropDeadLetter{Tenant: "other", RunID: r.ID},
			&life.Continue{Tenant: "other", RunID: r.ID, JobID: "1"},
			&life.Defer{Tenant: "other", RunID: r.ID}, &life.Attach{Tenant: "other", Node: "n",
				RunIDs: []perdure.RunID{r.ID}},
			&life.Journal{Tenant: "other", RunID: r.ID, Epoch: 1}, &life.Inbox{Tenant: "other", RunID: r.ID,
				Epoch: 1},
			&life.Commit{Tenant: "other", Commit: perdure.Commit{ID: "c", RunID: r.ID, Epoch: g.Run.Epoch,
				Outcome: done(`1`)}},
		} {
			w.refuse(perdure.CodeNotFound, op)
		}
		_, err := w.E.Runs.Get(w.ctx(), "other", r.ID)
		_, unknown := w.E.Runs.Get(w.ctx(), "other", "no-such-run")
		w.check(perdure.CodeOf(err) == perdure.CodeNotFound && err.Error() == unknown.Error(), "%v, %v", err, unknown)
		lost := &life.Heartbeat{Tenant: "other", Worker: "x", Beats: []life.BeatOf{{Lease: lease(g)}}}
		w.do(lost)
		w.check(len(lost.Lost) == 1 && lost.Lost[0].Error.Code == perdure.CodeNotFound, "%+v", lost.Lost)
	}},
	{"forged and missing epochs", func(w *World) {
		r := w.task()
		g := w.take("w1")
		for _, epoch := range []int64{-1, 0} {
			g.Run.Epoch = epoch
			w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Outcome: done(`1`)}))
		}
		g.Run.Epoch = 99
		w.refuse(perdure.CodeStaleEpoch, w.commitOf(g, perdure.Commit{Outcome: done(`1`)}))
		w.check(len(w.lates(r.ID)) == 0, "nothing is kept of an epoch that never was")
	}},
	{"one refusal in a batch leaves no trace and hurts nobody", func(w *World) {
		r := w.task()
		g := w.take("w1")
		bad := w.commitOf(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "a",
			Value: json.RawMessage(`1`)}}, Children: []perdure.Spawn{{Key: "k", Kind: "kid"}}, Outcome: suspend})
		good := w.commitOf(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "b", Value: json.RawMessage(`1`)}}})
		errs := w.E.Step(w.Now, bad, good)
		w.check(perdure.CodeOf(errs[0]) == perdure.CodeNothingToWaitFor && errs[1] == nil, "%v", errs)
		d := w.get(r.ID)
		w.check(d.JournalSeq == 1 && d.Children == 0, "%+v", d.Run)
	}},
	{"big values are stored once", func(w *World) {
		big := json.RawMessage(`"` + strings.Repeat("conversation ", 2000) + `"`)
		r := w.submit(perdure.Submission{Kind: "job", Input: big})
		w.submit(perdure.Submission{Kind: "job2", Input: big})
		g := w.take("w1")
		w.check(string(g.Input) == string(big), "the grant has it in full")
		for i := range 50 {
			w.commit(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: fmt.Sprint("call#", i), Value: big}}})
		}
		w.complete(g, string(big))
		w.check(string(w.get(r.ID).ResultText) == string(big), "and so has the result")
		w.view(func(v *store.View) error {
			return v.Rows("SELECT count(*), sum(size) FROM blobs", nil, func(scan func(...any) error) error {
				var n, size int64
				err := scan(&n, &size)
				w.check(n == 1 && size == int64(len(big)), "%d blobs of %d bytes", n, size)
				return err
			})
		})
	}},
	{"a very big result stands in the log as a reference", func(w *World) {
		r := w.task()
		big := `"` + strings.Repeat("x", 100_000) + `"`
		w.complete(w.take("w1"), big)
		lines := w.lines(r.ID)
		last := lines[len(lines)-1]
		w.check(len(last.Data) < 500 && strings.Contains(string(last.Data), `"size":100002`), "%.200s", last.Data)
		w.check(strings.HasPrefix(string(last.Data), `{"run_id":"`+string(r.ID)), "%.100s", last.Data)
	}},
	{"quotas", func(w *World) {
		w.task()
		if err := w.E.Step(w.Now, setQuota{2})[0]; err != nil {
			w.t.Fatal(err)
		}
		w.task()
		w.refuse(perdure.CodeQuota, &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job"}})
		g := w.take("w1")
		w.refuse(perdure.CodeQuota, w.commitOf(g, perdure.Commit{Children: []perdure.Spawn{{Key: "a", Kind: "kid"}}}))
		w.complete(g, `1`)
		w.task()
	}},
	{"workers write only what is theirs to write", func(w *World) {
		r := w.task()
		g := w.take("w1")
		w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Events: []perdure.Emitted{{Type: "run:completed"}}}))
		w.commit(g, perdure.Commit{Events: []perdure.Emitted{{Type: "llm:delta",
			Data: json.RawMessage(`{"text":"hel"}`)}, {Type: "run:progress", Data: json.RawMessage(`{"done":3}`)}}})
		w.pass(15 * time.Minute)
		_ = r
		d := w.get(r.ID)
		w.check(strings.Contains(string(d.Progress), `"done":3`), "the progress is kept: %s", d.Progress)
	}},
	{"the deltas of a commit are one line, those of two commits are two", func(w *World) {
		r := w.task()
		g := w.take("w1")
		delta := func(text string) perdure.Emitted {
			return perdure.Emitted{Type: "llm:delta", Data: json.RawMessage(`{"text":"` + text + `"}`)}
		}
		c := perdure.Commit{ID: "tokens", Events: []perdure.Emitted{delta("a"), delta("b"), delta("c"),
			{Type: "x:mark"}, delta("d"), delta("e")}}
		before := w.get(r.ID).Seq
		w.commit(g, c)
		w.commit(g, perdure.Commit{Events: []perdure.Emitted{delta("f")}})
		said := func() (out []string) {
			for _, l := range w.lines(r.ID)[before:] {
				out = append(out, string(l.Type)+string(l.Data))
			}
			return out
		}
		want := []string{`llm:delta{"text":"abc"}`, "x:mark", `llm:delta{"text":"de"}`, `llm:delta{"text":"f"}`}
		w.check(slices.Equal(said(), want), "%v", said())
		w.commit(g, c) // the same again is known by what was sent, not by what became of it
		w.check(slices.Equal(said(), want), "%v", said())
	}},
}

// setQuota limits the tenant's live runs.
type setQuota struct{ n int64 }

func (setQuota) Needs() []store.Ref { return nil }

func (q setQuota) Do(tx *kernel.Tx) error {
	tx.DB.Tenants.SetQuota(tenant, q.n)
	return nil
}
