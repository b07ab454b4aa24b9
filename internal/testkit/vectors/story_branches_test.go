package vectors

import (
	"time"

	"github.com/perdure/perdure/agent"
)

var branchStories = []story{
	{
		name: "branches",
		words: []string{
			`The agent begins the branches "left" and "right". Each executes the step "search", which gives "l" or`,
			`"r", then waits for the signal "go" without a limit, and the step "search" again gives its data. ` +
				`The branch`,
			`"left" comes to each of its calls before "right" does. The agent joins "left", then "right". The step`,
			`"search" gives "both", which is the result.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			side := func(result string, after time.Duration) func(ctx *agent.Context) error {
				return func(ctx *agent.Context) error {
					time.Sleep(after) // so that the order of the branches is the same each time
					if _, err := agent.Step(ctx, "search", gives(result)); err != nil {
						return err
					}
					data, err := agent.OnSignal[string](ctx, "go").Join(ctx)
					if err != nil {
						return err
					}
					_, err = agent.Step(ctx, "search", gives(data))
					return err
				}
			}
			left := agent.Go(ctx, "left", side("l", time.Millisecond))
			right := agent.Go(ctx, "right", side("r", 2*time.Millisecond))
			if err := left.Join(ctx); err != nil {
				return nil, err
			}
			if err := right.Join(ctx); err != nil {
				return nil, err
			}
			return agent.Step(ctx, "search", gives("both"))
		},
		turns: []turn{{}, {what: `Two signals "go" come.`, before: func(s *server) {
			s.signal("go", `"one"`)
			s.signal("go", `"two"`)
		}}},
	},
}
