package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/wire/session"
)

// A Context is an agent's run, for the functions of this package. It is also a [context.Context] of
// this execution: it ends when the run is asked to stop, or when the worker no longer holds it.
type Context struct {
	context.Context
	c *execution
}

// RunID returns the run's id. It is the same in every execution.
func (ctx *Context) RunID() perdure.RunID { return ctx.execution().grant.RunID }

// ThreadID returns the run's thread. It is empty if the run is on none.
func (ctx *Context) ThreadID() perdure.ThreadID { return ctx.execution().grant.ThreadID }

// Value returns a value of the context.
func (ctx *Context) Value(key any) any {
	ctx.execution()
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

// execution returns the execution that the context belongs to.
func (ctx *Context) execution() *execution {
	if ctx == nil || ctx.c == nil {
		panic(strayCall("the context is nil, or was made by the agent itself: pass the *agent.Context that the " +
			"agent's function, or that of its branch, was given"))
	}
	return ctx.c
}

// checkContext panics if the context of a call is nil.
func checkContext(ctx context.Context) {
	if ctx == nil {
		panic(strayCall("the context is nil: pass the agent's, or the one that the step's function was given"))
	}
}

// A strayCall is the panic of a call that belongs to no execution, because its context is nil, or its future
// or branch was returned by no call. There is nobody to remember the misuse, and an error might be
// ignored. The execution whose goroutine panics is held with the text.
type strayCall string

func (s strayCall) Error() string { return "agent: " + string(s) }

// ofPanic returns the outcome of an execution that has panicked outside of steps, in something.
func ofPanic(p any, in string, stack []byte) *perdure.Outcome {
	if stray, ok := p.(strayCall); ok {
		return session.Defective(CodeMisuse, fmt.Sprintf("%s\n\n%s", string(stray), stack))
	}
	return session.Defective(codePanic, fmt.Sprintf("panic%s: %v\n\n%s", in, p, stack))
}

// executionOf returns the execution of a context, and whether a step's function makes the call. The
// context may be the agent's, or that of a step's function.
func executionOf(ctx context.Context) (c *execution, inside bool) {
	checkContext(ctx)
	if w, ok := ctx.Value(stepKey{}).(*stepScope); ok {
		return w.c, true
	}
	c, _ = ctx.Value(executionKey{}).(*execution)
	return c, c != nil && c.insideStep()
}

var errNoAgent = errors.New("agent: the context is not an agent's")
