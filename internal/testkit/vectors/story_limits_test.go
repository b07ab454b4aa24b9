package vectors

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

// callUnderLimits is the agent of both stories.
func callUnderLimits(ctx *agent.Context, _ execution) (any, error) {
	if _, err := agent.Step(ctx, "plan", gives(1)); err != nil {
		return nil, err
	}
	return agent.Step(ctx, "call", gives("text"), agent.Limit("openai", "", 3), agent.Limit("customer", "acme", 0))
}

var limitStories = []story{
	{
		name: "step-under-limits",
		words: []string{`The step "plan" gives 1. The step "call" takes 3 units of the limit "openai", and a slot of`,
			`the limit "customer" with the key "acme". It gives "text", which is the result.`},
		agent: callUnderLimits,
		turns: []turn{{}},
	},
	{
		name:  "step-waits-for-limits",
		words: []string{`As step-under-limits. A step that waits for longer than 2 s suspends the run.`},
		agent: callUnderLimits,
		turns: []turn{
			{what: "The limits have no room.", before: func(s *server) { s.full = true }},
			{what: "There is room, and the grant has taken it.", before: func(s *server) {
				s.full = false
				for _, id := range s.openWaits() {
					s.over(id)
					s.add(perdure.Item{Type: perdure.ItemLimit, WaitID: id, Name: "call#1",
						Outcome: perdure.WaitSatisfied})
				}
			}},
		},
	},
	{
		name: "item-and-branch-wait-for-limits",
		words: []string{
			`In the branch "left" a Parallel "get" of "a" and "b", of which one works at a time, gives each item as it`,
			`is. Its steps take a slot of the limit "site". The step "sum" gives 2, which is the result.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			err := agent.Go(ctx, "left", func(ctx *agent.Context) error {
				_, err := agent.Parallel(ctx, "get", []string{"a", "b"},
					func(_ context.Context, s string) (string, error) { return s, nil },
					agent.MapOptions{Limit: 1, Step: agent.Limit("site", "", 0)})
				return err
			}).Join(ctx)
			if err != nil {
				return nil, err
			}
			return agent.Step(ctx, "sum", gives(2))
		},
		turns: []turn{
			{what: "The limit has no room.", before: func(s *server) { s.full = true }},
			{what: "There is room, and the grant has taken it.", before: func(s *server) {
				s.full = false
				for _, id := range s.openWaits() {
					s.over(id)
					s.add(perdure.Item{Type: perdure.ItemLimit, WaitID: id, Name: "left#1//get#1/0",
						Outcome: perdure.WaitSatisfied})
				}
			}},
		},
	},
}
