package conformance

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// An end is a way to end a run without a result.
type end struct {
	name  string
	spawn perdure.Spawn
	code  perdure.Code
	state perdure.State
	by    func(w *World, g dispatch.Grant)
	said  bool // by the holder: the epoch stays
	empty bool // nobody has begun
}

// finish applies an event to a run as the watchdog would. It is for events that the run's own
// clocks do not reach.
type finish struct {
	id perdure.RunID
	ev perdure.Event
}

func (finish) Needs() []store.Ref { return nil }

func (f finish) Do(tx *kernel.Tx) error {
	r, _, err := tx.DB.Runs.Get(tenant, f.id)
	if err != nil {
		return err
	}
	return life.Finish(tx, &r, f.ev)
}

var ends = []end{
	{name: "its deadline", spawn: perdure.Spawn{Timeout: perdure.Duration(40 * time.Second)},
		code: perdure.CodeDeadline, state: perdure.TimedOut,
		by: func(w *World, _ dispatch.Grant) { w.pass(41 * time.Second) }},
	{name: "a dispatch that nobody is heard from", code: perdure.CodeDispatchTimeout, state: perdure.TimedOut,
		empty: true,
		spawn: perdure.Spawn{Class: perdure.Agent},
		by: func(w *World, g dispatch.Grant) {
			for range 2 * w.E.Policy().MaxGrants {
				w.do(&dispatch.Claim{Tenant: tenant, Worker: "silent", Kinds: []string{g.Run.Kind}, Slots: 1})
				w.pass(6 * time.Minute)
				if w.get(g.Run.ID).State.Terminal() {
					return
				}
			}
		}},
	{name: "the loss of its only attempt", spawn: perdure.Spawn{MaxAttempts: 1},
		code: perdure.CodeAttemptsExhausted, state: perdure.Failed,
		by: func(w *World, _ dispatch.Grant) { w.pass(65 * time.Second) }},
	{name: "a process without a heartbeat", spawn: perdure.Spawn{Class: perdure.Process, MaxAttempts: 1},
		code: perdure.CodeHeartbeatLost, state: perdure.Failed,
		by: func(w *World, _ dispatch.Grant) { w.pass(11 * time.Minute) }},
	{name: "a single attempt that nobody is heard from", spawn: perdure.Spawn{MaxAttempts: 1},
		code: perdure.CodeOutcomeUnknown, state: perdure.Failed, empty: true,
		by: func(w *World, g dispatch.Grant) {
			w.do(&dispatch.Claim{Tenant: tenant, Worker: "silent", Kinds: []string{g.Run.Kind}, Slots: 1})
			w.pass(65 * time.Second)
		}},
	{name: "the reaper", code: perdure.CodeReaped, state: perdure.Failed,
		spawn: perdure.Spawn{Timeout: perdure.Duration(time.Hour)},
		by: func(w *World, g dispatch.Grant) {
			w.Now = w.Now.Add(w.E.Policy().ActiveReap + time.Hour)
			w.do(finish{g.Run.ID, perdure.Reaped{}})
		}},
	{name: "the loss of its queue", code: perdure.CodeOrphaned, state: perdure.Failed,
		by: func(w *World, g dispatch.Grant) { w.do(finish{g.Run.ID, perdure.Orphaned{Missing: "queue"}}) }},
	{name: "a cancel that nobody heeds", code: perdure.CodeCancelled, state: perdure.Cancelled,
		by: func(w *World, g dispatch.Grant) {
			w.do(&life.Cancel{Tenant: tenant, RunID: g.Run.ID, Reason: "enough"})
			w.pass(w.E.Policy().CancelGrace + time.Second)
		}},
	{name: "a cancel that is heeded", code: perdure.CodeCancelled, state: perdure.Cancelled, said: true,
		by: func(w *World, g dispatch.Grant) {
			w.do(&life.Cancel{Tenant: tenant, RunID: g.Run.ID, Reason: "enough"})
			w.commit(g, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeCancelled}})
		}},
	{name: "a cancel before its start", code: perdure.CodeCancelled, state: perdure.Cancelled, empty: true,
		by: func(w *World, g dispatch.Grant) { w.do(&life.Cancel{Tenant: tenant, RunID: g.Run.ID}) }},
	{name: "a failure", code: "boom", state: perdure.Failed, said: true,
		by: func(w *World, g dispatch.Grant) {
			o, no := failed("boom"), false
			o.Retryable = &no
			w.commit(g, perdure.Commit{Outcome: o})
		}},
	{name: "a wait that timed out", code: perdure.CodeWaitTimeout, state: perdure.TimedOut, said: true,
		by: func(w *World, g dispatch.Grant) {
			w.commit(g, perdure.Commit{Outcome: failed(string(perdure.CodeWaitTimeout))})
		}},
	{name: "a signature that is wrong", code: perdure.CodeSignatureInvalid, state: perdure.Failed, said: true,
		by: func(w *World, g dispatch.Grant) {
			w.commit(g, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeReject,
				Reason: string(perdure.CodeSignatureInvalid)}})
		}},
}

// fallbackOf is the fallback of a run that ended without a result.
type fallbackOf struct {
	Reason      perdure.Code    `json:"reason"`
	Message     string          `json:"message"`
	Activity    string          `json:"activity"`
	SeenAt      perdure.Instant `json:"seen_at"`
	Partial     json.RawMessage `json:"partial"`
	PartialText string          `json:"partial_text"`
	Artifacts   []struct {
		Name   string `json:"name"`
		Size   int64  `json:"size"`
		SHA256 string `json:"sha256"`
	} `json:"artifacts"`
}

func (w *World) endsWell(e end) {
	w.t.Helper()
	check := func(ok bool, format string, args ...any) {
		w.t.Helper()
		w.check(ok, e.name+": "+format, args...)
	}
	w.submit(perdure.Submission{Kind: "parent", Class: perdure.Agent})
	parent := w.takeKind("parent")
	th := w.thread()
	e.spawn.Key, e.spawn.Kind, e.spawn.ThreadID = "kid", "kid", th
	if e.spawn.Class == "" {
		e.spawn.Class = perdure.Task
	}
	id := w.commit(parent, perdure.Commit{Children: []perdure.Spawn{e.spawn},
		Waits: wait(perdure.WaitSpec{ID: "j", Type: perdure.WaitChildren, Keys: []string{"kid"},
			Timeout: perdure.Never}),
		Outcome: suspend}).Children[0].RunID
	next := w.submit(perdure.Submission{Kind: "next", ThreadID: th, Class: perdure.Agent})
	g := dispatch.Grant{Run: w.get(id).Run}
	if !e.empty {
		g = w.takeKind("kid")
		w.do(&life.Heartbeat{Tenant: tenant, Worker: g.Run.Worker,
			Beats: []life.BeatOf{{Lease: lease(g), Activity: "llm_streaming",
				Progress: json.RawMessage(`{"pages":3}`)}}})
		w.put(g, "draft.md", []byte("# half"))
		w.commit(g, perdure.Commit{Events: []perdure.Emitted{{Type: perdure.LineDelta,
			Data: json.RawMessage(`"Once upon "`)}, {Type: "x:other", Data: json.RawMessage(`1`)},
			{Type: perdure.LineDelta, Data: json.RawMessage(`{"text":"a \u0074ime"}`)}}})
	}
	check(!w.get(next.ID).Ready, "the next run did not wait for its turn")
	seen := w.get(id).SeenAt
	e.by(w, g)

	r := w.ended(id, e.state, e.code)
	check(e.said == (r.Epoch == g.Run.Epoch), "epoch %d after %d", r.Epoch, g.Run.Epoch)
	var f fallbackOf
	check(json.Unmarshal([]byte(w.get(id).Fallback), &f) == nil, "%s", w.get(id).Fallback)
	check(f.Reason == e.code, "%+v", f)
	if !e.empty {
		check(f.Activity == "llm_streaming" && f.SeenAt >= seen && string(f.Partial) == `{"pages":3}` &&
			f.PartialText == "Once upon a time" && len(f.Artifacts) == 1 &&
			f.Artifacts[0].Name == "draft.md" && f.Artifacts[0].Size == 6 && len(f.Artifacts[0].SHA256) == 64,
			"%+v in %s", f, w.get(id).Fallback)
	}
	last := w.lines(id)[len(w.lines(id))-1]
	check(last.Type == perdure.TerminalLine(e.state) && strings.Contains(string(last.Data),
		`"deliverable_id":"`+r.DeliverableID()+`"`), "%s %s", last.Type, last.Data)
	ms := w.messages(th)
	check(len(ms) == 1 && ms[0].RunID == id && strings.HasPrefix(string(ms[0].Content), `"This run `) &&
		strings.Contains(string(ms[0].Metadata), `"code":"`+string(e.code)+`"`), "%+v", ms)
	check(w.get(next.ID).Ready, "the next run on the thread is not claimable")
	again := w.takeKind("parent")
	check(len(again.Inbox) == 2 && again.Inbox[0].Type == perdure.ItemChild &&
		again.Inbox[0].Outcome == string(e.state), "%+v", again.Inbox)
	var told fallbackOf
	check(json.Unmarshal([]byte(again.Inbox[0].Data), &told) == nil && told.Reason == e.code &&
		told.PartialText == f.PartialText && len(told.Artifacts) == len(f.Artifacts), "%s", again.Inbox[0].Data)
	w.complete(again, `1`)
	w.complete(w.takeKind("next"), `1`)
}

var endScenarios = func() (out []Scenario) {
	for _, e := range ends {
		out = append(out, Scenario{"an end without a result hands over what there is, and all are told at once: " +
			e.name, func(w *World) { w.endsWell(e) }})
	}
	return append(out, Scenario{"of a long text a fallback has the end, and of its own attempt alone", func(w *World) {
		w.submit(perdure.Submission{Kind: "job", MaxAttempts: 2})
		g := w.take("w1")
		w.commit(g, perdure.Commit{Events: []perdure.Emitted{{Type: perdure.LineDelta,
			Data: json.RawMessage(`"first attempt"`)}}})
		w.pass(65 * time.Second)
		g = w.take("w2")
		long := `"` + strings.Repeat("é", 8<<9) + `."`
		w.commit(g, perdure.Commit{Events: []perdure.Emitted{{Type: perdure.LineDelta,
			Data: json.RawMessage(long)}, {Type: "x:y", Data: json.RawMessage(`1`)}}})
		w.pass(65 * time.Second)
		var f fallbackOf
		w.check(json.Unmarshal([]byte(w.get(g.Run.ID).Fallback), &f) == nil, "not JSON")
		w.check(len(f.PartialText) <= 4<<10 && len(f.PartialText) > 4000 && strings.HasSuffix(f.PartialText,
			"é.") && strings.HasPrefix(f.PartialText, "é"), "%.40q (%d)", f.PartialText, len(f.PartialText))
	}}, Scenario{"a text that is long, or long ago, is found too", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", MaxAttempts: 1})
		g := w.take("w1")
		tell := func(data string) {
			w.commit(g, perdure.Commit{Events: []perdure.Emitted{{Type: perdure.LineDelta,
				Data: json.RawMessage(data)}}})
			for range 3 {
				w.commit(g, perdure.Commit{Events: slices.Repeat([]perdure.Emitted{{Type: "x:other",
					Data: json.RawMessage(`1`)}}, 300)})
			}
		}
		shown := func() string {
			a, err := w.E.Runs.Activity(w.ctx(), tenant, r.ID)
			w.check(err == nil, "%v", err)
			return a.Text
		}
		tell(`"Once upon a time"`)
		w.check(shown() == "Once upon a time", "%q", shown())
		tell(`"` + strings.Repeat("x", 70_000) + ` and the end"`)
		w.check(strings.HasSuffix(shown(), "x and the end") && len(shown()) == 2<<10, "%d bytes: %.40q",
			len(shown()), shown())
		w.pass(65 * time.Second)
		var f fallbackOf
		w.check(json.Unmarshal([]byte(w.get(r.ID).Fallback), &f) == nil, "not JSON")
		w.check(strings.HasSuffix(f.PartialText, "x and the end") && len(f.PartialText) == 4<<10,
			"%d bytes: %.40q", len(f.PartialText), f.PartialText)
	}})
}()
