package engine

import (
	"context"
	"time"

	"github.com/perdure/perdure/internal/store"
)

// These reads tell a load balancer whether this node should get traffic.

// Failed gives the error after which the store refuses all writes until a restart, or nil.
func (q Health) Failed() error { return q.e.store.Err() }

// Away gives an error while the database does not answer, or nil. It may recover by itself.
func (q Health) Away() error { return q.e.store.Away() }

// Writable gives the error with which the database refused the last write, or nil.
func (q Health) Writable() error { return q.e.store.Writable() }

// Full tells whether new work is refused because the disk is full.
func (q Health) Full() bool { return q.e.store.Full() }

// Shared tells whether other processes write to the store as well.
func (e *Engine) Shared() bool { return e.store.Shared() }

// ClockAhead gives how far the store's clock is ahead of the machine's, or zero if it is within
// ClockSlack.
func (q Health) ClockAhead() time.Duration {
	if ahead := q.e.store.Ahead(); ahead > store.ClockSlack {
		return ahead
	}
	return 0
}

// Try tries the three things that calls need of the store: a read, a decision and a write.
func (q Health) Try(ctx context.Context) error {
	err := q.e.store.View(ctx, func(v *store.View) error {
		_, _, err := v.Keys.Get("")
		return err
	})
	if err == nil {
		err = q.e.Do(ctx, probe{})
	}
	if err == nil {
		err = q.e.store.TryWrite()
	}
	return err
}
