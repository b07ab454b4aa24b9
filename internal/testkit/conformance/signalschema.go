package conformance

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
)

// askingKind has a schema for one of its signals.
var askingKind = perdure.KindDef{Class: perdure.Agent, Signals: map[string]json.RawMessage{"answer": json.RawMessage(
	`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`)}}

// signal is a signal to a run.
func signal(id perdure.RunID, name, data, key string) *life.Signal {
	return &life.Signal{Tenant: tenant, RunID: id, Name: name, Data: json.RawMessage(data), Key: key}
}

var signalSchemaScenarios = []Scenario{
	{"a signal that does not fit its announced schema is refused when it is sent", func(w *World) {
		w.announce("asks", "1", askingKind)
		r := w.submit(perdure.Submission{Kind: "asks"})
		for _, x := range []struct{ data, field string }{{`{"n":"1"}`, "data.n"}, {`{}`, "data.n"}, {`[1]`, "data"},
			{``, "data"}} {
			err := w.E.Step(w.Now, signal(r.ID, "answer", x.data, "k"))[0]
			e, ok := err.(*perdure.Error)
			w.check(ok && e.Code == perdure.CodeSignalInvalid && e.Field == x.field, "signal %s: %v, want %s at %s",
				x.data, err, perdure.CodeSignalInvalid, x.field)
		}
		w.check(len(w.items(r.ID)) == 0, "a signal that was refused is kept")
		w.do(signal(r.ID, "answer", `{"n":1,"more":2}`, "k")) // the key of a refused one is free
		w.do(signal(r.ID, "other", `[1]`, ""))
		w.check(len(w.items(r.ID)) == 2, "%d signals are kept, want one that fits and one that is not announced",
			len(w.items(r.ID)))

		other := askingKind
		other.Signals = map[string]json.RawMessage{"answer": json.RawMessage(`{"type":"array"}`)}
		w.Now = w.Now.Add(time.Second)
		w.announce("asks", "2", other)
		w.do(signal(r.ID, "answer", `{"n":1,"more":2}`, "k")) // sent before
		w.refuse(perdure.CodeSignalInvalid, signal(r.ID, "answer", `{"n":1}`, ""))
		w.do(signal(r.ID, "answer", `[]`, ""))
		w.do(&rules.PatchKind{Tenant: tenant, Kind: "asks", Def: perdure.KindDef{Signals: askingKind.Signals}})
		w.refuse(perdure.CodeSignalInvalid, signal(r.ID, "answer", `[]`, ""))
		w.do(&rules.DeleteKind{Tenant: tenant, Kind: "asks"})
		w.do(signal(r.ID, "answer", `"anything"`, ""))
	}},
	{"the answer to a signal says what the run waits for", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "asks", Class: perdure.Agent})
		early := signal(r.ID, "x", `1`, "")
		w.do(early)
		w.check(len(early.Waiting) == 0, "a queued run waits for %q, want nothing", early.Waiting)
		g := w.takeKind("asks")
		w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{{ID: "1", Type: perdure.WaitSignal, Name: "old"},
			{ID: "2", Type: perdure.WaitSignal, Name: "go"}, {ID: "3", Type: perdure.WaitSignal, Name: "go"},
			{ID: "4", Type: perdure.WaitTimer, Timeout: minutes(5)}},
			Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend}})
		renamed := signal(r.ID, "new", `1`, "once")
		w.do(renamed)
		w.check(slices.Equal(renamed.Waiting, []string{"go", "old"}), "the run waits for %q, want go and old",
			renamed.Waiting)
		w.state(r.ID, perdure.Suspended)
		right := signal(r.ID, "old", `1`, "")
		w.do(right)
		w.check(slices.Equal(right.Waiting, []string{"go"}), "after the signal the run waits for %q, want go",
			right.Waiting)
		again := signal(r.ID, "new", `1`, "once")
		w.do(again)
		w.check(slices.Equal(again.Waiting, []string{"go"}), "a repeated signal says %q, want go", again.Waiting)
	}},
	{"the schemas of signals are bounded", func(w *World) {
		announce := func(signals map[string]json.RawMessage) *rules.AnnounceKind {
			return &rules.AnnounceKind{Tenant: tenant, Kind: "asks", Def: perdure.KindDef{Signals: signals}}
		}
		w.refuse(perdure.CodeInvalid, announce(map[string]json.RawMessage{"a": json.RawMessage(`[]`)}))
		w.refuse(perdure.CodeInvalid, announce(map[string]json.RawMessage{"a": nil}))
		w.refuse(perdure.CodeInvalid, announce(map[string]json.RawMessage{"": json.RawMessage(`{}`)}))
		many := make(map[string]json.RawMessage)
		for i := range perdure.MaxSignals + 1 {
			many[string(rune('a'+i))] = json.RawMessage(`{}`)
		}
		w.refuse(perdure.CodeOverBound, announce(many))
		w.do(announce(map[string]json.RawMessage{"a": json.RawMessage(`{}`)}))
		w.check(string(w.kind("asks").Def.Signals["a"]) == `{}`, "kind: %+v", w.kind("asks").Def)
	}},
}
