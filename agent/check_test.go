package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// checks checks the live runs of a kind against another version of the code, with a key that may only
// read. It fails the test if a run changes meanwhile.
func (w *scene) checks(kind string, after code) *worker.CheckReport {
	w.t.Helper()
	key, err := admin.New(w.c).CreateTenantKey(w.ctx, embedded.DefaultTenant, api.CreateKey{Name: "check",
		Scopes: []string{string(perdure.ScopeRead)}})
	if err != nil {
		w.t.Fatal(err)
	}
	reader := client.New("http://perdure", key.Secret, client.Options{Transport: w.nodes[0].Transport()})
	wk := worker.New(reader, worker.Options{Build: "next"})
	worker.Agent(wk, kind, after)
	before := w.stored(kind)
	report, err := worker.Check(w.ctx, wk, worker.CheckOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	if now := w.stored(kind); now != before {
		w.t.Errorf("the check has changed the runs:\n%s\nwant\n%s", now, before)
	}
	return report
}

// stored returns the runs of a kind with their journals and inboxes, and how often each has changed.
func (w *scene) stored(kind string) string {
	w.t.Helper()
	var all []*api.Replay
	for _, run := range w.runs(client.Filter{Kind: kind}) {
		r, err := w.c.Replay(w.ctx, run.RunID)
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, r)
	}
	return string(client.JSON(all))
}

// foresee checks a run before the build changes. A run that the check would have held has to be held: see
// noFalseAlarm.
func (w *scene) foresee(id perdure.RunID, after code) {
	w.t.Helper()
	report := w.checks("changes", after)
	if w.foreseen == nil {
		w.foreseen = make(map[perdure.RunID]string)
	}
	for _, c := range report.Causes {
		w.foreseen[id] = c.Verdict + " at " + c.Where + ": " + c.Message
	}
}

// noFalseAlarm fails the test if a run was to be held, and has ended without.
func (w *scene) noFalseAlarm(id perdure.RunID) {
	w.t.Helper()
	if why := w.foreseen[id]; why != "" && len(w.lines(id, "run:held")) == 0 {
		w.t.Errorf("run %s goes on, and a check said: %s", id, why)
	}
}

// A check says what would be held before any worker has the new code, where, and why.
func TestCheckFindsEditsBeforeTheRelease(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.children12(&done)
	names := func(words string) code { return steps(&done, strings.Fields(words)...) }
	const good = "a join:one sleep b wait c"
	stop := w.work(func(wk *worker.Worker) { worker.Agent(wk, "changes", names(good)) })
	id := w.start(perdure.Submission{Kind: "changes"})
	w.waits(id, "signal:go on#1")
	stop()
	asks := func(name string) code {
		return func(ctx *agent.Context, in int) (string, error) {
			if _, err := names("a join:one sleep b")(ctx, in); err != nil {
				return "", err
			}
			return agent.Signal[string](ctx, name, time.Hour)
		}
	}
	for _, row := range []struct {
		name    string
		after   code
		verdict string
		says    []string
	}{
		{"the same", names(good), "", nil},
		{"a step after the wait", names(good + " d"), "", nil},
		{"a renamed step", names("a join:one sleep bee wait c"), worker.VerdictHeld, []string{"bee#1", "the step b#1"}},
		{"a step before the wait", names("a join:one sleep b new wait c"), worker.VerdictHeld,
			[]string{"new#1", "the wait signal:go on#1"}},
		{"another kind of child", names("a join:two sleep b wait c"), worker.VerdictHeld, []string{"two#1", "one#1"}},
		{"a removed step", names("join:one sleep b wait c"), worker.VerdictHeld, []string{"the step a#1"}},
		{"a removed wait", names("a join:one sleep b c"), worker.VerdictHeld,
			[]string{"c#1", "the wait signal:go on#1"}},
		{"a return before the wait", names("a join:one sleep b"), worker.VerdictHeld,
			[]string{"the wait signal:go on#1"}},
		{"a signal of another name", asks("went on"), worker.VerdictHeld,
			[]string{"signal:went on#1", "the wait signal:go on#1"}},
		{"the same signal", asks("go on"), "", nil},
		{"a panic", func(*agent.Context, int) (string, error) { panic("not yet written") }, worker.VerdictHeld,
			[]string{"not yet written"}},
		{"a failure", func(*agent.Context, int) (string, error) { return "", errors.New("no") }, worker.VerdictFails,
			[]string{"no"}},
		{"a select of both", func(ctx *agent.Context, in int) (string, error) {
			if _, err := names("a join:one sleep b")(ctx, in); err != nil {
				return "", err
			}
			_, err := agent.Select(ctx, agent.OnSignal[int](ctx, "go on"), agent.After(ctx, time.Hour))
			return "", err
		}, "", nil},
		{"a step in a goroutine", func(ctx *agent.Context, in int) (string, error) {
			ended := make(chan error)
			go func() { //perdurevet:ignore agentgo the misuse is what is found
				_, err := agent.Step(ctx, "aside", func(context.Context) (int, error) { return done.add("aside"), nil })
				ended <- err
			}()
			if err := <-ended; err != nil {
				return "", err
			}
			return names(good)(ctx, in)
		}, worker.VerdictHeld, []string{"agent.Go"}},
		{"a new branch", inBranch(&done, "aside", "aside"), worker.VerdictHeld, []string{"the step a#1"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			report := w.checks("changes", row.after)
			if report.Runs != 1 || report.OK() != (row.verdict == "") {
				t.Fatalf("report = %s, want one run, and the verdict %q", report, row.verdict)
			}
			if row.verdict == "" {
				return
			}
			if c := report.Causes[0]; c.Verdict != row.verdict || c.Count != 1 || c.Runs[0] != id {
				t.Errorf("cause = %+v, want the verdict %s for run %s", c, row.verdict, id)
			}
			contains(t, report.String(), row.says...)
		})
	}
	for what, n := range map[string]int{"a": 1, "b": 1, "one": 1, "c": 0, "new": 0, "aside": 0} {
		if done.of(what) != n {
			t.Errorf("%s was executed %d times, want %d: a check executes nothing", what, done.of(what), n)
		}
	}
	w.work(func(wk *worker.Worker) { worker.Agent(wk, "changes", names(good)) })
	w.signal(id, "go on", nil)
	reached(t, w.end(id), perdure.Completed)
}

// Files that were exported are checked without a server, and many runs with one mistake are one cause.
func TestCheckOfExportedFiles(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	stop := w.work(func(wk *worker.Worker) { worker.Agent(wk, "changes", steps(&done, "a", "wait", "b")) })
	var files []string
	for n := range 5 {
		id := w.start(perdure.Submission{Kind: "changes"})
		w.waits(id, "signal:go on#1")
		r, err := w.c.Replay(w.ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		text, err := perdure.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), fmt.Sprint(n))
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	stop()
	check := func(f code) (*worker.CheckReport, error) {
		wk := worker.New(nil, worker.Options{})
		worker.Agent(wk, "changes", f)
		return worker.Check(t.Context(), wk, worker.CheckOptions{Files: files})
	}
	if report, err := check(steps(&done, "a", "wait", "b")); err != nil || !report.OK() || report.Runs != 5 {
		t.Errorf("report = %v (error %v), want five runs that go on", report, err)
	}
	report, err := check(steps(&done, "other", "wait", "b"))
	if err != nil || report.Held != 5 || len(report.Causes) != 1 || report.Causes[0].Where != "other#1" ||
		len(report.Causes[0].Runs) != 5 {
		t.Errorf("report = %v (error %v), want five runs held for one reason", report, err)
	}
	wk := worker.New(nil, worker.Options{})
	worker.Agent(wk, "another", steps(&done))
	if _, err := worker.Check(t.Context(), wk, worker.CheckOptions{Files: files}); err == nil ||
		!strings.Contains(err.Error(), `this worker has no such agent: it has another`) {
		t.Errorf("check of a worker without the kind: %v, want an error that names it", err)
	}
}
