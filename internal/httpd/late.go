package httpd

import (
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
)

func adoptLate(c *call, _ *none) (int, *api.Run, error)   { return c.decideLate(false) }
func discardLate(c *call, _ *none) (int, *api.Run, error) { return c.decideLate(true) }

func (c *call) decideLate(discard bool) (int, *api.Run, error) {
	n, err := strconv.Atoi(c.PathValue("n"))
	if err != nil {
		return 0, nil, perdure.Errorf(perdure.CodeNotFound, "no such late result")
	}
	if err := c.s.engine.Do(c.Context(), &engine.Adopt{Tenant: c.tenant(), RunID: c.run(), N: n, Discard: discard}); err != nil {
		return 0, nil, err
	}
	return getRun(c, nil)
}
