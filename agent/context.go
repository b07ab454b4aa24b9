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

// A Context is an agent's run, for the functions of this package. It is also a [context.Context] of
// this execution: it ends when the run is asked to stop, or when the worker no longer holds it.
type Context struct {
	context.Context
	c *execution
}

// RunID returns the run's id. It is the same in every execution.
func (ctx *Context) RunID() perdure.RunID { return ctx.c.grant.RunID }

// ThreadID returns the run's thread. It is empty if the run is on none.
func (ctx *Context) ThreadID() perdure.ThreadID { return ctx.c.grant.ThreadID }

// Value returns a value of the context.
func (ctx *Context) Value(key any) any {
	if key == (executionKey{}) {
		return ctx.c
	}
	return ctx.Context.Value(key)
}

type executionKey struct{}

func init() { session.Execute = execute }

// execute implements session.Execute, which package worker calls.
//
// The agent's function runs in a goroutine of its own, because an execution that ends early ends
// its goroutine. A recover in the agent's code can't stop that, and deferred functions run.
func execute(
	ctx context.Context, s session.Session, f func(ctx any) (result json.RawMessage, err error),
) *perdure.Outcome {
	c := newExecution(s)
	if err := c.load(); err != nil {
		if c.leased.Err() != nil {
			return nil
		}
		return session.Failure(err)
	}
	s.Bind(c.nextCommit)
	c.ctx = ctx
	var (
		result   json.RawMessage
		err      error
		returned bool
		panicked any
		stack    []byte
	)
	done := make(chan struct{})
	go func() {
		defer func() {
			c.mu.Lock()
			c.returned = true
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
		c.mainGoroutine = goroutine()
		result, err = f(&Context{ctx, c})
		returned = true
	}()
	select {
	case <-done:
	case <-c.exiting:
		// The exit may come from another goroutine, and the function may wait for ever for that
		// one.
		select {
		case <-done:
		case <-time.After(returnGrace):
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.earlyExit.outcome
		}
	}
	c.mu.Lock()
	early, on, misused, running, read := c.earlyExit, c.continueOn, c.firstMisuse, c.runningSteps, c.readSeq
	c.mu.Unlock()
	if err == nil && running > 0 {
		misused = misuse("the agent returned while a step of its was being executed: wait for the goroutine")
	}
	switch {
	case panicked != nil:
		return session.Defective(codePanic, fmt.Sprintf("panic: %v\n\n%s", panicked, stack))
	case early != nil:
		return early.outcome
	case !returned:
		return session.Failed("goexit", "the agent's function ended its goroutine", true)
	case misused != nil:
		return session.Failure(misused)
	case err != nil:
		cancelled := errors.Is(context.Cause(ctx), ErrCancelled) && errors.Is(err, ErrCancelled)
		if cancelled && !errors.As(err, new(*notUndone)) {
			return &perdure.Outcome{Type: perdure.OutcomeCancelled}
		}
		out := session.Failure(err)
		if !*out.Retryable {
			out.Error.CauseKey = c.causeOf(err)
		}
		return out
	}
	if err := c.checkComplete(); err != nil {
		return session.Failure(err)
	}
	return &perdure.Outcome{Type: perdure.OutcomeComplete, Result: result, ContinueOn: on, ReadSeq: read}
}

// returnGrace is how long the function may take to return after its execution has ended.
const returnGrace = 2 * time.Second

// An earlyExit is the end of an execution whose function has not returned.
type earlyExit struct {
	// outcome is what the worker delivers. It is nil if there is nothing to deliver.
	outcome *perdure.Outcome
}

// exit ends the execution and the calling goroutine. The next execution continues the function.
func (c *execution) exit(out *perdure.Outcome) {
	c.mu.Lock()
	c.setExit(out)
	c.mu.Unlock()
	runtime.Goexit()
}

// setExit ends the execution: the next call of this package ends its goroutine. The caller holds
// c.mu.
func (c *execution) setExit(out *perdure.Outcome) {
	if c.earlyExit == nil {
		c.earlyExit = &earlyExit{out}
		close(c.exiting)
	}
}

// fail ends the execution with an error, without returning it to the agent's code.
func (c *execution) fail(err error) { c.exit(session.Failure(err)) }

// enter begins a call of this package. After the agent's function has returned it gives an error
// and does not end the goroutine, which may belong to anybody. Functions that return no error then
// return the best value they have.
func (c *execution) enter() error {
	c.mu.Lock()
	returned := c.returned
	c.mu.Unlock()
	if returned {
		return misuse("this execution of run %s is over: an agent's Context is of no use once its function has "+
			"returned",
			c.grant.RunID)
	}
	c.checkExit()
	return nil
}

// checkExit ends the calling goroutine, whichever of the agent's it is, if the execution has ended.
// A misuse ends it too: nothing that comes after it is recorded.
func (c *execution) checkExit() {
	c.mu.Lock()
	exited, misused := c.earlyExit != nil, c.firstMisuse
	c.mu.Unlock()
	switch {
	case exited || c.leased.Err() != nil:
		c.exit(nil)
	case misused != nil:
		c.fail(misused)
	}
}

// proceed begins a call by which the agent goes on after what it got before: errors of steps become
// facts. See pending.go.
func (c *execution) proceed() error {
	if err := c.enter(); err != nil {
		return err
	}
	c.passErrors()
	return nil
}

// stopReason returns why nothing new may begin: the run was asked to stop, or a saga is being
// undone.
func (c *execution) stopReason() error {
	c.mu.Lock()
	stop := c.undoing
	c.mu.Unlock()
	if stop != nil {
		return stop
	}
	c.exitIfHandedOn()
	cause := context.Cause(c.ctx)
	if errors.Is(cause, ErrCancelled) {
		return ErrCancelled
	}
	return cause
}

// exitIfHandedOn ends the execution if the lease is lost or the worker shuts down. The next
// execution continues from here. Errors that the agent's functions return because of it must not be
// recorded.
func (c *execution) exitIfHandedOn() {
	cause := context.Cause(c.ctx)
	if c.leased.Err() != nil || cause != nil && !errors.Is(cause, ErrCancelled) && !errors.Is(cause, c.ctx.Err()) {
		c.exit(nil)
	}
}

// load reads the journal and the inbox, including the parts that the grant left out. It retries for
// as long as the run is leased, because the server may be away for longer than a call's timeout.
func (c *execution) load() error {
	g := c.grant
	journal := g.Journal
	for next := g.JournalNext; next != 0; {
		page, err := retryCall(c.leased, func() (*api.JournalPage, error) { return c.s.Journal(c.leased, next) })
		if err != nil {
			return fmt.Errorf("read the journal: %w", err)
		}
		journal = append(journal, page.Journal...)
		next = page.Next
	}
	inbox := g.Inbox
	for next := g.InboxNext; next != 0; {
		page, err := retryCall(c.leased, func() (*api.InboxPage, error) { return c.s.Inbox(c.leased, next) })
		if err != nil {
			return fmt.Errorf("read the inbox: %w", err)
		}
		inbox = append(inbox, page.Inbox...)
		next = page.Next
	}
	if err := c.readJournal(journal); err != nil {
		return err
	}
	c.dropUnfinished()
	c.readInbox(inbox)
	return nil
}

// retryCall repeats a call, with backoff, until the server answers. A refusal (4xx) is an answer.
func retryCall[T any](ctx context.Context, call func() (*T, error)) (*T, error) {
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
