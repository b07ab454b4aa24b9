package vectors

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

var threadStories = []story{
	{
		name:   "message",
		thread: true,
		words: []string{
			`The agent writes the message "hello" as the assistant and waits for a message of the user. Its content`,
			`is the result.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			if err := agent.Message(ctx, perdure.RoleAssistant, "hello"); err != nil {
				return nil, err
			}
			return agent.OnMessage[string](ctx).Join(ctx)
		},
		turns: []turn{{}, {what: "The user writes.", before: func(s *server) { s.message("hi") }}},
	},
	{
		name:   "history",
		thread: true,
		words: []string{
			`The agent reads the thread. The step "answer" gives how many messages there are. The agent writes the`,
			`message "done" as the assistant, waits for the signal "go", and reads the newest message of the thread,`,
			`whose content is the result.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			messages, err := ctx.History()
			if err != nil {
				return nil, err
			}
			if _, err := agent.Step(ctx, "answer", gives(len(messages))); err != nil {
				return nil, err
			}
			if err := agent.Message(ctx, perdure.RoleAssistant, "done"); err != nil {
				return nil, err
			}
			if _, err := agent.OnSignal[any](ctx, "go").Join(ctx); err != nil {
				return nil, err
			}
			var newest any
			for m, err := range ctx.NewestMessages(0) {
				if err != nil {
					return nil, err
				}
				newest = m.Content
				break
			}
			return newest, nil
		},
		turns: []turn{
			{what: "The user has written twice.", before: func(s *server) {
				s.post(perdure.Message{Role: perdure.RoleUser, Content: []byte(`"one"`)}, "")
				s.post(perdure.Message{Role: perdure.RoleUser, Content: []byte(`"two"`)}, "")
			}},
			{what: `The user writes again, and the signal "go" comes.`, before: func(s *server) {
				s.post(perdure.Message{Role: perdure.RoleUser, Content: []byte(`"three"`)}, "")
				s.signal("go", `null`)
			}},
		},
	},
	{
		name:   "report-said-anew",
		thread: true,
		words: []string{
			`The agent writes the message "I begin" and the line x:begun with the data {"b":1,"a":2.0}. The step`,
			`"answer" fails in the first execution, with "the model is not there yet": the agent writes the message`,
			`"busy, I will try again" and returns the error. In the second one it gives "42". The agent writes the`,
			`message "42" and streams the text "bye". All messages are of the assistant. The result is "42".`,
		},
		agent: func(ctx *agent.Context, x execution) (any, error) {
			say := func(text string) { _ = agent.Message(ctx, perdure.RoleAssistant, text) }
			say("I begin")
			data := map[string]any{"b": 1, "a": 2.0}
			if err := agent.Emit(ctx, "x:begun", data); err != nil {
				return nil, err
			}
			answer, err := agent.Step(ctx, "answer", func(context.Context) (string, error) {
				if x.number == 1 {
					return "", errNotYet("the model")
				}
				return "42", nil
			})
			if err != nil {
				say("busy, I will try again")
				return nil, err
			}
			say(answer)
			return answer, agent.Delta(ctx, "bye")
		},
		turns: []turn{{}, {what: "The server tries the run again."}},
	},
	{
		name:   "continue",
		thread: true,
		words: []string{
			`The agent spawns two children "report" with the inputs 1 and 2. Its result is "I am at it", and it is`,
			`continued when both have ended.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			one, two := agent.Spawn[any](ctx, "report", 1), agent.Spawn[any](ctx, "report", 2)
			return agent.Continue(ctx, "I am at it", one, two)
		},
		turns: []turn{{}},
	},
}
