package agent

import (
	"context"
	"encoding/json"
	"errors"
	"runtime/debug"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/wire/session"
)

func init() { session.Execute = execute }

// execute implements session.Execute, which package worker calls.
//
// The agent's function runs in a goroutine of its own, because an execution that ends early ends
// its goroutine. A recover in the agent's code can't stop that, and deferred functions run.
func execute(
	ctx context.Context, s session.Session, f func(ctx any) (result json.RawMessage, err error),
) *perdure.Outcome {
	c, err := newExecution(s)
	if err != nil {
		if c.leased.Err() != nil {
			return nil
		}
		return session.Failure(err)
	}
	s.Bind(c.nextCommit)
	c.ctx, c.main = ctx, &branch{ctx: ctx}
	var (
		result   json.RawMessage
		returned bool
		panicked any
		stack    []byte
	)
	done := make(chan struct{})
	go func() {
		defer func() {
			c.mu.Lock()
			c.exit.returned = true
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
		c.mu.Lock()
		c.main.goroutine = goroutine()
		c.branches[c.main.goroutine] = c.main
		c.mu.Unlock()
		result, err = f(&Context{ctx, c})
		c.endBranches(c.main, nil, err, "the agent")
		returned = true
	}()
	select {
	case <-done:
	case <-c.exit.reached:
		// The exit may come from another goroutine, and the function may wait for ever for that
		// one.
		select {
		case <-done:
		case <-time.After(returnGrace):
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.exit.early.outcome
		}
	}
	c.mu.Lock()
	early, misused, running := c.exit.early, c.exit.misuse, c.main.running
	on, anew, read := c.continueOn, c.anew, c.thread.readSeq
	c.mu.Unlock()
	if err == nil && running > 0 {
		misused = misuse("the agent returned while a step of its was being executed: wait for the goroutine")
	}
	switch {
	case panicked != nil:
		return ofPanic(panicked, "", stack)
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
	return &perdure.Outcome{Type: perdure.OutcomeComplete, Result: result, ContinueOn: on, ContinueWith: anew,
		ReadSeq: read}
}

// returnGrace is how long the function may take to return after its execution has ended.
const returnGrace = 2 * time.Second
