package vectors

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
)

var childStories = []story{
	{
		name: "children",
		words: []string{
			`The agent spawns two children "search", with the inputs {"q":"a"} and {"q":"b"}, and a child "tick"`,
			`without an input and with a timeout of a minute. The step "plan" gives 1. The agent joins all three in`,
			`this order; the list of their results is the result.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			a := agent.Spawn[any](ctx, "search", map[string]string{"q": "a"})
			b := agent.Spawn[any](ctx, "search", map[string]string{"q": "b"})
			tick := agent.Spawn[any](ctx, "tick", nil, agent.Timeout(time.Minute))
			if _, err := agent.Step(ctx, "plan", gives(1)); err != nil {
				return nil, err
			}
			return agent.JoinAll(ctx, a, b, tick)
		},
		turns: []turn{{}, {what: "All children complete.", before: func(s *server) {
			s.completes("search#2", `"B"`)
			s.completes("tick#1", `null`)
			s.completes("search#1", `"A"`)
		}}},
	},
	{
		name: "child-late",
		words: []string{
			`The agent spawns a child "search" with the input 1 and joins it. If that fails, the step "instead" gives`,
			`2. The agent asks for a late result of the child, waits for the signal "go", and asks again. The list of`,
			`the two answers, each the late result or null, is the result.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			child := agent.Spawn[any](ctx, "search", 1)
			if _, err := child.Join(ctx); err != nil {
				if _, err := agent.Step(ctx, "instead", gives(2)); err != nil {
					return nil, err
				}
			}
			first, _, err := child.Late(ctx)
			if err != nil {
				return nil, err
			}
			if _, err := agent.OnSignal[any](ctx, "go").Join(ctx); err != nil {
				return nil, err
			}
			second, _, err := child.Late(ctx)
			return []any{first, second}, err
		},
		turns: []turn{
			{},
			{what: "The child times out.", before: func(s *server) {
				s.fails("search#1", perdure.TimedOut, string(perdure.CodeDeadline))
			}},
			{what: `The result of the child comes late and is adopted. Then the signal "go" comes.`,
				before: func(s *server) {
					s.late("search#1", `{"late":true}`)
					s.signal("go", `1`)
				}},
		},
	},
	{
		name: "child-stalls",
		words: []string{
			`The agent spawns a child "search" with the input 1, whose stall ends the wait, and joins it. It looks`,
			`stuck: the agent asks it to stop, and the step "instead" gives 2, which is the result.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			child := agent.Spawn[any](ctx, "search", 1, agent.Options{OnStall: true})
			if _, err := child.Join(ctx); err == nil {
				return nil, nil
			}
			if err := child.Cancel(ctx); err != nil {
				return nil, err
			}
			return agent.Step(ctx, "instead", gives(2))
		},
		turns: []turn{{}, {what: "The child looks stuck.", before: func(s *server) { s.stalls("search#1") }}},
	},
	{
		name: "child-refused",
		words: []string{
			`The agent spawns the children "search" and "talk", the second on the thread "other", both with the`,
			`input 1, and waits until both have ended. The result is how many completed and how many failed.`,
		},
		during: `The server refuses the child "talk": its thread is busy.`,
		refuse: func(child *perdure.Spawn) *api.Refusal {
			if child.Kind != "talk" {
				return nil
			}
			return &api.Refusal{Code: perdure.CodeThreadBusy, Detail: "the thread is busy with another run"}
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			search := agent.Spawn[any](ctx, "search", 1)
			talk := agent.Spawn[any](ctx, "talk", 1, agent.Options{ThreadID: "other"})
			if _, err := agent.Step(ctx, "plan", gives(1)); err != nil {
				return nil, err
			}
			all, err := agent.JoinAllSettled(ctx, search, talk)
			return []int{all.Completed, all.Failed}, err
		},
		turns: []turn{{}, {what: `The child "search" completes.`,
			before: func(s *server) { s.completes("search#1", `1`) }}},
	},
	{
		name: "child-refused-at-the-wait",
		words: []string{
			`The agent spawns a child "talk" with the input 1 on the thread "other", and joins it at once. The join`,
			`fails, and the step "instead" gives 2, which is the result.`,
		},
		during: `The server refuses the child "talk": its thread is busy.`,
		refuse: func(child *perdure.Spawn) *api.Refusal {
			return &api.Refusal{Code: perdure.CodeThreadBusy, Detail: "the thread is busy with another run"}
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			talk := agent.Spawn[any](ctx, "talk", 1, agent.Options{ThreadID: "other"})
			if _, err := talk.Join(ctx); err == nil {
				return nil, nil
			}
			return agent.Step(ctx, "instead", gives(2))
		},
		turns: []turn{{}, {what: "The wait that replaces the refused one times out.", before: func(s *server) {
			s.fire(s.openWaits()[0])
		}}},
	},
}
