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

// Saga executes a part of the agent that is done whole or undone. Each of its steps may have an [Undo]; when the
// body returns an error, or the run is asked to stop, those of the steps that were done are called in reverse, each
// a recorded step of its own, and Saga returns the error.
//
//	err := agent.Saga(ctx, "trip", func() error {
//		flight, err := agent.Step(ctx, "book flight", bookFlight, agent.Undo(cancelFlight))
//		…
//	})
//
// That the body failed is recorded: from then on there is no way but back, through crashes too. So an error that
// may pass is worth [Retries] first. A compensation that fails is tried some times and then again with the next
// attempt. After the run's deadline nothing is undone: its deliverable lists what was not. A body finds out from the
// functions of this package that it is to stop, and not by looking at the context itself: after a crash it is called
// again to learn what it had done.
func Saga(ctx *Context, name string, body func() error) error {
	c := ctx.c
	if err := c.enter(); err != nil {
		return err
	}
	key, err := c.name("saga", name)
	if err != nil {
		return err
	}
	s := &saga{key: sagaPrefix + key, by: goroutine()}
	c.mu.Lock()
	for _, other := range c.sagas {
		if other.by != s.by {
			c.mu.Unlock()
			return c.misuse("saga %s beside another one, %s: which of the two a step belongs to can't be told", key, strings.TrimPrefix(other.key, sagaPrefix))
		}
	}
	c.sagas = append(c.sagas, s)
	entry, failing := c.entries[s.key]
	outer := c.undoing
	c.mu.Unlock()
	var rec record
	var why error // what the body failed with in an earlier execution
	if failing {
		if err := json.Unmarshal(entry, &rec); err != nil || rec.Error == nil {
			c.fail(nondeterminism(s.key, "the journal has something else under this name"))
		}
		why = rec.err()
		c.setUndoing(why)
	}
	err = body()
	c.goOn()
	if err != nil {
		c.handedOn()
	}
	c.mu.Lock()
	c.sagas = c.sagas[:len(c.sagas)-1]
	c.mu.Unlock()
	switch {
	case err == nil && !failing:
		c.keep(s)
		return nil
	case !failing && outer == nil:
		f := session.Describe(err)
		rec = record{Error: &f}
		c.record(s.key, rec.text(), false)
		c.setUndoing(rec.err())
	}
	undone := c.compensate(ctx, s)
	c.setUndoing(outer)
	// An error that the journal knows is the same in every execution; of any other its code and text are.
	if rec.Error != nil && (err == nil || why != nil && errors.Is(err, why) || !lasts(err)) {
		err = rec.err()
	}
	if undone != nil {
		return fmt.Errorf("%w; this was to be undone because of: %w", undone, err)
	}
	return Permanent(err)
}

// Undo is what undoes a step of a [Saga]: it is called with the step's result, and with a context that outlives a
// cancel. It may be called twice, as any step, and finds out by [IdempotencyKey].
func Undo[T any](f func(ctx context.Context, result T) error) StepOption {
	return func(o *stepOptions) {
		o.undoes = reflect.TypeFor[T]()
		o.undo = func(ctx context.Context, result json.RawMessage) error {
			var v T
			if err := json.Unmarshal(result, &v); err != nil {
				return Permanent(fmt.Errorf("the recorded result is no %T: %w", v, err))
			}
			return f(ctx, v)
		}
	}
}

// A saga is one that is being executed.
type saga struct {
	key  string
	by   string // the goroutine that executes it
	undo []compensation
}

type compensation struct {
	key string // of the step
	f   func(ctx context.Context, result json.RawMessage) error
}

// inSaga tells whether there is one that could undo something.
func (c *core) inSaga() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sagas) > 0
}

// register notes a compensation for a step that is done.
func (c *core) register(key string, f func(ctx context.Context, result json.RawMessage) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.sagas)
	if n == 0 { // its body did not wait for the goroutine
		return misuse("step %s has an Undo and ended after its Saga", key)
	}
	c.sagas[n-1].undo = append(c.sagas[n-1].undo, compensation{key, f})
	return nil
}

// keep ends a saga that succeeded. Its steps stay undoable by one around it; without one they are there to stay, and
// that is noted, so that nobody takes them for what was left undone.
func (c *core) keep(s *saga) {
	c.mu.Lock()
	if n := len(c.sagas); n > 0 {
		c.sagas[n-1].undo = append(c.sagas[n-1].undo, s.undo...)
		c.mu.Unlock()
		return
	}
	news := false
	for _, u := range s.undo {
		key := undonePrefix + u.key
		if _, ok := c.entries[key]; ok {
			continue
		}
		kept := json.RawMessage(`{"kept":true}`)
		b := c.open(len(key) + len(kept))
		b.part.Journal = append(b.part.Journal, perdure.JournalEntry{Key: key, Value: kept})
		c.entries[key], news = kept, true
	}
	c.mu.Unlock()
	if news {
		c.s.Commit(false)
	}
}

func (c *core) setUndoing(err error) {
	c.mu.Lock()
	c.undoing = err
	c.mu.Unlock()
}

// compensate undoes what a saga did, the last first. One that can't be undone is no reason to leave the others.
func (c *core) compensate(ctx *Context, s *saga) error {
	var left notUndone
	for n := len(s.undo) - 1; n >= 0; n-- {
		u := s.undo[n]
		key := undonePrefix + u.key
		if _, ok := c.recorded(key); ok {
			continue
		}
		entry, _ := c.recorded(u.key)
		var rec record
		err := json.Unmarshal(entry, &rec)
		if err == nil {
			c.flush()
			// Being asked to stop is what this is for. Only the loss of the lease ends it.
			inside := &Context{lasting{c.leased, ctx.Context}, c}
			_, err = attempt(inside, key, func(ctx context.Context) (struct{}, error) { return struct{}{}, u.f(ctx, rec.OK) }, &stepOptions{retries: undoRetries})
			c.goOn()
		}
		if err != nil {
			left.keys = append(left.keys, u.key)
			left.errs = append(left.errs, err)
			continue
		}
		c.record(key, json.RawMessage(`{"ok":true}`), false)
	}
	if len(left.keys) == 0 {
		return nil
	}
	return &left
}

// lasting is a context that ends with the lease alone, and carries what the execution's own does.
type lasting struct {
	context.Context
	values context.Context
}

func (l lasting) Value(key any) any { return l.values.Value(key) }

// notUndone says what a saga could not undo. It is worth another attempt.
type notUndone struct {
	keys []string
	errs []error
}

func (e *notUndone) Error() string {
	return fmt.Sprintf("not undone: %s: %v", strings.Join(e.keys, ", "), errors.Join(e.errs...))
}
func (e *notUndone) FailureCode() perdure.Code { return CodeNotUndone }
func (e *notUndone) Permanent() bool           { return false }
