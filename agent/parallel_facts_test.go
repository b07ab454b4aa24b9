package agent_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// Errors that the agent goes past after a Parallel are facts: a replay gets them again.
func TestErrorsOfParallelAreFacts(t *testing.T) {
	t.Parallel()
	w := open(t)
	var calls tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "boss", func(ctx *agent.Context, settle bool) (string, error) {
			got, failed := agent.Parallel(ctx, "call", numbers(4), func(ctx context.Context, n int) (int, error) {
				if calls.add(fmt.Sprint(settle, n)) == 1 && n == 2 {
					return 0, errors.New("the first time")
				}
				return n, nil
			}, agent.MapOptions{Limit: 1, Settle: settle})
			if err := agent.Sleep(ctx, time.Millisecond); err != nil {
				return "", err
			}
			if settle {
				failed = got.Errors[2]
			}
			return fmt.Sprint(failed), nil
		})
	})
	for _, settle := range []bool{true, false} {
		completed(t, w.ends("boss", settle), `"the first time"`)
		if n := calls.of(fmt.Sprint(settle, 2)); n != 1 {
			t.Errorf("settle %t: the call that failed was made %d times, want once", settle, n)
		}
	}
}
