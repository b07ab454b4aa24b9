package worker_test

import (
	"context"
	"errors"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/worker"
)

// Run returns an error if the worker can never get a run.
func TestRunRefusesBadOptionsAndAddress(t *testing.T) {
	virtual(t, func(w *world) {
		elsewhere := client.New(w.URL+"/perdure", w.Key(), client.Options{Transport: w.Wire})
		for want, wk := range map[string]*worker.Worker{
			"address":       worker.New(elsewhere, worker.Options{}),
			"Slots is -3":   worker.New(w.C, worker.Options{Slots: -3}),
			"AgentSlots -1": worker.New(w.C, worker.Options{AgentSlots: -1}),
		} {
			worker.Handle(wk, "job", func(context.Context, int) (int, error) { return 1, nil })
			ctx, cancel := context.WithTimeout(w.Ctx, time.Hour)
			if err := wk.Run(ctx); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Run = %v, want an error with %q", err, want)
			}
			cancel()
		}
	})
}

// A single failed call is not logged. A server that stays away is logged once, and then every
// minute.
func TestAbsentServerIsLoggedEachMinute(t *testing.T) {
	stage.NoStore(t)
	virtual(t, func(w *world) {
		var fail atomic.Int64 // number of polls that fail
		x := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
			if path.Base(r.URL.Path) == "poll" && fail.Add(-1) >= 0 {
				return nil, errors.New("the connection was reset")
			}
			return w.Wire.RoundTrip(r)
		})
		var log diary
		wk := worker.New(w.Via(x), worker.Options{Logger: log.logger()})
		worker.Handle(wk, "job", func(context.Context, int) (int, error) { return 1, nil })
		defer w.Work(wk)()
		fail.Store(1)
		time.Sleep(5 * time.Minute)
		if n := log.says("level="); n != 0 {
			t.Errorf("%d log lines about a single failed call, want none", n)
		}
		fail.Store(1 << 30)
		time.Sleep(10*time.Minute + 30*time.Second)
		first, again := log.says("the server does not answer"), log.says("still does not answer")
		if first != 1 || again < 8 || again > 10 {
			t.Errorf("%d first and %d further log lines in 10 minutes, want 1 and 8 to 10", first, again)
		}
		fail.Store(0)
		time.Sleep(time.Minute)
		if back := log.says("answers again"); back != 1 {
			t.Errorf("%d log lines that the server answers again, want 1", back)
		}
	})
}

func TestDeadlineOfARunIsNotAWarning(t *testing.T) {
	virtual(t, func(w *world) {
		var log diary
		wk := worker.New(w.C, worker.Options{Logger: log.logger()})
		stopped := make(chan error, 1)
		worker.Handle(wk, "hangs", func(ctx context.Context, _ int) (int, error) {
			<-ctx.Done()
			stopped <- context.Cause(ctx)
			return 0, ctx.Err()
		})
		defer w.Work(wk)()
		w.End(w.Start(perdure.Submission{Kind: "hangs", Timeout: perdure.Duration(5 * time.Second)}))
		if err := <-stopped; !errors.Is(err, worker.ErrLeaseLost) {
			t.Errorf("the handler's context ended with %v, want %v", err, worker.ErrLeaseLost)
		}
		if out, warned := log.says("out of its time"), log.says("level=WARN"); out != 1 || warned != 0 {
			t.Errorf("%d lines about the deadline and %d warnings, want 1 and 0: %s", out, warned, log.text.String())
		}
	})
}

// A result that the server refuses fails the run, with a message about the result.
func TestRefusedResultFailsTheRun(t *testing.T) {
	stage.NoStore(t)
	virtual(t, func(w *world) {
		wk := worker.New(w.C, worker.Options{})
		worker.Handle(wk, "job", func(_ context.Context, n int) (string, error) {
			if n == 0 {
				return "a\x00b", nil
			}
			return strings.Repeat("x", n), nil
		})
		defer w.Work(wk)()
		for input, want := range map[string]string{
			"0":        "the server refused the outcome: invalid: the result has an escaped NUL",
			"1048576":  "the server refused the outcome: too_large: the result has 1048578 bytes",
			"41943040": "the server refused the outcome: too_large: th",
		} {
			run := w.End(w.Start(perdure.Submission{Kind: "job", Input: []byte(input)}))
			if run.Error == nil || run.Error.Code != worker.CodeRefused || !strings.HasPrefix(run.Error.Message, want) {
				t.Errorf("input %s: %s, %+v, want %s with %q", input, run.State, run.Error, worker.CodeRefused, want)
			}
		}
	})
}

// A run with a single attempt is executed once, even if the calls of the first worker get lost and the
// server grants the run to another one. A worker does not begin before the server has answered it.
func TestSingleAttemptBeginsWhenTheServerHasHeard(t *testing.T) {
	for _, class := range []perdure.Class{perdure.Task, perdure.Agent} {
		t.Run(string(class), func(t *testing.T) { testSingleAttempt(t, class) })
	}
}

func testSingleAttempt(t *testing.T, class perdure.Class) {
	virtual(t, func(w *world) {
		var called atomic.Int64
		mute := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
			if path.Base(r.URL.Path) == "heartbeat" || path.Base(r.URL.Path) == "commit" {
				return nil, errors.New("the connection was reset")
			}
			return w.Wire.RoundTrip(r)
		})
		job := func(ctx context.Context, _ int) (int, error) {
			called.Add(1)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			return 1, ctx.Err()
		}
		register := func(wk *worker.Worker) {
			if class == perdure.Agent {
				worker.Agent(wk, "job", func(ctx *agent.Context, n int) (int, error) { return job(ctx, n) })
			} else {
				worker.Handle(wk, "job", job)
			}
		}
		first := worker.New(w.Via(mute), worker.Options{ID: "mute"})
		register(first)
		defer w.Work(first)()
		id := w.Start(perdure.Submission{Kind: "job", Input: client.JSON(1), MaxAttempts: 1,
			Timeout: perdure.Duration(time.Hour)})
		time.Sleep(time.Second) // the first worker has it
		second := worker.New(w.C, worker.Options{ID: "heard"})
		register(second)
		defer w.Work(second)()
		if r := w.End(id); r.State != perdure.Completed || r.WorkerID != "heard" {
			t.Errorf("run %s: %s by worker %s, want completed by the worker that is heard", id, r.State, r.WorkerID)
		}
		if n := called.Load(); n != 1 {
			t.Errorf("the handler was called %d times, want once", n)
		}
	})
}
