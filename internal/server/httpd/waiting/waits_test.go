package waiting

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

// one is the only run of these tests.
var one = kernel.Ref{Tenant: "acme", Run: "r"}

// A node is the waits of a node over an engine with one run.
type node struct {
	*Waits
	bell   *bell
	engine *oneRun
}

// A bell is one of a single node, with counters that a test sets.
type bell struct {
	doorbell.Local
	stats doorbell.Stats
}

func (b *bell) Stats() doorbell.Stats { return b.stats }

// oneRun is an engine with one run.
type oneRun struct {
	mu    sync.Mutex
	run   reads.Detail
	reads int
	// ops are the operations that were done, and err is the result of each.
	ops    []kernel.Op
	err    error
	shared bool
}

func (e *oneRun) Do(_ context.Context, op kernel.Op) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.ops = append(e.ops, op)
	}
	return e.err
}

func (e *oneRun) Shared() bool { return e.shared }

func (e *oneRun) Get(context.Context, perdure.TenantID, perdure.RunID) (reads.Detail, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reads++
	return e.run, nil
}

func (e *oneRun) Status(context.Context, perdure.TenantID, perdure.RunID) (perdure.Run, perdure.Instant, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reads++
	return e.run.Run, 0, nil
}

func (e *oneRun) Live(perdure.TenantID, perdure.RunID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.run.State.Live()
}

func (e *oneRun) Ended(perdure.TenantID, perdure.RunID) (reads.Detail, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.run, e.run.State.Terminal()
}

// end ends the run, and rings.
func (n *node) end() {
	n.engine.mu.Lock()
	n.engine.run.State = perdure.Completed
	n.engine.mu.Unlock()
	n.ring()
}

func (n *node) ring() { n.bell.Ring(doorbell.Run(one.Tenant, string(one.Run))) }

func newNode(foreground bool) *node {
	n := &node{bell: &bell{}, engine: &oneRun{}}
	n.engine.run.State, n.engine.run.Options.Foreground = perdure.Running, foreground
	n.Waits = New(Options{Engine: n.engine, Runs: n.engine, Bell: n.bell, Node: "n", Poll: time.Hour,
		Closing: make(chan struct{}), Go: func(f func()) bool { go f(); return true },
		Turn:    func(context.Context, perdure.TenantID) func() { return func() {} },
		Waiters: NewWaiters(n.engine, "n", slog.New(slog.DiscardHandler))})
	return n
}

// A caller is a call that waits. It counts its reservations and turns.
type caller struct {
	context.Context
	reserved, turns int
	refused         error
}

func (c *caller) ctx() context.Context { return c.Context }

// A waiter is the caller as the package sees it.
type waiter struct{ *caller }

func (c waiter) Context() context.Context { return c.ctx() }
func (c waiter) Watch() error             { return c.refused }
func (c waiter) HungUp() bool             { return c.ctx().Err() != nil }
func (c waiter) Reserve() error           { c.reserved = 1; return nil }
func (c waiter) Release()                 { c.reserved = 0 }
func (c waiter) Woken(func())             { c.turns++ }

func newWaiter(ctx context.Context) waiter { return waiter{&caller{Context: ctx}} }

// join waits for the run at most a minute.
func (n *node) join(c waiter) (run *reads.Detail, ended bool, err error) {
	return n.Run(c, Query{Ref: one, Limit: time.Minute, Began: time.Now(), Heard: n.bell.Stats()})
}

// A pause ends for each cause, and says which.
func TestPauseSaysWhyItEnded(t *testing.T) {
	for name, x := range map[string]struct {
		begin func(ctx context.CancelFunc, p *Pause, closing chan struct{})
		want  Cause
	}{
		"a ring":  {func(_ context.CancelFunc, p *Pause, _ chan struct{}) { p.Rung = closed() }, Rung},
		"another": {func(_ context.CancelFunc, p *Pause, _ chan struct{}) { p.Also = closed() }, Rung},
		"nothing": {func(_ context.CancelFunc, p *Pause, _ chan struct{}) {
			p.Fallback = time.After(time.Second)
		}, Fallback},
		"the time": {func(_ context.CancelFunc, p *Pause, _ chan struct{}) {
			p.Deadline = time.After(time.Second)
		}, Over},
		"the caller's end": {func(hangUp context.CancelFunc, _ *Pause, _ chan struct{}) {
			hangUp()
		}, Over},
		"the server's end": {func(_ context.CancelFunc, _ *Pause, closing chan struct{}) { close(closing) }, Over},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, hangUp := context.WithCancel(t.Context())
				defer hangUp()
				closing := make(chan struct{})
				w, p := New(Options{Closing: closing}), Pause{}
				x.begin(hangUp, &p, closing)
				if got := w.Pause(ctx, p); got != x.want {
					t.Errorf("cause = %d, want %d", got, x.want)
				}
			})
		})
	}
}

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// A ring that comes while the call looks is not missed: the call listens before it looks.
func TestRingDuringALookIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, looks := newNode(false), 0
		began := time.Now()
		err := n.Until(newWaiter(t.Context()), doorbell.Run(one.Tenant, string(one.Run)), time.Minute,
			func(fresh bool) (bool, error) {
				if looks++; looks == 1 {
					n.ring()
				}
				return looks == 2, nil
			})
		if err != nil || looks != 2 || time.Since(began) != 0 {
			t.Errorf("%d looks within %s, error %v; want the second at once", looks, time.Since(began), err)
		}
	})
}

// Without news of other nodes a wait reads nothing.
func TestWaitTrustsMemoryWhileOtherNodesAreSilent(t *testing.T) {
	then := doorbell.Stats{Connected: true, Received: 7, Connects: 1}
	for name, now := range map[string]doorbell.Stats{
		"a message":           {Connected: true, Received: 8, Connects: 1},
		"a lost message":      {Connected: true, Received: 7, Connects: 1, Lost: 1},
		"another connection":  {Connected: true, Received: 7, Connects: 2},
		"no connection":       {Received: 7, Connects: 1},
		"messages of its own": {Connected: true, Received: 7, Connects: 1, Sent: 9},
		"nothing":             {Connected: true, Received: 7, Connects: 1},
	} {
		for _, shared := range []bool{false, true} {
			n := newNode(false)
			n.bell.stats, n.engine.shared = now, shared
			want := !shared || name == "nothing" || name == "messages of its own"
			if got := n.othersSilent(then); got != want {
				t.Errorf("after %s, with a shared store = %t: others are silent = %t, want %t", name, shared, got, want)
			}
		}
	}
}

// The first caller that waits for a run in the foreground writes a record, and the last one defers the run, if it goes
// before the end.
func TestLastWaiterDefersTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(true)
		var calls sync.WaitGroup
		for _, limit := range []time.Duration{time.Second, time.Minute} {
			calls.Go(func() {
				c := newWaiter(t.Context())
				run, ended, err := n.Run(c, Query{Ref: one, Limit: limit, Began: time.Now()})
				if err != nil || ended || run == nil || c.reserved != 0 {
					t.Errorf("run %v, ended %t, error %v, %d reservations; want a live run and no reservation", run,
						ended, err, c.reserved)
				}
			})
		}
		calls.Wait()
		if n.Waiters.Count(one) != 0 || len(n.engine.ops) != 2 {
			t.Fatalf("%d waiters after all, operations %v; want none, an Attach and a Defer", n.Waiters.Count(one),
				n.engine.ops)
		}
		if op, ok := n.engine.ops[1].(*life.Defer); !ok || op.Reason != "timeout" {
			t.Errorf("the last operation is %+v, want Defer with the reason timeout", n.engine.ops[1])
		}
	})
}

// A line of the log wakes none of a crowd. All are woken by the end, one turn each.
func TestCrowdSleepsUntilTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(false)
		const members = 3
		callers := make([]waiter, CrowdSize+members)
		var calls sync.WaitGroup
		for i := range callers {
			callers[i] = newWaiter(t.Context())
			calls.Go(func() {
				if run, ended, err := n.join(callers[i]); err != nil || !ended || run.State != perdure.Completed {
					t.Errorf("call %d: run %v, ended %t, error %v; want its end", i, run, ended, err)
				}
			})
			synctest.Wait()
		}
		if _, followed, got := n.Crowds(); followed != 1 || got != members {
			t.Errorf("%d runs are followed by %d members, want 1 by %d", followed, got, members)
		}
		reads := n.engine.reads
		for range 10 {
			n.ring()
			synctest.Wait()
		}
		if n.engine.reads != reads {
			t.Errorf("%d reads for ten lines of the log, want none", n.engine.reads-reads)
		}
		n.end()
		calls.Wait()
		for i, c := range callers {
			if want := i >= CrowdSize; (c.turns == 1) != want || c.turns > 1 {
				t.Errorf("call %d has %d turns; is a member = %t", i, c.turns, want)
			}
		}
		synctest.Wait()
		if runs, _, _ := n.Crowds(); runs != 0 {
			t.Errorf("%d runs are remembered after the end, want none", runs)
		}
	})
}

// A member that can't be recorded as a waiter leaves no trace: nobody would give its turn back.
func TestMemberThatDoesNotComeToWaitHoldsNoTurn(t *testing.T) {
	n := newNode(true)
	for range CrowdSize {
		leave, _ := n.crowds.enter(one, true)
		defer leave()
	}
	n.engine.err = errors.New("broken")
	if _, _, err := n.join(newWaiter(t.Context())); !errors.Is(err, n.engine.err) {
		t.Errorf("error = %v, want that of the engine", err)
	}
	if _, _, members := n.Crowds(); members != 0 {
		t.Errorf("%d members after the only one has ended, want none", members)
	}
}

// A call whose key is refused when it is about to block ends, and is a waiter no longer.
func TestRefusedCallerIsNoWaiter(t *testing.T) {
	n := newNode(true)
	c := newWaiter(t.Context())
	c.refused = errors.New("revoked")
	if _, _, err := n.join(c); !errors.Is(err, c.refused) {
		t.Errorf("error = %v, want the refusal", err)
	}
	if n.Waiters.Count(one) != 0 {
		t.Error("the refused caller is a waiter")
	}
	if op, ok := n.engine.ops[len(n.engine.ops)-1].(*life.Defer); !ok || op.Reason != Disconnect || op.Closed {
		t.Errorf("the last operation is %+v, want Defer with the reason disconnect", op)
	}
}
