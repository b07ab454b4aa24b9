// Package clock has agents that use clocks, random numbers and the environment.
package clock

import (
	"context"
	crand "crypto/rand"
	"math/rand/v2"
	"os"
	"time"

	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/agentvet/testdata/uuid"
)

func unstable(ctx *agent.Context, in string) (string, error) {
	began := time.Now()    // want `time.Now outside of steps: .*; use agent.Now`
	if rand.IntN(2) == 0 { // want `rand.IntN outside of steps`
		in += os.Getenv("HOME") // want `os.Getenv outside of steps`
	}
	in += uuid.New()   // want `uuid.New outside of steps: .*; use agent.UUID`
	in += crand.Text() // want `rand.Text outside of steps`
	err := agent.Saga(ctx, "pay", func() error {
		if time.Since(began) > time.Hour { // want `time.Since outside of steps`
			return context.DeadlineExceeded
		}
		return nil
	})
	return in, err
}

type talk struct{ ctx *agent.Context }

func (t talk) wait(until time.Time) error {
	return agent.Sleep(t.ctx, time.Until(until)) // want `time.Until outside of steps`
}

// Below are right ones.

func inSteps(ctx *agent.Context, in string) (time.Time, error) {
	now := func() time.Time { return time.Now() }
	r := rand.New(rand.NewPCG(1, uint64(len(in))))
	_ = uuid.NewSHA1("names", []byte(in))
	_ = time.Duration(r.IntN(7)) * time.Second
	if _, err := agent.Step(ctx, "dice", func(context.Context) (int, error) { return rand.IntN(6), nil }); err != nil {
		return time.Time{}, err
	}
	return agent.Step(ctx, "time", func(context.Context) (time.Time, error) { return now(), nil })
}

func wrapped[T any](ctx *agent.Context, name string, f func() (T, error)) (T, error) {
	return agent.Step(ctx, name, func(context.Context) (T, error) { return f() })
}

func inWrappedSteps(ctx *agent.Context, in string) (time.Time, error) {
	return wrapped(ctx, "time", func() (time.Time, error) { return time.Now(), nil })
}

func noAgent() time.Time { return time.Now() }
