package watchdog

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
)

// copies says when the next parts of journals are copied. A part is a write of a hundred rows: hundreds
// of retries whose journals are long would otherwise keep the store busy. Therefore the retries of a
// tenant stand in line, and each has an instant that is reserved for it. A line that has been copied
// from for long goes on more slowly: some calls can ask for gigabytes of copies.
type copies struct {
	lines    map[perdure.TenantID]copyLine
	reserved map[store.Ref]perdure.Instant
}

// A copyLine is the line of a tenant's retries, until it is empty.
type copyLine struct {
	// free is the next instant that is not reserved.
	free  perdure.Instant
	parts int
}

// quickParts of a line are copied with CopyPause between them, the others with longPause.
const (
	quickParts = 256
	longPause  = 6 * perdure.CopyPause
)

// next reserves an instant, and returns the line behind it.
func (l copyLine) next(at perdure.Instant) copyLine {
	if l.parts++; l.parts > quickParts {
		l.free = at.Add(longPause)
	} else {
		l.free = at.Add(perdure.CopyPause)
	}
	return l
}

// longestLine bounds the time ahead for which instants are reserved. A retry that finds a longer line
// comes back after that time: those before it may have been cancelled.
const longestLine = 30 * time.Second

func newCopies() copies {
	return copies{make(map[perdure.TenantID]copyLine), make(map[store.Ref]perdure.Instant)}
}

// turn returns when the next part is copied to a retry: zero for now, or a later instant. due is when the
// part fell due by its own clock: an instant that was reserved before belongs to an earlier part. Asking
// again for the same part gives the same answer.
func (c copies) turn(r *perdure.Run, due, now perdure.Instant) perdure.Instant {
	ref := store.Ref{Tenant: r.Tenant, Run: r.ID}
	at, ok := c.reserved[ref]
	if !ok || at < due {
		line := c.lines[r.Tenant]
		at = max(now, line.free)
		if late := now.Add(longestLine); at > late {
			return late
		}
		c.lines[r.Tenant] = line.next(at)
		c.reserved[ref] = at
	}
	if at <= now {
		return 0
	}
	return at
}

// forget drops what is over.
func (c copies) forget(now perdure.Instant) {
	for t, line := range c.lines {
		if line.free <= now {
			delete(c.lines, t)
		}
	}
	for ref, at := range c.reserved {
		if at < now.Add(-longestLine) {
			delete(c.reserved, ref)
		}
	}
}
