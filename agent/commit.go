package agent

import (
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

// This file commits the batches that the writer of the journal collects.

// write adds something to the journal, and has it committed with the next flush.
func (c *execution) write(add func(w *journal.Writer)) {
	c.mu.Lock()
	add(c.writer)
	c.mu.Unlock()
	c.s.Commit(false)
}

// nextCommit returns the content of the next commit to the worker. It implements session.Source.
func (c *execution) nextCommit() (part *perdure.Commit, more bool, answered func(*api.CommitResult)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, err := c.writer.Next()
	if err != nil {
		c.exit.set(session.Failed(perdure.CodeInternal, "a frame of the journal can't be written", false))
	}
	if b == nil {
		return nil, false, nil
	}
	return &b.Part, c.writer.More(), func(res *api.CommitResult) { c.answered(b, res) }
}

// answered takes the answer to a commit.
func (c *execution) answered(b *journal.Batch, res *api.CommitResult) {
	c.mu.Lock()
	done, refused := c.writer.Answered(b, res)
	if refused { // the code that caused this may have gone on long ago
		c.exit.set(session.Failure(refusal(res.Error)))
	}
	more := c.writer.More()
	c.mu.Unlock()
	for _, b := range done {
		close(b.Done)
	}
	if more {
		c.s.Commit(true)
	}
}

// flush commits everything that is not committed yet, and waits for the answers.
func (c *execution) flush() {
	if c.checking() {
		return
	}
	c.mu.Lock()
	b := c.writer.Last()
	c.mu.Unlock()
	if b != nil {
		c.s.Commit(true)
		c.mustCommit(b)
	}
}

// mustCommit waits for the answer to a batch. A refusal ends the execution, because the agent's
// code may be past the call that caused it.
func (c *execution) mustCommit(b *journal.Batch) *api.CommitResult {
	if err := c.awaitAnswer(b); err != nil {
		c.fail(err)
	}
	return b.Answer
}

// awaitAnswer waits for the answer to a batch and returns the server's refusal, if it is one.
func (c *execution) awaitAnswer(b *journal.Batch) error {
	if c.checking() {
		c.stand(c.branch())
	}
	select {
	case <-b.Done:
	case <-c.leased.Done():
		select {
		case <-b.Done: // the lease also ends when the run is suspended
		default:
			c.leave(nil)
		}
	}
	if b.Answer.Error == nil {
		return nil
	}
	return refusal(b.Answer.Error)
}

// recordEntry commits a step's entry and waits until it is durable. With undo it also marks the
// step as one that can be undone.
func (c *execution) recordEntry(key string, value json.RawMessage, undo bool) {
	c.mu.Lock()
	b := c.writer.Step(key, value, undo)
	c.mu.Unlock()
	c.s.Commit(true)
	c.mustCommit(b)
}

// refusal returns the error of a refused commit. It is permanent, except for nondeterminism, which is
// a defect of the code.
func refusal(r *api.Refusal) error {
	if r.Code == perdure.CodeNondeterminism {
		return session.Defect(perdure.Errorf(r.Code, "%s", r.Detail))
	}
	return perdure.Permanent(perdure.Errorf(r.Code, "%s", session.Refusal(r)))
}
