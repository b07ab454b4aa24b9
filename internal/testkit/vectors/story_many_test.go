package vectors

import (
	"context"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

// endOldest ends the children that were spawned first and work, with their keys as results.
func (s *server) endOldest(n int) {
	for _, key := range s.spawned {
		if s.children[key] == "" && n > 0 {
			s.completes(key, fmt.Sprintf("%q", key))
			n--
		}
	}
}

// ended returns how many children have ended.
func (s *server) ended() (n int) {
	for _, key := range s.spawned {
		if s.children[key] != "" {
			n++
		}
	}
	return n
}

var manyStories = []story{
	{
		name: "map-of-50",
		words: []string{
			`The agent maps the kind "square" over the numbers 1 to 50, twenty at the same time. The result is how`,
			`many completed.`,
		},
		during: "Each time the agent looks into its inbox, the ten children that were spawned first and work " +
			"complete, until 20 have ended in the first execution, and all in the second one.",
		asked: func(s *server) {
			if s.ended() < 20 || s.grant.Epoch >= epochOf(1) {
				s.endOldest(10)
			}
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			var items []int
			for n := range 50 {
				items = append(items, n+1)
			}
			all, err := agent.Map[any](ctx, "square", items, agent.MapOptions{Limit: 20})
			return all.Completed, err
		},
		turns: []turn{{}, {what: "Ten more children end.", before: func(s *server) { s.endOldest(10) }}},
	},
	{
		name: "map-fails",
		words: []string{
			`The agent maps the kind "square" over the numbers 1 to 5, three at the same time, and returns the error.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			_, err := agent.Map[any](ctx, "square", []int{1, 2, 3, 4, 5}, agent.MapOptions{Limit: 3})
			return nil, err
		},
		turns: []turn{{}, {what: "The first child completes, the third one fails.", before: func(s *server) {
			s.completes("square#1/0", `1`)
			s.fails("square#1/2", perdure.Failed, "overflow")
		}}},
	},
	{
		name: "parallel",
		words: []string{
			`The agent calls a function in parallel under the name "fetch", for the items "c", "a" and "b". It gives`,
			`the item twice, such as "aa". The calls for "a", "b" and "c" end in this order, one after the other.`,
			`Then the step "sum" gives 3, which is the result.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			twice := func(_ context.Context, v string) (string, error) {
				time.Sleep(time.Duration(v[0]) * time.Millisecond)
				return v + v, nil
			}
			_, err := agent.Parallel(ctx, "fetch", []string{"c", "a", "b"}, twice)
			if err != nil {
				return nil, err
			}
			return agent.Step(ctx, "sum", gives(3))
		},
		turns: []turn{{}},
	},
	{
		name: "parallel-settled",
		words: []string{
			`The agent calls a function in parallel under the name "fetch", for the items 1, 2 and 3, one at a time`,
			`and all of them whatever fails. For 2 it fails with the permanent error out_of_stock, "there are none`,
			`left", for 3 with "page 3 is not there yet", which is not permanent. The step "sum" gives 1, the result.`,
		},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			_, err := agent.Parallel(ctx, "fetch", []int{1, 2, 3}, func(_ context.Context, n int) (int, error) {
				switch n {
				case 2:
					return 0, perdure.Permanent(errOut)
				case 3:
					return 0, errNotYet("page 3")
				}
				return n, nil
			}, agent.MapOptions{Limit: 1, Settle: true})
			if err != nil {
				return nil, err
			}
			return agent.Step(ctx, "sum", gives(1))
		},
		turns: []turn{{}},
	},
}
