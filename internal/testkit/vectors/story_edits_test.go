package vectors

import (
	"github.com/perdure/perdure/agent"
)

// goOn is what an earlier build did not come to before it was replaced.
func goOn(s *server) { s.signal("go", `null`) }

// A new build is used from the second execution on.
const newBuild = `The signal "go" comes. From now on the second build executes the run.`

var editStories = []story{
	{
		name: "version",
		words: []string{
			`The first build: the step "plan" gives 1, the agent waits for the signal "go", and the step "old" gives`,
			`2, the result. The second build asks for version 1 of "two prompts" before the step "plan", and if it`,
			`gets 1, executes the step "before". After the signal it asks for version 3 of "new prompt", and if it`,
			`gets 3, the step "new" gives 3, the result.`,
		},
		agent: func(ctx *agent.Context, x execution) (any, error) {
			if x.number > 1 && agent.Version(ctx, "two prompts", 1) >= 1 {
				if _, err := agent.Step(ctx, "before", gives(0)); err != nil {
					return nil, err
				}
			}
			if _, err := agent.Step(ctx, "plan", gives(1)); err != nil {
				return nil, err
			}
			if _, err := agent.OnSignal[any](ctx, "go").Join(ctx); err != nil {
				return nil, err
			}
			if x.number > 1 && agent.Version(ctx, "new prompt", 3) >= 3 {
				return agent.Step(ctx, "new", gives(3))
			}
			return agent.Step(ctx, "old", gives(2))
		},
		turns: []turn{{}, {what: newBuild, before: goOn}},
	},
	{
		name: "removed",
		words: []string{
			`The first build: the step "look up" gives 1, the step "plan" gives 2, the agent waits for the signal`,
			`"go". The second build has no step "look up", and begins by saying that it is removed. The result is 2.`,
		},
		agent: func(ctx *agent.Context, x execution) (any, error) {
			if x.number > 1 {
				agent.Removed(ctx, "look up")
			} else if _, err := agent.Step(ctx, "look up", gives(1)); err != nil {
				return nil, err
			}
			plan, err := agent.Step(ctx, "plan", gives(2))
			if err != nil {
				return nil, err
			}
			_, err = agent.OnSignal[any](ctx, "go").Join(ctx)
			return plan, err
		},
		turns: []turn{{}, {what: newBuild, before: goOn}},
	},
	{
		name: "renamed-step-is-held",
		words: []string{
			`The first build: the step "plan" gives 1, the step "buy" gives 2, the agent waits for the signal "go",`,
			`and the step "mail" gives 3, the result. The second build calls the step "buy" "order". It is held, and`,
			`commits nothing else. The third execution is made by the first build again.`,
		},
		agent: func(ctx *agent.Context, x execution) (any, error) {
			if _, err := agent.Step(ctx, "plan", gives(1)); err != nil {
				return nil, err
			}
			name := "buy"
			if x.number == 2 {
				name = "order"
			}
			if _, err := agent.Step(ctx, name, gives(2)); err != nil {
				return nil, err
			}
			if _, err := agent.OnSignal[any](ctx, "go").Join(ctx); err != nil {
				return nil, err
			}
			return agent.Step(ctx, "mail", gives(3))
		},
		turns: []turn{{}, {what: newBuild, before: goOn}, {what: "The first build is back."}},
	},
	{
		name: "another-input-is-held",
		words: []string{
			`The agent spawns a child "search" and joins it. Its input is {"q":"a"} in the first build and {"q":"b"}`,
			`in the second one, which is held.`,
		},
		agent: func(ctx *agent.Context, x execution) (any, error) {
			q := "a"
			if x.number > 1 {
				q = "b"
			}
			return agent.Spawn[any](ctx, "search", map[string]string{"q": q}).Join(ctx)
		},
		turns: []turn{{}, {what: "The child completes. From now on the second build executes the run.",
			before: func(s *server) { s.completes("search#1", `1`) }}},
	},
}
