package worker

// This file sends commits. Each run has at most one commit in flight, and its bytes never change:
// its id stands for them, so that a retry counts once. One loop sends the commits of all runs, in
// batches. Outcomes are sent at once; log lines are collected until the next flush, a tick that all
// runs share.

import (
	"context"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/internal/wire/timer"
)

const (
	// maxCall limits the bytes of a batch of commits. It is well below the server's limit.
	maxCall = 8 << 20
	// flushEvery is the time between two flushes of log lines, for all runs together. A streaming
	// model thereby makes twenty lines a second instead of one per token.
	flushEvery = 50 * time.Millisecond
)

// commitLoop sends commits. One call carries everything since the last one, so that a busy worker
// makes few large calls. A commit without an answer is sent again unchanged.
func (w *Worker) commitLoop(life context.Context) {
	for failed := 0; ; {
		batch, more, wait := w.nextCommits(time.Now())
		if len(batch) == 0 {
			if !w.waitForCommit(life, wait) {
				return
			}
			continue
		}
		if after, err := w.commit(life, batch); err != nil {
			if life.Err() != nil {
				return
			}
			failed++
			if !timer.Sleep(life, max(pause(failed), after)) {
				return
			}
			continue
		}
		failed = 0
		if more {
			kick(w.kickOutcome)
		}
	}
}

// waitForCommit waits until there may be something to commit, up to the given time. It returns
// false when the worker ends.
func (w *Worker) waitForCommit(life context.Context, wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-w.kickOutcome:
	case <-w.kickCommit:
	case <-t.C:
	case <-life.Done():
		return false
	}
	return true
}

// nextFlush returns when lines that are written now are sent: at the next tick of a clock that all
// runs share, so that one call carries the lines of all.
func (w *Worker) nextFlush() time.Time {
	now := time.Now()
	return now.Add(flushEvery - now.Sub(w.born)%flushEvery)
}

// nextCommits returns the runs that have something to commit now, as many as fit into a call. more
// tells whether others are left. If there are none, wait is the time until there may be.
func (w *Worker) nextCommits(now time.Time) (batch []*run, more bool, wait time.Duration) {
	size := 0
	wait = time.Hour
	for _, r := range w.holding() {
		n, later := r.prepare(now)
		if n == 0 {
			wait = min(wait, later)
			continue
		}
		if len(batch) > 0 && (size+n > maxCall || len(batch) == perdure.MaxList/4) {
			return batch, true, 0
		}
		size += n
		batch = append(batch, r)
	}
	return batch, false, wait
}

// prepare makes the run's next commit, unless one is in flight, and returns its size. Zero means
// that there is nothing to commit yet or that the commit is postponed; later is the time until
// then.
func (r *run) prepare(now time.Time) (size int, later time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released || r.gone && r.outcome == nil {
		return 0, time.Hour
	}
	switch {
	case r.inFlight != nil && now.Before(r.notBefore):
		return 0, r.notBefore.Sub(now)
	case r.inFlight != nil: // it got no answer, and is sent again
	case r.outcome == nil && r.sendAt.IsZero():
		return 0, time.Hour
	case r.outcome == nil && now.Before(r.sendAt):
		return 0, r.sendAt.Sub(now)
	case !r.compose(now):
		r.sendAt = time.Time{} // there is only a part of a character
		return 0, time.Hour
	}
	return sizeOf(r.inFlight), 0
}

// compose makes a commit of everything that waits, and returns false if there is nothing. The
// caller holds r.mu.
func (r *run) compose(now time.Time) bool {
	p := r.fromAgent()
	r.cutDelta(r.outcome != nil && !p.more)
	if r.outcome != nil && r.progress != nil && len(r.events) < perdure.MaxList {
		// No heartbeat follows, so the last progress goes with the outcome.
		r.events = append(r.events, perdure.Emitted{Type: perdure.LineProgress, Data: r.progress})
		r.progress = nil
	}
	more := len(r.events) + len(r.closures)
	if p.commit != nil && more > 0 && more+p.commit.Entries() > perdure.MaxCommitEntries {
		held := p
		r.held, p = &held, part{more: true} // together they are too large: the handler's lines go first
	}
	if r.outcome == nil && len(r.events)+len(r.closures) == 0 && p.commit == nil {
		return false
	}
	r.commits++
	c := perdure.Commit{}
	if p.commit != nil {
		c = *p.commit
	}
	c.ID = fmt.Sprintf("e%d-%d", r.lease.Epoch, r.commits)
	c.RunID, c.Epoch, c.CancelAck = r.lease.RunID, r.lease.Epoch, r.cancel
	r.own = len(r.events)
	c.Events = append(r.events, c.Events...)
	c.Limits, r.closures = r.closures, nil
	if r.outcome != nil && c.Entries() > 0 && c.Entries()+len(r.outcome.ContinueOn) > perdure.MaxCommitEntries {
		p.more = true // the outcome goes into the next commit
	}
	if r.outcome != nil && !p.more {
		c.Outcome = r.outcome
	}
	r.inFlight, r.asked = &c, p.answered
	r.events, r.size, r.sendAt = nil, 0, time.Time{}
	if p.more {
		r.sendAt = now
	}
	close(r.room)
	r.room = make(chan struct{})
	return true
}

// sizeOf estimates the bytes of a commit.
func sizeOf(c *perdure.Commit) int {
	n := 512
	for _, e := range c.Events {
		n += len(e.Data) + len(e.Type) + 32
	}
	for _, j := range c.Journal {
		n += len(j.Value) + len(j.Key) + 32
	}
	for _, s := range c.Children {
		n += len(s.Input) + 256
	}
	for _, m := range c.Messages {
		n += len(m.Content) + 64
	}
	for _, v := range c.Views {
		n += len(v.Value) + len(v.Name) + 32
	}
	if o := c.Outcome; o != nil {
		n += len(o.Result)
		if o.ContinueWith != nil {
			n += len(o.ContinueWith.Input)
		}
	}
	return n
}

// A part is an agent's content for one commit; see session.Source.
type part struct {
	commit   *perdure.Commit
	more     bool
	answered func(*api.CommitResult)
}

// fromAgent returns what the run's agent has to commit, if the run is an agent. The caller holds
// r.mu.
func (r *run) fromAgent() (p part) {
	switch {
	case r.held != nil:
		p, r.held = *r.held, nil
		p.more = true // the agent may have more by now
	case r.source != nil:
		p.commit, p.more, p.answered = r.source()
	}
	return p
}

// commit sends a batch. An error means that the call failed and that all commits are to be sent
// again, not before the returned time. A refusal of one commit only affects its run.
func (w *Worker) commit(life context.Context, batch []*run) (after time.Duration, err error) {
	commits := make([]perdure.Commit, len(batch))
	for i, r := range batch {
		commits[i] = *r.inFlight // only this goroutine changes it
	}
	ctx, once := session.WithoutRetry(life)
	results, err := w.calls.Commit(ctx, w.opt.ID, commits...)
	switch {
	case err == nil:
		w.away.note(nil)
		for i, r := range batch {
			r.commitResult(&results[i])
		}
		return 0, nil
	case life.Err() != nil:
		return 0, err
	case client.Transient(err), refusesCaller(err):
		w.away.note(err)
		return once.After, err
	case len(batch) == 1:
		batch[0].postpone(client.CodeOf(err), err)
		return 0, nil
	}
	// One commit makes the server refuse the whole call. Sent alone, each gets its own answer.
	for _, r := range batch {
		if after, err := w.commit(life, []*run{r}); err != nil {
			return after, err
		}
	}
	return 0, nil
}

// refusesCaller tells whether a refusal is about the worker's key or host, not about the commits.
func refusesCaller(err error) bool {
	switch client.CodeOf(err) {
	case api.CodeUnauthorized, api.CodeForbidden, api.CodeHost:
		return true
	}
	return false
}
