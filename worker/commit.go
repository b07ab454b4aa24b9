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
	// gather is how long lines of a log are collected before they are sent; an outcome is sent at once.
	gather = 50 * time.Millisecond
)

// commitLoop delivers what handlers lead to. One call carries whatever has come up since the last one, so that
// a busy worker makes few large calls. A commit that got no answer is sent again as it was.
func (w *Worker) commitLoop(life context.Context) {
	for failed := 0; ; {
		batch, more := w.nextCommits()
		if len(batch) == 0 {
			if !w.somethingToCommit(life) {
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

// somethingToCommit waits for that: for lines of a log a little longer, for an outcome not.
func (w *Worker) somethingToCommit(life context.Context) bool {
	select {
	case <-w.kickOutcome:
		return true
	case <-life.Done():
		return false
	case <-w.kickCommit:
	}
	t := time.NewTimer(gather)
	defer t.Stop()
	select {
	case <-w.kickOutcome:
	case <-t.C:
	case <-life.Done():
		return false
	}
	return true
}

// nextCommits gives the runs that have something to commit, as much as fits into a call.
func (w *Worker) nextCommits() (batch []*run, more bool) {
	size := 0
	for _, r := range w.holding() {
		n := r.prepare()
		if n == 0 {
			continue
		}
		if len(batch) > 0 && (size+n > maxCall || len(batch) == perdure.MaxBatch/4) {
			return batch, true
		}
		size += n
		batch = append(batch, r)
	}
	return batch, false
}

// prepare makes the run's next commit, unless one is on its way, and gives its size; zero: there is nothing to
// say. A commit never changes once it is made: its id stands for its bytes.
func (r *run) prepare() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released {
		return 0
	}
	if r.flying == nil {
		events := r.events
		if r.outcome == nil && len(events) == 0 {
			return 0
		}
		r.commits++
		r.flying = &perdure.Commit{ID: fmt.Sprintf("e%d-%d", r.lease.Epoch, r.commits), RunID: r.lease.RunID, Epoch: r.lease.Epoch,
			Events: events, CancelAck: r.cancel, Outcome: r.outcome}
		r.events, r.size = nil, 0
		close(r.room)
		r.room = make(chan struct{})
	}
	n := 512
	for _, e := range r.flying.Events {
		n += len(e.Data) + len(e.Type) + 32
	}
	if o := r.flying.Outcome; o != nil {
		n += len(o.Result)
	}
	return n
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
	waits := r.outcome != nil || len(r.events) > 0
	r.mu.Unlock()
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
		if sent.Outcome == nil {
			r.lost(why)
			break
		}
		late := sent.Outcome.Type == perdure.OutcomeComplete && res.Error.Code == perdure.CodeStaleEpoch
		w.log.Warn("a result came too late", "run", r.lease.RunID, "kind", r.grant.Kind, "outcome", sent.Outcome.Type, "kept_as_late_result", late, "error", why)
		w.drop(r.lease)
		return
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
