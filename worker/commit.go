package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
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
		if err := w.commit(life, batch); err != nil {
			if life.Err() != nil {
				return
			}
			failed++
			if !sleep(life, pause(failed)) {
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
// say yet. A commit never changes once it is made: its id stands for its bytes.
func (r *run) prepare(now time.Time) (size int, later time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released || r.gone && r.outcome == nil {
		return 0, time.Hour
	}
	if r.flying == nil {
		if r.outcome == nil && (r.sendAt.IsZero() || now.Before(r.sendAt)) {
			if r.sendAt.IsZero() {
				return 0, time.Hour
			}
			return 0, r.sendAt.Sub(now)
		}
		part, more, asked := r.fromAgent()
		r.cutDelta(r.outcome != nil && !more)
		if r.outcome == nil && len(r.events) == 0 && part == nil {
			r.sendAt = time.Time{} // what there is ends within a character
			return 0, time.Hour
		}
		r.commits++
		c := perdure.Commit{}
		if part != nil {
			c = *part
		}
		c.ID, c.RunID, c.Epoch, c.CancelAck = fmt.Sprintf("e%d-%d", r.lease.Epoch, r.commits), r.lease.RunID, r.lease.Epoch, r.cancel
		r.own = len(r.events)
		c.Events = append(r.events, c.Events...)
		if r.outcome != nil && !more {
			c.Outcome = r.outcome
		}
		r.flying, r.asked = &c, asked
		r.events, r.size, r.sendAt = nil, 0, time.Time{}
		if more {
			r.sendAt = now
		}
		close(r.room)
		r.room = make(chan struct{})
	}
	n := 512
	for _, e := range r.flying.Events {
		n += len(e.Data) + len(e.Type) + 32
	}
	for _, j := range r.flying.Journal {
		n += len(j.Value) + len(j.Key) + 32
	}
	for _, c := range r.flying.Children {
		n += len(c.Input) + 256
	}
	for _, m := range r.flying.Messages {
		n += len(m.Content) + 64
	}
	if o := r.flying.Outcome; o != nil {
		n += len(o.Result)
	}
	return n, 0
}

// fromAgent asks the run's agent, if it is one, what it has to commit. The caller holds r.mu.
func (r *run) fromAgent() (part *perdure.Commit, more bool, asked func(*api.CommitResult)) {
	if r.source == nil {
		return nil, false, nil
	}
	return r.source()
}

// commit sends a batch. An error means that nothing is known, and all of it stays to be sent again.
func (w *Worker) commit(life context.Context, batch []*run) error {
	commits := make([]perdure.Commit, len(batch))
	for i, r := range batch {
		commits[i] = *r.flying // only this goroutine changes it
	}
	results, err := w.c.Commit(life, w.opt.ID, commits...)
	if err != nil && life.Err() != nil {
		return err
	}
	if err != nil && !client.Transient(err) && len(batch) > 1 {
		// One of them spoils the call for all. Alone, each gets its own answer.
		var unknown error
		for _, r := range batch {
			unknown = errors.Join(unknown, w.commit(life, []*run{r}))
		}
		return unknown
	}
	w.away.note(err)
	if err != nil {
		return err
	}
	var unknown error
	for i, r := range batch {
		if e := results[i].Error; e != nil && transientCode(e.Code) {
			unknown = errors.Join(unknown, perdure.Errorf(e.Code, "%s", e.Detail))
			continue
		}
		r.answered(&results[i])
	}
	return unknown
}

func transientCode(c perdure.Code) bool { return client.Transient(&api.Problem{Code: c}) }

// answered acts on the server's word about the run's commit.
func (r *run) answered(res *api.CommitResult) {
	w := r.w
	r.mu.Lock()
	sent := r.flying
	r.flying = nil
	waits := r.outcome != nil
	r.mu.Unlock()
	if res.Error != nil && res.Error.Code == perdure.CodeCancelRequested {
		r.mu.Lock()
		r.events = append(sent.Events[:r.own:r.own], r.events...) // nothing is wrong with them
		r.mu.Unlock()
		r.cancelled() // before the agent hears of it
	}
	asked := (res.Error == nil || !leaseGone(res.Error.Code)) && r.toldAgent(res)
	switch {
	case res.Error == nil && sent.Outcome != nil:
		w.drop(r.lease)
		return
	case res.Error == nil:
		if res.Cancel {
			r.cancelled()
		}
	case leaseGone(res.Error.Code):
		why := perdure.Errorf(res.Error.Code, "%s", res.Error.Detail)
		if sent.Outcome == nil || sent.Outcome.Type == perdure.OutcomeSuspend {
			r.lost(why)
			break
		}
		late := sent.Outcome.Type == perdure.OutcomeComplete && res.Error.Code == perdure.CodeStaleEpoch
		w.log.Warn("a result came too late", "run", r.lease.RunID, "kind", r.grant.Kind, "outcome", sent.Outcome.Type, "kept_as_late_result", late, "error", why)
		w.drop(r.lease)
		return
	case asked && !waits:
		// The agent knows what was refused, and what becomes of the run.
	case sent.Outcome == nil:
		w.log.Error("lines for a run's log were refused and are dropped", "run", r.lease.RunID, "error", res.Error.Detail)
	case sent.Outcome.Error != nil && sent.Outcome.Error.Code == CodeRefused, sent.Outcome.Type == perdure.OutcomeCancelled:
		w.log.Error("the server takes no end for a run; its lease ends by itself", "run", r.lease.RunID, "error", res.Error.Detail)
		w.drop(r.lease)
		return
	default:
		// A result that no server will take must not leave the run hanging until its lease ends, and again.
		w.log.Error("a result was refused; the run fails with that", "run", r.lease.RunID, "error", res.Error.Detail)
		r.mu.Lock()
		r.outcome = failed(CodeRefused, fmt.Sprintf("the server refused the outcome: %s: %s %s", res.Error.Code, res.Error.Field, res.Error.Detail), false)
		r.mu.Unlock()
		waits = true
	}
	if waits {
		kick(w.kickOutcome)
	}
}

// leaseGone tells whether a refusal means that the run is no longer this worker's.
func leaseGone(c perdure.Code) bool {
	switch c {
	case perdure.CodeStaleEpoch, perdure.CodeWrongState, perdure.CodeNotFound, perdure.CodeRunEnded:
		return true
	}
	return false
}
