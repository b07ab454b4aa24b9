package agent

import (
	"encoding/json"
	"sync/atomic"

	"github.com/perdure/perdure"
)

// An error that the agent acts on is a fact. A step's error is kept here until the goroutine that
// got it goes on with another call of this package: Step, Spawn, a wait, Version, Now or UUID. Then
// it is recorded, in the same commit as what the agent goes on with, or before. A replay gets the
// error from the journal and decides in the same way. An error that the agent returns instead is
// not recorded, and the next attempt executes the step again.

// A stepError is the error of a step that is not recorded, or not yet. It has the code and the text
// that the journal would have, so that code that tells errors apart decides as a replay will.
type stepError struct {
	recordedError
	recorded atomic.Bool
}

// Permanent tells whether the error is recorded: the next attempt would get it again.
func (e *stepError) Permanent() bool { return e.recorded.Load() }

// Is matches ErrCancelled, as the recorded error does.
func (e *stepError) Is(target error) bool {
	return target == ErrCancelled && e.is.Code == perdure.CodeCancelled
}

// A pendingError is an error that a goroutine got from a step and has not gone past.
type pendingError struct {
	key   string
	value json.RawMessage // its journal entry
	err   *stepError
}

// holdError keeps the error of a step for the calling goroutine, and returns it for the agent.
func (c *execution) holdError(key string, rec *stepRecord) error {
	err := &stepError{recordedError: recordedError{is: perdure.Errorf(rec.Error.Code, "%s", rec.Error.Message),
		key: key}}
	by := goroutine()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending[by] = append(c.pending[by], pendingError{key, rec.encode(), err})
	return err
}

// passErrors records the errors that the calling goroutine goes past. The entries are ahead of
// whatever the caller commits next.
func (c *execution) passErrors() {
	list := c.takeErrors()
	if len(list) == 0 {
		return
	}
	c.mu.Lock()
	for _, p := range list {
		b := c.batchFor(len(p.value) + len(p.key))
		b.part.Journal = append(b.part.Journal, perdure.JournalEntry{Key: p.key, Value: p.value})
		c.entries[p.key] = p.value
		p.err.recorded.Store(true)
	}
	c.mu.Unlock()
	c.s.Commit(false)
}

// takeErrors returns the errors of the calling goroutine, and forgets them.
func (c *execution) takeErrors() []pendingError {
	c.mu.Lock()
	some := len(c.pending) > 0
	c.mu.Unlock()
	if !some {
		return nil
	}
	by := goroutine()
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.pending[by]
	delete(c.pending, by)
	return list
}

// moveErrors gives errors that other goroutines got to the calling one, which has waited for them,
// and forgets those that are not kept. Parallel calls it before it returns.
func (c *execution) moveErrors(from []string, keep func(error) bool) {
	to := goroutine()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, by := range from {
		for _, p := range c.pending[by] {
			if keep(p.err) {
				c.pending[to] = append(c.pending[to], p)
			}
		}
		delete(c.pending, by)
	}
}
