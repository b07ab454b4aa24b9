package conformance

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// instant formats an instant as JSON does.
func instant(i perdure.Instant) string {
	b, _ := i.MarshalJSON()
	return string(b)
}

// steps gives journal entries of steps that can be compensated.
func steps(names ...string) (out []perdure.JournalEntry) {
	for _, n := range names {
		out = append(out, entry(n), entry(perdure.UndoPrefix+n))
	}
	return out
}

func entry(key string) perdure.JournalEntry {
	return perdure.JournalEntry{Key: key, Value: json.RawMessage(`{"ok":1}`)}
}

// notUndone gives the steps that the fallback of an ended run lists as not compensated.
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
			end  func(g dispatch.Grant)
		}{
			{"its deadline", func(dispatch.Grant) { w.pass(2 * time.Minute) }},
			{"a cancel that nobody heeds", func(g dispatch.Grant) {
				w.do(&life.Cancel{Tenant: tenant, RunID: g.Run.ID})
				w.pass(w.E.Policy().CancelGrace + time.Second)
			}},
			{"the loss of its only attempt", func(dispatch.Grant) { w.pass(w.E.Policy().Lease + 10*time.Second) }},
		} {
			r := w.submit(perdure.Submission{Kind: "trip", Class: perdure.Agent, MaxAttempts: 1,
				Timeout: perdure.Duration(2 * time.Minute)})
			g := w.takeKind("trip")
			// In the order of recording, whatever the names are.
			w.commit(g, perdure.Commit{Journal: steps("pay#1", "flight#1", "hotel#1")})
			w.commit(g, perdure.Commit{Journal: append(steps("car#1"), entry(perdure.UndonePrefix+"hotel#1"),
				entry("_undogs"), entry("other"))})
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
		w.check(w.get(r.ID).State == perdure.Failed && w.notUndone(r.ID) == nil, "nothing is left: %s",
			w.get(r.ID).Fallback)

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
		ans := w.commit(w.takeKind("boss"),
			perdure.Commit{Children: []perdure.Spawn{{Key: "c", Kind: "kid", Timeout: perdure.Duration(time.Minute)}},
				Waits:   wait(perdure.WaitSpec{ID: "j", Type: perdure.WaitChildren, Keys: []string{"c"}}),
				Outcome: suspend})
		k := w.takeKind("kid")
		big := strings.Repeat("x", store.InlineMax) // findings that do not fit into the row
		w.commit(k, perdure.Commit{Journal: steps("a"), Events: []perdure.Emitted{{Type: perdure.LineProgress,
			Data: json.RawMessage(`"` + big + `"`)}}})
		w.pass(2 * time.Minute)
		w.ended(ans.Children[0].RunID, perdure.TimedOut, perdure.CodeDeadline)
		inbox := w.takeKind("boss").Inbox
		w.check(inbox[0].Type == perdure.ItemChild && inbox[0].Outcome == string(perdure.TimedOut), "%.500v", inbox)
		data := fallback(w, inbox[0].Data)
		w.check(data.Deadline == k.Run.DeadlineAt && data.Reason == string(perdure.CodeDeadline) &&
			slices.Equal(data.NotUndone, []string{"a"}) && data.Partial == big,
			"%.500s", inbox[0].Data)
	}},
	{"a fallback is a value as any other, whatever its partial findings are", func(w *World) {
		for _, c := range []struct {
			what, progress string
			kept           bool
		}{
			{"findings as large as a value", `"` + strings.Repeat("x", perdure.MaxValue-2) + `"`, false},
			{"findings that leave room", `"` + strings.Repeat("x", perdure.MaxValue-500) + `"`, true},
			{"findings nested as deep as a value", strings.Repeat("[", 64) + strings.Repeat("]", 64), false},
			{"findings that leave a level, and speak of more", strings.Repeat("[", 63) + `"[{\\\"[{"` +
				strings.Repeat("]", 63), true},
		} {
			_, children := w.family(1, perdure.ModeAll)
			k := w.takeKind("kid")
			w.do(&life.Heartbeat{Tenant: tenant, Worker: "w-kid",
				Beats: []life.BeatOf{{Lease: lease(k), Progress: json.RawMessage(c.progress)}}})
			w.commit(k, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeFail,
				Error: &perdure.Failure{Code: "broken", Message: `"partial":1`}, Retryable: new(bool)}})
			d := w.get(children[0].RunID)
			w.check(string(d.Progress) == c.progress, "%s: the run keeps them", c.what)
			g := w.takeKind("parent")
			for _, i := range g.Inbox {
				if i.Type != perdure.ItemChild {
					continue
				}
				w.check(i.Data == d.Fallback, "%s: the parent is told what the deliverable says", c.what)
				w.commit(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "heard",
					Value: json.RawMessage(i.Data)}}})
				w.check(nested(string(i.Data)) <= 64, "%s: nested %d deep", c.what, nested(string(i.Data)))
				var got struct {
					Reason  string          `json:"reason"`
					Partial json.RawMessage `json:"partial"`
					Cut     bool            `json:"partial_cut"`
				}
				err := json.Unmarshal([]byte(i.Data), &got)
				w.check(err == nil && got.Reason == "broken" && got.Cut != c.kept &&
					(string(got.Partial) == c.progress) == c.kept, "%s: %v %.300s", c.what, err, i.Data)
			}
			w.complete(g, `1`)
		}
	}},
}

// nested gives the depth of JSON.
func nested(text string) (deepest int) {
	d, depth := json.NewDecoder(strings.NewReader(text)), 0
	for {
		switch tok, err := d.Token(); {
		case err != nil:
			return deepest
		case tok == json.Delim('{') || tok == json.Delim('['):
			depth++
			deepest = max(deepest, depth)
		case tok == json.Delim('}') || tok == json.Delim(']'):
			depth--
		}
	}
}
