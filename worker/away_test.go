package worker_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/worker"
)

// While the server is away, handlers continue and finished results wait. No attempt is lost.
func TestHourWithoutServerCostsNoAttempt(t *testing.T) {
	stage.NoStore(t)
	virtual(t, func(w *world) {
		wk := worker.New(w.C, worker.Options{})
		for kind, takes := range map[string]time.Duration{"short": time.Minute, "long": 70 * time.Minute} {
			worker.Handle(wk, kind, func(ctx context.Context, _ int) (string, error) {
				select {
				case <-time.After(takes):
					return kind, nil
				case <-ctx.Done():
					return "", context.Cause(ctx)
				}
			})
		}
		w.Work(wk)
		short := w.Start(perdure.Submission{Kind: "short", Class: perdure.Agent,
			Timeout: perdure.Duration(3 * time.Hour)})
		long := w.Start(perdure.Submission{Kind: "long", Class: perdure.Agent,
			Timeout: perdure.Duration(3 * time.Hour)})
		time.Sleep(5 * time.Second)
		w.Close()
		time.Sleep(time.Hour)
		w.Reopen()
		for _, id := range []perdure.RunID{short, long} {
			if run := w.End(id); run.State != perdure.Completed || run.Attempt != 1 {
				t.Errorf("run of %s: %s, attempt %d, want completed in attempt 1", run.Kind, run.State, run.Attempt)
			}
		}
	})
}

// A stuck wire blocks the calls of one name until let is set.
type stuck struct {
	next http.RoundTripper
	name string
	let  atomic.Bool
}

func (s *stuck) RoundTrip(r *http.Request) (*http.Response, error) {
	if path.Base(r.URL.Path) == s.name && !s.let.Load() {
		<-r.Context().Done()
		return nil, context.Cause(r.Context())
	}
	return s.next.RoundTrip(r)
}

func TestHangingHeartbeatsDelayNoResult(t *testing.T) {
	virtual(t, func(w *world) {
		wk := worker.New(w.Via(&stuck{next: w.Wire, name: "heartbeat"}), worker.Options{})
		worker.Handle(wk, "job", func(ctx context.Context, _ int) (int, error) {
			time.Sleep(3 * time.Second) // a heartbeat hangs by now
			return 1, worker.Emit(ctx, "x:note", 1)
		})
		w.Work(wk)
		began := time.Now()
		run := w.End(w.Start(perdure.Submission{Kind: "job"}))
		if took := time.Since(began); run.State != perdure.Completed || run.Attempt != 1 || took > 4*time.Second {
			t.Errorf("%s, attempt %d, after %s, want completed in attempt 1 within 4s", run.State, run.Attempt, took)
		}
	})
}

func TestHangingCommitsCostNoLease(t *testing.T) {
	virtual(t, func(w *world) {
		x := &stuck{next: w.Wire, name: "commit"}
		wk := worker.New(w.Via(x), worker.Options{})
		var calls atomic.Int64
		worker.Handle(wk, "job", func(ctx context.Context, seconds int) (int, error) {
			calls.Add(1)
			time.Sleep(time.Duration(seconds) * time.Second)
			return 1, nil
		})
		w.Work(wk)
		done := w.Start(perdure.Submission{Kind: "job", Input: []byte("1")})
		busy := w.Start(perdure.Submission{Kind: "job", Input: []byte("300")})
		time.Sleep(4 * time.Minute)
		x.let.Store(true)
		for _, id := range []perdure.RunID{done, busy} {
			if run := w.End(id); run.State != perdure.Completed || run.Attempt != 1 {
				t.Errorf("run %s: %s, attempt %d, want completed in attempt 1", id, run.State, run.Attempt)
			}
		}
		if calls.Load() != 2 {
			t.Errorf("%d calls of the handler, want 2", calls.Load())
		}
	})
}

// A worker that is cut off stops a kind in SelfFence before another worker can get its run.
func TestSelfFenceStopsBeforeTheLeaseExpires(t *testing.T) {
	stage.NoStore(t)
	virtual(t, func(w *world) {
		x := &servertest.Wire{Next: w.Wire}
		wk := worker.New(w.Via(x), worker.Options{ID: "cut off", Slots: 2, SelfFence: []string{"careful"}})
		stopped := make(map[string]chan time.Time)
		for _, kind := range []string{"careful", "plain"} {
			stop := make(chan time.Time, 1)
			stopped[kind] = stop
			worker.Handle(wk, kind, func(ctx context.Context, _ int) (int, error) {
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), worker.ErrLeaseLost) {
					return 0, perdure.Permanent(context.Cause(ctx))
				}
				stop <- time.Now()
				return 0, ctx.Err()
			})
		}
		w.Work(wk)
		careful := w.Start(perdure.Submission{Kind: "careful", Class: perdure.Agent,
			Timeout: perdure.Duration(3 * time.Hour)})
		w.Start(perdure.Submission{Kind: "plain", Class: perdure.Agent, Timeout: perdure.Duration(3 * time.Hour)})
		time.Sleep(10 * time.Minute) // while the server answers, the handler continues
		if len(stopped["careful"]) != 0 {
			t.Fatal("the fenced handler stopped although the server answers")
		}
		x.Cut.Store(true)
		taken := make(chan time.Time, 1)
		next := worker.New(w.C, worker.Options{ID: "second"})
		worker.Handle(next, "careful", func(context.Context, int) (int, error) { taken <- time.Now(); return 2, nil })
		w.Work(next)
		if run := w.End(careful); run.State != perdure.Completed || run.Attempt != 2 {
			t.Errorf("run %s: %s, attempt %d, want completed in attempt 2", careful, run.State, run.Attempt)
		}
		synctest.Wait()
		if len(stopped["careful"]) == 0 {
			t.Fatal("the fenced handler continues although another worker has its run")
		}
		if first, second := <-stopped["careful"], <-taken; !first.Before(second) {
			t.Errorf("the fenced handler stopped at %s, the second worker began at %s, want it after", first, second)
		}
		if len(stopped["plain"]) != 0 {
			t.Error("a handler without a fence stopped, want it to continue")
		}
		x.Cut.Store(false)
		<-stopped["plain"] // it learns of the lost lease from the server
	})
}

func TestSelfFenceOfUnknownKindIsAnError(t *testing.T) {
	t.Parallel()
	w := open(t, false, nil)
	wk := worker.New(w.C, worker.Options{SelfFence: []string{"jobb"}})
	worker.Handle(wk, "job", func(context.Context, int) (int, error) { return 0, nil })
	if err := wk.Run(w.Ctx); err == nil {
		t.Error("Run with SelfFence of a kind without a handler: no error, want one")
	}
}

// A cancel request reaches a handler at once, even if the worker has no free slot and does not
// poll.
func TestCancelReachesTheHandlerAtOnce(t *testing.T) {
	stage.NoStore(t)
	virtual(t, func(w *world) {
		heard := make(chan time.Time, 1)
		wk := worker.New(w.C, worker.Options{Slots: 1})
		worker.Handle(wk, "job", func(ctx context.Context, _ int) (int, error) {
			<-ctx.Done()
			heard <- time.Now()
			return 0, context.Cause(ctx)
		})
		w.Work(wk)
		for _, after := range []time.Duration{
			2500 * time.Millisecond, 7 * time.Second, 5 * time.Minute, 31 * time.Second, 32 * time.Second,
			5*time.Minute + 3*time.Second,
		} {
			id := w.Start(perdure.Submission{Kind: "job"})
			time.Sleep(after)
			asked := time.Now()
			run, err := w.C.Cancel(w.Ctx, id, "enough", time.Minute)
			if err != nil || run.State != perdure.Cancelled {
				t.Fatalf("Cancel after %s of work = %+v, %v, want a cancelled run", after, run, err)
			}
			if took := (<-heard).Sub(asked); took > time.Second {
				t.Errorf("the cancel after %s of work took %s, want at most 1s", after, took)
			}
		}
	})
}

// A cancel request that arrives while no news call waits is found by the next one.
func TestCancelBetweenTwoNewsCallsIsFoundAtOnce(t *testing.T) {
	virtual(t, func(w *world) {
		between := make(chan func(), 1)
		x := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			if path.Base(r.URL.Path) == "poll" && bytes.Contains(b, []byte(`"news"`)) {
				select {
				case f := <-between:
					f()
				default:
				}
			}
			r = r.Clone(r.Context())
			r.Body = io.NopCloser(bytes.NewReader(b))
			return w.Wire.RoundTrip(r)
		})
		heard := make(chan time.Time, 1)
		wk := worker.New(w.Via(x), worker.Options{Slots: 1})
		worker.Handle(wk, "job", func(ctx context.Context, _ int) (int, error) {
			<-ctx.Done()
			heard <- time.Now()
			return 0, context.Cause(ctx)
		})
		w.Work(wk)
		// The cancel comes before the first news call, and before a later one.
		for _, after := range []time.Duration{time.Millisecond, time.Minute} {
			id := w.Start(perdure.Submission{Kind: "job"})
			time.Sleep(after)
			asked := make(chan time.Time, 1)
			between <- func() {
				asked <- time.Now()
				if _, err := w.C.Cancel(w.Ctx, id, "enough", 0); err != nil {
					t.Errorf("Cancel: %v", err)
				}
			}
			if run := w.End(id); run.State != perdure.Cancelled {
				t.Errorf("run %s: %s, want cancelled", id, run.State)
			}
			if took := (<-heard).Sub(<-asked); took > time.Second {
				t.Errorf("the cancel after %s of work took %s, want at most 1s", after, took)
			}
		}
	})
}

// A server without the news call gets it once. Cancel requests then come with the heartbeats.
func TestOlderServerWithoutNewsCall(t *testing.T) {
	stage.NoStore(t)
	virtual(t, func(w *world) {
		var asked atomic.Int64
		old := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			if path.Base(r.URL.Path) == "poll" && bytes.Contains(b, []byte(`"news"`)) {
				asked.Add(1)
				b = bytes.Replace(b, []byte(`"news"`), []byte(`"unheard_of"`), 1)
			}
			r = r.Clone(r.Context())
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
			return w.Wire.RoundTrip(r)
		})
		wk := worker.New(w.Via(old), worker.Options{})
		worker.Handle(wk, "job", func(ctx context.Context, _ int) (int, error) {
			<-ctx.Done()
			return 0, context.Cause(ctx)
		})
		w.Work(wk)
		id := w.Start(perdure.Submission{Kind: "job"})
		time.Sleep(5 * time.Minute)
		run, err := w.C.Cancel(w.Ctx, id, "enough", time.Minute)
		if err != nil || run.State != perdure.Cancelled || asked.Load() != 1 {
			t.Errorf("Cancel = %+v, %v, with %d news calls, want a cancelled run and 1 call", run, err, asked.Load())
		}
	})
}
