package agent

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/session"
)

// This file collects the additions of an execution in batches, and commits them in order.

// A batch is the content of one commit.
type batch struct {
	part  perdure.Commit
	frame frame
	said  journal.Said
	size  int
	// sealed counts the entries that seal has added.
	sealed int
	// done is closed when the commit is answered.
	done   chan struct{}
	answer *api.CommitResult
}

// batchFor returns the batch that an addition of a size goes into. The caller holds c.mu, or is
// alone.
func (c *execution) batchFor(size int) *batch { return c.batchForEntries(size, 1) }

// batchForEntries is batchFor for an addition that counts as several entries of a commit.
func (c *execution) batchForEntries(size, entries int) *batch {
	if n := len(c.queue); n > 0 {
		b := c.queue[n-1]
		p := &b.part
		if b.size+size <= fullBytes && p.Entries()+entries <= fullEntries && p.Outcome == nil {
			b.size += size
			return b
		}
	}
	b := &batch{size: size, done: make(chan struct{})}
	c.queue = append(c.queue, b)
	return b
}

// commitSoon adds something to a batch, and has it committed with the next flush.
func (c *execution) commitSoon(size int, add func(b *batch)) {
	c.mu.Lock()
	add(c.batchFor(size))
	c.mu.Unlock()
	c.s.Commit(false)
}

// nextCommit returns the content of the next commit to the worker. It implements session.Source.
func (c *execution) nextCommit() (part *perdure.Commit, more bool, answered func(*api.CommitResult)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		return nil, false, nil
	}
	b := c.queue[0]
	c.queue = c.queue[1:]
	c.inFlight = b
	if !c.seal(b) { // can't happen: it is made of JSON that was read
		c.setExit(session.Failed(perdure.CodeInternal, "a frame of the journal can't be written", false))
		return nil, false, nil
	}
	for i := range b.part.Journal {
		c.recorded = append(c.recorded, b.part.Journal[i].Key)
	}
	return &b.part, len(c.queue) > 0, func(res *api.CommitResult) {
		c.mu.Lock()
		if c.inFlight == b {
			c.inFlight = nil
		}
		if res.Error == nil {
			for _, child := range res.Children {
				c.childIDs[child.Key] = child.RunID
			}
			for _, callback := range res.Callbacks {
				c.tokens[callback.WaitID] = callback.Token
			}
		}
		if n := session.RefusedChild(res.Error); n >= 0 && n < len(b.part.Children) {
			c.dropChild(b, n, res.Error)
			c.mu.Unlock()
			c.s.Commit(true)
			return
		}
		b.answer = res
		answered := []*batch{b}
		if res.Error != nil && (b.part.Outcome == nil || res.Error.Code != perdure.CodeCancelRequested) {
			// The code that caused this may have gone on long ago, and later batches rely on this
			// one.
			c.setExit(session.Failure(refusal(res.Error)))
			for _, later := range c.queue {
				later.answer = res
				answered = append(answered, later)
			}
			c.queue = nil
		}
		more := len(c.queue) > 0
		c.mu.Unlock()
		for _, b := range answered {
			close(b.done)
		}
		if more {
			c.s.Commit(true)
		}
	}
}

// seal adds the entries to a batch that list what else it carries: its reports and its frame. It
// returns false if they can't be written. The caller holds c.mu.
func (c *execution) seal(b *batch) bool {
	add := func(key string, v any) bool {
		value := encodeVerbatim(v)
		b.part.Journal = append(b.part.Journal, perdure.JournalEntry{Key: key, Value: value})
		b.sealed++
		return value != nil
	}
	if len(b.said) > 0 {
		c.said++
		if !add(c.saidKey(c.said), b.said) {
			return false
		}
	}
	if b.frame.empty() {
		return true
	}
	c.frames++
	key := c.frameKey(c.frames)
	for i := range b.frame.In {
		c.frameOf[b.frame.In[i].Seq] = key
	}
	return add(key, b.frame)
}

// unseal removes the entries that seal has added, so that the batch can be changed and sent again.
func (b *batch) unseal() {
	b.part.Journal = b.part.Journal[:len(b.part.Journal)-b.sealed]
	b.sealed = 0
}

// flush commits everything that is not committed yet, and waits for the answers.
func (c *execution) flush() {
	c.mu.Lock()
	b := c.inFlight
	if n := len(c.queue); n > 0 {
		b = c.queue[n-1]
	}
	c.mu.Unlock()
	if b != nil {
		c.s.Commit(true)
		c.mustCommit(b)
	}
}

// mustCommit waits for the answer to a batch. A refusal ends the execution, because the agent's
// code may be past the call that caused it.
func (c *execution) mustCommit(b *batch) *api.CommitResult {
	if err := c.awaitAnswer(b); err != nil {
		c.fail(err)
	}
	return b.answer
}

// awaitAnswer waits for the answer to a batch and returns the server's refusal, if it is one.
func (c *execution) awaitAnswer(b *batch) error {
	select {
	case <-b.done:
	case <-c.leased.Done():
		select {
		case <-b.done: // the lease also ends when the run is suspended
		default:
			c.exit(nil)
		}
	}
	if b.answer.Error == nil {
		return nil
	}
	return refusal(b.answer.Error)
}

// refusal returns the error of a refused commit. It is permanent, except for nondeterminism, which is
// a defect of the code.
func refusal(r *api.Refusal) error {
	if r.Code == perdure.CodeNondeterminism {
		return session.Defect(perdure.Errorf(r.Code, "%s", r.Detail))
	}
	return perdure.Permanent(perdure.Errorf(r.Code, "%s", session.Refusal(r)))
}
