package vectors

import (
	"context"
	"encoding/json"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

// orders is the input of an agent that goes on anew.
type orders struct {
	Orders int `json:"orders"`
}

var endStories = []story{
	{
		name: "cancel-in-a-step",
		words: []string{
			`The agent spawns a child "search" with the input 1. During the step "long" the run is asked to stop; the`,
			`step gives 1 nevertheless. The step "next" and the join of the child are not begun, and the agent`,
			`returns their error.`,
		},
		agent: func(ctx *agent.Context, x execution) (any, error) {
			child := agent.Spawn[any](ctx, "search", 1)
			_, err := agent.Step(ctx, "long", func(context.Context) (int, error) {
				x.cancel()
				return 1, nil
			})
			if err != nil {
				return nil, err
			}
			if _, err := agent.Step(ctx, "next", gives(2)); err == nil {
				return nil, nil
			}
			return child.Join(ctx)
		},
		turns: []turn{{}},
	},
	{
		name: "cancel-at-a-wait",
		words: []string{
			`The step "plan" gives 1. The run is asked to stop, which the worker does not know yet. The agent asks`,
			`for the time "asked" and waits for the signal "go", an hour at most. It returns the error.`,
		},
		during: "The server refuses to suspend the run, because it is asked to stop.",
		agent: func(ctx *agent.Context, x execution) (any, error) {
			if _, err := agent.Step(ctx, "plan", gives(1)); err != nil {
				return nil, err
			}
			x.s.state.cancel = true
			agent.Now(ctx, "asked")
			return agent.Signal[any](ctx, "go", time.Hour)
		},
		turns: []turn{{}},
	},
	{
		name: "cancel-while-suspended",
		words: []string{
			`The step "plan" gives 1. The agent waits for the signal "go", an hour at most. If that fails, it`,
			`returns the error.`,
		},
		agent: planThenGo,
		turns: []turn{{}, {what: "The run is asked to stop.", before: func(s *server) { s.state.cancel = true }}},
	},
	{
		name:  "anew",
		input: json.RawMessage(`{"orders":0}`),
		words: []string{
			`The agent waits for the signal "order", an hour at most. The step "ship" gives its data. If "orders" of`,
			`the input is 0, the run goes on anew, with the result "one of many" and the input {"orders":1}. Otherwise`,
			`the data of the signal is the result.`,
		},
		agent: func(ctx *agent.Context, x execution) (any, error) {
			in, err := reads[orders](ctx, x)
			if err != nil {
				return nil, err
			}
			order, err := agent.Signal[any](ctx, "order", time.Hour)
			if err != nil {
				return nil, err
			}
			if _, err := agent.Step(ctx, "ship", gives(order)); err != nil {
				return nil, err
			}
			if in.Orders++; in.Orders == 1 {
				return agent.Anew(ctx, "one of many", in)
			}
			return order, nil
		},
		turns: []turn{
			{},
			{what: `Two signals "order" and one "other" come.`, before: func(s *server) {
				s.signal("order", `"a"`)
				s.signal("other", `0`)
				s.signal("order", `"b"`)
			}},
			{anew: true, what: "The run has completed. This is the run that goes on for it: its journal is empty, " +
				"and its inbox has what the first one did not take."},
		},
	},
	{
		name: "retry-from-the-journal",
		words: []string{
			`The step "plan" gives 1. The agent spawns two children "search" with the inputs 1 and 2, opens the`,
			`callback "paid" for an hour, and asks for its token, which the step "order" gives. It joins the first`,
			`child. The step "buy" fails in the second execution, with the permanent error out_of_stock, "there are`,
			`none left", and the agent returns it. In later ones it gives 2. The agent joins the second child and`,
			`then the callback, whose data is the result.`,
		},
		agent: func(ctx *agent.Context, x execution) (any, error) {
			if _, err := agent.Step(ctx, "plan", gives(1)); err != nil {
				return nil, err
			}
			both := searches(ctx, 2)
			paid := agent.Callback[any](ctx, "paid", time.Hour)
			if _, err := agent.Step(ctx, "order", gives(paid.Token())); err != nil {
				return nil, err
			}
			if _, err := both[0].Join(ctx); err != nil {
				return nil, err
			}
			_, err := agent.Step(ctx, "buy", func(context.Context) (int, error) {
				if x.number == 2 {
					return 0, perdure.Permanent(errOut)
				}
				return 2, nil
			})
			if err != nil {
				return nil, err
			}
			if _, err := both[1].Join(ctx); err != nil {
				return nil, err
			}
			return paid.Join(ctx)
		},
		turns: []turn{
			{},
			{what: "The first child completes.", before: func(s *server) { s.completes("search#1", `1`) }},
			{retry: true,
				what: "The run has failed. It is retried from its journal, without the entry of its error."},
			{what: "The second child completes, and the callback is answered.", before: func(s *server) {
				s.completes("search#2", `2`)
				s.answers("callback:paid#1", `{"result":"paid"}`)
			}},
		},
	},
}
