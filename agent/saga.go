package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/session"
)

const (
	undoPrefix   = perdure.UndoPrefix
	undonePrefix = perdure.UndonePrefix
	sagaPrefix   = "_saga:"
	undoRetries  = 4
)

// Saga executes a part of the agent that is either completed or undone. Each of its steps may have
// an [Undo]. If the body returns an error, or the run is asked to stop, Saga undoes the completed
// steps in reverse order. Each undo is a recorded step of its own. Saga then returns the error.
//
//	err := agent.Saga(ctx, "trip", func() error {
//		flight, err := agent.Step(ctx, "book flight", bookFlight, agent.Undo(cancelFlight))
//		…
//	})
//
// The failure of the body is recorded. From then on the saga only undoes, also after a crash, so an
// error that may be temporary should be retried first ([Retries]). An undo that fails is retried a
// few times, and again with the next attempt. After the run's deadline nothing is undone: its
// deliverable lists what was not.
//
// A body has to learn from the functions of this package that it is to stop, and not from the
// context. After a crash the body is called again, to find the steps that it had completed.
func Saga(ctx *Context, name string, body func() error) error {
	c := ctx.c
	if err := c.proceed(); err != nil {
		return err
	}
	key, err := c.keyFor("saga", name)
	if err != nil {
		return err
	}
	if body == nil {
		return c.misuse("saga %s: the function is nil", key)
	}
	s := &saga{key: sagaPrefix + key, by: goroutine()}
	c.mu.Lock()
	for _, other := range c.sagas {
		if other.by != s.by {
			c.mu.Unlock()
			return c.misuse("saga %s beside another one, %s: which of the two a step belongs to can't be told",
				key, strings.TrimPrefix(other.key, sagaPrefix))
		}
	}
	c.sagas = append(c.sagas, s)
	entry, failing := c.entries[s.key]
	outer := c.undoing
	c.mu.Unlock()
	var rec stepRecord
	var why error // the error of the body in an earlier execution
	if failing {
		if err := json.Unmarshal(entry, &rec); err != nil || rec.Error == nil {
			c.fail(nondeterminism(s.key, "the journal has something else under this name"))
		}
		why = rec.err(s.key)
		c.setUndoing(why)
	}
	err = body()
	c.checkExit()
	if err != nil {
		c.exitIfHandedOn()
	}
	c.mu.Lock()
	c.sagas = c.sagas[:len(c.sagas)-1]
	c.mu.Unlock()
	switch {
	case err == nil && !failing:
		c.keepSteps(s)
		return nil
	case !failing && outer == nil:
		c.takeErrors() // the saga's record is the fact, and says what they led to
		f := session.Describe(err)
		rec = stepRecord{Error: &f}
		c.recordEntry(s.key, rec.encode(), false)
		c.setUndoing(rec.err(s.key))
	}
	undone := c.compensate(ctx, s)
	c.setUndoing(outer)
	// Only an error from the journal is the same in every execution. Any other is replaced by its
	// recorded code and message.
	if rec.Error != nil && (err == nil || why != nil && errors.Is(err, why) || !fromJournal(err)) {
		err = rec.err(s.key)
	}
	if undone != nil {
		return fmt.Errorf("%w; this was to be undone because of: %w", undone, err)
	}
	return Permanent(c.recordedBefore(s, err))
}

// Undo returns options with a function that undoes a step of a [Saga]. It is called with the step's result, and
// with a context that a cancel request does not end. Like a step it may be called twice, with the
// same [IdempotencyKey].
func Undo[T any](f func(ctx context.Context, result T) error) StepOptions {
	if f == nil {
		return StepOptions{undoType: reflect.TypeFor[T]()} // Step says so
	}
	undo := func(ctx context.Context, result json.RawMessage) error {
		var v T
		if err := json.Unmarshal(result, &v); err != nil {
			return Permanent(fmt.Errorf("the recorded result is no %T: %w", v, err))
		}
		return f(ctx, v)
	}
	return StepOptions{undo: undo, undoType: reflect.TypeFor[T]()}
}

// A saga is a call of Saga in this execution.
type saga struct {
	key  string
	by   string         // the goroutine that executes it
	undo []compensation // of the completed steps, in their order
}

// A compensation is the undo of a step.
type compensation struct {
	key string // of the step
	f   func(ctx context.Context, result json.RawMessage) error
}

// inSaga tells whether a saga is being executed.
func (c *execution) inSaga() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sagas) > 0
}

// register adds the undo of a completed step to the innermost saga.
func (c *execution) register(key string, f func(ctx context.Context, result json.RawMessage) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.sagas)
	if n == 0 { // the body returned without waiting for the step's goroutine
		return misuse("step %s has an Undo and ended after its Saga", key)
	}
	c.sagas[n-1].undo = append(c.sagas[n-1].undo, compensation{key, f})
	return nil
}

// keepSteps ends a saga that succeeded. An enclosing saga may still undo its steps. If there is
// none, the journal notes that the steps are kept, so that the run's fallback does not list them as
// not undone.
func (c *execution) keepSteps(s *saga) {
	c.mu.Lock()
	if n := len(c.sagas); n > 0 {
		c.sagas[n-1].undo = append(c.sagas[n-1].undo, s.undo...)
		c.mu.Unlock()
		return
	}
	added := false
	for _, u := range s.undo {
		key := undonePrefix + u.key
		if _, ok := c.entries[key]; ok {
			continue
		}
		kept := json.RawMessage(`{"kept":true}`)
		b := c.batchFor(len(key) + len(kept))
		b.part.Journal = append(b.part.Journal, perdure.JournalEntry{Key: key, Value: kept})
		c.entries[key], added = kept, true
	}
	c.mu.Unlock()
	if added {
		c.s.Commit(false)
	}
}

// setUndoing sets or clears the error because of which a saga is being undone.
func (c *execution) setUndoing(err error) {
	c.mu.Lock()
	c.undoing = err
	c.mu.Unlock()
}

// compensate undoes the steps of a saga, the last first. If one fails, the others are undone
// nevertheless.
func (c *execution) compensate(ctx *Context, s *saga) error {
	var failed notUndone
	for n := len(s.undo) - 1; n >= 0; n-- {
		u := s.undo[n]
		key := undonePrefix + u.key
		if _, ok := c.lookup(key); ok {
			continue
		}
		entry, _ := c.lookup(u.key)
		var rec stepRecord
		err := json.Unmarshal(entry, &rec)
		if err == nil {
			c.flush()
			// A cancel request is a reason to undo, so only the loss of the lease ends this
			// context.
			undoCtx := &Context{leaseContext{c.leased, ctx.Context}, c}
			undo := func(ctx context.Context) (struct{}, error) { return struct{}{}, u.f(ctx, rec.OK) }
			_, err = attempt(undoCtx, key, undo, &StepOptions{Retries: undoRetries})
			c.checkExit()
		}
		if err != nil {
			failed.keys = append(failed.keys, u.key)
			failed.errs = append(failed.errs, err)
			continue
		}
		c.recordEntry(key, json.RawMessage(`{"ok":true}`), false)
	}
	if len(failed.keys) == 0 {
		return nil
	}
	return &failed
}

// A leaseContext ends only with the lease, and has the values of the execution's context.
type leaseContext struct {
	context.Context
	values context.Context
}

func (l leaseContext) Value(key any) any { return l.values.Value(key) }

// notUndone is the error of a saga that could not undo all its steps. It is retried.
type notUndone struct {
	keys []string
	errs []error
}

func (e *notUndone) Error() string {
	return fmt.Sprintf("not undone: %s: %v", strings.Join(e.keys, ", "), errors.Join(e.errs...))
}
func (e *notUndone) FailureCode() perdure.Code { return CodeNotUndone }
func (e *notUndone) Permanent() bool           { return false }
