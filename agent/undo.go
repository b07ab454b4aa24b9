package agent

import (
	"context"
	"encoding/json"
	"reflect"
)

// This file has the sagas that are being executed, and the undos of their steps.

// checkUndo returns an error if the options have an Undo that can't be called with the result of a
// step, or that belongs to no saga.
func (o *StepOptions) checkUndo(c *execution, b *branch, what string, result reflect.Type) error {
	switch {
	case o.undoType == nil:
		return nil
	case o.undo == nil:
		return c.misuse("%s: a function is nil", what)
	case !c.inSaga(b):
		return c.misuse("%s has an Undo and is in no Saga", what)
	case o.undoType != result:
		return c.misuse("%s gives %s, and its Undo takes %s",
			what, withArticle(result.String()), withArticle(o.undoType.String()))
	}
	return nil
}

// inSaga tells whether a branch is in a saga.
func (c *execution) inSaga(b *branch) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return b.saga() != nil
}

// register adds the undo of a completed step to the innermost saga. If that is the one in which the
// branch was begun, it gets the undo when the branch is joined.
func (c *execution) register(b *branch, key string, f func(ctx context.Context, result json.RawMessage) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(b.sagas); n > 0 {
		b.sagas[n-1].undo = append(b.sagas[n-1].undo, compensation{key, f})
	} else {
		b.undo = append(b.undo, compensation{key, f})
	}
}
