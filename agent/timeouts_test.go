package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// Also known as test_server_side_task_timeout: three tasks have a timeout of a second, and their
// worker takes five. The server ends them, and their parent goes on.
//
//perdurevet:ignore agentclock the test measures how long a wait took
func TestServerEnforcesChildTimeouts(t *testing.T) {
	virtual(t, func(w *scene) {
		var done tally
		stop := w.work(func(wk *worker.Worker) {
			worker.Handle(wk, "slow", func(ctx context.Context, n int) (int, error) {
				done.add("slow")
				time.Sleep(5 * time.Second) // ignores its context
				return n, nil
			})
			worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
				var fs []*agent.Future[int]
				for n := range 3 {
					fs = append(fs, agent.Spawn[int](ctx, "slow", n, agent.Timeout(time.Second)))
				}
				began := agent.Now(ctx, "began")
				set, err := agent.JoinAllSettled(ctx, fs...)
				if err != nil {
					return "", err
				}
				if took := time.Since(began); took < 900*time.Millisecond || took > 2*time.Second {
					return "", perdure.Permanent(fmt.Errorf("it took %s", took))
				}
				for n, err := range set.Errors {
					var late agent.ErrTaskTimedOut
					if !errors.As(err, &late) || late.TaskID != fs[n].ID() {
						return "", perdure.Permanent(fmt.Errorf("child %d: %w", n, err))
					}
					if by := late.Deadline.Time().Sub(began); by < 900*time.Millisecond || by > 1100*time.Millisecond {
						return "", perdure.Permanent(fmt.Errorf("child %d had %s", n, by))
					}
				}
				return fmt.Sprint(set.Completed, set.Failed, set.TimedOut, set.Cancelled), nil
			})
		})
		defer stop()
		completed(w.t, w.ends("boss", nil), `"0 0 3 0"`)
		for _, r := range w.runs(client.Filter{Kind: "slow"}) {
			failed(w.t, &r, perdure.TimedOut, perdure.CodeDeadline, 1)
		}
		if done.of("slow") != 3 {
			t.Errorf("the children were executed %d times, want 3: timeouts are not retried", done.of("slow"))
		}
	})
}

func TestChildTimeoutNamesTheKindThatNobodyServes(t *testing.T) {
	virtual(t, func(w *scene) {
		stop := w.work(func(wk *worker.Worker) {
			worker.Handle(wk, "hangs", func(ctx context.Context, _ int) (int, error) {
				<-ctx.Done()
				return 0, ctx.Err()
			})
			worker.Agent(wk, "boss", func(ctx *agent.Context, kind string) (string, error) {
				_, err := agent.Spawn[int](ctx, kind, 1, agent.Timeout(time.Second)).Join(ctx)
				var late agent.ErrTaskTimedOut
				if !errors.As(err, &late) || late.Kind != kind {
					return "", perdure.Permanent(fmt.Errorf("error of the child: %w", err))
				}
				_, text, _ := strings.Cut(err.Error(), " (")
				kind, _, _ = strings.Cut(text, ")")
				return kind + "; " + late.Why, nil
			})
		})
		defer stop()
		completed(w.t, w.ends("boss", "hangs"), `"hangs; "`)
		completed(w.t, w.ends("boss", "unserved"),
			`"unserved; no worker polls for kind unserved on queue default, and none is known that did"`)
	})
}

func TestReturnedChildTimeoutIsNotRetried(t *testing.T) {
	virtual(t, func(w *scene) {
		stop := w.work(func(wk *worker.Worker) {
			worker.Handle(wk, "hangs", func(ctx context.Context, _ int) (int, error) {
				<-ctx.Done()
				return 0, ctx.Err()
			})
			worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (int, error) {
				return agent.Spawn[int](ctx, "hangs", 1, agent.Timeout(time.Second)).Join(ctx)
			})
		})
		defer stop()
		failed(w.t, w.ends("boss", nil), perdure.Failed, agent.CodeTaskTimedOut, 1)
	})
}

// A child's deadline is not later than its parent's, unless the child may outlive the parent.
func TestChildDeadlineIsBoundedByParent(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (out []perdure.RunID, err error) {
			for _, o := range []agent.Options{{}, {Timeout: time.Hour}, {Timeout: time.Second},
				{Timeout: time.Hour, Outlive: true}, {Timeout: time.Hour, Delay: time.Hour}} {
				out = append(out, agent.Spawn[int](ctx, "nobody", 1, o).ID())
			}
			return out, nil
		})
	})
	id := w.start(perdure.Submission{Kind: "boss", Timeout: perdure.Duration(10 * time.Minute)})
	boss := w.end(id)
	ids, err := client.Result[[]perdure.RunID](boss)
	if err != nil {
		t.Fatal(err)
	}
	for n, id := range ids {
		kid, err := w.c.Get(w.ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		later := kid.DeadlineAt > boss.DeadlineAt
		if later != (n == 3) {
			t.Errorf("child %d: deadline %s, parent's %s; later = %v, want %v", n, kid.DeadlineAt, boss.DeadlineAt,
				later, n == 3)
		}
		if n == 2 && kid.DeadlineAt.Sub(kid.CreatedAt) != time.Second {
			t.Errorf("child %d: timeout = %s, want 1s", n, kid.DeadlineAt.Sub(kid.CreatedAt))
		}
	}
}

// The deadline of a suspended agent ends it, and its children with it.
func TestDeadlineEndsSuspendedAgent(t *testing.T) {
	virtual(t, func(w *scene) {
		stop := w.work(func(wk *worker.Worker) {
			worker.Handle(wk, "hangs", func(ctx context.Context, _ int) (int, error) {
				<-ctx.Done()
				return 0, ctx.Err()
			})
			worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (int, error) {
				return agent.Spawn[int](ctx, "hangs", 1, agent.Timeout(time.Hour)).Join(ctx)
			})
		})
		defer stop()
		failed(w.t, w.end(w.start(perdure.Submission{Kind: "boss", Timeout: perdure.Duration(time.Minute)})),
			perdure.TimedOut, perdure.CodeDeadline, 1)
		w.children("hangs", perdure.TimedOut, 1)
	})
}
