package runner

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/wire/timer"
)

// The right to write of this runner, and how it outlives its store.
//
// A store that was restored from a backup has a new epoch for every run. The server of the workspace
// finds this process by its files, and the answer to a heartbeat then has the new epoch. Until then
// heartbeats and commits are refused, and the command goes on: only an answer that says that the run has
// ended, or is another's, ends it.

// A hold is what a runner shows the server.
type hold struct {
	mu    sync.Mutex
	run   perdure.RunID
	epoch int64
	token string
	// former are the epochs that it had before.
	former []int64
}

// now returns the lease, and the token that signs files under its epoch.
func (h *hold) now() (api.Lease, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return api.Lease{RunID: h.run, Epoch: h.epoch}, h.token
}

// before returns the epochs that the runner had before.
func (h *hold) before() []int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.former)
}

// renew takes the epoch under which a restored run goes on. It returns false if there is none yet.
func (e *execution) renew(r *api.LeaseResult) bool {
	h := &e.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.NewEpoch <= r.Epoch || r.ResultToken == "" {
		return false
	}
	if r.NewEpoch > h.epoch {
		h.former = append(h.former, h.epoch)
		h.epoch, h.token = r.NewEpoch, r.ResultToken
		e.log.Info("the store was restored; the run has a new epoch", "epoch", h.epoch)
		kick(e.kickSentinel)
		kick(e.kickBeat)
	}
	return true
}

// regain finds out what the refusal of a commit means. It returns nil if the runner holds the run, under
// a new epoch perhaps, and the refusal if it is another's.
func (e *execution) regain(ctx context.Context, refusal error) error {
	for n := 1; ; n++ {
		answer, err := e.sendBeat(ctx)
		if err == nil {
			r := refusalOf(answer)
			switch {
			case r == nil, r.Error.Code == perdure.CodeRestored && e.renew(r):
				return nil
			case r.Error.Code != perdure.CodeRestored:
				return refusal
			}
		} else if !temporary(err) || e.link.contact.note(err) {
			return fmt.Errorf("%w (%w)", err, refusal)
		}
		if !timer.Sleep(ctx, backoff(n)) {
			return context.Cause(ctx)
		}
	}
}

// resync finds out how much of the output a restored log has, and says that it is of the new epoch.
func (e *execution) resync(ctx context.Context, lease api.Lease) error {
	o := e.output
	if o.epoch == 0 {
		o.epoch = e.grant.Epoch
	}
	if o.epoch == lease.Epoch {
		return nil
	}
	at, err := e.link.logged(ctx, lease.RunID, lease.Epoch, e.hold.before()...)
	if err != nil {
		return err
	}
	c, err := jobdir.MoveOutput(lease.RunID, lease.Epoch, at)
	if err != nil {
		return err
	}
	if _, err := e.link.commit(ctx, c); err != nil {
		return err
	}
	o.reached(at)
	o.epoch = lease.Epoch
	return nil
}
