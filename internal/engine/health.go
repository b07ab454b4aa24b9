package engine

import (
	"context"
	"time"

	"github.com/perdure/perdure/internal/store"
)

// How the store is, for those who tell whether this node should get traffic.

// Failed tells why the store takes no more writes until a restart, or nil.
func (q Health) Failed() error { return q.e.store.Err() }

// Away tells that the database does not answer right now, or nil. It comes back by itself, or does
// not.
func (q Health) Away() error { return q.e.store.Away() }

// Writable tells why the database refused the last write that it could not take, or nil.
func (q Health) Writable() error { return q.e.store.Writable() }

// Full tells whether new work is refused because the disk is full.
func (q Health) Full() bool { return q.e.store.Full() }

// Shared tells whether other processes write to the store as well.
func (e *Engine) Shared() bool { return e.store.Shared() }

// ClockAhead tells how far the store's clock is ahead of the machine's, if that is more than clocks
// differ.
func (q Health) ClockAhead() time.Duration {
	if ahead := q.e.store.Ahead(); ahead > store.ClockSlack {
		return ahead
	}
	return 0
}

// Try tries what every call needs of the store: a read, a decision and a write.
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
