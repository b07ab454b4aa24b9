package httpd

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
)

func deleteRun(c *call, _ *none) (int, *none, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	return 0, &none{}, c.s.engine.Delete(c.Context(), &upkeep.DeleteRun{Tenant: c.tenant(), RunID: c.run(), Key: key})
}

func deleteThread(c *call, _ *none) (int, *none, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &upkeep.DeleteThread{Tenant: c.tenant(), ThreadID: perdure.ThreadID(c.PathValue("id")), Key: key}
	return 0, &none{}, c.s.engine.Delete(c.Context(), op)
}
