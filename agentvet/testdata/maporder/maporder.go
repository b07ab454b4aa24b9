// Package maporder has steps and children in the order of maps.
package maporder

import (
	"context"
	"maps"
	"slices"

	"github.com/perdure/perdure/agent"
)

func price(ctx context.Context, item string) (int, error) { return len(item), ctx.Err() }

func steps(ctx *agent.Context, in map[string]int) (int, error) {
	total := 0
	for item, n := range in { // want `range over a map around agent.Step`
		p, err := agent.Step(ctx, "price "+item, func(ctx context.Context) (int, error) { return price(ctx, item) })
		if err != nil {
			return 0, err
		}
		total += n * p
	}
	return total, nil
}

func children(ctx *agent.Context, in map[string]int) ([]int, error) {
	var asked []*agent.Future[int]
	for item := range maps.Keys(in) { // want `range over a map around agent.Spawn`
		asked = append(asked, agent.Spawn[int](ctx, "price", item))
	}
	return agent.JoinAll(ctx, asked...)
}

func helper(ctx *agent.Context, item string) error {
	_, err := agent.Step(ctx, "price", func(ctx context.Context) (int, error) { return price(ctx, item) })
	return err
}

func throughHelpers(ctx *agent.Context, in map[string]int) error {
	for item := range in { // want `range over a map around helper`
		if err := helper(ctx, item); err != nil {
			return err
		}
	}
	say := func(text string) error { return agent.Message(ctx, "assistant", text) }
	for item := range in { // want `range over a map around say`
		if err := say(item); err != nil {
			return err
		}
	}
	return nil
}

func items(ctx *agent.Context, in map[string]int) error {
	_, err := agent.Parallel(ctx, "price", slices.Collect(maps.Keys(in)), price) // want `agent.Parallel takes its items in the order of a map`
	return err
}

// Below are right ones.

func sorted(ctx *agent.Context, in map[string]int) error {
	for _, item := range slices.Sorted(maps.Keys(in)) {
		if err := helper(ctx, item); err != nil {
			return err
		}
	}
	_, err := agent.Parallel(ctx, "price", slices.Sorted(maps.Keys(in)), price)
	return err
}

func inside(ctx *agent.Context, in map[string]int) (int, error) {
	total := 0
	for _, n := range in {
		total += n
		agent.Heartbeat(ctx, "counting")
	}
	return agent.Step(ctx, "prices", func(ctx context.Context) (int, error) {
		for item := range in {
			if _, err := price(ctx, item); err != nil {
				return 0, err
			}
		}
		return total, nil
	})
}
