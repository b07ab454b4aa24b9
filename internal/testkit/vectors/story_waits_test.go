package vectors

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

var waitStories = []story{
	{
		name: "signal-early",
		words: []string{`The step "plan" gives 1. The agent waits for the signal "go", an hour at most. Its data is`,
			`the result.`},
		agent: planThenGo,
		turns: []turn{{what: `Two signals "go" and one "other" come before the run begins.`, before: func(s *server) {
			s.signal("other", `0`)
			s.signal("go", `{"n":1}`)
			s.signal("go", `{"n":2}`)
		}}},
	},
	{
		name:  "signal-late",
		words: []string{`As signal-early.`},
		agent: planThenGo,
		turns: []turn{{}, {what: `The signal "go" comes.`, before: func(s *server) { s.signal("go", `{"n":1}`) }}},
	},
	{
		name:  "signal-timeout",
		words: []string{`As signal-early. The agent returns the error of the wait.`},
		agent: planThenGo,
		turns: []turn{{}, {what: "An hour passes.", before: func(s *server) { s.fire("signal:go#1") }}},
	},
	{
		name: "timers",
		words: []string{
			`The agent sleeps for 90 seconds, then until 2000-01-01T01:00:00Z.`,
			`Then it makes a timer of an hour, and selects it and the signal "go". After the signal it selects the`,
			`same timer and another signal "go". The index of the first one of this second choice is the result.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			if err := agent.Sleep(ctx, 90*time.Second); err != nil {
				return nil, err
			}
			if err := agent.SleepUntil(ctx, time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC)); err != nil {
				return nil, err
			}
			timer := agent.After(ctx, time.Hour)
			if _, err := agent.Select(ctx, timer, agent.OnSignal[int](ctx, "go")); err != nil {
				return nil, err
			}
			return agent.Select(ctx, timer, agent.OnSignal[int](ctx, "go"))
		},
		turns: []turn{
			{},
			{what: "90 seconds pass.", before: func(s *server) { s.fire(s.openWaits()[0]) }},
			{what: "It is one o'clock.", before: func(s *server) { s.fire(s.openWaits()[0]) }},
			{what: `After ten minutes the signal "go" comes.`, before: func(s *server) {
				s.passes(10 * time.Minute)
				s.signal("go", `1`)
			}},
			{what: "The rest of the hour passes.", before: func(s *server) {
				for _, id := range s.openWaits() {
					if s.waits[id].spec.Type == perdure.WaitTimer {
						s.fire(id)
					}
				}
			}},
		},
	},
	{
		name: "approval",
		words: []string{
			`The agent asks for the approval "push" of the action {"branch":"main"}, titled "Push?", with the`,
			`default timeout. If it is granted, the step "push" gives true. The result is whether it was granted.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			verdict, err := agent.Approve(ctx, agent.Approval{Name: "push", Title: "Push?",
				Action: map[string]string{"branch": "main"}})
			if err != nil || !verdict.Approved {
				return false, err
			}
			return agent.Step(ctx, "push", gives(true))
		},
		turns: []turn{{}, {what: "A person approves.", before: func(s *server) {
			s.decides("approval:push#1", perdure.Approve)
		}}},
	},
	{
		name: "callback",
		words: []string{
			`The agent opens the callback "paid" for an hour and asks for its token. The step "order" gives the token.`,
			`The agent waits for the callback, whose data {"sum":12} is the result.`,
		},
		agent: orderThenPaid,
		turns: []turn{{}, {what: "The callback is answered.", before: func(s *server) {
			s.answers("callback:paid#1", `{"result":{"sum":12}}`)
		}}},
	},
	{
		name:  "callback-error",
		words: []string{`As callback. The agent returns the error with which the callback is answered.`},
		agent: orderThenPaid,
		turns: []turn{{}, {what: "The callback is answered with an error.", before: func(s *server) {
			s.answers("callback:paid#1", `{"error":{"code":"no_funds","message":"the card was declined"}}`)
		}}},
	},
	{
		name: "withdraw",
		words: []string{
			`The agent opens the callback "paid" for an hour and selects it and the signal "stop". After the signal`,
			`it withdraws the callback. The result is whether it was withdrawn.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			paid := agent.Callback[int](ctx, "paid", time.Hour)
			if _, err := agent.Select(ctx, paid, agent.OnSignal[any](ctx, "stop")); err != nil {
				return nil, err
			}
			return paid.Withdraw(ctx)
		},
		turns: []turn{{}, {what: `The signal "stop" comes.`, before: func(s *server) { s.signal("stop", `null`) }}},
	},
}

// planThenGo is the agent of the stories about a signal.
func planThenGo(ctx *agent.Context, _ execution) (any, error) {
	if _, err := agent.Step(ctx, "plan", gives(1)); err != nil {
		return nil, err
	}
	return agent.Signal[any](ctx, "go", time.Hour)
}

// orderThenPaid is the agent of the stories about a callback.
func orderThenPaid(ctx *agent.Context, _ execution) (any, error) {
	paid := agent.Callback[any](ctx, "paid", time.Hour)
	if _, err := agent.Step(ctx, "order", gives(paid.Token())); err != nil {
		return nil, err
	}
	return paid.Join(ctx)
}
