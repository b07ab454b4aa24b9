package agent

import (
	"context"
	"errors"

	"github.com/perdure/perdure"
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

type stepKey struct{}

// A stepScope tells to which step a context belongs.
type stepScope struct {
	c   *execution
	key string
	// try counts the repetitions of the step in this execution, from 0.
	try int
}

// executionOf returns the execution of a context, and whether a step's function makes the call. The
// context may be the agent's, or that of a step's function.
func executionOf(ctx context.Context) (c *execution, inside bool) {
	if w, ok := ctx.Value(stepKey{}).(*stepScope); ok {
		return w.c, true
	}
	c, _ = ctx.Value(executionKey{}).(*execution)
	return c, c != nil && c.insideStep()
}

var errNoAgent = errors.New("agent: the context is not an agent's")
