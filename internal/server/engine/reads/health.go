package reads

import (
	"context"
	"time"

	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// These reads tell a load balancer whether this node should get traffic.

// Failed gives the error after which the store refuses all writes until a restart, or nil.
func (q Health) Failed() error { return q.e.Store().Err() }

// Away gives an error while the database does not answer, or nil. It may recover by itself.
func (q Health) Away() error { return q.e.Store().Away() }

// Writable gives the error with which the database refused the last write, or nil.
func (q Health) Writable() error { return q.e.Store().Writable() }

// LockedTables gives the tables that another session holds locked as a whole.
func (q Health) LockedTables() []store.TableLock { return q.e.Store().LockedTables() }

// LockedRows gives the rows that this node leaves alone because another session holds them locked.
func (q Health) LockedRows() []store.LockedRow { return q.e.Store().LockedRows() }

// RowsSetAside counts the rows that were set aside because another session held them locked.
func (q Health) RowsSetAside() int64 { return q.e.Store().RowsSetAside() }

// Full tells whether new work is refused because the disk is full.
func (q Health) Full() bool { return q.e.Store().Full() }

// Shared tells whether other processes write to the store as well.
func Shared(e *kernel.Engine) bool { return e.Store().Shared() }

// ClockAhead gives how far the store's clock is ahead of the machine's, or zero if it is within
// ClockSlack.
func (q Health) ClockAhead() time.Duration {
	if ahead := q.e.Store().Ahead(); ahead > store.ClockSlack {
		return ahead
	}
	return 0
}

// Try tries the three things that calls need of the store: a read, a decision and a write.
func (q Health) Try(ctx context.Context) error {
	err := q.e.Store().View(ctx, func(v *store.View) error {
		_, _, err := v.Keys.Get("")
		return err
	})
	if err == nil {
		err = q.e.Do(ctx, probe{})
	}
	if err == nil {
		err = q.e.Store().TryWrite()
	}
	return err
}

// A probe is an operation that changes nothing. That it can be decided shows that the store works.
type probe struct{}

func (probe) Needs() []store.Ref { return nil }

// Do reads a key that does not exist.
func (probe) Do(tx *kernel.Tx) error {
	_, _, err := tx.DB.Keys.Get("")
	return err
}

// Health reports whether the store can be used.
type Health struct{ e *kernel.Engine }
