package agent_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/agentcases"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// An editTrial is the execution of a case of package agentcases: four runs.
type editTrial struct {
	*agentcases.Case
	name, kind string
	// early waits before the edit while the build changes, and past behind it. old begins and ends under the
	// build before, and fresh under the one after it.
	early, past, old, fresh perdure.RunID
	threads                 map[perdure.RunID]perdure.ThreadID
	// effects has those of the run that is past the edit, when the build changes.
	effects []string
	held    string // the text with which it is held
}

// register registers the agents of a case: one that waits before all that it does, and one that does not.
func (e *editTrial) register(wk *worker.Worker, world *agentcases.World, words, reads string) {
	world.Register(wk, e.kind, words, reads)
	world.Register(wk, e.kind+"-early", "begin "+words, reads)
}

// submit starts a run of the case. The signals that its scripts wait for are there before.
func (e *editTrial) submit(w *scene, kind string, signals ...string) perdure.RunID {
	w.t.Helper()
	sub := perdure.Submission{Kind: kind, Input: json.RawMessage(e.Input)}
	if e.Talks() {
		sub.ThreadID = w.thread()
	}
	id := w.start(sub)
	e.threads[id] = sub.ThreadID
	sent := map[string]bool{}
	for _, word := range strings.Fields(e.Before + " " + e.After) {
		if name, ok := strings.CutPrefix(word, "signal:"); ok {
			name, _, _ = strings.Cut(name, ":")
			if sent[name] {
				continue
			}
			sent[name] = true
			data := e.Signals[name]
			if data == "" {
				data = "1"
			}
			w.signal(id, name, json.RawMessage(data))
		}
	}
	for _, name := range signals {
		w.signal(id, name, nil)
	}
	return id
}

// stands waits until a run is suspended on a signal.
func (w *scene) stands(id perdure.RunID, signal string) {
	w.t.Helper()
	eventually.True(w.t, "run "+string(id)+" waits for "+signal, func() bool {
		run, err := w.c.Get(w.ctx, id)
		if err != nil {
			w.t.Fatal(err)
		}
		if run.State.Terminal() || run.Hold != nil {
			w.t.Fatalf("run %s of kind %s is %s (error %+v, hold %+v), want it to wait for %s", id, run.Kind, run.State,
				run.Error, run.Hold, signal)
		}
		if run.State != perdure.Suspended {
			return false
		}
		opened := w.lines(id, perdure.LineWaitOpened)
		return len(opened) > 0 && strings.Contains(string(opened[len(opened)-1]), "signal:"+signal+"#1")
	})
}

// childrenRest waits until no child of a run works, also of those that the run does not join.
func (w *scene) childrenRest(id perdure.RunID) {
	w.t.Helper()
	eventually.True(w.t, "the children of run "+string(id)+" have ended or sleep", func() bool {
		return !slices.ContainsFunc(w.runs(client.Filter{ParentRunID: id}), func(r api.Run) bool {
			return !r.State.Terminal() && r.State != perdure.Suspended
		})
	})
}

// outcome returns how a run ended, or was held, without what differs between runs.
func (w *scene) outcome(id perdure.RunID) string {
	w.t.Helper()
	var run *api.Run
	eventually.True(w.t, "run "+string(id)+" ends", func() bool {
		var err error
		if run, err = w.c.Get(w.ctx, id); err != nil {
			w.t.Fatal(err)
		}
		return run.State.Terminal() || run.Hold != nil
	})
	if run.Hold != nil && !run.State.Terminal() {
		return "held: " + run.Hold.Message
	}
	return outcomeOf(run)
}

func outcomeOf(run *api.Run) string {
	if run.Error != nil {
		return fmt.Sprint(run.State, " ", run.Error.Code)
	}
	return fmt.Sprint(run.State, " ", string(run.Result))
}

// checkSaid checks that a run has said these texts: as messages, lines and text of the log, or in those ways
// in which it says anything.
func (e *editTrial) checkSaid(t *testing.T, w *scene) {
	t.Helper()
	var messages, lines []string
	if thread := e.threads[e.past]; thread != "" {
		for _, m := range w.messages(thread) {
			if role, content, _ := strings.Cut(m, " "); role == "assistant" {
				messages = append(messages, unquote(t, content))
			}
		}
	}
	for _, line := range w.lines(e.past, "x:line") {
		lines = append(lines, unquote(t, string(line)))
	}
	text := ""
	for _, line := range w.lines(e.past, perdure.LineDelta) {
		text += perdure.DeltaText(perdure.Value(line))
	}
	for _, said := range [][]string{messages, lines, strings.Fields(text)} {
		if got := strings.Join(said, " "); got != e.Said && (got != "" || e.Talks()) {
			t.Errorf("the run has said %q, want %q", got, e.Said)
		}
	}
}

// advice are the words with which a text says what to do.
var advice = []string{"announce", "Version", "Removed", "Ignores", "agent.Go", "let the release"}

// Each edit of package agentcases under running agents: a run that has not come there goes on as a new one
// does. A run that is past it goes on with what is recorded, or is held before an effect with a text that
// says what to do, and the build before continues it as if nothing had been. "perdure builds check" holds
// none for held that goes on.
func TestEditsOfTheTable(t *testing.T) {
	t.Parallel()
	w, world := openHeld(t), agentcases.NewWorld()
	var trials []*editTrial
	for _, e := range agentcases.Edits {
		for n := range everyRow(len(e.Cases)) {
			trials = append(trials, &editTrial{Case: &e.Cases[n], name: e.Edit + ": " + e.Cases[n].Name,
				kind: fmt.Sprintf("edit-%03d", len(trials)), threads: map[perdure.RunID]perdure.ThreadID{}})
		}
	}
	before := func(wk *worker.Worker) {
		world.Children(wk)
		for _, e := range trials {
			e.register(wk, world, e.Before, e.Reads)
		}
	}
	after := func(wk *worker.Worker) {
		world.Children(wk)
		for _, e := range trials {
			e.register(wk, world, e.After, e.ReadsAfter)
		}
	}
	build := func(name string, register func(wk *worker.Worker)) (stop func()) {
		return w.workAt(w.nodes[0].Transport(), worker.Options{Build: name}, register)
	}
	stop := build("before", before)
	for _, e := range trials {
		e.past, e.old = e.submit(w, e.kind), e.submit(w, e.kind, "go on")
		if e.Input == "" {
			e.early = e.submit(w, e.kind+"-early")
		}
	}
	for _, e := range trials {
		w.stands(e.past, "go on")
		if strings.HasPrefix(e.Before, "spawn:") && !strings.Contains(e.Before, "spawn:never") {
			w.childrenRest(e.past) // the run may not wait for them
		}
		e.effects = world.Effects(e.past)
		if e.early != "" {
			w.stands(e.early, "begin")
		}
		w.end(e.old)
	}
	stop()
	foreseen := w.foresees(after)
	stop = build("after", after)
	for _, e := range trials {
		e.fresh = e.submit(w, e.kind, "go on")
		w.signal(e.past, "go on", nil)
		if e.early != "" {
			w.signal(e.early, "begin", nil)
			w.signal(e.early, "go on", nil)
		}
	}
	for _, e := range trials {
		t.Run(e.name, func(t *testing.T) { e.check(t, w, world, foreseen[e.past]) })
	}
	stop()
	build("before again", before)
	for _, e := range trials {
		if e.Held != nil && e.held != "" {
			t.Run(e.name+", rolled back", func(t *testing.T) { e.checkRollback(t, w, world) })
		}
	}
}

// everyRow returns how many rows of a table are executed: all of them, and on PostgreSQL a third of those that
// have something in common. A journal has the same bytes on both stores.
func everyRow(n int) int {
	if os.Getenv("PERDURE_TEST_STORE") == "postgres" {
		return (n + 2) / 3
	}
	return n
}

// foresees returns the runs that a check of the next build would have held, and why.
func (w *scene) foresees(register func(wk *worker.Worker)) map[perdure.RunID]string {
	w.t.Helper()
	key, err := admin.New(w.c).CreateTenantKey(w.ctx, embedded.DefaultTenant, api.CreateKey{Name: "check",
		Scopes: []string{string(perdure.ScopeRead)}})
	if err != nil {
		w.t.Fatal(err)
	}
	reader := client.New("http://perdure", key.Secret, client.Options{Transport: w.nodes[0].Transport()})
	wk := worker.New(reader, worker.Options{Build: "next"})
	register(wk)
	report, err := worker.Check(w.ctx, wk, worker.CheckOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[perdure.RunID]string{}
	for _, c := range report.Causes {
		for _, id := range c.Runs {
			out[id] = c.Verdict + " at " + c.Where + ": " + c.Message
		}
	}
	return out
}

// check checks the runs of a case under the build after the edit.
func (e *editTrial) check(t *testing.T, w *scene, world *agentcases.World, foreseen string) {
	fresh := w.outcome(e.fresh)
	if e.early != "" {
		if got := w.outcome(e.early); got != fresh {
			t.Errorf("the run that has not come there: %s, want %s as a new run", got, fresh)
		}
		if got, want := sorted(world.Effects(e.early)), sorted(world.Effects(e.fresh)); !slices.Equal(got, want) {
			t.Errorf("the run that has not come there: effects %q, want %q as a new run", got, want)
		}
	}
	if e.Held != nil {
		e.held = w.heldWith(t, e.past, perdure.CodeNondeterminism)
		contains(t, e.held, e.Held...)
		if !slices.ContainsFunc(advice, func(word string) bool { return strings.Contains(e.held, word) }) {
			t.Errorf("%q does not say what to do", e.held)
		}
		if got := world.Effects(e.past); !slices.Equal(got, e.effects) {
			t.Errorf("effects %q, want %q: none before the hold", got, e.effects)
		}
		return
	}
	want := fresh
	if e.Gives != "" {
		want = fmt.Sprintf("%s %q", perdure.Completed, e.Gives)
	}
	if got := w.outcome(e.past); got != want {
		t.Errorf("the run that is past it: %s, want %s", got, want)
	}
	if foreseen != "" && !e.Unseen {
		t.Errorf("the run goes on, and a check said: %s", foreseen)
	}
	if e.Said != "" {
		e.checkSaid(t, w)
	}
	// Each effect of the new code was there once, and none of what the old code did was repeated.
	got, old, now := counts(world.Effects(e.past)), counts(world.Effects(e.old)), counts(world.Effects(e.fresh))
	for what, n := range got {
		if n > max(old[what], now[what]) {
			t.Errorf("the run that is past it: %q %d times, want at most %d", what, n, max(old[what], now[what]))
		}
	}
	for what, n := range now {
		if got[what] < n && e.Gives == "" {
			t.Errorf("the run that is past it: %q %d times, want %d", what, got[what], n)
		}
	}
}

// checkRollback checks that a run which was held ends under the build before as one that never was.
func (e *editTrial) checkRollback(t *testing.T, w *scene, world *agentcases.World) {
	if got, want := outcomeOf(w.end(e.past)), outcomeOf(w.end(e.old)); got != want {
		t.Errorf("under the build before: %s, want %s", got, want)
	}
	if got, want := sorted(world.Effects(e.past)), sorted(world.Effects(e.old)); !slices.Equal(got, want) {
		t.Errorf("under the build before: effects %q, want %q", got, want)
	}
	if e.Said != "" {
		e.checkSaid(t, w)
	}
}

// heldWith waits until a run is held, and returns the text. A run that ends instead fails the test.
func (w *scene) heldWith(t *testing.T, id perdure.RunID, code perdure.Code) (text string) {
	t.Helper()
	var got perdure.Failure
	eventually.True(t, "run "+string(id)+" is held or ends", func() bool {
		run, err := w.c.Get(w.ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if run.State.Terminal() {
			t.Errorf("run %s is %s (result %.200s, error %+v), want it held with %s", id, run.State, run.Result,
				run.Error, code)
			return true
		}
		if run.Hold == nil {
			return false
		}
		held := w.lines(id, "run:held")
		if err := json.Unmarshal(held[len(held)-1], &got); err != nil {
			t.Fatal(err)
		}
		return true
	})
	if got.Code != code && got.Code != "" {
		t.Errorf("run %s is held with %s (%s), want %s", id, got.Code, got.Message, code)
	}
	return got.Message
}

// sorted returns effects in an order that does not depend on which of two children was first.
func sorted(all []string) []string {
	slices.Sort(all)
	return all
}

func counts(all []string) map[string]int {
	out := map[string]int{}
	for _, x := range all {
		out[x]++
	}
	return out
}
