package conformance

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
)

// instant is an instant as JSON has it.
func instant(i perdure.Instant) string {
	b, _ := i.MarshalJSON()
	return string(b)
}

// steps are journal entries of steps that can be undone.
func steps(names ...string) (out []perdure.JournalEntry) {
	for _, n := range names {
		out = append(out, entry(n), entry(perdure.UndoPrefix+n))
	}
	return out
}

func entry(key string) perdure.JournalEntry {
	return perdure.JournalEntry{Key: key, Value: json.RawMessage(`{"ok":1}`)}
}

// notUndone is what the deliverable of an ended run lists.
func (w *World) notUndone(id perdure.RunID) []string {
	w.t.Helper()
	return fallback(w, w.get(id).Fallback).NotUndone
}

type deliverable struct {
	NotUndone []string        `json:"not_undone"`
	Deadline  perdure.Instant `json:"deadline_at"`
	Reason    string          `json:"reason"`
	Partial   string          `json:"partial"`
}

func fallback(w *World, text perdure.Value) (out deliverable) {
	w.t.Helper()
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		w.t.Fatalf("%s: %v", text, err)
	}
	return out
}

var undoScenarios = []Scenario{
	{"an end that is not the worker's word lists what was not undone", func(w *World) {
		for _, by := range []struct {
			name string
			end  func(g engine.Grant)
		}{
			{"its deadline", func(engine.Grant) { w.pass(2 * time.Minute) }},
			{"a cancel that nobody heeds", func(g engine.Grant) {
				w.do(&engine.Cancel{Tenant: tenant, RunID: g.Run.ID})
				w.pass(w.E.Policy().CancelGrace + time.Second)
			}},
			{"the loss of its only attempt", func(engine.Grant) { w.pass(w.E.Policy().Lease + 10*time.Second) }},
		} {
			r := w.submit(perdure.Submission{Kind: "trip", Class: perdure.Agent, MaxAttempts: 1, Timeout: perdure.Duration(2 * time.Minute)})
			g := w.takeKind("trip")
			// In the order of recording, whatever the names are.
			w.commit(g, perdure.Commit{Journal: steps("pay#1", "flight#1", "hotel#1")})
			w.commit(g, perdure.Commit{Journal: append(steps("car#1"), entry(perdure.UndonePrefix+"hotel#1"), entry("_undogs"), entry("other"))})
			by.end(g)
			w.check(w.get(r.ID).State.Terminal(), "%s: the run is %s", by.name, w.get(r.ID).State)
			got := w.notUndone(r.ID)
			w.check(slices.Equal(got, []string{"pay#1", "flight#1", "car#1"}), "%s: %v", by.name, got)
		}
	}},
	{"what is undone by the commit that ends the run is undone", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "trip", Class: perdure.Agent})
		g := w.take("w1")
		w.commit(g, perdure.Commit{Journal: steps("a", "b")})
		no := false
		o := failed("boom")
		o.Retryable = &no
		w.commit(g, perdure.Commit{Journal: []perdure.JournalEntry{entry(perdure.UndonePrefix + "b")}, Outcome: o})
		w.check(slices.Equal(w.notUndone(r.ID), []string{"a"}), "%v", w.notUndone(r.ID))

		r = w.submit(perdure.Submission{Kind: "trip", Class: perdure.Agent})
		g = w.take("w1")
		w.commit(g, perdure.Commit{Journal: append(steps("a"), entry(perdure.UndonePrefix+"a")), Outcome: o})
		w.check(w.get(r.ID).State == perdure.Failed && w.notUndone(r.ID) == nil, "nothing is left: %s", w.get(r.ID).Fallback)

		r = w.submit(perdure.Submission{Kind: "trip", Class: perdure.Agent})
		w.commit(w.take("w1"), perdure.Commit{Journal: steps("a"), Outcome: done(`1`)})
		w.check(w.get(r.ID).Fallback == "", "a run with a result has nothing to undo: %s", w.get(r.ID).Fallback)
	}},
	{"of very many the last are listed", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "trip", Class: perdure.Agent, Timeout: perdure.Duration(time.Minute)})
		g := w.take("w1")
		var names []string
		for i := range perdure.MaxNotUndone + 50 {
			names = append(names, fmt.Sprint("step#", i))
		}
		w.commit(g, perdure.Commit{Journal: steps(names...)})
		w.pass(2 * time.Minute)
		w.check(slices.Equal(w.notUndone(r.ID), names[50:]), "%v", w.notUndone(r.ID))
	}},
	{"a parent is told by when its child should have been done, and what of it was not undone", func(w *World) {
		w.submit(perdure.Submission{Kind: "boss", Class: perdure.Agent, Timeout: perdure.Duration(time.Hour)})
		ans := w.commit(w.takeKind("boss"), perdure.Commit{Children: []perdure.Spawn{{Key: "c", Kind: "kid", Timeout: perdure.Duration(time.Minute)}},
			Waits: wait(perdure.WaitSpec{ID: "j", Type: perdure.WaitChildren, Keys: []string{"c"}}), Outcome: suspend})
		k := w.takeKind("kid")
		big := strings.Repeat("x", store.InlineMax) // findings that do not fit into the row
		w.commit(k, perdure.Commit{Journal: steps("a"), Events: []perdure.Emitted{{Type: perdure.LineProgress, Data: json.RawMessage(`"` + big + `"`)}}})
		w.pass(2 * time.Minute)
		w.ended(ans.Children[0].RunID, perdure.TimedOut, perdure.CodeDeadline)
		inbox := w.takeKind("boss").Inbox
		w.check(inbox[0].Type == perdure.ItemChild && inbox[0].Outcome == string(perdure.TimedOut), "%.500v", inbox)
		data := fallback(w, inbox[0].Data)
		w.check(data.Deadline == k.Run.DeadlineAt && data.Reason == string(perdure.CodeDeadline) && slices.Equal(data.NotUndone, []string{"a"}) && data.Partial == big,
			"%.500s", inbox[0].Data)
	}},
}
