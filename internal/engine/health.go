package engine

import (
	"context"
	"time"

	"github.com/perdure/perdure/internal/store"
)

// How the store is, for those who tell whether this node should get traffic.

// Failed tells why the store takes no more writes until a restart, or nil.
func (e *Engine) Failed() error { return e.store.Err() }

// Away tells that the database does not answer right now, or nil. It comes back by itself, or does
// not.
func (e *Engine) Away() error { return e.store.Away() }

// Writable tells why the database refused the last write that it could not take, or nil.
func (e *Engine) Writable() error { return e.store.Writable() }

// Full tells whether new work is refused because the disk is full.
func (e *Engine) Full() bool { return e.store.Full() }

// Shared tells whether other processes write to the store as well.
func (e *Engine) Shared() bool { return e.store.Shared() }

// ClockAhead tells how far the store's clock is ahead of the machine's, if that is more than clocks
// differ.
func (e *Engine) ClockAhead() time.Duration {
	if ahead := e.store.Ahead(); ahead > store.ClockSlack {
		return ahead
	}
	return 0
}

// TryStore tries what every call needs of the store: a read, a decision and a write.
func (e *Engine) TryStore(ctx context.Context) error {
	err := e.store.View(ctx, func(v *store.View) error {
		_, _, err := v.Keys.Get("")
		return err
	})
	if err == nil {
		err = e.Do(ctx, Probe{})
	}
	if err == nil {
		err = e.store.TryWrite()
	}
	return err
}
