package httpd

import (
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// releaseHold ends the hold of a run.
func releaseHold(c *call, _ *none) (int, *api.Run, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &life.ReleaseHold{Tenant: c.tenant(), RunID: c.run(), Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return getRun(c, nil)
}

// deadLetterRun ends a run that is on hold.
func deadLetterRun(c *call, _ *none) (int, *api.Run, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &life.DeadLetterRun{Tenant: c.tenant(), RunID: c.run(), Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return getRun(c, nil)
}
