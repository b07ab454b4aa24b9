package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
	"github.com/perdure/perdure/internal/wire/session"
)

const undoRetries = 4

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
// error that may be temporary should be retried first ([Retry]). An undo that fails is retried a
// few times, and again with the next attempt. After the run's deadline nothing is undone: its
// deliverable lists what was not.
//
// A body has to learn from the functions of this package that it is to stop, and not from the
// context. After a crash the body is called again, to find the steps that it had completed.
func Saga(ctx *Context, name string, body func() error) error {
	c := ctx.execution()
	if err := c.proceed(); err != nil {
		return err
	}
	if c.insideStep() {
		return c.misuse("Saga %q inside of a step: a step that is recorded is not executed again, and neither is "+
			"what is in it", name)
	}
	b, err := c.own("Saga")
	if err != nil {
		return err
	}
	key, err := c.keyFor(b, "saga", name)
	if err != nil {
		return err
	}
	if body == nil {
		return c.misuse("saga %s: the function is nil", key)
	}
	c.mu.Lock()
	s := &saga{key: journal.SagaPrefix + key, outer: b.saga()}
	outer := b.undoing()
	b.sagas = append(b.sagas, s)
	entry, _ := c.record.Entry(s.key)
	c.mu.Unlock()
	before, ok := journal.ReadSaga(entry)
	if !ok {
		c.fail(nondeterminism(s.key, "the journal has something else under this name"))
	}
	var why error // the error of the body in an earlier execution
	if before.Error != nil {
		why = recordedFailure(before.Error, s.key)
		c.setUndoing(s, why)
	}
	err = body()
	c.checkExit()
	if err != nil {
		c.exitIfHandedOn()
	}
	c.endBranches(b, s, err, "saga "+key)
	c.mu.Lock()
	b.sagas = b.sagas[:len(b.sagas)-1]
	c.cursor.Visit("saga " + key)
	c.mu.Unlock()
	point := "saga " + key
	if err != nil || why != nil {
		point += "!"
	}
	defer c.pass(b, point)
	switch {
	case err == nil && why == nil:
		c.keepSteps(b, s, before)
		return nil
	case why == nil && outer == nil:
		if before.OK && c.askedToStop() {
			c.handUp(b, s) // the steps are kept, unless an enclosing saga undoes them
			return err
		}
		c.checkFailure(b, s, before, err)
		c.takeErrors() // the saga's record is the fact, and says what they led to
		f := session.Describe(err)
		before = journal.Saga{Error: &f}
		c.recordEntry(s.key, before.Encode(), false)
		c.setUndoing(s, recordedFailure(before.Error, s.key))
	}
	undone := c.compensate(ctx, b, s)
	// Only an error from the journal is the same in every execution. Any other is replaced by its
	// recorded code and message.
	if before.Error != nil && (err == nil || why != nil && errors.Is(err, why) || !fromJournal(err)) {
		err = recordedFailure(before.Error, s.key)
	}
	if undone != nil {
		return fmt.Errorf("%w; this was to be undone because of: %w", undone, err)
	}
	return perdure.Permanent(c.recordedBefore(s, err))
}

// checkFailure ends the execution if the journal contradicts the failure of a saga: the saga has
// succeeded, or the agent was past this point without a failure. Nothing is written, so that a
// release that fits the journal goes on.
func (c *execution) checkFailure(b *branch, s *saga, before journal.Saga, err error) {
	if session.IsDefect(err) {
		c.fail(err)
	}
	kept := before.OK
	c.mu.Lock()
	for _, u := range s.undo { // of a run that began before sagas recorded their success
		kept = kept || c.isKept(u.key)
	}
	c.mu.Unlock()
	name := strings.TrimPrefix(s.key, journal.SagaPrefix)
	if kept {
		c.fail(nondeterminism(name, "the saga has succeeded, its steps are kept, and now its body fails with: %v; "+
			"let it end as it did, or announce what was changed with Version", err))
	}
	if !c.askedToStop() {
		c.begin(b, "failure of the saga", name)
	}
}

// isKept tells whether the journal says that a step is kept. The caller holds c.mu.
func (c *execution) isKept(step string) bool {
	entry, _ := c.record.Entry(journal.UndonePrefix + step)
	return journal.IsKept(entry)
}

// handUp gives the undos of a saga to the enclosing one. It tells whether there is one.
func (c *execution) handUp(b *branch, s *saga) bool {
	for _, u := range s.undo {
		c.register(b, u.key, u.f)
	}
	return s.outer != nil
}

// keepSteps ends a saga that succeeded, and records that. An enclosing saga may still undo its steps.
// If there is none, the journal notes that the steps are kept, so that the run's fallback does not
// list them as not undone.
func (c *execution) keepSteps(b *branch, s *saga, before journal.Saga) {
	var entries []perdure.JournalEntry
	if !c.handUp(b, s) {
		for _, u := range s.undo {
			kept := perdure.JournalEntry{Key: journal.UndonePrefix + u.key, Value: json.RawMessage(journal.KeptEntry)}
			entries = append(entries, kept)
		}
	}
	if !before.OK { // after the steps: a saga that is recorded has kept all of them
		end := journal.Saga{OK: true}
		entries = append(entries, perdure.JournalEntry{Key: s.key, Value: end.Encode()})
	}
	added := false
	c.mu.Lock()
	// An execution that is not past its journal adds nothing. Either the run began before sagas
	// recorded their success, or the code has left out something that is recorded, and will be held.
	if !before.OK && c.cursor.Missed(b.prefix) != "" && !c.askedToStop() {
		entries = nil
	}
	for _, e := range entries {
		if _, ok := c.record.Entry(e.Key); ok {
			continue
		}
		c.writer.Entry(e.Key, e.Value)
		added = true
	}
	c.mu.Unlock()
	if added {
		c.s.Commit(false)
	}
}

// setUndoing sets the error because of which a saga is being undone.
func (c *execution) setUndoing(s *saga, err error) {
	c.mu.Lock()
	s.undoing = err
	c.mu.Unlock()
}

// compensate undoes the steps of a saga, the last first. If one fails, the others are undone
// nevertheless.
func (c *execution) compensate(ctx *Context, b *branch, s *saga) error {
	var failed notUndone
	for n := len(s.undo) - 1; n >= 0; n-- {
		u := s.undo[n]
		key := journal.UndonePrefix + u.key
		if entry, ok := c.lookup(key); ok {
			if journal.IsKept(entry) {
				c.fail(nondeterminism(u.key, "the journal says that the saga of this step has succeeded, and then "+
					"that it failed: an earlier release failed where the one before had succeeded; retry the run from "+
					"before the saga, or give it up and undo the step by hand"))
			}
			continue
		}
		entry, _ := c.lookup(u.key)
		var rec journal.Step
		err := json.Unmarshal(entry, &rec)
		if err == nil {
			c.flush()
			// A cancel request is a reason to undo, so only the loss of the lease ends this
			// context.
			undoCtx := &Context{leaseContext{c.leased, ctx.Context}, c}
			undo := func(ctx context.Context) (struct{}, error) { return struct{}{}, u.f(ctx, rec.OK) }
			_, err = attempt(undoCtx, b, key, undo, &StepOptions{Retry: Retry{Attempts: undoRetries + 1}})
			c.checkExit()
		}
		if err != nil {
			failed.keys = append(failed.keys, u.key)
			failed.errs = append(failed.errs, err)
			continue
		}
		c.recordEntry(key, json.RawMessage(journal.UndoneEntry), false)
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
