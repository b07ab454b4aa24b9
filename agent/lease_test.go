package agent_test

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// A wire is a transport that can be cut.
type wire struct {
	next http.RoundTripper
	cut  atomic.Bool
	lost atomic.Int64 // calls while it was cut
}

func (x *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if x.cut.Load() {
		x.lost.Add(1)
		return nil, errors.New("the connection was refused")
	}
	return x.next.RoundTrip(r)
}

// trip registers a saga of two steps. Each worker has its own function for the second.
func trip(done *tally, who string, second func(ctx context.Context) (string, error)) func(wk *worker.Worker) {
	return func(wk *worker.Worker) {
		worker.Agent(wk, "trip", func(ctx *agent.Context, _ struct{}) (out string, err error) {
			err = agent.Saga(ctx, "trip", func() error {
				if err := done.book(ctx, "flight"); err != nil {
					return err
				}
				out, err = agent.Step(ctx, "hotel", func(ctx context.Context) (string, error) {
					done.add(who + " hotel")
					return second(ctx)
				}, agent.Undo(func(context.Context, string) error { done.add("unhotel"); return nil }))
				return err
			})
			return out, err
		})
	}
}

// The server gives the run to another worker in the middle of a step. The first worker's result is
// then not recorded, and it undoes nothing.
func TestLostLeaseStopsExecution(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"succeeds", "fails", "fails for good"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			virtual(t, func(w *scene) {
				var done tally
				x := &wire{next: w.nodes[0].Transport()}
				begun, over, left := make(chan struct{}), make(chan struct{}), make(chan error, 1)
				stop := w.workAt(x, worker.Options{AgentSlots: 1},
					trip(&done, "the first's", func(ctx context.Context) (string, error) {
						close(begun)
						<-ctx.Done() // it learns of the loss when the connection is restored
						left <- context.Cause(ctx)
						<-over
						switch how {
						case "succeeds":
							return "the first's", nil
						case "fails":
							return "", errors.New("no")
						}
						return "", perdure.Permanent(errors.New("no"))
					}))
				defer stop()
				id := w.start(perdure.Submission{Kind: "trip"})
				next(w, begun)
				x.cut.Store(true)
				stopSecond := w.work(trip(&done, "the second's", func(context.Context) (string, error) {
					return "the second's", nil
				}))
				defer stopSecond()
				completed(w.t, w.end(id), `"the second's"`)
				x.cut.Store(false)
				if cause := next(w, left); !errors.Is(cause, worker.ErrLeaseLost) {
					w.t.Errorf("cause of the end of the step's context = %v, want ErrLeaseLost", cause)
				}
				close(over)
				time.Sleep(time.Minute) // time for anything that it still sends
				completed(w.t, w.end(id), `"the second's"`)
				done.expect(w.t, "flight", "the first's hotel", "the second's hotel")
			})
		})
	}
}

// A worker that shuts down in the middle of a step releases the run, and another worker continues
// it.
func TestWorkerShutdownReleasesAgents(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	begun := make(chan struct{})
	stop := w.workAt(w.nodes[0].Transport(), worker.Options{DrainTimeout: -1},
		trip(&done, "the first's", func(ctx context.Context) (string, error) {
			close(begun)
			<-ctx.Done()
			return "", ctx.Err()
		}))
	id := w.start(perdure.Submission{Kind: "trip"})
	next(w, begun)
	stop()
	w.work(trip(&done, "the second's", func(context.Context) (string, error) { return "the second's", nil }))
	run := w.end(id)
	completed(t, run, `"the second's"`)
	if run.Attempt != 1 {
		t.Errorf("run %s: attempt = %d, want 1", run.RunID, run.Attempt)
	}
	done.expect(t, "flight", "the first's hotel", "the second's hotel")
}

// The server is unreachable in the middle of a step. The step goes on, and its result is committed
// when the server is back.
func TestStepContinuesWhileServerIsAway(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	x := &wire{next: w.nodes[0].Transport()}
	begun, goOn := make(chan struct{}), make(chan struct{})
	w.workAt(x, worker.Options{HeartbeatEvery: 300 * time.Millisecond},
		trip(&done, "the", func(ctx context.Context) (string, error) {
			close(begun)
			<-goOn
			return "done", ctx.Err()
		}))
	id := w.start(perdure.Submission{Kind: "trip"})
	next(w, begun)
	x.cut.Store(true)
	close(goOn)
	eventually.True(t, "the commit and some heartbeats have failed", func() bool { return x.lost.Load() >= 5 })
	x.cut.Store(false)
	run := w.end(id)
	completed(t, run, `"done"`)
	if run.Attempt != 1 {
		t.Errorf("run %s: attempt = %d, want 1", run.RunID, run.Attempt)
	}
	done.expect(t, "flight", "the hotel")
}
