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

// A timeout that an agent computes may be negative. The wait then times out at once, in every
// execution, even if a later one computes another timeout.
func TestNegativeTimeoutExpiresAtOnce(t *testing.T) {
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
			decision, err := agent.Approve(ctx, agent.Approval{Action: "push", Timeout: d, Default: perdure.Approve})
			if err != nil || !decision.TimedOut || !decision.Approved {
				return fmt.Errorf("approval: %+v %w", decision, err)
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
			if _, err := agent.Spawn[int](ctx, "nobody", 1, agent.Timeout(d)).Join(ctx); !errors.Is(err,
				agent.ErrTaskTimedOut{}) {
				return fmt.Errorf("child: %w", err)
			}
			return nil
		},
		"a sleep": func(ctx *agent.Context, d time.Duration) error {
			if d > 0 {
				d = -d // a sleep that was over at once is not in the journal
			}
			return agent.Sleep(ctx, d)
		},
	}
	w.work(func(wk *worker.Worker) {
		for what, wait := range waits {
			for name, d := range map[string]time.Duration{"a nanosecond": -1, "a second": -time.Second,
				"ages":   -1 << 62,
				"almost": 1000} {
				worker.Agent(wk, what+" "+name, func(ctx *agent.Context, _ int) (string, error) {
					if err := wait(ctx, d); err != nil {
						return "", perdure.Permanent(err)
					}
					d = time.Hour // the next execution, after the sleep, computes this
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

// A negative timeout still takes a signal or a result that is there already.
func TestNegativeTimeoutTakesWhatIsThere(t *testing.T) {
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
				return "", perdure.Permanent(err)
			}
			word, err := agent.Signal[string](ctx, "word", -time.Second)
			if err != nil {
				return "", perdure.Permanent(err)
			}
			return fmt.Sprint(first.Value, word), nil
		})
	})
	completed(t, w.end(id), `"7early"`)
}
