package agent

import (
	"errors"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
)

// This file has the points of a run, to which messages and lines belong. See journal.Reports.

// report writes a message or a line, unless an earlier execution has written it after the same point.
//
// A saga whose failure is recorded executes its body again, to find what to undo. The record came after
// all that the body had written, so the body writes nothing now. Its calls return other errors than the
// first time, and a text about them would be new.
func (c *execution) report(kind journal.Kind, digest string, size int, add func(p *perdure.Commit)) {
	b := c.branch()
	c.mu.Lock()
	point := journal.Aside
	if b != nil {
		point = c.cursor.At(b.prefix)
	}
	if b != nil && b.undoing() != nil || c.cursor.Reports.Made(kind, point, digest) {
		c.mu.Unlock()
		return
	}
	c.writer.Report(point, digest, size, add)
	c.mu.Unlock()
	c.s.Commit(false)
}

// pass sets the point to which the reports of a branch belong from now on. It is called when something
// that is recorded, or about to be, has ended: a step, a wait, the child that a join waited for last.
func (c *execution) pass(b *branch, point string) {
	c.mu.Lock()
	c.cursor.Pass(b.prefix, point)
	c.mu.Unlock()
}

// passStep is pass for a step, whose errors are another point than its result: an error that is not
// recorded may be a result the next time. The items of a Parallel are no points. Neither is a
// step that was not executed because the run is to stop.
func (c *execution) passStep(b *branch, point string, aside bool, err error) {
	switch {
	case aside || errors.Is(err, ErrCancelled):
	case err != nil:
		c.pass(b, point+"!")
	default:
		c.pass(b, point)
	}
}
