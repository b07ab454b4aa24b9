package agent_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// code is an agent's function.
type code = func(ctx *agent.Context, in int) (string, error)

// changes starts a run with one version of the code, and continues it with another after its first
// wait.
func changes(w *scene, before, after code) perdure.RunID {
	w.t.Helper()
	stop := w.work(func(wk *worker.Worker) { worker.Agent(wk, "changes", before) })
	id := w.start(perdure.Submission{Kind: "changes"})
	w.waits(id, "signal:go on#1")
	stop()
	w.foresee(id, after)
	w.work(func(wk *worker.Worker) { worker.Agent(wk, "changes", after) })
	w.signal(id, "go on", nil)
	return id
}

// wait is the point at which the code is replaced.
func wait(ctx *agent.Context) error {
	_, err := agent.Signal[int](ctx, "go on", time.Hour)
	return err
}

// steps returns an agent that executes steps and joins in order, and waits at "wait". It returns
// their results.
func steps(done *tally, names ...string) code {
	return func(ctx *agent.Context, _ int) (string, error) {
		var out []string
		for _, name := range names {
			var err error
			switch {
			case name == "wait":
				err = wait(ctx)
			case name == "sleep":
				err = agent.Sleep(ctx, time.Millisecond)
			case strings.HasPrefix(name, "join:"):
				var v string
				v, err = agent.Spawn[string](ctx, strings.TrimPrefix(name, "join:"), nil).Join(ctx)
				out = append(out, v)
			default:
				var v string
				v, err = agent.Step(ctx, name, func(context.Context) (string, error) {
					return fmt.Sprint(name, " ", done.add(name)), nil
				})
				out = append(out, v)
			}
			if err != nil {
				return "", err
			}
		}
		return strings.Join(out, ", "), nil
	}
}

// waits waits until a run is suspended on a certain wait.
func (w *scene) waits(id perdure.RunID, wait string) {
	w.t.Helper()
	eventually.True(w.t, "run "+string(id)+" opens the wait "+wait, func() bool {
		page := w.lines(id, perdure.LineWaitOpened)
		n := len(page)
		return n > 0 && strings.Contains(string(page[n-1]), fmt.Sprintf("%q", wait))
	})
	w.suspended(id)
}

// A run that has begun under old code keeps version 0, and a new run gets the new version. Both get
// the same answer in every execution.
func TestVersionIsKeptPerRun(t *testing.T) {
	t.Parallel()
	rows := []struct {
		name string
		// at is where the call of Version is added: before the first step, after it, before or
		// after the wait.
		at       string
		old, new string
	}{
		{"where it has been", "start", "0 0", "1 1"},
		{"where it has been, between steps", "middle", "0 0", "1 1"},
		{"where it was, just before its wait", "wait", "0 0", "1 1"},
		{"where it comes to", "after", "1 1", "1 1"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := open(t)
			var done tally
			at := func(asks bool) code {
				return func(ctx *agent.Context, _ int) (string, error) {
					var versions []string
					ask := func(place string) {
						if asks && row.at == place {
							versions = append(versions, fmt.Sprint(agent.Version(ctx, "change", 1)))
						}
					}
					ask("start")
					if err := done.do(ctx, "a"); err != nil {
						return "", err
					}
					ask("middle")
					if err := done.do(ctx, "b"); err != nil {
						return "", err
					}
					ask("wait")
					if err := wait(ctx); err != nil {
						return "", err
					}
					ask("after")
					if err := agent.Sleep(ctx, time.Millisecond); err != nil { // so that there is another execution
						return "", err
					}
					if asks {
						versions = append(versions, fmt.Sprint(agent.Version(ctx, "change", 2)))
					}
					return strings.Join(versions, " "), nil
				}
			}
			id := changes(w, at(false), at(true))
			completed(t, w.end(id), fmt.Sprintf("%q", row.old))
			next := w.start(perdure.Submission{Kind: "changes"})
			w.signal(next, "go on", nil)
			completed(t, w.end(next), fmt.Sprintf("%q", row.new))
		})
	}
}

// A run that comes to a Version for the first time gets the new one, after any kind of wait.
//
//perdurevet:ignore agenterror the wait times out
func TestNewRunGetsNewVersionAfterAnyWait(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "child", func(context.Context, int) (int, error) { return 1, nil })
		worker.Agent(wk, "new", func(ctx *agent.Context, how string) (int, error) {
			var err error
			switch how {
			case "signal":
				_, err = agent.Signal[int](ctx, "go on", time.Hour)
			case "sleep":
				err = agent.Sleep(ctx, time.Millisecond)
			case "child":
				_, err = agent.Spawn[int](ctx, "child", 1).Join(ctx)
			case "callback":
				f := agent.Callback[int](ctx, "door", 10*time.Millisecond)
				_, _ = f.Join(ctx)
			case "approval":
				_, err = agent.Approve(ctx, agent.Approval{Title: "?", Action: 1, Timeout: time.Millisecond})
			case "message":
				err = agent.Emit(ctx, "x:said", nil)
			}
			if err != nil {
				return 0, err
			}
			return agent.Version(ctx, "change", 1), nil
		})
	})
	for _, how := range []string{"signal", "sleep", "child", "callback", "approval", "message"} {
		t.Run(how, func(t *testing.T) {
			id := w.start(perdure.Submission{Kind: "new", Input: []byte(fmt.Sprintf("%q", how))})
			if how == "signal" {
				w.signal(id, "go on", nil)
			}
			completed(t, w.end(id), "1")
		})
	}
}
