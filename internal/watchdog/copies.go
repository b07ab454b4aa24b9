package watchdog

import "github.com/perdure/perdure"

// copies says when the next part of a journal may be copied for each tenant. A part is a write of a
// hundred rows: hundreds of retries whose journals are long would otherwise keep the store busy.
type copies map[perdure.TenantID]perdure.Instant

// turn returns when a retry may be copied a part to: zero for now, or a later instant, which is then
// reserved for it. due is when the part fell due by its own clock. A run whose alarm is later than that
// comes back at an instant that was reserved for it.
func (c copies) turn(r *perdure.Run, due, now perdure.Instant) perdure.Instant {
	if r.AlarmAt > due {
		return 0
	}
	at := max(now, c[r.Tenant])
	c[r.Tenant] = at.Add(perdure.CopyPause)
	if at == now {
		return 0
	}
	return at
}

// forget drops the tenants that may copy at once.
func (c copies) forget(now perdure.Instant) {
	for t, at := range c {
		if at <= now {
			delete(c, t)
		}
	}
}
