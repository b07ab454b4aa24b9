package agent

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
)

// An error that the agent acts on is a fact. A step's error is kept here until the goroutine that
// got it goes on with another call of this package: Step, Spawn, a wait, Version, Now or UUID. Then
// it is recorded, in the same commit as what the agent goes on with, or before. A replay gets the
// error from the journal and decides in the same way. An error that the agent returns instead is
// not recorded, and the next attempt executes the step again.

// holdError keeps the error of a step for the calling goroutine, and returns it for the agent.
func (c *execution) holdError(key string, rec *journal.Step) error {
	err := &stepError{recordedError: recordedError{is: perdure.Errorf(rec.Error.Code, "%s", rec.Error.Message),
		key: key}}
	by := goroutine()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending[by] = append(c.pending[by], pendingError{key, rec.Encode(), err})
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
		c.writer.Entry(p.key, p.value)
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

// proceed begins a call by which the agent goes on after what it got before: errors of steps become
// facts.
func (c *execution) proceed() error {
	if err := c.enter(); err != nil {
		return err
	}
	c.passErrors()
	return nil
}

// checkWaitable returns the branch that is about to wait, and an error if the run can't wait here.
// Otherwise the agent goes past the errors that it got before.
func (c *execution) checkWaitable(what string) (*branch, error) {
	b, err := c.own(what)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	running := b.running > 0
	c.mu.Unlock()
	if running {
		return nil, c.misuse("%s inside of, or beside, a step that is being executed: a run that waits is executed "+
			"anew, and the step would be lost; wait between steps, or spawn a child", what)
	}
	c.passErrors()
	return b, nil
}
