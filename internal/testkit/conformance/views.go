package conformance

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
)

func (w *World) published(id perdure.RunID, name string) (value string, version int64) {
	w.t.Helper()
	p, err := w.E.Runs.View(w.ctx(), tenant, id, name)
	if err != nil {
		w.t.Fatalf("run %s: view %q: %v", id, name, err)
	}
	return string(p.Value), p.Version
}

func publish(name, value string) []perdure.View {
	return []perdure.View{{Name: name, Value: json.RawMessage(value)}}
}

var viewScenarios = []Scenario{
	{"a view is the latest value that a run published, without a line in the log", func(w *World) {
		r := w.task()
		g := w.take("w1")
		before := len(w.lines(r.ID))
		for n := range 5 {
			w.commit(g, perdure.Commit{Views: publish("plan", fmt.Sprintf(`{"step":%d}`, n))})
		}
		// Two commits of one batch: the later one counts.
		w.E.Step(w.Now, w.commitOf(g, perdure.Commit{Views: publish("plan", `5`)}),
			w.commitOf(g, perdure.Commit{Views: publish("plan", `6`)}))
		value, version := w.published(r.ID, "plan")
		w.check(value == `6` && version == 7, "view = %s in version %d, want 6 in version 7", value, version)
		w.check(len(w.lines(r.ID)) == before, "log grew from %d to %d lines", before, len(w.lines(r.ID)))
		// It outlasts the run.
		w.commit(g, perdure.Commit{Views: publish("done", `true`), Outcome: done(`1`)})
		value, _ = w.published(r.ID, "plan")
		w.check(value == `6`, "view after the end = %s, want 6", value)
		list, err := w.E.Runs.Views(w.ctx(), tenant, r.ID)
		w.check(err == nil && len(list) == 2 && list[0].Name == "done" && list[1].Name == "plan" && list[1].Size == 1,
			"views = %+v (%v), want done and plan", list, err)
		w.do(&upkeep.DeleteRun{Tenant: tenant, RunID: r.ID})
		w.retire()
		w.check(w.rows("run_views") == 0, "views of a deleted run: %d rows, want none", w.rows("run_views"))
	}},
	{"a repeated commit publishes once, and a refused one nothing", func(w *World) {
		r := w.task()
		g := w.take("w1")
		op := w.commitOf(g, perdure.Commit{Views: publish("v", `1`)})
		w.do(op)
		w.commit(g, perdure.Commit{Views: publish("v", `2`)})
		w.do(op)
		value, version := w.published(r.ID, "v")
		w.check(value == `2` && version == 2, "view = %s in version %d, want 2 in version 2", value, version)
		stale := w.commitOf(g, perdure.Commit{Views: publish("v", `3`)})
		stale.Commit.Epoch--
		w.refuse(perdure.CodeInvalid, stale) // no such epoch
		w.do(&life.Release{Tenant: tenant, Leases: []life.Lease{lease(g)}})
		w.refuse(perdure.CodeStaleEpoch, w.commitOf(g, perdure.Commit{Views: publish("v", `4`)}))
	}},
	{"views have limits", func(w *World) {
		w.task()
		g := w.take("w1")
		full := []perdure.View{}
		for n := range perdure.MaxViews {
			full = append(full, perdure.View{Name: fmt.Sprint("v", n), Value: json.RawMessage(`1`)})
		}
		w.commit(g, perdure.Commit{Views: full[:10]})
		w.commit(g, perdure.Commit{Views: full})
		w.refuse(perdure.CodeOverBound, w.commitOf(g, perdure.Commit{Views: publish("more", `1`)}))
		w.commit(g, perdure.Commit{Views: publish("v3", `"again"`)})
		large := `"` + strings.Repeat("x", perdure.MaxView-2) + `"`
		w.commit(g, perdure.Commit{Views: publish("v3", large)})
		w.refuse(perdure.CodeTooLarge, w.commitOf(g, perdure.Commit{Views: publish("v3", large+" ")}))
		for _, bad := range []perdure.View{{Name: "", Value: json.RawMessage(`1`)},
			{Name: "a b ", Value: json.RawMessage(`1`)},
			{Name: "a/b", Value: json.RawMessage(`1`)}, {Name: "../x", Value: json.RawMessage(`1`)}, {Name: "v1"},
			{Name: "v1", Value: json.RawMessage(`{`)}} {
			w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Views: []perdure.View{bad}}))
		}
		w.refuse(perdure.CodeInvalid, w.commitOf(g,
			perdure.Commit{Views: append(publish("v1", `1`), publish("v1", `2`)...)}))
		w.check(w.rows("blobs") == 0, "views are stored by their hashes: %d blobs", w.rows("blobs"))
	}},
	{"a view of another tenant's run, and one that is not there", func(w *World) {
		r := w.task()
		w.commit(w.take("w1"), perdure.Commit{Views: publish("v", `1`)})
		_, err := w.E.Runs.View(w.ctx(), tenant, r.ID, "w")
		w.check(perdure.CodeOf(err) == perdure.CodeNotFound, "missing view: %v", err)
		_, err = w.E.Runs.View(w.ctx(), "globex", r.ID, "v")
		w.check(perdure.CodeOf(err) == perdure.CodeNotFound, "another tenant reads the view: %v", err)
		_, err = w.E.Runs.Views(w.ctx(), "globex", r.ID)
		w.check(perdure.CodeOf(err) == perdure.CodeNotFound, "another tenant lists the views: %v", err)
	}},
}
