package agent

import (
	"context"
	"encoding/json"
	"reflect"
)

// This file has the sagas that are being executed, and the undos of their steps.

// inSaga tells whether a saga is being executed.
func (c *execution) inSaga() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sagas.list) > 0
}

// checkUndo returns an error if the options have an Undo that can't be called with the result of a
// step, or that belongs to no saga.
func (o *StepOptions) checkUndo(c *execution, what string, result reflect.Type) error {
	switch {
	case o.undoType == nil:
		return nil
	case o.undo == nil:
		return c.misuse("%s: a function is nil", what)
	case !c.inSaga():
		return c.misuse("%s has an Undo and is in no Saga", what)
	case o.undoType != result:
		return c.misuse("%s gives %s, and its Undo takes %s",
			what, withArticle(result.String()), withArticle(o.undoType.String()))
	}
	return nil
}

// register adds the undo of a completed step to the innermost saga.
func (c *execution) register(key string, f func(ctx context.Context, result json.RawMessage) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.sagas.list)
	if n == 0 { // the body returned without waiting for the step's goroutine
		return misuse("step %s has an Undo and ended after its Saga", key)
	}
	c.sagas.list[n-1].undo = append(c.sagas.list[n-1].undo, compensation{key, f})
	return nil
}
