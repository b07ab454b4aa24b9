package httpd

import (
	"context"
	"time"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
)

const (
	// checkTimeout bounds a check of the invariants that is requested over HTTP.
	checkTimeout = 2 * time.Minute
	// maxViolations bounds the violations in one answer.
	maxViolations = 1000
)

func checkInvariants(c *call, _ *none) (int, *api.Invariants, error) {
	if err := c.watchKey(); err != nil {
		return 0, nil, err
	}
	out, err := Invariants(c.Context(), c.s.engine, checkTimeout)
	return 0, out, err
}

// Invariants checks a whole store. The check stops after the time within, and has no limit if that
// is zero.
func Invariants(ctx context.Context, e *engine.Engine, within time.Duration) (*api.Invariants, error) {
	found, err := e.CheckInvariants(ctx, within)
	if err != nil {
		return nil, err
	}
	out := &api.Invariants{Generation: found.Generation, Checked: found.Checked, Violations: []api.Violation{},
		Unchecked: found.Unchecked, PastDeadline: found.PastDeadline}
	for _, id := range found.PastRuns {
		out.PastRuns = append(out.PastRuns, string(id))
	}
	for _, x := range found.Violations[:min(len(found.Violations), maxViolations)] {
		out.Violations = append(out.Violations, api.Violation{ID: x.ID, Statement: x.Statement, Row: x.Row})
	}
	return out, nil
}
