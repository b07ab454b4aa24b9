package vectors

import (
	"errors"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

// searches spawns children "search" with the inputs 1 to n.
func searches(ctx *agent.Context, n int) (out []*agent.Future[any]) {
	for i := range n {
		out = append(out, agent.Spawn[any](ctx, "search", i+1))
	}
	return out
}

const spawnsThree = `The agent spawns three children "search", with the inputs 1, 2 and 3.`

var joinStories = []story{
	{
		name:  "join-all-fails",
		words: []string{spawnsThree, `It joins all of them, and returns the error.`},
		agent: func(ctx *agent.Context, _ execution) (any, error) { return agent.JoinAll(ctx, searches(ctx, 3)...) },
		turns: []turn{{}, {what: "The third child completes, then the second one fails.", before: func(s *server) {
			s.completes("search#3", `3`)
			s.fails("search#2", perdure.Failed, "no_index")
		}}},
	},
	{
		name: "join-all-settled",
		words: []string{spawnsThree, `It waits until all have ended. The result is the list of how many completed,`,
			`failed, timed out and were cancelled.`},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			all, err := agent.JoinAllSettled(ctx, searches(ctx, 3)...)
			return []int{all.Completed, all.Failed, all.TimedOut, all.Cancelled}, err
		},
		turns: []turn{{}, {what: "The children end, each in another way.", before: func(s *server) {
			s.fails("search#3", perdure.TimedOut, string(perdure.CodeDeadline))
			s.completes("search#1", `1`)
			s.fails("search#2", perdure.Cancelled, string(perdure.CodeCancelled))
		}}},
	},
	{
		name: "select",
		words: []string{
			`The agent spawns a child "search" with the input 1 and selects it, the signal "go" and a timer of an`,
			`hour. After the signal it selects the child and the same timer again. The result is the list of the`,
			`two indexes.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			child := searches(ctx, 1)[0]
			timer := agent.After(ctx, time.Hour)
			first, err := agent.Select(ctx, child, agent.OnSignal[any](ctx, "go"), timer)
			if err != nil {
				return nil, err
			}
			second, err := agent.Select(ctx, child, timer)
			return []int{first, second}, err
		},
		turns: []turn{
			{},
			{what: `The signal "go" comes.`, before: func(s *server) { s.signal("go", `null`) }},
			{what: "The child completes.", before: func(s *server) { s.completes("search#1", `1`) }},
		},
	},
	{
		name: "select-gives-back",
		words: []string{
			`The agent spawns a child "search" with the input 1 and selects it and the signal "go". The result is`,
			`the data of the signal "go" for which it waits then.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			if _, err := agent.Select(ctx, searches(ctx, 1)[0], agent.OnSignal[any](ctx, "go")); err != nil {
				return nil, err
			}
			return agent.OnSignal[any](ctx, "go").Join(ctx)
		},
		turns: []turn{{}, {what: `The child completes, then the signal "go" comes.`, before: func(s *server) {
			s.completes("search#1", `1`)
			s.signal("go", `"kept"`)
		}}},
	},
	{
		name: "select-ok",
		words: []string{spawnsThree, `It selects the first that completes, and asks the others to stop. The result is`,
			`the list of its index and its result.`},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			first, err := agent.SelectOK(ctx, searches(ctx, 3)...)
			if err != nil {
				return nil, err
			}
			for _, f := range first.Remaining {
				if err := f.Cancel(ctx); err != nil {
					return nil, err
				}
			}
			return []any{first.Index, first.Value}, nil
		},
		turns: []turn{{}, {what: "The second child fails, then the third one completes.", before: func(s *server) {
			s.fails("search#2", perdure.Failed, "no_index")
			s.completes("search#3", `"three"`)
		}}},
	},
	{
		name: "first-two-of-four",
		words: []string{
			`The agent spawns four children "search" with the inputs 1 to 4, and waits for the first two that`,
			`complete. The result is the list of their indexes.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			first, err := agent.FirstOK(ctx, 2, searches(ctx, 4)...)
			return first.Index, err
		},
		turns: []turn{
			{},
			{what: "The first child fails, the third one completes.", before: func(s *server) {
				s.fails("search#1", perdure.Failed, "no_index")
				s.completes("search#3", `3`)
			}},
			{what: "The second child completes.", before: func(s *server) { s.completes("search#2", `2`) }},
		},
	},
	{
		name: "none-completes",
		words: []string{
			`The agent spawns two children "search" with the inputs 1 and 2, and waits for the first that completes.`,
			`It returns the error.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			_, err := agent.SelectOK(ctx, searches(ctx, 2)...)
			return nil, err
		},
		turns: []turn{{}, {what: "Both fail.", before: func(s *server) {
			s.fails("search#2", perdure.Failed, "no_index")
			s.fails("search#1", perdure.Failed, "no_index")
		}}},
	},
	{
		name: "race",
		words: []string{
			`The agent spawns two children "search" with the inputs 1 and 2, and races them with a limit of a minute.`,
			`If none has ended by then, it races the same two for two minutes. The result is the index of the first.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			both := searches(ctx, 2)
			first, err := agent.Race(ctx, time.Minute, both...)
			if errors.Is(err, agent.ErrTimeout) {
				first, err = agent.Race(ctx, 2*time.Minute, both...)
			}
			return first.Index, err
		},
		turns: []turn{
			{},
			{what: "A minute passes.", before: func(s *server) {
				for _, id := range s.openWaits() {
					if s.waits[id].spec.Type == perdure.WaitTimer {
						s.fire(id)
					}
				}
			}},
			{what: "The second child completes.", before: func(s *server) { s.completes("search#2", `2`) }},
		},
	},
}
