package worker

import (
	"context"
	"errors"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// Later makes an error with which a task hands its run back: it could do nothing, for example because an
// upstream has answered 429, and is not executed again before that time. It costs no attempt. The time is
// at most 24 hours ahead; the run's deadline counts.
func Later(at time.Time, err error) error { return &later{perdure.At(at), err} }

type later struct {
	at  perdure.Instant
	err error
}

func (l *later) Error() string {
	if l.err == nil {
		return "not before " + l.at.Time().Format(time.RFC3339)
	}
	return l.err.Error()
}

func (l *later) Unwrap() error { return l.err }

// handBack hands the run back if its handler could do nothing, and tells whether it did. A run that is
// asked to stop is not: it ends.
func (r *run) handBack(ctx context.Context, err error) bool {
	var l *later
	if !errors.As(err, &l) || context.Cause(ctx) != nil {
		return false
	}
	r.mu.Lock()
	if r.released || r.gone || r.cancel {
		r.mu.Unlock()
		return false
	}
	r.released = true
	r.mu.Unlock()
	r.log().Info("a run is handed back", "not_before", l.at.Time(), "error", err)
	r.w.release(context.WithoutCancel(r.ctx), []api.ReleasedLease{{Lease: r.lease, NotBefore: l.at}})
	return true
}
