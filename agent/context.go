package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/session"
	"github.com/perdure/perdure/internal/timer"
)

// A Context is an agent's run: what the functions of this package act upon. It is also the [context.Context] of
// the execution at hand, which ends when the run is asked to stop, or is no longer this worker's.
type Context struct {
	context.Context
	c *core
}

// RunID is the run's id, the same in every execution.
func (ctx *Context) RunID() perdure.RunID { return ctx.c.grant.RunID }

// ThreadID is the thread that the run is on; empty: it is on none.
func (ctx *Context) ThreadID() perdure.ThreadID { return ctx.c.grant.ThreadID }

// Value gives what the context carries.
func (ctx *Context) Value(key any) any {
	if key == (coreKey{}) {
		return ctx.c
	}
	return ctx.Context.Value(key)
}

type coreKey struct{}

func init() { session.Execute = execute }

// execute is what package worker calls; see session.Execute.
func execute(ctx context.Context, s session.Session, f func(ctx any) (result json.RawMessage, err error)) *perdure.Outcome {
	c := newCore(s)
	if err := c.load(); err != nil {
		if c.leased.Err() != nil {
			return nil
		}
		return session.Failure(err)
	}
	s.Bind(c.take)
	c.ctx = ctx
	var (
		result   json.RawMessage
		err      error
		returned bool
		panicked any
		stack    []byte
	)
	done := make(chan struct{})
	// A goroutine of its own, because what ends an execution early ends its goroutine: no recover in the
	// agent's code can hold that up, and whatever it has deferred runs.
	go func() {
		defer func() {
			c.mu.Lock()
			c.over = true
			c.mu.Unlock()
			close(done)
		}()
		defer func() {
			if !returned {
				if panicked = recover(); panicked != nil {
					stack = debug.Stack()
				}
			}
		}()
		c.main = goroutine()
		result, err = f(&Context{ctx, c})
		returned = true
	}()
	select {
	case <-done:
	case <-c.leaving: // perhaps in a goroutine of the agent's own, and the function waits for something that won't come
		select {
		case <-done:
		case <-time.After(letGo):
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.left.outcome
		}
	}
	c.mu.Lock()
	left, on, wrong, running := c.left, c.continueOn, c.wrong, c.running
	c.mu.Unlock()
	if err == nil && running > 0 {
		wrong = misuse("the agent returned while a step of its was being executed: wait for the goroutine")
	}
	switch {
	case panicked != nil:
		return session.Failed(codePanic, fmt.Sprintf("panic: %v\n\n%s", panicked, stack), true)
	case left != nil:
		return left.outcome
	case !returned:
		return session.Failed("goexit", "the agent's function ended its goroutine", true)
	case err != nil:
		if errors.Is(context.Cause(ctx), ErrCancelled) && errors.Is(err, ErrCancelled) && !errors.As(err, new(*notUndone)) {
			return &perdure.Outcome{Type: perdure.OutcomeCancelled}
		}
		return session.Failure(err)
	case wrong != nil:
		return session.Failure(wrong)
	}
	return &perdure.Outcome{Type: perdure.OutcomeComplete, Result: result, ContinueOn: on}
}

// letGo is how long a function may take to return after its execution has ended.
const letGo = 2 * time.Second

// A departure is why an execution ended before its function returned.
type departure struct {
	outcome *perdure.Outcome // nil: there is nothing to deliver
}

// leave ends the execution. Whatever the function would still have done is for the next one.
func (c *core) leave(out *perdure.Outcome) {
	c.mu.Lock()
	c.depart(out)
	c.mu.Unlock()
	runtime.Goexit()
}

// depart ends the execution for whoever calls next. The caller holds c.mu.
func (c *core) depart(out *perdure.Outcome) {
	if c.left == nil {
		c.left = &departure{out}
		close(c.leaving)
	}
}

// fail ends the execution with an error that the agent's code is not asked about.
func (c *core) fail(err error) { c.leave(session.Failure(err)) }

// enter begins a call of this package. One that comes when the agent's function has returned gives an error: who makes it
// may be anybody, and has a goroutine that is not the agent's to end. Calls that give no error give what they can.
func (c *core) enter() error {
	c.mu.Lock()
	over := c.over
	c.mu.Unlock()
	if over {
		return misuse("this execution of run %s is over: an agent's Context is of no use once its function has returned", c.grant.RunID)
	}
	c.goOn()
	return nil
}

// goOn ends the goroutine if the execution has ended meanwhile, whichever goroutine of the agent's it is.
func (c *core) goOn() {
	c.mu.Lock()
	left := c.left != nil
	c.mu.Unlock()
	if left || c.leased.Err() != nil {
		c.leave(nil)
	}
}

// halted tells why nothing new is begun: the run was asked to stop, or a saga is being undone.
func (c *core) halted() error {
	c.mu.Lock()
	stop := c.undoing
	c.mu.Unlock()
	if stop != nil {
		return stop
	}
	c.handedOn()
	cause := context.Cause(c.ctx)
	if errors.Is(cause, ErrCancelled) {
		return ErrCancelled
	}
	return cause
}

// handedOn ends the execution if the run is lost, or the worker shuts down: whoever gets it next goes on from here, and
// what that did to the agent's functions is not for this one to judge.
func (c *core) handedOn() {
	cause := context.Cause(c.ctx)
	if c.leased.Err() != nil || cause != nil && !errors.Is(cause, ErrCancelled) && !errors.Is(cause, c.ctx.Err()) {
		c.leave(nil)
	}
}

// load reads what had no room in the grant. The server may be away for longer than a call is patient.
func (c *core) load() error {
	g := c.grant
	journal := g.Journal
	for next := g.JournalNext; next != 0; {
		page, err := again(c.leased, func() (*api.JournalPage, error) { return c.s.Journal(c.leased, next) })
		if err != nil {
			return fmt.Errorf("read the journal: %w", err)
		}
		journal = append(journal, page.Journal...)
		next = page.Next
	}
	inbox := g.Inbox
	for next := g.InboxNext; next != 0; {
		page, err := again(c.leased, func() (*api.InboxPage, error) { return c.s.Inbox(c.leased, next) })
		if err != nil {
			return fmt.Errorf("read the inbox: %w", err)
		}
		inbox = append(inbox, page.Inbox...)
		next = page.Next
	}
	if err := c.recall(journal); err != nil {
		return err
	}
	c.receive(inbox)
	return nil
}

// again makes a call until it is answered; what the server refuses is an answer.
func again[T any](ctx context.Context, call func() (*T, error)) (*T, error) {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		out, err := call()
		var p *api.Problem
		if err == nil || ctx.Err() != nil || errors.As(err, &p) && p.Status/100 == 4 && p.Status != 429 {
			return out, err
		}
		if !timer.Sleep(ctx, pause) {
			return nil, context.Cause(ctx)
		}
	}
}
