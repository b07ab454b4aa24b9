package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/worker"
)

type disk struct{ Host string }

type report struct {
	Host string `json:"host"`
	Free int    `json:"free"`
}

type broken struct{}

func (broken) Error() string             { return "out of paper" }
func (broken) FailureCode() perdure.Code { return "paper" }

// Each row is a handler's behaviour and the outcome of its run.
func TestHandlerDecidesTheOutcome(t *testing.T) {
	both(t, func(w *world) {
		wk := worker.New(w.C, worker.Options{ID: "tester"})
		worker.Handle(wk, "ok", func(ctx context.Context, in disk) (report, error) {
			info, ok := worker.Info(ctx)
			known := info.Kind == "ok" && info.WorkerID == "tester" && info.RunID != ""
			if !ok || info.Attempt != 1 || !known || info.Epoch < 1 {
				return report{}, perdure.Permanent(fmt.Errorf("Info = %+v, %v", info, ok))
			}
			return report{in.Host, 42}, nil
		})
		worker.Handle(wk, "fail", func(context.Context, disk) (int, error) {
			return 0, worker.Fail("full", "no space on %s", "sda")
		})
		worker.Handle(wk, "permanent", func(context.Context, disk) (int, error) {
			return 0, fmt.Errorf("checking: %w", perdure.Permanent(errors.New("no such disk")))
		})
		worker.Handle(wk, "coder", func(context.Context, disk) (int, error) { return 0, perdure.Permanent(broken{}) })
		worker.Handle(wk, "panic", func(context.Context, disk) (int, error) { panic("the disk is on fire") })
		worker.Handle(wk, "goexit", func(context.Context, disk) (int, error) { runtime.Goexit(); return 0, nil })
		worker.Handle(wk, "unwritable", func(context.Context, disk) (chan int, error) { return make(chan int), nil })
		worker.Handle(wk, "twice", func(context.Context, disk) (json.RawMessage, error) {
			return json.RawMessage(`{"a":1,"a":2}`), nil
		})
		worker.Handle(wk, "huge", func(context.Context, disk) (string, error) {
			return strings.Repeat("<", perdure.MaxValue), nil
		})
		worker.Handle(wk, "large", func(context.Context, disk) (string, error) {
			return strings.Repeat("<", perdure.MaxValue-2), nil
		})
		worker.Handle(wk, "empty", func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil })
		var tries atomic.Int64
		worker.Handle(wk, "third", func(ctx context.Context, _ disk) (int, error) {
			if n := tries.Add(1); n < 3 {
				return 0, errors.New("not yet")
			}
			info, _ := worker.Info(ctx)
			return info.Attempt, nil
		})
		w.Work(wk)

		rows := []struct {
			kind, input string
			state       perdure.State
			code        perdure.Code
			says        string
			attempt     int
		}{
			{"ok", `{"host":"cube"}`, perdure.Completed, "", `{"host":"cube","free":42}`, 1},
			{"empty", ``, perdure.Completed, "", `{}`, 1},
			{"third", `{}`, perdure.Completed, "", `3`, 3},
			{"fail", `{}`, perdure.Failed, "full", "no space on sda", 3},
			{"permanent", `{}`, perdure.Failed, perdure.CodeFailed, "checking: no such disk", 1},
			{"coder", `{}`, perdure.Failed, "paper", "out of paper", 1},
			{"panic", `{}`, perdure.Failed, worker.CodePanic, "worker_test.go", 3},
			{"goexit", `{}`, perdure.Failed, "goexit", "", 3},
			{"ok", `[]`, perdure.Failed, worker.CodeInput, "worker_test.disk", 1},
			{"unwritable", `{}`, perdure.Failed, worker.CodeResult, "chan int", 1},
			{"twice", `{}`, perdure.Failed, worker.CodeRefused, "twice", 1},
			{"huge", `{}`, perdure.Failed, worker.CodeRefused, "the result has", 1},
			{"large", `{}`, perdure.Completed, "", ``, 1},
		}
		ids := make([]perdure.RunID, len(rows))
		for i, row := range rows {
			ids[i] = w.Start(perdure.Submission{Kind: row.kind, Input: json.RawMessage(row.input)})
		}
		for i, row := range rows {
			run := w.End(ids[i])
			said := string(run.Result)
			code := perdure.Code("")
			if run.Error != nil {
				said, code = run.Error.Message, run.Error.Code
			}
			if run.State != row.state || code != row.code || !strings.Contains(said, row.says) ||
				run.Attempt != row.attempt {
				w.T.Errorf("%s(%s): %s, attempt %d, code %q, %.300s, want %s, attempt %d, code %q, with %q", row.kind,
					row.input,
					run.State, run.Attempt, code, said, row.state, row.attempt, row.code, row.says)
			}
		}
	})
}

func TestDeferredRunIsJoinedLater(t *testing.T) {
	both(t, func(w *world) {
		let := make(chan struct{})
		wk := worker.New(w.C, worker.Options{})
		worker.Handle(wk, "slow", func(context.Context, int) (string, error) { <-let; return "done", nil })
		w.Work(wk)
		run, deferred, err := w.C.Run(w.Ctx, perdure.Submission{Kind: "slow"}, 50*time.Millisecond)
		if err != nil || !deferred || run.Status != perdure.StatusDeferred {
			w.T.Fatalf("Run = %+v, deferred %v, %v, want a deferred run", run, deferred, err)
		}
		close(let)
		if got, err := client.Result[string](w.End(run.RunID)); got != "done" || err != nil {
			w.T.Errorf("Result = %q, %v, want done", got, err)
		}
	})
}

func TestCancelEndsTheHandlersContext(t *testing.T) {
	both(t, func(w *world) {
		running := make(chan struct{}, 3)
		causes := make(chan error, 3)
		wk := worker.New(w.C, worker.Options{})
		wait := func(ctx context.Context) {
			running <- struct{}{}
			<-ctx.Done()
			causes <- context.Cause(ctx)
		}
		worker.Handle(wk, "stops", func(ctx context.Context, _ int) (int, error) { wait(ctx); return 0, ctx.Err() })
		worker.Handle(wk, "finishes", func(ctx context.Context, _ int) (int, error) { wait(ctx); return 7, nil })
		worker.Handle(wk, "panics", func(ctx context.Context, _ int) (int, error) { wait(ctx); panic("at the end") })
		w.Work(wk)
		for kind, state := range map[string]perdure.State{
			"stops": perdure.Cancelled, "finishes": perdure.Completed, "panics": perdure.Failed,
		} {
			id := w.Start(perdure.Submission{Kind: kind})
			<-running
			run, err := w.C.Cancel(w.Ctx, id, "enough", w.Patience)
			if err != nil || run.State != state {
				w.T.Errorf("%s: Cancel = %+v, %v, want the state %s", kind, run, err, state)
			}
			if cause := <-causes; !errors.Is(cause, worker.ErrCancelled) {
				w.T.Errorf("%s: the context ended with %v, want %v", kind, cause, worker.ErrCancelled)
			}
			if run.Cancel == nil || run.Cancel.ToldAt == 0 {
				w.T.Errorf("%s: cancel %+v, want a time of its delivery", kind, run.Cancel)
			}
		}
	})
}

// The worker acknowledges a cancel request, so that the handler gets cleanup_grace instead of
// cancel_grace.
func TestCancelIsAcknowledged(t *testing.T) {
	virtual(t, func(w *world) {
		grace := perdure.DefaultPolicy().CancelGrace
		running := make(chan struct{})
		wk := worker.New(w.C, worker.Options{})
		worker.Handle(wk, "cleans", func(ctx context.Context, _ int) (int, error) {
			close(running)
			<-ctx.Done()
			time.Sleep(2 * grace) // the cleanup takes longer than cancel_grace
			return 0, ctx.Err()
		})
		w.Work(wk)
		id := w.Start(perdure.Submission{Kind: "cleans"})
		<-running
		if _, err := w.C.Cancel(w.Ctx, id, "", 0); err != nil {
			t.Fatal(err)
		}
		run := w.End(id)
		if run.State != perdure.Cancelled || run.Cancel.AckedAt == 0 ||
			run.FinishedAt.Sub(run.Cancel.RequestedAt) < 2*grace {
			t.Errorf("run: %+v, cancel %+v, want cancelled after at least %s", run, run.Cancel, 2*grace)
		}
	})
}

func TestHeartbeatsRenewTheLease(t *testing.T) {
	stage.NoStore(t)
	virtual(t, func(w *world) {
		wk := worker.New(w.C, worker.Options{})
		worker.Handle(wk, "long", func(ctx context.Context, _ int) (int, error) {
			worker.Heartbeat(ctx, "thinking")
			if err := worker.Progress(ctx, map[string]int{"percent": 50}); err != nil {
				return 0, perdure.Permanent(err)
			}
			select {
			case <-time.After(5 * perdure.DefaultPolicy().Lease):
				return 1, nil
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		})
		w.Work(wk)
		run := w.End(w.Start(perdure.Submission{Kind: "long"}))
		if run.State != perdure.Completed || run.Attempt != 1 || run.Activity != "thinking" ||
			string(run.Progress) != `{"percent":50}` {
			w.T.Errorf("run: %+v, want completed in attempt 1, thinking, 50 percent", run)
		}
	})
}

func TestResultIsDeliveredAfterTheServerWasAway(t *testing.T) {
	both(t, func(w *world) {
		x := &servertest.Wire{Next: w.Wire, Only: "/commit", Failed: make(chan struct{}, 1)}
		running, let := make(chan struct{}), make(chan struct{})
		wk := worker.New(w.Via(x), worker.Options{Slots: 2})
		worker.Handle(wk, "job", func(ctx context.Context, _ int) (string, error) {
			close(running)
			<-let
			return "late but here", ctx.Err()
		})
		w.Work(wk)
		id := w.Start(perdure.Submission{Kind: "job"})
		<-running
		x.Cut.Store(true)
		close(let)
		<-x.Failed // two calls have failed
		<-x.Failed
		if run, err := w.C.Get(w.Ctx, id); err != nil || run.State != perdure.Running {
			w.T.Fatalf("run while the server is away: %+v, %v, want it running", run, err)
		}
		x.Cut.Store(false)
		run := w.End(id)
		if run.State != perdure.Completed || run.Attempt != 1 || string(run.Result) != `"late but here"` {
			w.T.Errorf("run: %+v, want completed in attempt 1 with the kept result", run)
		}
	})
}

func TestCommitWithLostAnswersCountsOnce(t *testing.T) {
	both(t, func(w *world) {
		x := &servertest.Wire{Next: w.Wire, Only: "/commit"}
		x.Lose.Store(3)
		wk := worker.New(w.Via(x), worker.Options{})
		var calls atomic.Int64
		worker.Handle(wk, "job", func(ctx context.Context, _ int) (int64, error) {
			for i := range 3 {
				if err := worker.Emit(ctx, "x:step", i); err != nil {
					return 0, err
				}
			}
			return calls.Add(1), nil
		})
		stop := w.Work(wk)
		id := w.Start(perdure.Submission{Kind: "job"})
		w.End(id)
		stop() // waits until the worker has its answer
		got := w.lines(id)
		once := calls.Load() == 1 && got["run:completed"] == 1
		if !once || got["x:step"] != 3 || got["run:late_result"] != 0 || x.Sent.Load() < 4 {
			w.T.Errorf("%d calls, %d commits, lines %v, want 1 call, at least 4 commits, 1 run:completed, 3 x:step",
				calls.Load(), x.Sent.Load(), got)
		}
	})
}

func TestLinesKeepTheirOrder(t *testing.T) {
	t.Parallel()
	w := open(t, false, nil)
	const many = 2500 // more than the limit of a commit
	wk := worker.New(w.C, worker.Options{})
	worker.Handle(wk, "chatty", func(ctx context.Context, _ int) (int, error) {
		if err := worker.Emit(ctx, "run:completed", nil); err == nil {
			return 0, perdure.Permanent(errors.New("a worker wrote the end of a run"))
		}
		if err := worker.Emit(ctx, "x:bad", func() {}); err == nil {
			return 0, perdure.Permanent(errors.New("a function was written as JSON"))
		}
		for i := range many {
			if err := worker.Emit(ctx, "x:n", json.RawMessage(fmt.Sprintf(`{"n":0,"n":%d}`, i))); err != nil {
				return 0, err
			}
		}
		return many, nil
	})
	w.Work(wk)
	id := w.Start(perdure.Submission{Kind: "chatty"})
	n := 0
	for e, err := range w.C.Events(w.Ctx, id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "x:n" {
			if string(e.Data) != fmt.Sprintf(`{"n":%d}`, n) {
				t.Fatalf("line %d has the data %s, want n = %d", e.Seq, e.Data, n)
			}
			n++
		}
	}
	if run := w.End(id); n != many || run.State != perdure.Completed {
		t.Errorf("%d lines of run %+v, want %d and completed", n, run, many)
	}
	if err := worker.Emit(w.Ctx, "x:n", 1); err == nil {
		t.Error("Emit outside a handler: no error, want one")
	}
}

func TestTwoWorkersShareAQueue(t *testing.T) {
	both(t, func(w *world) {
		const each = 3
		var mu sync.Mutex
		by := make(map[string]int)
		all := make(chan struct{})
		handler := func(ctx context.Context, _ int) (string, error) {
			info, _ := worker.Info(ctx)
			mu.Lock()
			by[info.WorkerID]++
			if by["a"]+by["b"] == 2*each {
				close(all)
			}
			mu.Unlock()
			<-all // no run ends before both workers are full
			return info.WorkerID, nil
		}
		for _, id := range []string{"a", "b"} {
			wk := worker.New(w.C, worker.Options{ID: id, Slots: each})
			worker.Handle(wk, "job", handler)
			w.Work(wk)
		}
		var ids []perdure.RunID
		for range 2 * each {
			ids = append(ids, w.Start(perdure.Submission{Kind: "job"}))
		}
		for _, id := range ids {
			if run := w.End(id); run.State != perdure.Completed || run.Attempt != 1 {
				w.T.Errorf("run: %+v, want completed in attempt 1", run)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if by["a"] != each || by["b"] != each {
			w.T.Errorf("runs by worker: %v, want %d each", by, each)
		}
	})
}

func TestDrainFinishesOrReleasesRuns(t *testing.T) {
	both(t, func(w *world) {
		running := make(chan string, 4)
		let := make(chan struct{})
		causes := make(chan error, 1)
		wk := worker.New(w.C, worker.Options{DrainTimeout: 100 * time.Millisecond})
		worker.Handle(wk, "ends", func(context.Context, int) (int, error) { running <- "ends"; <-let; return 1, nil })
		worker.Handle(wk, "listens", func(ctx context.Context, _ int) (int, error) {
			running <- "listens"
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return 0, ctx.Err()
		})
		deaf := make(chan struct{})
		worker.Handle(wk, "deaf", func(context.Context, int) (int, error) { running <- "deaf"; <-deaf; return 1, nil })
		stop := w.Work(wk)
		ends := w.Start(perdure.Submission{Kind: "ends"})
		listens := w.Start(perdure.Submission{Kind: "listens"})
		ignores := w.Start(perdure.Submission{Kind: "deaf"})
		for range 3 {
			<-running
		}
		close(let)
		stop()
		close(deaf)
		if run := w.End(ends); run.State != perdure.Completed {
			w.T.Errorf("run that ends in time: %+v, want completed", run)
		}
		if cause := <-causes; !errors.Is(cause, worker.ErrShutdown) {
			w.T.Errorf("the context ended with %v, want %v", cause, worker.ErrShutdown)
		}
		for _, id := range []perdure.RunID{listens, ignores} {
			run, err := w.C.Get(w.Ctx, id)
			if err != nil || run.State != perdure.Queued || run.Attempt != 1 {
				w.T.Errorf("released run %s: %+v, %v, want queued in attempt 1", id, run, err)
			}
		}
		// The next worker gets them at once, with all their attempts.
		next := worker.New(w.C, worker.Options{})
		for _, kind := range []string{"listens", "deaf"} {
			worker.Handle(next, kind, func(context.Context, int) (int, error) { return 2, nil })
		}
		w.Work(next)
		for _, id := range []perdure.RunID{listens, ignores} {
			if run := w.End(id); run.State != perdure.Completed || run.Attempt != 1 {
				w.T.Errorf("run %s at the next worker: %+v, want completed in attempt 1", id, run)
			}
		}
	})
}

// A worker that was cut off for longer than its lease stops its handler, and the result is kept as
// a late one.
func TestLostLeaseKeepsALateResult(t *testing.T) {
	virtual(t, func(w *world) {
		x := &servertest.Wire{Next: w.Wire, Only: "/commit", Failed: make(chan struct{}, 1)}
		running := make(chan struct{}, 1)
		cause := make(chan error, 1)
		wk := worker.New(w.Via(x), worker.Options{ID: "first", Slots: 1}) // full, so it does not poll
		worker.Handle(wk, "job", func(ctx context.Context, _ int) (string, error) {
			running <- struct{}{}
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return "finished nevertheless", nil
		})
		w.Work(wk)
		id := w.Start(perdure.Submission{Kind: "job"})
		<-running
		// Until its first heartbeat the run would be redelivered, not lost.
		for e, err := range w.C.Events(w.Ctx, id, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Type == "run:heartbeat" {
				break
			}
		}
		x.Cut.Store(true)
		other := worker.New(w.C, worker.Options{ID: "second"})
		worker.Handle(other, "job", func(context.Context, int) (string, error) { return "done by another", nil })
		w.Work(other)
		run := w.End(id)
		if run.State != perdure.Completed || run.Attempt != 2 || string(run.Result) != `"done by another"` {
			t.Errorf("run: %+v, want completed in attempt 2 by the other worker", run)
		}
		x.Cut.Store(false)
		if err := <-cause; !errors.Is(err, worker.ErrLeaseLost) {
			t.Errorf("the context ended with %v, want %v", err, worker.ErrLeaseLost)
		}
		for after := run.LastSeq; ; {
			page, err := w.C.EventPage(w.Ctx, id, after, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(page.Events, func(e api.Event) bool { return e.Type == "run:late_result" }) {
				break
			}
		}
		late, err := w.C.LateResults(w.Ctx, id)
		if err != nil || len(late) != 1 || string(late[0].Result) != `"finished nevertheless"` {
			t.Errorf("late results: %+v, %v, want the one of the first worker", late, err)
		}
	})
}

// A run that is cancelled between two attempts ends without another call of its handler.
func TestCancelBetweenTwoAttempts(t *testing.T) {
	t.Parallel()
	p := steady()
	p.BackoffBase, p.BackoffMax = time.Hour, time.Hour // there is no second attempt during the test
	w := open(t, false, p)
	wk := worker.New(w.C, worker.Options{})
	calls := make(chan struct{}, 9)
	worker.Handle(wk, "job", func(context.Context, int) (int, error) {
		calls <- struct{}{}
		return 0, errors.New("again")
	})
	w.Work(wk)
	id := w.Start(perdure.Submission{Kind: "job"})
	for e, err := range w.C.Events(w.Ctx, id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "run:retrying" {
			break
		}
	}
	run, err := w.C.Cancel(w.Ctx, id, "enough", w.Patience)
	if err != nil || run.State != perdure.Cancelled || len(calls) != 1 {
		t.Errorf("Cancel = %+v, %v, %d calls of the handler, want a cancelled run and 1 call", run, err, len(calls))
	}
}

func TestRunReturnsRefusals(t *testing.T) {
	t.Parallel()
	w := open(t, false, nil)
	noop := func(context.Context, int) (int, error) { return 0, nil }
	wk := worker.New(client.New(w.URL, "prd_wrong", client.Options{Transport: w.Wire}), worker.Options{})
	worker.Handle(wk, "job", noop)
	if err := wk.Run(w.Ctx); client.CodeOf(err) != api.CodeUnauthorized {
		t.Errorf("Run with a wrong key: %v, want %s", err, api.CodeUnauthorized)
	}
	if err := wk.Run(w.Ctx); err == nil {
		t.Error("the second Run: no error, want one")
	}
	wk = worker.New(w.C, worker.Options{Queues: []string{"\n"}})
	worker.Handle(wk, "job", noop)
	if err := wk.Run(w.Ctx); client.CodeOf(err) != perdure.CodeInvalid {
		t.Errorf("Run with a bad queue: %v, want %s", err, perdure.CodeInvalid)
	}
	if err := worker.New(w.C, worker.Options{}).Run(w.Ctx); err == nil {
		t.Error("Run without a handler: no error, want one")
	}
	if err := worker.New(nil, worker.Options{}).Run(w.Ctx); err == nil {
		t.Error("Run without a client: no error, want one")
	}
}

// Mistakes of the registration never panic. Run returns them.
func TestRunReturnsMistakesOfRegistration(t *testing.T) {
	w := open(t, false, nil)
	noop := func(context.Context, int) (int, error) { return 0, nil }
	for name, register := range map[string]func(wk *worker.Worker){
		"twice":               func(wk *worker.Worker) { worker.Handle(wk, "job", noop) },
		"no name":             func(wk *worker.Worker) { worker.Handle(wk, "", noop) },
		"no function":         func(wk *worker.Worker) { worker.Handle[int, int](wk, "none", nil) },
		"no agent":            func(wk *worker.Worker) { worker.Agent[int, int](wk, "none", nil) },
		"a negative timeout":  func(wk *worker.Worker) { worker.Handle(wk, "hasty", noop, worker.Kind{Timeout: -1}) },
		"a nil in middleware": func(wk *worker.Worker) { wk.Use(nil) },
	} {
		wk := worker.New(w.C, worker.Options{})
		worker.Handle(wk, "job", noop)
		register(wk)
		if err := wk.Run(w.Ctx); err == nil || !strings.HasPrefix(err.Error(), "worker: ") {
			t.Errorf("%s: Run = %v, want an error of the worker", name, err)
		}
	}
}

// The test is not parallel, because it counts goroutines.
func TestStoppedWorkerLeavesNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	func() {
		w := open(t, false, nil)
		x := &servertest.Wire{Next: w.Wire, Only: "/commit"}
		wk := worker.New(w.Via(x), worker.Options{DrainTimeout: time.Second})
		worker.Handle(wk, "job", func(ctx context.Context, n int) (int, error) {
			worker.Heartbeat(ctx, "adding")
			return n + 1, worker.Emit(ctx, "x:n", n)
		})
		stop := w.Work(wk)
		var ids []perdure.RunID
		for n := range 100 {
			ids = append(ids, w.Start(perdure.Submission{Kind: "job", Input: client.JSON(n)}))
		}
		for _, id := range ids {
			w.End(id)
		}
		stop()
		w.Close()
	}()
	settled(t, before)
}

// Every call of a worker goes through its client.
func TestWorkerUsesOnlyItsClient(t *testing.T) {
	t.Parallel()
	w := open(t, false, nil)
	paths := make(chan string, 100)
	wk := worker.New(w.Via(servertest.Tripper(func(r *http.Request) (*http.Response, error) {
		select {
		case paths <- r.URL.Path:
		default:
		}
		return w.Wire.RoundTrip(r)
	})), worker.Options{ID: "w"})
	worker.Handle(wk, "job", func(context.Context, int) (int, error) { return 1, nil })
	stop := w.Work(wk)
	w.End(w.Start(perdure.Submission{Kind: "job"}))
	stop()
	close(paths)
	for p := range paths {
		if !strings.HasPrefix(p, "/api/v1/workers/w/") && p != "/api/v1/kinds/job" {
			t.Errorf("the worker called %s, want only paths of /api/v1/workers/w/, and its kind's", p)
		}
	}
}
