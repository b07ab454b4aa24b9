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

// moments are those at which something happened.
type moments struct{ at []time.Time }

func (m *moments) add() { m.at = append(m.at, time.Now()) }

// seconds returns how many seconds after the first moment each of them was.
func (m *moments) seconds() (out []int) {
	for _, at := range m.at {
		out = append(out, int(at.Sub(m.at[0]).Seconds()))
	}
	return out
}

// A step is tried as often and as fast as its Retry says, and each try has its own time.
func TestStepHasItsOwnTimeAndPatience(t *testing.T) {
	virtual(t, func(w *scene) {
		opts := func(o ...agent.StepOption) []agent.StepOption { return o }
		rows := map[string]struct {
			opts []agent.StepOption
			code perdure.Code // of the function's error; "" waits for the end of its context
			want string       // the seconds at which it was tried, and the code of the step
		}{
			"once":  {nil, "busy", "[0] busy"},
			"retry": {opts(agent.Retry{Attempts: 3}), "busy", "[0 1 3] busy"},
			"pauses": {opts(agent.Retry{Attempts: 5, First: 2 * time.Second, Max: 5 * time.Second}), "busy",
				"[0 2 6 11 16] busy"},
			"except":  {opts(agent.Retry{Attempts: 5, Except: []perdure.Code{"gone", "busy"}}), "busy", "[0] busy"},
			"another": {opts(agent.Retry{Attempts: 2, Except: []perdure.Code{"gone"}}), "busy", "[0 1] busy"},
			"merged": {opts(agent.Retry{Attempts: 9}, agent.Retry{Attempts: 2}, agent.Retry{First: 7 * time.Second}),
				"busy", "[0 7] busy"},
			"a time":   {opts(agent.Timeout(30 * time.Second)), "", "[0] step_timeout"},
			"and both": {opts(agent.Timeout(30*time.Second), agent.Retry{Attempts: 2}), "", "[0 31] step_timeout"},
			"in time":  {opts(agent.Timeout(30 * time.Second)), "busy", "[0] busy"},
			"the rest": {opts(agent.Timeout(-time.Second)), "", "[0] step_timeout"},
		}
		stop := w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "tries", func(ctx *agent.Context, how string) (string, error) {
				var tried moments
				_, err := agent.Step(ctx, "call", func(ctx context.Context) (int, error) {
					tried.add()
					if rows[how].code == "" {
						<-ctx.Done()
						return 0, ctx.Err()
					}
					return 0, worker.Fail(rows[how].code, "not now")
				}, rows[how].opts...)
				failed := &perdure.Error{}
				_ = errors.As(err, &failed)
				return agent.Step(ctx, "told", func(context.Context) (string, error) {
					return fmt.Sprint(tried.seconds(), " ", failed.Code), nil
				})
			})
		})
		defer stop()
		for how, row := range rows {
			id := w.start(perdure.Submission{Kind: "tries", Input: client.JSON(how)})
			run := w.end(id)
			completed(w.t, run, fmt.Sprintf("%q", row.want))
			if got, want := len(w.lines(id, "x:step_retried")), len(strings.Fields(row.want))-2; got != want {
				w.t.Errorf("%s: %d lines about tries, want %d", how, got, want)
			}
		}
	})
}

// A function that returns a result after its time has succeeded, and a try that has time left after
// one that had not succeeds.
func TestTimeOfATry(t *testing.T) {
	virtual(t, func(w *scene) {
		var calls tally
		stop := w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "late", func(ctx *agent.Context, _ struct{}) ([]string, error) {
				late, err := agent.Step(ctx, "late", func(ctx context.Context) (string, error) {
					<-ctx.Done()
					return "late", nil
				}, agent.Timeout(time.Second))
				if err != nil {
					return nil, err
				}
				got, err := agent.Parallel(ctx, "each", numbers(2), func(ctx context.Context, n int) (string, error) {
					if calls.add(fmt.Sprint(n)) < 2 {
						<-ctx.Done()
						return "", ctx.Err()
					}
					return fmt.Sprint("second try of ", n), nil
				}, agent.MapOptions{Step: agent.StepOptions{Timeout: time.Second, Retry: agent.Retry{Attempts: 2}}})
				return append(got.Results, late), err
			})
		})
		defer stop()
		completed(w.t, w.ends("late", nil), `["second try of 0","second try of 1","late"]`)
	})
}
