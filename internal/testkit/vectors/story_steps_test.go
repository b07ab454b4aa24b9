package vectors

import (
	"context"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

// gives returns the function of a step that succeeds.
func gives[T any](v T) func(context.Context) (T, error) {
	return func(context.Context) (T, error) { return v, nil }
}

// failing returns the function of a step that fails.
func failing(err error) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return "", err }
}

var errOut = perdure.Errorf("out_of_stock", "there are none left")

var stepStories = []story{
	{
		name: "steps",
		words: []string{
			`The step "plan" gives {"days":2,"city":"Bern"}.`,
			`The step "search" is called twice and gives "one" and "two".`,
			`The step "nothing" gives null. The result of the agent is "two".`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			type plan struct {
				Days int    `json:"days"`
				City string `json:"city"`
			}
			if _, err := agent.Step(ctx, "plan", gives(plan{2, "Bern"})); err != nil {
				return nil, err
			}
			if _, err := agent.Step(ctx, "search", gives("one")); err != nil {
				return nil, err
			}
			two, err := agent.Step(ctx, "search", gives("two"))
			if err != nil {
				return nil, err
			}
			_, err = agent.Step(ctx, "nothing", gives[*int](nil))
			return two, err
		},
		turns: []turn{{}},
	},
	{
		name: "steps-about-values",
		words: []string{
			`For each of "a", {"b":1.0,"a":"\u2028"} and 9007199254740993: the step "look", about this value,`,
			`gives the number of the step, from 1. Then the step "bytes" gives {"raw":bytes 1 2 3,"text":"abcd"}.`,
			`The result is "done".`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			about := []any{"a", map[string]any{"b": 1.0, "a": "\u2028"}, int64(9007199254740993)}
			for n, v := range about {
				if _, err := agent.Step(ctx, "look", gives(n+1), agent.For(v)); err != nil {
					return nil, err
				}
			}
			type result struct {
				Raw  []byte `json:"raw"`
				Text string `json:"text"`
			}
			_, err := agent.Step(ctx, "bytes", gives(result{[]byte{1, 2, 3}, "abcd"}))
			return "done", err
		},
		turns: []turn{{}},
	},
	{
		name: "errors-that-become-facts",
		words: []string{
			`The step "stock" fails with the permanent error out_of_stock, "there are none left".`,
			`The step "page" fails with an error that is not permanent, "the page is not there yet".`,
			`The agent goes on after both. The step "mail" gives true. The result is "done".`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			agent.Step(ctx, "stock", failing(perdure.Permanent(errOut)))
			agent.Step(ctx, "page", failing(errNotYet("the page")))
			_, err := agent.Step(ctx, "mail", gives(true))
			return "done", err
		},
		turns: []turn{{}},
	},
	{
		name: "error-that-is-no-fact",
		words: []string{
			`The step "plan" gives 1. The step "page" fails in the first execution, with "the page is not there yet",`,
			`and the agent returns the error. In the second one it gives "text", which is the result.`,
		},
		agent: func(ctx *agent.Context, x execution) (any, error) {
			if _, err := agent.Step(ctx, "plan", gives(1)); err != nil {
				return nil, err
			}
			return agent.Step(ctx, "page", func(context.Context) (string, error) {
				if x.number == 1 {
					return "", errNotYet("the page")
				}
				return "text", nil
			})
		},
		turns: []turn{{}, {what: "The server tries the run again."}},
	},
	{
		name: "result-that-cant-be-recorded",
		words: []string{
			`The step "read" gives the text "a", NUL, "b". It can't be recorded, and that is a permanent error of`,
			`the step. The agent goes on. The step "other" gives 1, which is the result.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			agent.Step(ctx, "read", gives("a\x00b"))
			return agent.Step(ctx, "other", gives(1))
		},
		turns: []turn{{}},
	},
	{
		name: "now-and-uuid",
		words: []string{
			`The agent asks for the time "began", the UUID "order", the UUID "order" again and the time "began"`,
			`again. The step "pay" gives the first UUID, which is also the result.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			agent.Now(ctx, "began")
			id := agent.UUID(ctx, "order")
			agent.UUID(ctx, "order")
			agent.Now(ctx, "began")
			return agent.Step(ctx, "pay", gives(id))
		},
		turns: []turn{{}},
	},
	{
		name:  "large-data",
		input: []byte(`{"of":3}`),
		words: []string{
			`The agent waits for the signals "wide", "deep" and "deeper", each without a limit, and gives "done".`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			for _, name := range []string{"wide", "deep", "deeper"} {
				if _, err := agent.OnSignal[any](ctx, name).Join(ctx); err != nil {
					return nil, err
				}
			}
			return "done", nil
		},
		turns: []turn{
			{what: "All three signals come before the run begins.", before: func(s *server) {
				s.signal("wide", `"`+strings.Repeat("x", 8<<10)+`"`)
				s.signal("deep", strings.Repeat("[", 41)+strings.Repeat("]", 41))
				s.signal("deeper", strings.Repeat("[", 61)+strings.Repeat("]", 61))
			}},
		},
	},
}
