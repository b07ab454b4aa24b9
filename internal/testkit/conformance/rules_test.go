package conformance

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/metrics"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
)

// A trap is a rule's condition, brought about: what the rule acts on, when, and what has to be true afterwards.
type trap struct {
	run   perdure.RunID // the rule's action names it; empty: it is not about one run
	due   perdure.Instant
	alive func() // called every ten seconds until then, as a heartbeat of the holder
	then  func()
	more  func() // what is to see when more time passes

	retires bool // it is no part of a sweep, but goes on beside them
}

// look sweeps, and does what goes on beside that.
func (w *World) look(x trap) {
	w.t.Helper()
	w.sweep()
	for more := x.retires; more; {
		op := w.W.Retire()
		w.do(op)
		w.Acted = append(w.Acted, op.Actions...)
		more = op.More
	}
}

// traps has one for each rule, by its name.
var traps = map[string]func(w *World) trap{
	"deadline":           trapDeadline,
	"cancel-grace":       trapCancelGrace,
	"lost-worker":        trapLostWorker,
	"dead":               trapDead,
	"dispatch-timeout":   trapDispatchTimeout,
	"unclaimed":          trapUnclaimed,
	"dispatch-retry":     trapDispatchRetry,
	"reap":               trapReap,
	"suspended-too-long": trapSuspended,
	"due":                trapDue,
	"hold-timeout":       trapHold,
	"copy":               trapCopy,
	"queued-too-long":    trapQueued,
	"silent":             trapSilent,
	"no-progress":        trapNoProgress,
	"stale":              trapStale,
	"inbox-reclaim":      trapInbox,
	"pending-wakeup":     trapPending,
	"resume-replay":      trapReplay,
	"orphans":            trapOrphans,
	"damaged":            trapDamaged,
	"workers":            trapWorkers,
	"group-deadline":     trapGroup,
	"waiters":            trapWaiters,
	"schedule":           trapSchedule,
	"limit":              trapLimit,
	"cascade":            trapCascade,
	"log":                trapLog,
	"retention":          trapRetention,
	"ttl":                trapTTL,
}

// Every rule of the table, on both stores: nothing happens until its bound, then what it says happens once; and after a
// gap a rule that is held back waits for a lease's time, while the others don't.
func TestRule(t *testing.T) {
	for i := range watchdog.Rules {
		rule := &watchdog.Rules[i]
		t.Run(rule.ID+"_"+rule.Name, func(t *testing.T) {
			set := traps[rule.Name]
			if set == nil {
				t.Fatal("the rule has no test")
			}
			t.Parallel()
			t.Run("in time", func(t *testing.T) {
				alike(t, func(w *World) []string { w.springs(rule, set(w)); w.fsck(); return nil })
			})
			t.Run("after a gap", func(t *testing.T) {
				alike(t, func(w *World) []string { w.springsLater(rule, set); w.fsck(); return nil })
			})
		})
	}
}

// did gives what a rule has done since an action.
func (w *World) did(rule *watchdog.Rule, since int) (out []watchdog.Action) {
	for _, a := range w.Acted[since:] {
		if a.Rule == rule.ID && a.Name == rule.Name {
			out = append(out, a)
		}
	}
	return out
}

// waits lets time pass until just before a rule acts.
func (w *World) waits(rule *watchdog.Rule, x trap) {
	w.t.Helper()
	since := len(w.Acted)
	for w.Now < x.due-1 {
		if x.alive != nil {
			x.alive()
		}
		w.pass(min(10*time.Second, (x.due - 1).Sub(w.Now)))
	}
	w.check(len(w.did(rule, since)) == 0, "too early: %v", w.did(rule, since))
}

// springs has a rule act at its time and not before.
func (w *World) springs(rule *watchdog.Rule, x trap) {
	w.t.Helper()
	counts := metrics.New()
	w.W.OnActions = counts.Acted
	w.waits(rule, x)
	since := len(w.Acted)
	w.Now = max(w.Now, x.due)
	w.counted(counts, rule, 0)
	w.look(x)
	w.counted(counts, rule, 1)
	got := w.did(rule, since)
	w.check(len(got) == 1 && got[0].Run == x.run && got[0].At == w.Now && got[0].What != "" &&
		got[0].Why != "", "it did %v; all that was done: %v", got, w.Acted[since:])
	w.view(func(v *store.View) error {
		listed, err := v.WatchLog.Page(store.WatchFilter{Rule: rule.Name, Limit: 10})
		w.check(len(listed) == 1 && listed[0] == got[0], "the log has %v", listed)
		return err
	})
	w.look(x)
	w.check(len(w.did(rule, since)) == 1, "once: %v", w.did(rule, since))
	x.then()
	if x.more != nil {
		x.more()
	}
}

// counted checks how often the metric of a rule has moved.
func (w *World) counted(counts *metrics.Metrics, rule *watchdog.Rule, n int) {
	w.t.Helper()
	out := httptest.NewRecorder()
	counts.ServeHTTP(out, httptest.NewRequest("GET", "/metrics", nil))
	want := fmt.Sprintf("perdure_watchdog_actions_total{name=%q,rule=%q} %d\n", rule.Name, rule.ID, n)
	if !strings.Contains(out.Body.String(), want) {
		_, got, _ := strings.Cut(out.Body.String(), fmt.Sprintf("perdure_watchdog_actions_total{name=%q,", rule.Name))
		got, _, _ = strings.Cut(got, "\n")
		w.t.Fatalf("metric of rule %s = …%s, want %s", rule.Name, got, want)
	}
}

// springsLater lets nobody sweep until the rule's time has passed.
func (w *World) springsLater(rule *watchdog.Rule, set func(w *World) trap) {
	w.t.Helper()
	p := w.E.Policy()
	w.sweep() // the last one for a while
	x := set(w)
	since := len(w.Acted)
	w.offline(max(0, x.due.Sub(w.Now)) + p.GapAfter + time.Second)
	end := w.Now
	w.look(x)
	switch {
	case rule.Postponed:
		w.pass(p.Lease - time.Microsecond)
		for _, a := range w.Acted[since:] {
			w.check(a.Run != x.run || !held(a), "not held back: %v", a)
		}
		w.Now = end.Add(p.Lease)
		w.look(x)
		// Another rule may be first by then, such as the lease before an alert.
		w.check(slices.ContainsFunc(w.Acted[since:], func(a watchdog.Action) bool { return a.Run == x.run }),
			"and then nothing: %v", w.Acted[since:])
	default:
		w.check(len(w.did(rule, since)) == 1, "not held back: %v", w.Acted[since:])
	}
}

func held(a watchdog.Action) bool {
	return slices.ContainsFunc(watchdog.Rules, func(r watchdog.Rule) bool {
		return r.ID == a.Rule && r.Name == a.Name && r.Postponed
	})
}

// A household is a run with all that its end has consequences for: a parent that sleeps on it, and a thread with
// another run in line.
type household struct {
	parent, run, next perdure.RunID
	thread            perdure.ThreadID
}

// household makes one, whose run is queued.
func (w *World) household(child perdure.Spawn) household {
	w.t.Helper()
	h := household{thread: w.thread()}
	h.parent = w.submit(perdure.Submission{Kind: "parent", Class: perdure.Agent}).ID
	child.Key, child.Kind, child.ThreadID = "c", "kid", h.thread
	ans := w.commit(w.takeKind("parent"), perdure.Commit{Children: []perdure.Spawn{child},
		Waits: wait(perdure.WaitSpec{ID: "j", Type: perdure.WaitChildren, Keys: []string{"c"},
			Timeout: perdure.Never}),
		Outcome: suspend})
	h.run = ans.Children[0].RunID
	h.next = w.on(h.thread, perdure.Submission{Kind: "next"}).ID
	return h
}

// busy takes the run of a household and has it say what it does.
func (w *World) busy() dispatch.Grant {
	w.t.Helper()
	g := w.takeKind("kid")
	w.do(&life.Heartbeat{Tenant: tenant, Worker: g.Run.Worker,
		Beats: []life.BeatOf{{Lease: lease(g), Activity: "tool_executing",
			Progress: json.RawMessage(`{"found":3}`)}}})
	return g
}

// contract is what every end owes that the watchdog writes. epoch is the run's before it.
func (w *World) contract(h household, epoch int64, state perdure.State, code perdure.Code, dead bool) {
	w.t.Helper()
	r := w.ended(h.run, state, code)
	w.check(r.Epoch == epoch+1 && r.AlarmAt == 0, "epoch %d after %d, alarm %d", r.Epoch, epoch, r.AlarmAt)
	var fallback struct {
		Reason   perdure.Code
		Activity string
		Partial  json.RawMessage
	}
	err := json.Unmarshal([]byte(r.Fallback), &fallback)
	w.check(err == nil && fallback.Reason == code && fallback.Activity == r.Activity &&
		string(fallback.Partial) == string(r.Progress), "the fallback: %s", r.Fallback)
	lines := w.lines(h.run)
	last := lines[len(lines)-1]
	var data struct {
		Deliverable string `json:"deliverable_id"`
		Error       perdure.Failure
	}
	err = json.Unmarshal([]byte(last.Data), &data)
	w.check(err == nil && last.Type == perdure.TerminalLine(state) && data.Deliverable == r.DeliverableID() &&
		data.Error.Code == code && w.count(h.run, last.Type) == 1,
		"the last line: %s %s", last.Type, last.Data)
	said := w.messages(h.thread)
	w.check(len(said) == 1 && strings.Contains(string(said[0].Metadata), string(code)), "a readable message: %v",
		w.texts(h.thread))
	letters := w.letters(store.LetterFilter{Cause: string(code)})
	w.check(slices.Contains(letters, h.run) == dead, "dead letters: %v", letters)
	w.check(w.takeKind("next").Run.ID == h.next, "the next run of the thread is claimable")
	g := w.takeKind("parent")
	w.check(g.Run.ID == h.parent && len(g.Inbox) == 2 && g.Inbox[0].Type == perdure.ItemChild &&
		g.Inbox[0].From == h.run && g.Inbox[0].Outcome == string(state),
		"the parent is told: %+v", g.Inbox)
}

// late has a holder that lost its run complete it: the result is refused and kept.
func (w *World) late(g dispatch.Grant) {
	w.t.Helper()
	n := len(w.lates(g.Run.ID))
	op := w.commitOf(g, perdure.Commit{Outcome: done(`"late"`)})
	w.do(op)
	w.check(op.Refused != nil && op.Refused.Code == perdure.CodeStaleEpoch && len(w.lates(g.Run.ID)) == n+1, "%v",
		op.Refused)
}

func (w *World) beats(g dispatch.Grant) func() { return func() { w.beat(g) } }

// last gives the last line of a type, which must be there.
func (w *World) last(id perdure.RunID, typ perdure.LineType) string {
	w.t.Helper()
	for _, l := range slices.Backward(w.lines(id)) {
		if l.Type == typ {
			return string(l.Data)
		}
	}
	w.t.Fatalf("no %s in %v", typ, w.types(id))
	return ""
}

// alert checks that a run was said to look stuck, and that nothing else happened to it.
func (w *World) alert(id perdure.RunID, typ perdure.LineType, what string, state perdure.State) {
	w.t.Helper()
	r := w.state(id, state)
	w.check(strings.Contains(w.last(id, typ), what) && r.Attempt == 1, "%s %s", typ, w.last(id, typ))
}
