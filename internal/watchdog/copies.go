package watchdog

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// copies says when the next parts of journals are copied. A part is a write of a hundred rows: hundreds
// of retries whose journals are long would otherwise keep the store busy. Therefore the retries of a
// tenant stand in line, and each has an instant that is reserved for it.
type copies struct {
	// free is when the next instant of a tenant's line is.
	free     map[perdure.TenantID]perdure.Instant
	reserved map[store.Ref]perdure.Instant
}

// longestLine bounds the time ahead for which instants are reserved. A retry that finds a longer line
// comes back after that time: those before it may have been cancelled.
const longestLine = 30 * time.Second

func newCopies() copies {
	return copies{make(map[perdure.TenantID]perdure.Instant), make(map[store.Ref]perdure.Instant)}
}

// turn returns when the next part is copied to a retry: zero for now, or a later instant. due is when the
// part fell due by its own clock: an instant that was reserved before belongs to an earlier part. Asking
// again for the same part gives the same answer.
func (c copies) turn(r *perdure.Run, due, now perdure.Instant) perdure.Instant {
	ref := store.Ref{Tenant: r.Tenant, Run: r.ID}
	at, ok := c.reserved[ref]
	if !ok || at < due {
		at = max(now, c.free[r.Tenant])
		if late := now.Add(longestLine); at > late {
			return late
		}
		c.free[r.Tenant] = at.Add(perdure.CopyPause)
		c.reserved[ref] = at
	}
	if at <= now {
		return 0
	}
	return at
}

// forget drops what is over.
func (c copies) forget(now perdure.Instant) {
	for t, at := range c.free {
		if at <= now {
			delete(c.free, t)
		}
	}
	for ref, at := range c.reserved {
		if at < now.Add(-longestLine) {
			delete(c.reserved, ref)
		}
	}
}
