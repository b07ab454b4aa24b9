package agent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// gates block children until the test opens them.
type gates struct {
	mu sync.Mutex
	m  map[int]chan struct{}
}

// at returns the channel of a gate.
func (g *gates) at(n int) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.m == nil {
		g.m = map[int]chan struct{}{}
	}
	if g.m[n] == nil {
		g.m[n] = make(chan struct{})
	}
	return g.m[n]
}

func (g *gates) open(n int) { close(g.at(n)) }

// register registers a kind whose runs wait for their gate and return its number.
func (g *gates) register(wk *worker.Worker) {
	worker.Handle(wk, "gated", func(ctx context.Context, n int) (int, error) {
		select {
		case <-g.at(n):
			return n, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	})
}

// gated spawns a child for each gate.
func gated(ctx *agent.Context, ns ...int) (out []*agent.Future[int]) {
	for _, n := range ns {
		out = append(out, agent.Spawn[int](ctx, "gated", n))
	}
	return out
}

// children waits until a number of runs of a kind are in a state.
func (w *scene) children(kind string, state perdure.State, n int) {
	w.t.Helper()
	eventually.True(w.t, fmt.Sprintf("%d %s %s", n, state, kind), func() bool {
		return len(w.runs(client.Filter{Kind: kind, State: state})) == n
	})
}

// Also known as test_agent_join_all_settled_partial_completion: all complete in time.
func TestJoinAllSettledReturnsAllResults(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "double", func(_ context.Context, n int) (int, error) { return 2 * n, nil })
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (agent.Settled[int], error) {
			var fs []*agent.Future[int]
			for n := range 3 {
				fs = append(fs, agent.Spawn[int](ctx, "double", n+1, agent.Timeout(time.Minute)))
			}
			set, err := agent.JoinAllSettled(ctx, fs...)
			if errors.Join(set.Errors...) != nil {
				return set, errors.Join(set.Errors...)
			}
			set.Errors = nil
			return set, err
		})
	})
	completed(t, w.ends("boss", nil),
		`{"Results":[2,4,6],"Errors":null,"Completed":3,"Failed":0,"TimedOut":0,"Cancelled":0}`)
}

// Also known as test_agent_select_ok_skips_failures. It also checks Remaining.
func TestSelectOKSkipsFailures(t *testing.T) {
	t.Parallel()
	w := open(t)
	var g gates
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Handle(wk, "fails", func(context.Context, int) (int, error) {
			return 0, perdure.Permanent(errors.New("no"))
		})
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
			fs := []*agent.Future[int]{agent.Spawn[int](ctx, "fails", 1), agent.Spawn[int](ctx, "fails", 2)}
			fs = append(fs, gated(ctx, 3, 4)...)
			got, err := agent.SelectOK(ctx, fs...)
			if err != nil {
				return "", err
			}
			if len(got.Remaining) != 1 || got.Remaining[0] != fs[3] {
				return "", perdure.Permanent(fmt.Errorf("remaining: %v", got.Remaining))
			}
			// The remaining child goes on and is joined later.
			last, err := got.Remaining[0].Join(ctx)
			return fmt.Sprint(got.Index, got.Value, len(got.Remaining), last), err
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	w.children("fails", perdure.Failed, 2)
	g.open(3)
	w.children("gated", perdure.Completed, 1)
	g.open(4)
	completed(t, w.end(id), `"2 3 1 4"`)
}

func TestSelectOKReturnsErrorsOfAllFailures(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "fails", func(_ context.Context, n int) (int, error) {
			return 0, perdure.Permanent(worker.Fail(perdure.Code(fmt.Sprintf("no_%d", n)), "no"))
		})
		worker.Agent(wk, "boss", func(ctx *agent.Context, handle bool) (string, error) {
			got, err := agent.SelectOK(ctx, agent.Spawn[int](ctx, "fails", 1), agent.Spawn[int](ctx, "fails", 2))
			if !handle {
				return "", err
			}
			var all agent.ErrAllTasksFailed
			var one agent.ErrTaskFailed
			if !errors.As(err, &all) || len(all.Errors) != 2 || !errors.Is(err, agent.ErrAllTasksFailed{}) ||
				got.Index != -1 ||
				!errors.As(all.Errors[1], &one) || one.Failure.Code != "no_2" || one.State != perdure.Failed ||
				one.Kind != "fails" || !errors.Is(err, &perdure.Error{Code: "no_1"}) {
				return "", perdure.Permanent(fmt.Errorf("%#v %w", got, err))
			}
			return "handled", nil
		})
	})
	completed(t, w.ends("boss", true), `"handled"`)
	failed(t, w.ends("boss", false), perdure.Failed, agent.CodeAllTasksFailed, 1)
}

// The child ends while its parent is about to suspend: just before, at the same time, just after.
//
//perdurevet:ignore agentclock a pause of another length each time, by which nothing is decided
func TestChildEndsWhileParentSuspends(t *testing.T) {
	t.Parallel()
	p := steady()
	p.PatrolEvery, p.PendingWakeup = time.Hour, time.Hour // no watchdog rule repairs a missed wake-up
	w := openUnder(t, p, 2)
	w.workEverywhere(func(wk *worker.Worker) {
		worker.Handle(wk, "quick", func(_ context.Context, n int) (int, error) { return n, nil })
		worker.Agent(wk, "boss", func(ctx *agent.Context, n int) (int, error) {
			sum := 0
			for i := range n {
				f := agent.Spawn[int](ctx, "quick", 1)
				if i%4 > 0 { // otherwise the commit that suspends also spawns
					f.ID()
					time.Sleep(time.Duration(i%4-1) * rand.N(3*time.Millisecond))
				}
				v, err := f.Join(ctx)
				if err != nil {
					return 0, err
				}
				sum += v
			}
			return sum, nil
		})
	})
	var ids []perdure.RunID
	for range 20 {
		ids = append(ids, w.start(perdure.Submission{Kind: "boss", Input: client.JSON(12)}))
	}
	for _, id := range ids {
		completed(t, w.end(id), "12")
	}
}

func TestAHundredChildrenEndInThreeWays(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "ok", func(_ context.Context, n int) (int, error) { return n, nil })
		worker.Handle(wk, "fails", func(_ context.Context, n int) (int, error) {
			done.add("fails")
			return 0, worker.Fail("bad", "number %d", n)
		})
		worker.Handle(wk, "hangs", func(ctx context.Context, n int) (int, error) {
			done.add(fmt.Sprint("hangs ", n))
			<-ctx.Done()
			return 0, ctx.Err()
		})
		worker.Agent(wk, "boss", func(ctx *agent.Context, n int) (string, error) {
			var fs []*agent.Future[int]
			for i := range n {
				switch i % 3 {
				case 0:
					fs = append(fs, agent.Spawn[int](ctx, "fails", i))
				case 1:
					fs = append(fs, agent.Spawn[int](ctx, "hangs", i, agent.Timeout(2*time.Second)))
				default:
					fs = append(fs, agent.Spawn[int](ctx, "ok", i))
				}
			}
			set, err := agent.JoinAllSettled(ctx, fs...)
			if err != nil {
				return "", err
			}
			for i, err := range set.Errors {
				var failure agent.ErrTaskFailed
				var late agent.ErrTaskTimedOut
				ok := false
				switch i % 3 {
				case 0:
					ok = errors.As(err, &failure) && failure.TaskID == fs[i].ID() &&
						failure.Failure == perdure.Failure{Code: "bad", Message: fmt.Sprintf("number %d", i)}
				case 1:
					ok = errors.As(err, &late) && late.TaskID == fs[i].ID() && late.Deadline > 0 &&
						errors.Is(err, agent.ErrTaskTimedOut{TaskID: late.TaskID})
				default:
					ok = err == nil && set.Results[i] == i
				}
				if !ok {
					return "", perdure.Permanent(fmt.Errorf("child %d: %d, %w", i, set.Results[i], err))
				}
			}
			return fmt.Sprint(set.Completed, set.Failed, set.TimedOut, set.Cancelled), nil
		})
	})
	completed(t, w.ends("boss", 100), `"33 34 33 0"`)
	// Failures are retried. Timeouts are not, and on a slow machine a child may time out before it
	// begins.
	if done.of("fails") != 34*3 {
		t.Errorf("the failing kind was executed %d times, want %d: 34 children with 3 attempts", done.of("fails"), 34*3)
	}
	for i := 1; i < 100; i += 3 {
		if n := done.of(fmt.Sprint("hangs ", i)); n > 1 {
			t.Errorf("child %d, which timed out, was executed %d times, want at most once", i, n)
		}
	}
}

func TestCancelledChildIsCountedAsCancelled(t *testing.T) {
	t.Parallel()
	w := open(t)
	var g gates
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
			set, err := agent.JoinAllSettled(ctx, gated(ctx, 0, 1)...)
			if err != nil {
				return "", err
			}
			return fmt.Sprint(set.Completed, set.Failed, set.TimedOut, set.Cancelled,
				errors.Is(errors.Join(set.Errors...), agent.ErrCancelled)), nil
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	w.children("gated", perdure.Running, 2)
	if _, err := w.c.Cancel(w.ctx, w.runs(client.Filter{Kind: "gated"})[0].RunID, "", time.Minute); err != nil {
		t.Fatal(err)
	}
	g.open(0) // one of the two is cancelled already
	g.open(1)
	completed(t, w.end(id), `"1 0 0 1 true"`)
}

func TestCancelOfParentCancelsChildren(t *testing.T) {
	t.Parallel()
	w := open(t)
	var g gates
	var done tally
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
			return "", agent.Saga(ctx, "saga", func() error {
				if err := done.do(ctx, "book", agent.Undo(func(context.Context, string) error {
					done.add("unbook")
					return nil
				})); err != nil {
					return err
				}
				_, err := agent.JoinAll(ctx, gated(ctx, 1, 2, 3, 4, 5)...)
				return err
			})
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	w.children("gated", perdure.Running, 5)
	eventually.True(t, "the parent sleeps", func() bool {
		return len(w.runs(client.Filter{Kind: "boss", State: perdure.Suspended})) == 1
	})
	run, err := w.c.Cancel(w.ctx, id, "enough", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	failed(t, run, perdure.Cancelled, perdure.CodeCancelled, 1)
	w.children("gated", perdure.Cancelled, 5)
	if got, want := done.all(), []string{"book", "unbook"}; !slices.Equal(got, want) {
		t.Errorf("effects = %v, want %v", got, want)
	}
}

// The last two children end at the same time, on two nodes if the store can be shared. There is one
// continuation.
func TestContinuationIsCreatedOnce(t *testing.T) {
	t.Parallel()
	w := openUnder(t, steady(), 2)
	const rounds = 15
	var meet [rounds]sync.WaitGroup
	w.workEverywhere(func(wk *worker.Worker) {
		worker.Handle(wk, "report", func(_ context.Context, round int) (string, error) {
			meet[round].Done()
			meet[round].Wait()
			return "good", nil
		})
		worker.Agent(wk, "boss", func(ctx *agent.Context, in struct{ Round int }) (string, error) {
			messages, err := ctx.History()
			if err != nil {
				return "", err
			}
			if n := len(messages); n > 0 && messages[n-1].Role == "tool" {
				return fmt.Sprintf("%d reports", n), nil
			}
			return agent.Continue(ctx, "I'll tell you", agent.Spawn[string](ctx, "report", in.Round),
				agent.Spawn[string](ctx, "report", in.Round))
		})
	})
	var threads [rounds]perdure.ThreadID
	for n := range rounds {
		meet[n].Add(2)
		threads[n] = w.thread()
		w.start(perdure.Submission{Kind: "boss", Input: client.JSON(map[string]int{"round": n}), ThreadID: threads[n]})
	}
	for _, thread := range threads {
		eventually.True(t, "the turn is continued", func() bool {
			return len(w.runs(client.Filter{ThreadID: thread, State: perdure.Completed})) >= 2
		})
		runs := w.runs(client.Filter{ThreadID: thread})
		if len(runs) != 2 || runs[0].ContinuationOfRunID != runs[1].RunID || runs[1].ContinuedByRunID != runs[0].RunID {
			t.Fatalf("runs of thread %s = %+v, want a run and its one continuation", thread, runs)
		}
		completed(t, w.end(runs[1].RunID), `"I'll tell you"`)
		completed(t, w.end(runs[0].RunID), `"2 reports"`)
	}
}

// The join needs several waits, and its results don't fit into one grant.
func TestJoinOfFifteenHundredChildren(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "same", func(_ context.Context, n int) (int, error) { return n, nil })
		worker.Agent(wk, "boss", func(ctx *agent.Context, n int) (int, error) {
			var fs []*agent.Future[int]
			for i := range n {
				fs = append(fs, agent.Spawn[int](ctx, "same", i))
			}
			all, err := agent.JoinAll(ctx, fs...)
			sum := 0
			for i, v := range all {
				if i != v {
					return 0, perdure.Permanent(fmt.Errorf("result %d = %d, want %d", i, v, i))
				}
				sum += v
			}
			return sum, err
		})
	})
	run := w.ends("boss", 1500)
	completed(t, run, fmt.Sprint(1500*1499/2))
	if run.Attempt != 1 {
		t.Errorf("run %s: attempt = %d, want 1", run.RunID, run.Attempt)
	}
}

func TestLargeResultsAreTheSameAfterResume(t *testing.T) {
	t.Parallel()
	w := open(t)
	const size = 500 << 10
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "write", func(_ context.Context, n int) (string, error) {
			return strings.Repeat(string(rune('a'+n)), size), nil
		})
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
			var fs []*agent.Future[string]
			for n := range 10 {
				fs = append(fs, agent.Spawn[string](ctx, "write", n))
			}
			var before []string
			for range 3 {
				all, err := agent.JoinAll(ctx, fs...)
				if err != nil {
					return "", err
				}
				if before != nil && !reflect.DeepEqual(all, before) {
					return "", perdure.Permanent(errors.New("another result"))
				}
				before = all
				if err := agent.Sleep(ctx, time.Millisecond); err != nil {
					return "", err
				}
			}
			out := ""
			for _, text := range before {
				if len(text) != size {
					return "", perdure.Permanent(fmt.Errorf("%d bytes", len(text)))
				}
				out += text[:1]
			}
			return out, nil
		})
	})
	run := w.ends("boss", nil)
	completed(t, run, `"abcdefghij"`)
	if run.Attempt != 1 {
		t.Errorf("run %s: attempt = %d, want 1", run.RunID, run.Attempt)
	}
}

func TestInvalidSpawnReturnsError(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "boss", func(ctx *agent.Context, what string) (string, error) {
			var f *agent.Future[int]
			switch what {
			case "name":
				f = agent.Spawn[int](ctx, "_kind", 1)
			case "input":
				f = agent.Spawn[int](ctx, "kind", make(chan int))
			case "size":
				f = agent.Spawn[int](ctx, "kind", strings.Repeat("x", perdure.MaxValue))
			case "options":
				f = agent.Spawn[int](ctx, "kind", 1, agent.Options{Priority: 1000})
			case "none":
				_, err := agent.Select(ctx)
				return "", err
			case "nil":
				_, err := agent.SelectOK(ctx, agent.Spawn[int](ctx, "kind", 1), nil)
				return "", err
			case "thread":
				return agent.Continue(ctx, "later", agent.Spawn[int](ctx, "kind", 1))
			}
			if f.ID() != "" {
				return "", errors.New("a child that can't be spawned has an id, want none")
			}
			_, err := f.Join(ctx)
			return "", err
		})
	})
	for what, code := range map[string]perdure.Code{"name": perdure.CodeInvalid, "input": perdure.CodeInvalid,
		"size": perdure.CodeTooLarge, "options": perdure.CodeInvalid} {
		t.Run(what, func(t *testing.T) { failed(t, w.ends("boss", what), perdure.Failed, code, 1) })
	}
	for _, what := range []string{"none", "nil", "thread"} {
		t.Run(what, func(t *testing.T) {
			w.defect(w.start(perdure.Submission{Kind: "boss", Input: client.JSON(what)}), agent.CodeMisuse)
		})
	}
}

// The server refuses a child after its parent's code has gone on.
func TestRefusedChildFailsRun(t *testing.T) {
	refused := func(w *scene, then string) {
		w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
				// the thread is busy with the parent
				f := agent.Spawn[int](ctx, "kid", 1, agent.Options{ThreadID: ctx.ThreadID()})
				switch then {
				case "joins":
					_, err := f.Join(ctx)
					return "", err
				case "asks":
					return string(f.ID()), nil
				case "works":
					time.Sleep(200 * time.Millisecond) // the refusal comes meanwhile
					return agent.Step(ctx, "work", func(context.Context) (string, error) { return "worked", nil })
				case "returns late":
					time.Sleep(200 * time.Millisecond)
				}
				return "as if nothing were", nil
			})
		})
		run := w.end(w.start(perdure.Submission{Kind: "boss", ThreadID: w.thread()}))
		if run.State != perdure.Failed || run.Attempt != 1 || !strings.Contains(run.Error.Message, "thread") {
			w.t.Errorf("run %s: %s after %d attempts (result %s, error %+v), want failed after 1 because of its thread",
				run.RunID, run.State, run.Attempt, run.Result, run.Error)
		}
	}
	for _, then := range []string{"joins", "asks", "returns"} {
		t.Run(then, func(t *testing.T) { refused(open(t), then) })
	}
	for _, then := range []string{"works", "returns late"} { // these sleep
		t.Run(then, func(t *testing.T) { virtual(t, func(w *scene) { refused(w, then) }) })
	}
}
