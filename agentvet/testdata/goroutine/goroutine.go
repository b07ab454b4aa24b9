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
	name := "tool"
	for range in {
		go func() {
			_, err := agent.Step(ctx, "ask", ask) // want `started several times has a step of one name`
			errs <- err
		}()
		go func() {
			_, err := agent.Step(ctx, name, ask) // want `started several times has a step of one name`
			errs <- err
		}()
	}
	return <-errs
}

func namesakes(ctx *agent.Context, in string) error {
	var wg sync.WaitGroup
	var left, right error
	wg.Go(func() { _, left = agent.Step(ctx, "ask", ask) })  // want `step "ask" is also in another goroutine`
	wg.Go(func() { _, right = agent.Step(ctx, "ask", ask) }) // want `step "ask" is also in another goroutine`
	wg.Wait()
	if left != nil {
		return left
	}
	return right
}

func besideAgent(ctx *agent.Context, in string) error {
	done := make(chan error, 1)
	go func() {
		_, err := agent.Step(ctx, "ask", ask) // want `step "ask" is also in another goroutine`
		done <- err
	}()
	if _, err := agent.Step(ctx, "ask", ask); err != nil {
		return err
	}
	return <-done
}

func twice(ctx *agent.Context, in string) error {
	done := make(chan error, 2)
	tool := func() {
		_, err := agent.Step(ctx, "ask", ask) // want `started several times has a step of one name`
		done <- err
	}
	go tool()
	go tool()
	return <-done
}

// Below are right ones.

func ownNames(ctx *agent.Context, in []string) error {
	var wg sync.WaitGroup
	errs := make(chan error, len(in)+2)
	for _, x := range in {
		name := "ask " + x
		wg.Go(func() {
			_, err := agent.Step(ctx, name, ask)
			errs <- err
		})
	}
	wg.Go(func() {
		_, err := agent.Step(ctx, "left", ask)
		errs <- err
	})
	wg.Go(func() {
		_, err := agent.Step(ctx, "right", ask)
		errs <- err
	})
	wg.Wait()
	return <-errs
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
