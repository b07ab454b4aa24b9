package httpd

import (
	"context"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine"
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
	recent := c.URL.Query().Get("recent")
	if recent != "" && recent != "true" && recent != "false" {
		return 0, nil, perdure.Invalid("recent", "takes true or false")
	}
	out, err := c.s.checks.check(c.Context(), c.s.engine, recent == "true")
	return 0, out, err
}

const (
	// checkShare is how much longer the result of a check counts as recent than the check took, so that pages which
	// show it cost one core a hundredth at most.
	checkShare = 100
	// minRecent is how long it counts at least.
	minRecent = time.Minute
)

// lastCheck has the result of the last check. One check runs at a time.
type lastCheck struct {
	once   sync.Once
	turn   chan struct{}
	result *api.Invariants
	took   time.Duration
}

// check checks the store, or returns the last result if that is recent and a recent one will do.
func (l *lastCheck) check(ctx context.Context, e *engine.Engine, recent bool) (*api.Invariants, error) {
	l.once.Do(func() { l.turn = make(chan struct{}, 1) })
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if recent && l.result != nil && e.Now().Sub(l.result.CheckedAt) < max(minRecent, l.took*checkShare) {
		return l.result, nil
	}
	began := time.Now()
	out, err := Invariants(ctx, e, checkTimeout)
	if err == nil {
		l.result, l.took = out, time.Since(began)
	}
	return out, err
}

// Invariants checks a whole store. The check stops after the time within, and has no limit if that
// is zero.
func Invariants(ctx context.Context, e *engine.Engine, within time.Duration) (*api.Invariants, error) {
	at, began := e.Now(), time.Now()
	found, err := e.CheckInvariants(ctx, within)
	if err != nil {
		return nil, err
	}
	out := &api.Invariants{CheckedAt: at, TookMS: time.Since(began).Milliseconds(), Generation: found.Generation,
		Checked: found.Checked, Violations: []api.Violation{}, Unchecked: found.Unchecked,
		PastDeadline: found.PastDeadline}
	for _, id := range found.PastRuns {
		out.PastRuns = append(out.PastRuns, string(id))
	}
	for _, x := range found.Violations[:min(len(found.Violations), maxViolations)] {
		out.Violations = append(out.Violations, api.Violation{ID: x.ID, Statement: x.Statement, Row: x.Row})
	}
	return out, nil
}
