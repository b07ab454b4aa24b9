package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/session"
)

const (
	// maxCall keeps a call of many commits well below what the server reads.
	maxCall = 8 << 20
	// gather is the time from one sending of log lines to the next, of all runs alike; an outcome is sent at once.
	// What a model streams is thereby twenty lines a second and not as many as it has tokens.
	gather = 50 * time.Millisecond
)

// commitLoop delivers what handlers lead to. One call carries whatever has come up since the last one, so that
// a busy worker makes few large calls. A commit that got no answer is sent again as it was.
func (w *Worker) commitLoop(life context.Context) {
	for failed := 0; ; {
		batch, more, wait := w.nextCommits(time.Now())
		if len(batch) == 0 {
			if !w.somethingToCommit(life, wait) {
				return
			}
			continue
		}
		if after, err := w.commit(life, batch); err != nil {
			if life.Err() != nil {
				return
			}
			failed++
			if !sleep(life, max(pause(failed), after)) {
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

// somethingToCommit waits for that, at most so long.
func (w *Worker) somethingToCommit(life context.Context, wait time.Duration) bool {
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

// nextSending is when lines that are said now are sent: at the next beat of a clock that all runs share, so that
// one call carries the lines of all.
func (w *Worker) nextSending() time.Time {
	now := time.Now()
	return now.Add(gather - now.Sub(w.born)%gather)
}

// nextCommits gives the runs that have something to commit now, as much as fits into a call; if there is none,
// how long until there may be.
func (w *Worker) nextCommits(now time.Time) (batch []*run, more bool, wait time.Duration) {
	size := 0
	wait = time.Hour
	for _, r := range w.holding() {
		n, later := r.prepare(now)
		if n == 0 {
			wait = min(wait, later)
			continue
		}
		if len(batch) > 0 && (size+n > maxCall || len(batch) == perdure.MaxBatch/4) {
			return batch, true, 0
		}
		size += n
		batch = append(batch, r)
	}
	return batch, false, wait
}

// prepare makes the run's next commit, unless one is on its way, and gives its size; zero: there is nothing to
// say yet, or it is put off. A commit never changes once it is made: its id stands for its bytes.
func (r *run) prepare(now time.Time) (size int, later time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released || r.gone && r.outcome == nil {
		return 0, time.Hour
	}
	switch {
	case r.flying != nil && now.Before(r.notBefore):
		return 0, r.notBefore.Sub(now)
	case r.flying != nil: // it got no answer
	case r.outcome == nil && r.sendAt.IsZero():
		return 0, time.Hour
	case r.outcome == nil && now.Before(r.sendAt):
		return 0, r.sendAt.Sub(now)
	case !r.compose(now):
		r.sendAt = time.Time{} // what there is ends within a character
		return 0, time.Hour
	}
	return sizeOf(r.flying), 0
}

// compose makes a commit of what there is, if there is anything. The caller holds r.mu.
func (r *run) compose(now time.Time) bool {
	p := r.fromAgent()
	r.cutDelta(r.outcome != nil && !p.more)
	if r.outcome != nil && r.progress != nil && len(r.events) < perdure.MaxBatch {
		// No heartbeat will say it any more, and the last of it is what people look for.
		r.events = append(r.events, perdure.Emitted{Type: perdure.LineProgress, Data: r.progress})
		r.progress = nil
	}
	if p.commit != nil && len(r.events) > 0 && len(r.events)+p.commit.Entries() > perdure.MaxCommitEntries {
		held := p
		r.held, p = &held, part{more: true} // the handler's lines come first, by themselves
	}
	if r.outcome == nil && len(r.events) == 0 && p.commit == nil {
		return false
	}
	r.commits++
	c := perdure.Commit{}
	if p.commit != nil {
		c = *p.commit
	}
	c.ID, c.RunID, c.Epoch, c.CancelAck = fmt.Sprintf("e%d-%d", r.lease.Epoch, r.commits), r.lease.RunID, r.lease.Epoch, r.cancel
	r.own = len(r.events)
	c.Events = append(r.events, c.Events...)
	if r.outcome != nil && c.Entries() > 0 && c.Entries()+len(r.outcome.ContinueOn) > perdure.MaxCommitEntries {
		p.more = true // the outcome comes by itself
	}
	if r.outcome != nil && !p.more {
		c.Outcome = r.outcome
	}
	r.flying, r.asked = &c, p.answered
	r.events, r.size, r.sendAt = nil, 0, time.Time{}
	if p.more {
		r.sendAt = now
	}
	close(r.room)
	r.room = make(chan struct{})
	return true
}

// sizeOf is about how many bytes a commit takes.
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
	if o := c.Outcome; o != nil {
		n += len(o.Result)
	}
	return n
}

// A part is what an agent has for one commit; see session.Source.
type part struct {
	commit   *perdure.Commit
	more     bool
	answered func(*api.CommitResult)
}

// fromAgent asks the run's agent, if it is one, what it has to commit. The caller holds r.mu.
func (r *run) fromAgent() (p part) {
	switch {
	case r.held != nil:
		p, r.held = *r.held, nil
		p.more = true // there may be by now
	case r.source != nil:
		p.commit, p.more, p.answered = r.source()
	}
	return p
}

// commit sends a batch. An error means that the call failed: nothing is known of any, and all of it stays to be sent
// again, not before the server wants to hear of it. What is said about a single one holds up that one alone.
func (w *Worker) commit(life context.Context, batch []*run) (after time.Duration, err error) {
	commits := make([]perdure.Commit, len(batch))
	for i, r := range batch {
		commits[i] = *r.flying // only this goroutine changes it
	}
	ctx, once := session.SendOnce(life)
	results, err := w.c.Commit(ctx, w.opt.ID, commits...)
	switch {
	case err == nil:
		w.away.note(nil)
		for i, r := range batch {
			r.heard(&results[i])
		}
		return 0, nil
	case life.Err() != nil:
		return 0, err
	case client.Transient(err), refusesCaller(err):
		w.away.note(err)
		return once.After, err
	case len(batch) == 1:
		batch[0].putOff(client.CodeOf(err), err)
		return 0, nil
	}
	// One of them spoils the call for all. Alone, each gets its own answer.
	for _, r := range batch {
		if after, err := w.commit(life, []*run{r}); err != nil {
			return after, err
		}
	}
	return 0, nil
}

// refusesCaller tells whether a refusal is about the worker, whatever it commits.
func refusesCaller(err error) bool {
	switch client.CodeOf(err) {
	case api.CodeUnauthorized, api.CodeForbidden, api.CodeHost:
		return true
	}
	return false
}
