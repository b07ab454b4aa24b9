package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// serve has a server and a worker for a test.
func serve(t *testing.T, register func(w *worker.Worker)) *client.Client {
	t.Helper()
	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	w := worker.New(c, worker.Options{Slots: 50, AgentSlots: 10, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	register(w)
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		wg.Wait()
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// end runs an agent to its end.
func end(t *testing.T, c *client.Client, kind string, input any) *api.Run {
	t.Helper()
	run, deferred, err := c.Run(t.Context(), perdure.Submission{Kind: kind, Input: client.JSON(input), Class: perdure.Agent}, 20*time.Second)
	if err != nil || deferred {
		t.Fatalf("%v, deferred: %v, run: %+v", err, deferred, run)
	}
	return run
}

func TestStepsAreExecutedOnce(t *testing.T) {
	var calls sync.Map
	c := serve(t, func(w *worker.Worker) {
		worker.Agent(w, "count", func(ctx *agent.Context, n int) (int, error) {
			sum := 0
			for i := range n {
				v, err := agent.Step(ctx, "add", func(context.Context) (int, error) {
					calls.Store(i, true)
					return i + 1, nil
				})
				if err != nil {
					return 0, err
				}
				sum += v
				if err := agent.Sleep(ctx, time.Millisecond); err != nil {
					return 0, err
				}
			}
			return sum, nil
		})
	})
	run := end(t, c, "count", 5)
	if string(run.Result) != "15" {
		t.Fatalf("%s %s %+v", run.State, run.Result, run.Error)
	}
}

func TestChildrenAreJoined(t *testing.T) {
	c := serve(t, func(w *worker.Worker) {
		worker.Handle(w, "square", func(ctx context.Context, n int) (int, error) {
			if n == 13 {
				return 0, worker.Permanent(errors.New("unlucky"))
			}
			return n * n, nil
		})
		worker.Agent(w, "all", func(ctx *agent.Context, n int) (string, error) {
			var fs []*agent.Future[int]
			for i := range n {
				fs = append(fs, agent.Spawn[int](ctx, "square", i, agent.Timeout(10*time.Second)))
			}
			set, err := agent.JoinAllSettled(ctx, fs...)
			if err != nil {
				return "", err
			}
			first, err := agent.SelectOK(ctx, fs...)
			if err != nil {
				return "", err
			}
			_, err = agent.JoinAll(ctx, fs...)
			var failed agent.ErrTaskFailed
			if !errors.As(err, &failed) || failed.Failure.Code != "failed" {
				return "", fmt.Errorf("JoinAll: %v", err)
			}
			return fmt.Sprintf("%d %d %d %d", set.Completed, set.Failed, set.Results[9], len(first.Remaining)), nil
		})
	})
	run := end(t, c, "all", 20)
	if got := string(run.Result); got[:9] != `"19 1 81 ` {
		t.Fatalf("%s %s %+v", run.State, run.Result, run.Error)
	}
}
