package agent_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// A time that an agent computes may have passed by then. Whatever it is for is over at once, and every execution has it so,
// also one that computes another time.
func TestATimeThatHasPassedIsOverAtOnce(t *testing.T) {
	t.Parallel()
	w := open(t)
	waits := map[string]func(ctx *agent.Context, d time.Duration) error{
		"a signal": func(ctx *agent.Context, d time.Duration) error {
			_, err := agent.Signal[int](ctx, "word", d)
			if !errors.Is(err, agent.ErrSignalTimeout) {
				return fmt.Errorf("signal: %w", err)
			}
			return nil
		},
		"a callback": func(ctx *agent.Context, d time.Duration) error {
			if _, err := agent.Callback[int](ctx, "answer", d).Join(ctx); !errors.Is(err, agent.ErrTimeout) {
				return fmt.Errorf("callback: %w", err)
			}
			return nil
		},
		"an approval": func(ctx *agent.Context, d time.Duration) error {
			said, err := agent.Approve(ctx, agent.Approval{Action: "push", Timeout: d, Default: perdure.Approve})
			if err != nil || !said.TimedOut || !said.Approved {
				return fmt.Errorf("approval: %+v %w", said, err)
			}
			return nil
		},
		"a race": func(ctx *agent.Context, d time.Duration) error {
			first, err := agent.Race(ctx, d, agent.Spawn[int](ctx, "nobody", 1))
			if !errors.Is(err, agent.ErrTimeout) || first.Index != -1 || len(first.Remaining) != 1 {
				return fmt.Errorf("race: %+v %w", first, err)
			}
			return nil
		},
		"a child": func(ctx *agent.Context, d time.Duration) error {
			if _, err := agent.Spawn[int](ctx, "nobody", 1, agent.Timeout(d)).Join(ctx); !errors.Is(err, agent.ErrTaskTimedOut{}) {
				return fmt.Errorf("child: %w", err)
			}
			return nil
		},
		"a sleep": func(ctx *agent.Context, d time.Duration) error {
			if d > 0 {
				d = -d // what was not slept leaves nothing behind to go by
			}
			return agent.Sleep(ctx, d)
		},
	}
	w.work(func(wk *worker.Worker) {
		for what, wait := range waits {
			for name, d := range map[string]time.Duration{"a nanosecond": -1, "a second": -time.Second, "ages": -1 << 62, "almost": 1000} {
				worker.Agent(wk, what+" "+name, func(ctx *agent.Context, _ int) (string, error) {
					if err := wait(ctx, d); err != nil {
						return "", agent.Permanent(err)
					}
					d = time.Hour // for the next execution, which comes after the sleep
					if err := agent.Sleep(ctx, time.Millisecond); err != nil {
						return "", err
					}
					return "on", nil
				})
			}
		}
	})
	for what := range waits {
		for _, name := range []string{"a nanosecond", "a second", "ages", "almost"} {
			t.Run(what+" "+name, func(t *testing.T) { completed(t, w.ends(what+" "+name, 1), `"on"`) })
		}
	}
}

// What is there already is taken, however late.
func TestWhatIsThereIsTakenAlsoWhenItsTimeHasPassed(t *testing.T) {
	t.Parallel()
	w := open(t)
	id := w.start(perdure.Submission{Kind: "late"})
	w.signal(id, "word", "early")
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "child", func(context.Context, int) (int, error) { return 7, nil })
		worker.Agent(wk, "late", func(ctx *agent.Context, _ struct{}) (string, error) {
			child := agent.Spawn[int](ctx, "child", 1, agent.Options{Delay: -time.Second})
			if _, err := child.Join(ctx); err != nil {
				return "", err
			}
			first, err := agent.Race(ctx, -time.Second, child)
			if err != nil {
				return "", agent.Permanent(err)
			}
			word, err := agent.Signal[string](ctx, "word", -time.Second)
			if err != nil {
				return "", agent.Permanent(err)
			}
			return fmt.Sprint(first.Value, word), nil
		})
	})
	completed(t, w.end(id), `"7early"`)
}
