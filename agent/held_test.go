package agent_test

import (
	"context"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// held waits until a run is on hold with a code.
func (w *scene) held(id perdure.RunID, code perdure.Code) *api.Run {
	w.t.Helper()
	var r *api.Run
	eventually.True(w.t, "the run is on hold", func() bool {
		var err error
		if r, err = w.c.Get(w.ctx, id); err != nil {
			w.t.Fatalf("get run %s: %v", id, err)
		}
		return r.Hold != nil
	})
	if r.Hold.Code != code || r.Attempt != 1 {
		w.t.Errorf("run %s: hold %+v at attempt %d, want the code %s at attempt 1", id, r.Hold, r.Attempt, code)
	}
	return r
}

// giveUp ends a run that is on hold.
func (w *scene) giveUp(id perdure.RunID) {
	w.t.Helper()
	if _, err := admin.New(w.c).DeadLetterRun(w.ctx, id); err != nil {
		w.t.Fatalf("give up run %s: %v", id, err)
	}
}

// A release with a defect holds its runs. The next release continues them where they stood, at once
// and without a spent attempt.
func TestFixedBuildContinuesAHeldRun(t *testing.T) {
	t.Parallel()
	p := steady()
	p.BackoffBase, p.BackoffMax = time.Hour, time.Hour // the bad build does not try again within the test
	w := openUnder(t, p, 1)
	var done tally
	release := func(build string, broken bool) (stop func()) {
		return w.workAt(w.nodes[0].Transport(), worker.Options{Build: build}, func(wk *worker.Worker) {
			worker.Agent(wk, "charge", func(ctx *agent.Context, _ struct{}) (string, error) {
				_, err := agent.Step(ctx, "charge", func(context.Context) (int, error) {
					done.add("charge")
					return 1, nil
				})
				if err != nil {
					return "", err
				}
				if err := agent.Sleep(ctx, time.Millisecond); err != nil {
					return "", err
				}
				if broken {
					panic("a defect of the release")
				}
				return build, nil
			})
		})
	}
	stop := release("v1", true)
	id := w.start(perdure.Submission{Kind: "charge", Class: perdure.Agent})
	r := w.held(id, worker.CodePanic)
	if len(r.Hold.Builds) != 1 || r.Hold.Builds[0] != "v1" || r.Hold.NextAt == nil || r.State != perdure.Queued {
		t.Errorf("run %s: state %s, hold %+v, want it queued and held by v1", id, r.State, r.Hold)
	}
	stop()
	release("v2", false)
	r = w.end(id)
	completed(t, r, `"v2"`)
	if r.Attempt != 1 || done.of("charge") != 1 {
		t.Errorf("run %s: attempt %d, charged %d times, want 1 and once", id, r.Attempt, done.of("charge"))
	}
}

// Without a build of their own, workers of one program have the same build, and it is not empty.
func TestBuildIsAHashOfTheProgram(t *testing.T) {
	t.Parallel()
	p := steady()
	p.BackoffBase, p.BackoffMax = time.Hour, time.Hour
	w := openUnder(t, p, 1)
	var calls tally
	register := func(wk *worker.Worker) {
		worker.Agent(wk, "panics", func(*agent.Context, struct{}) (string, error) {
			calls.add("call")
			panic("no")
		})
	}
	w.work(register)
	w.work(register)
	id := w.start(perdure.Submission{Kind: "panics"})
	r := w.held(id, worker.CodePanic)
	if len(r.Hold.Builds) != 1 || len(r.Hold.Builds[0]) != 16 {
		t.Errorf("builds = %q, want one hash of 16 digits", r.Hold.Builds)
	}
	if calls.of("call") != 1 {
		t.Errorf("the agent was called %d times, want once: the other worker has the same build", calls.of("call"))
	}
	w.giveUp(id)
}
