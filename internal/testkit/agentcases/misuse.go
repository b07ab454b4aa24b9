package agentcases

import (
	"context"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

// A MisuseArea has misuses that have something in common. It is a table of the page.
type MisuseArea struct {
	Name string
	// Instead says what to do.
	Instead string
	Rows    []Misuse
}

// A Misuse is an agent that does something that it must not do, or something odd. One of its outcomes is
// set, or Right.
type Misuse struct {
	// Name says what the agent does.
	Name string
	Do   Agent

	// Held is the code with which the run is held: before the next step, or with AtEnd when the agent
	// completes. An agent that ignores the error is held, too.
	Held  perdure.Code
	AtEnd bool
	// Fails is the code with which the run fails.
	Fails perdure.Code
	// Error is the code of an ordinary error, which the agent gets and may handle.
	Error perdure.Code
	// Right is the result of the run: nothing is wrong with it. Note says more.
	Right string
	Note  string
	// Vet is the rule of perdurevet that reports the code of this row.
	Vet string
	// Kit tells that a test with package agenttest fails.
	Kit bool

	// Says has words of the text.
	Says []string
	// OnThread tells that the run is on a thread.
	OnThread bool
	// Wakes tells that the run is signalled "go on" when it waits for it.
	Wakes bool
}

// An Agent is the function of an agent. World has its effects.
type Agent = func(ctx *agent.Context, w *World) (string, error)

// CountMisuses returns the number of misuses.
func CountMisuses() (n int) {
	for _, a := range Misuses {
		n += len(a.Rows)
	}
	return n
}

// Misuses has all rows, by area.
var Misuses = slices.Concat(callMisuses, goroutineMisuses, stateMisuses, panicMisuses, valueMisuses, argumentMisuses)

// only returns the agent that makes one call.
func only(call func(ctx *agent.Context) error) Agent {
	return func(ctx *agent.Context, _ *World) (string, error) { return "done", call(ctx) }
}

// inStep returns the agent that makes a call inside of a step, with the agent's context.
func inStep(call func(ctx *agent.Context) error) Agent {
	return only(func(ctx *agent.Context) error {
		_, err := agent.Step(ctx, "outer", func(context.Context) (int, error) { return 1, call(ctx) })
		return err
	})
}

// inGoroutine returns the agent that makes a call in a goroutine that agent.Go did not begin.
func inGoroutine(call func(ctx *agent.Context) error) Agent {
	return only(func(ctx *agent.Context) (err error) {
		done := make(chan error, 1)
		go func() {
			defer close(done) // also if the call ends the goroutine
			done <- call(ctx)
		}()
		return <-done
	})
}

// gives returns an agent whose step has a result.
func gives[T any](v T) Agent {
	return only(func(ctx *agent.Context) error {
		_, err := agent.Step(ctx, "s", func(context.Context) (T, error) { return v, nil })
		return err
	})
}

// one is a step's function.
func one(context.Context) (int, error) { return 1, nil }
