package agent

import (
	"encoding/json"
	"reflect"

	"github.com/perdure/perdure"
)

// Anew completes the run and continues it as a new run of the same kind, with an empty journal. It is
// for an agent that lives for months: its journal stays small. next is the input of the new run, so it
// has everything that the agent has to remember. Return the results of Anew from the agent:
//
//	return agent.Anew(ctx, Report{Seen: n}, State{Since: since, Seen: n})
//
// The server does both in one transaction, so there is exactly one new run. It has the queue, the
// priority, the metadata, the webhook and the thread of this one, and a timeout of its own. Signals and
// messages that came and were not taken go with it. Children of this run end, as with every end, unless
// they were spawned with Options.Outlive. So does the run itself if it is a child: a child without
// Outlive can't go on anew.
//
// [Continue] is something else: it ends a turn while children still work.
func Anew[Out, In any](ctx *Context, result Out, next In) (Out, error) {
	c := ctx.execution()
	if err := c.enter(); err != nil {
		return result, err
	}
	b, err := c.ownCounted("Anew")
	if err != nil {
		return result, err
	}
	if err := c.stopReason(b); err != nil {
		return result, err
	}
	text, err := perdure.Encode(next)
	if err != nil {
		return result, c.misuse("Anew: the input of the new run, a %T, can't be written as JSON: %v", next, err)
	}
	c.mu.Lock()
	in, on, before := c.inputType, len(c.continueOn), c.anew
	c.mu.Unlock()
	switch {
	case before != nil:
		return result, c.misuse("Anew was called before: a run goes on as one new run")
	case on > 0:
		return result, c.misuse("Anew and Continue: a run has one continuation")
	}
	if in != nil {
		if err := json.Unmarshal(text, reflect.New(in).Interface()); err != nil {
			return result, c.misuse("Anew: the agent's input is a %s, and can't be read from a %T: %v", in, next, err)
		}
	}
	c.mu.Lock()
	c.anew = &perdure.ContinueWith{Input: text}
	c.mu.Unlock()
	return result, nil
}
