package worker

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/timer"
)

// beatLoop renews the leases, all of them in one call. It has its own goroutine, so that neither a
// handler nor an undeliverable result delays it.
func (w *Worker) beatLoop(life context.Context) {
	for {
		due, wait := w.nextBeat(time.Now())
		if len(due) > 0 {
			for part := range slices.Chunk(due, perdure.MaxList) {
				w.beat(life, part)
			}
			if !timer.Sleep(life, minHeartbeat) {
				return
			}
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-w.kickBeat:
		case <-life.Done():
			t.Stop()
			return
		}
		t.Stop()
	}
}

// nextBeat returns the runs whose heartbeat is due, or the time until the next one is. Runs that
// are due soon are included, because one call for twenty runs costs the server no more than one for
// a single run.
func (w *Worker) nextBeat(now time.Time) (due []*run, wait time.Duration) {
	wait = time.Hour
	var soon []*run
	for _, r := range w.holding() {
		r.mu.Lock()
		left := r.beatAt.Sub(now)
		gone := r.gone || r.released
		r.mu.Unlock()
		switch {
		case gone:
		case left <= 0:
			due = append(due, r)
		case left <= r.every/4:
			soon = append(soon, r)
			wait = min(wait, left)
		default:
			wait = min(wait, left)
		}
	}
	if len(due) > 0 {
		due = append(due, soon...)
	}
	return due, wait
}

// beat sends one heartbeat and handles its answer.
func (w *Worker) beat(life context.Context, runs []*run) {
	beats := make([]api.Beat, len(runs))
	byLease := make(map[api.Lease]*run, len(runs))
	patience := w.opt.HeartbeatEvery
	for i, r := range runs {
		r.mu.Lock()
		beats[i] = api.Beat{RunID: r.lease.RunID, Epoch: r.lease.Epoch,
			Activity: r.activity, Progress: r.progress, CancelAck: r.cancel}
		r.beatAt = time.Now().Add(r.every)
		r.mu.Unlock()
		byLease[r.lease] = r
		patience = min(patience, r.every)
	}
	sent := time.Now()
	// A call that hangs is given up in time for the next heartbeat, or leases would be lost.
	ctx, cancel := context.WithTimeout(life, max(patience, time.Second))
	defer cancel()
	answer, err := w.calls.Heartbeat(ctx, w.opt.ID, beats...)
	if err != nil && !client.Transient(err) && ctx.Err() == nil {
		// The activity or the progress of a run was refused. The leases must be renewed anyway.
		w.log.Warn("a heartbeat was refused; it is sent without activities and progress", "error", err)
		for i := range beats {
			beats[i].Activity, beats[i].Progress = "", nil
			runs[i].forget()
		}
		answer, err = w.calls.Heartbeat(ctx, w.opt.ID, beats...)
	}
	if life.Err() != nil {
		return
	}
	w.away.note(err)
	if err != nil {
		return
	}
	kick(w.kickNews)
	later := make(map[api.Lease]bool)
	for _, l := range answer.Later {
		later[api.Lease{RunID: l.RunID, Epoch: l.Epoch}] = true
	}
	for i, r := range runs {
		if later[r.lease] {
			continue
		}
		r.told(&beats[i])
		if r.fence != nil {
			r.fence.Reset(r.leaseLeft(sent))
		}
	}
	for _, l := range answer.Lost {
		r := byLease[api.Lease{RunID: l.RunID, Epoch: l.Epoch}]
		if r == nil || l.Error == nil || r.ending() {
			continue
		}
		r.lost(perdure.Errorf(l.Error.Code, "%s", l.Error.Detail))
	}
	for _, l := range answer.Cancel {
		if r := byLease[api.Lease{RunID: l.RunID, Epoch: l.Epoch}]; r != nil {
			r.cancelled()
		}
	}
}

// ending tells whether the run's outcome has been sent. A heartbeat that crosses it may find the
// run suspended or ended, which is not a lost lease. The answer to the outcome decides.
func (r *run) ending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over || r.inFlight != nil && r.inFlight.Outcome != nil
}

// leaseLeft returns the rest of a lease that was granted or renewed by a call sent at that time.
// The server counts from when it received the call, so its lease ends later than this worker's.
func (r *run) leaseLeft(sent time.Time) time.Duration {
	return time.Duration(r.grant.LeaseMS)*time.Millisecond - time.Since(sent)
}

// told clears the progress that a heartbeat has reported, unless there is a newer one.
func (r *run) told(b *api.Beat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if string(r.progress) == string(b.Progress) {
		r.progress = nil
	}
}

// forget drops an activity and a progress that the server has refused.
func (r *run) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.activity, r.progress = "", nil
}

// dueNow makes the run's heartbeat due at once.
func (r *run) dueNow() {
	r.mu.Lock()
	r.beatAt = time.Now()
	r.mu.Unlock()
	kick(r.w.kickBeat)
}

// say records a handler's activity or progress, and makes a heartbeat due if it changed.
func (r *run) say(activity string, progress json.RawMessage) {
	r.mu.Lock()
	news := false
	if activity != "" && activity != r.activity {
		r.activity, news = activity, true
	}
	if progress != nil {
		r.progress, news = progress, true
	}
	r.mu.Unlock()
	if news {
		r.dueNow()
	}
}
