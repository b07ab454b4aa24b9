package vectors

import "github.com/perdure/perdure/agent"

var integerStories = []story{
	{
		name: "integers",
		words: []string{
			`The step "count" gives 9007199254740993. The agent spawns a child "next" with this as its input, and`,
			`joins it. It waits for the signal "go" without a limit. The step "low" gives -9223372036854775808. The`,
			`result is the list of the step's result, the child's, the signal's data and the last step's.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			count, err := agent.Step(ctx, "count", gives(int64(9007199254740993)))
			if err != nil {
				return nil, err
			}
			next, err := agent.Spawn[uint64](ctx, "next", count).Join(ctx)
			if err != nil {
				return nil, err
			}
			data, err := agent.OnSignal[int64](ctx, "go").Join(ctx)
			if err != nil {
				return nil, err
			}
			low, err := agent.Step(ctx, "low", gives(int64(-9223372036854775808)))
			return []any{count, next, data, low}, err
		},
		turns: []turn{
			{},
			{what: "The child completes with 18446744073709551615.", before: func(s *server) {
				s.completes("next#1", `18446744073709551615`)
			}},
			{what: `The signal "go" comes with 9007199254740995.`, before: func(s *server) {
				s.signal("go", `9007199254740995`)
			}},
		},
	},
}
