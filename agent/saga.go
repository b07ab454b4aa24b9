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
// The end of the body is recorded. A body that has succeeded and fails in a later release is
// nondeterminism: its steps are kept. After a failure the saga only undoes, also after a crash, so an
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
	entry := c.entries[s.key]
	outer := c.undoing
	c.mu.Unlock()
	before, ok := readSagaRecord(entry)
	if !ok {
		c.fail(nondeterminism(s.key, "the journal has something else under this name"))
	}
	var why error // the error of the body in an earlier execution
	if before.Error != nil {
		why = before.err(s.key)
		c.setUndoing(why)
	}
	err = body()
	c.checkExit()
	if err != nil {
		c.exitIfHandedOn()
	}
	c.mu.Lock()
	c.sagas = c.sagas[:len(c.sagas)-1]
	c.visit("saga " + key)
	c.mu.Unlock()
	if s.by == c.mainGoroutine {
		point := "saga " + key
		if err != nil || why != nil {
			point += "!"
		}
		defer c.pass(point)
	}
	switch {
	case err == nil && why == nil:
		c.keepSteps(s, before)
		return nil
	case why == nil && outer == nil:
		if before.OK && c.askedToStop() {
			c.handUp(s) // the steps are kept, unless an enclosing saga undoes them
			return err
		}
		c.checkFailure(s, before, err)
		c.takeErrors() // the saga's record is the fact, and says what they led to
		f := session.Describe(err)
		before = sagaRecord{Error: &f}
		c.recordEntry(s.key, before.encode(), false)
		c.setUndoing(before.err(s.key))
	}
	undone := c.compensate(ctx, s)
	c.setUndoing(outer)
	// Only an error from the journal is the same in every execution. Any other is replaced by its
	// recorded code and message.
	if before.Error != nil && (err == nil || why != nil && errors.Is(err, why) || !fromJournal(err)) {
		err = before.err(s.key)
	}
	if undone != nil {
		return fmt.Errorf("%w; this was to be undone because of: %w", undone, err)
	}
	return perdure.Permanent(c.recordedBefore(s, err))
}

// A sagaRecord is the journal entry of a saga: how it ended. A saga ends once, so the code of a later
// release can't turn a saga that succeeded into one that failed, or the other way round.
type sagaRecord struct {
	// Aside is as that of a stepRecord.
	Aside bool             `json:"aside,omitempty"`
	OK    bool             `json:"ok,omitempty"`
	Error *perdure.Failure `json:"error,omitempty"`
}

// readSagaRecord reads the entry of a saga. It is zero for a saga without an entry, which has not
// ended.
func readSagaRecord(entry json.RawMessage) (rec sagaRecord, ok bool) {
	if entry == nil {
		return rec, true
	}
	if err := json.Unmarshal(entry, &rec); err != nil {
		return sagaRecord{}, false
	}
	return rec, rec.OK != (rec.Error != nil)
}

func (r *sagaRecord) encode() json.RawMessage {
	step := stepRecord{Aside: r.Aside, Error: r.Error}
	if r.OK {
		step.OK = json.RawMessage(`true`)
	}
	return step.encode()
}

// err returns the error with which the saga failed.
func (r *sagaRecord) err(key string) error {
	step := stepRecord{Error: r.Error}
	return step.err(key)
}

// expectSaga adds a saga that has succeeded to the things that the execution has to ask for: a step that is added
// to its body is found before it begins. After a failure nothing begins, and the steps are expected.
func (c *execution) expectSaga(key string, entry json.RawMessage) {
	name, ok := strings.CutPrefix(key, sagaPrefix)
	if !ok {
		return
	}
	if rec, ok := readSagaRecord(entry); ok && rec.OK {
		c.expect("saga "+name, rec.Aside)
	}
}

// The entry of a step that need not be undone any more, because it was, or because its saga has
// succeeded. These are two facts. The server reads only that there is an entry.
const (
	undoneEntry = `{"ok":true}`
	keptEntry   = `{"kept":true}`
)

// isKept tells whether the entry of a step says that the step is kept.
func isKept(entry json.RawMessage) bool {
	var is struct {
		Kept bool `json:"kept"`
	}
	return json.Unmarshal(entry, &is) == nil && is.Kept
}

// checkFailure ends the execution if the journal contradicts the failure of a saga: the saga has
// succeeded, or the agent was past this point without a failure. Nothing is written, so that a
// release that fits the journal goes on.
func (c *execution) checkFailure(s *saga, before sagaRecord, err error) {
	if session.IsDefect(err) {
		c.fail(err)
	}
	kept := before.OK
	c.mu.Lock()
	for _, u := range s.undo { // of a run that began before sagas recorded their success
		kept = kept || isKept(c.entries[undonePrefix+u.key])
	}
	c.mu.Unlock()
	name := strings.TrimPrefix(s.key, sagaPrefix)
	if kept {
		c.fail(nondeterminism(name, "the saga has succeeded, its steps are kept, and now its body fails with: %v; "+
			"let it end as it did, or announce what was changed with Version", err))
	}
	if !c.askedToStop() {
		c.begin("failure of the saga", name)
	}
}

// askedToStop tells whether the run was asked to stop.
func (c *execution) askedToStop() bool { return errors.Is(context.Cause(c.ctx), ErrCancelled) }

// Undo returns options with a function that undoes a step of a [Saga]. It is called with the step's
// result, and with a context that a cancel request does not end. Like a step it may be called twice,
// with the same [IdempotencyKey]. In MapOptions.Step it undoes each item of a [Parallel].
func Undo[T any](f func(ctx context.Context, result T) error) StepOptions {
	if f == nil {
		return StepOptions{undoType: reflect.TypeFor[T]()} // Step says so
	}
	undo := func(ctx context.Context, result json.RawMessage) error {
		var v T
		if err := json.Unmarshal(result, &v); err != nil {
			return perdure.Permanent(fmt.Errorf("the recorded result is no %T: %w", v, err))
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
	n := len(c.sagas)
	if n == 0 { // the body returned without waiting for the step's goroutine
		return misuse("step %s has an Undo and ended after its Saga", key)
	}
	c.sagas[n-1].undo = append(c.sagas[n-1].undo, compensation{key, f})
	return nil
}

// handUp gives the undos of a saga to the enclosing one. It tells whether there is one.
func (c *execution) handUp(s *saga) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.sagas)
	if n > 0 {
		c.sagas[n-1].undo = append(c.sagas[n-1].undo, s.undo...)
	}
	return n > 0
}

// keepSteps ends a saga that succeeded, and records that. An enclosing saga may still undo its steps.
// If there is none, the journal notes that the steps are kept, so that the run's fallback does not
// list them as not undone.
func (c *execution) keepSteps(s *saga, before sagaRecord) {
	var entries []perdure.JournalEntry
	if !c.handUp(s) {
		for _, u := range s.undo {
			kept := perdure.JournalEntry{Key: undonePrefix + u.key, Value: json.RawMessage(keptEntry)}
			entries = append(entries, kept)
		}
	}
	aside := goroutine() != c.mainGoroutine
	if !before.OK { // after the steps: a saga that is recorded has kept all of them
		end := sagaRecord{OK: true, Aside: aside}
		entries = append(entries, perdure.JournalEntry{Key: s.key, Value: end.encode()})
	}
	added := false
	c.mu.Lock()
	// An execution that is not past its journal adds nothing. Either the run began before sagas
	// recorded their success, or the code has left out something that is recorded, and will be held.
	if !before.OK && !aside && c.firstMissed() != "" && !c.askedToStop() {
		entries = nil
	}
	for _, e := range entries {
		if _, ok := c.entries[e.Key]; ok {
			continue
		}
		b := c.batchFor(len(e.Key) + len(e.Value))
		b.part.Journal = append(b.part.Journal, e)
		c.entries[e.Key], added = e.Value, true
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
		if entry, ok := c.lookup(key); ok {
			if isKept(entry) {
				c.fail(nondeterminism(u.key, "the journal says that the saga of this step has succeeded, and then "+
					"that it failed: an earlier release failed where the one before had succeeded; retry the run from "+
					"before the saga, or give it up and undo the step by hand"))
			}
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
		c.recordEntry(key, json.RawMessage(undoneEntry), false)
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
