// Package goroutine has agents with steps in goroutines.
package goroutine

import (
	"context"
	"sync"

	"github.com/perdure/perdure/agent"
)

func ask(context.Context) (int, error) { return 1, nil }

func inLoop(ctx *agent.Context, in []string) error {
	errs := make(chan error, len(in))
	for _, x := range in {
		go func() {
			_, err := agent.Step(ctx, "ask "+x, ask) // want `Step in a goroutine that agent.Go did not begin`
			errs <- err
		}()
	}
	return <-errs
}

func inGroup(ctx *agent.Context, in string) error {
	var wg sync.WaitGroup
	var left, right error
	wg.Go(func() { left = agent.Sleep(ctx, 1) })                    // want `Sleep in a goroutine`
	wg.Go(func() { right = agent.Message(ctx, "assistant", "hi") }) // want `Message in a goroutine`
	wg.Go(func() {
		kid := agent.Spawn[int](ctx, "kid", 1)             // want `Spawn in a goroutine`
		_, err := kid.Join(ctx)                            // want `Join in a goroutine`
		_, _ = ctx.History()                               // want `History in a goroutine`
		agent.Go(ctx, "left", func(*agent.Context) error { // want `Go in a goroutine`
			return err
		})
	})
	wg.Wait()
	if left != nil {
		return left
	}
	return right
}

func twice(ctx *agent.Context, in string) error {
	done := make(chan error, 2)
	tool := func() {
		_, err := agent.Step(ctx, "ask", ask) // want `Step in a goroutine`
		done <- err
	}
	go tool()
	go tool()
	return <-done
}

// Below are right ones.

func branches(ctx *agent.Context, in []string) error {
	var all []*agent.Branch
	for _, x := range in {
		all = append(all, agent.Go(ctx, x, func(ctx *agent.Context) error {
			_, err := agent.Step(ctx, "ask", ask)
			return err
		}))
	}
	for _, b := range all {
		if err := b.Join(ctx); err != nil {
			return err
		}
	}
	return nil
}

func beside(ctx *agent.Context, in string) error {
	told := make(chan error, 1)
	go func() {
		agent.Heartbeat(ctx, "reading")
		told <- agent.Emit(ctx, "x:line", ctx.RunID())
	}()
	return <-told
}

func inSteps(ctx *agent.Context, in []string) (int, error) {
	return agent.Step(ctx, "ask", func(ctx context.Context) (int, error) {
		var wg sync.WaitGroup
		for range in {
			wg.Go(func() { _, _ = ask(ctx) })
		}
		wg.Wait()
		return 1, nil
	})
}
