// Package kept has agents that keep their context.
package kept

import (
	"context"

	"github.com/perdure/perdure/agent"
)

type bot struct {
	ctx  *agent.Context
	all  map[string]*agent.Context
	turn *turn
}

type turn struct{ ctx *agent.Context }

var last *agent.Context

func (b *bot) answer(ctx *agent.Context, in string) (string, error) {
	b.ctx = ctx              // want `kept in b, which the agent was given`
	b.all[in] = ctx          // want `kept in b, which the agent was given`
	b.turn = &turn{ctx: ctx} // want `kept in b, which the agent was given`
	last = ctx               // want `kept in the global variable last`
	return b.ask(in)
}

func (b *bot) ask(in string) (string, error) {
	return agent.Step(b.ctx, "ask", func(context.Context) (string, error) { return in, nil })
}

func register(add func(func(ctx *agent.Context, in string) error)) {
	var all []*agent.Context
	contexts := make(chan *agent.Context, 1)
	add(func(ctx *agent.Context, in string) error {
		all = append(all, ctx) // want `kept in all, a variable outside of the agent`
		contexts <- ctx        // want `kept in contexts, a variable outside of the agent`
		return nil
	})
}

// Below are right ones. A value that is made anew in each execution may have its context.

func newTurn(ctx *agent.Context) *turn {
	t := &turn{}
	t.ctx = ctx
	return t
}

func converse(ctx *agent.Context, in string) (string, error) {
	t := &turn{ctx: ctx}
	t.ctx = newTurn(ctx).ctx
	return agent.Step(t.ctx, "ask", func(context.Context) (string, error) { return in, nil })
}

func (b *bot) forget() { b.ctx = nil }
