package httpd

import (
	"context"
	"regexp"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
)

// serveMetrics gives what Prometheus asks for.
func serveMetrics(c *call) error {
	if c.s.opt.Metrics == nil {
		return perdure.Errorf(perdure.CodeNotFound, "this server keeps no metrics")
	}
	c.s.opt.Metrics.ServeHTTP(timed{c.w, c.s}, c.Request)
	return nil
}

// isLogID is what a cursor of the watchdog's log looks like.
var isLogID = regexp.MustCompile(`^[0-9a-f]{14}(-[0-9a-f]{8}){2}$`)

func watchdogLog(c *call, _ *none) (int, *api.WatchdogLog, error) {
	q := c.URL.Query()
	limit, err := c.whole("limit", 50, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	f := engine.WatchFilter{Rule: q.Get("rule"), Tenant: perdure.TenantID(q.Get("tenant")), Run: perdure.RunID(q.Get("run_id")), Before: q.Get("cursor"), Limit: int(limit)}
	if f.Before != "" && !isLogID.MatchString(f.Before) {
		return 0, nil, perdure.Invalid("cursor", "takes the next_cursor of the page before")
	}
	for name, text := range map[string]string{"rule": f.Rule, "tenant": string(f.Tenant), "run_id": string(f.Run)} {
		if text != "" {
			if err := perdure.CheckName(name, text); err != nil {
				return 0, nil, err
			}
		}
	}
	if f.Rule != "" && !slices.Contains(c.s.opt.Rules, f.Rule) {
		return 0, nil, perdure.Invalid("rule", "there is no rule %q: it is W1 to W15, or the name of one", f.Rule)
	}
	list, err := c.s.engine.WatchdogLog(c.Context(), f, c.tenant())
	out := &api.WatchdogLog{Actions: append([]perdure.WatchdogAction{}, list...)}
	if n := len(list); n == int(limit) {
		out.NextCursor = list[n-1].ID
	}
	return 0, out, err
}

// How long a check that was asked for over HTTP goes on, and how much of what it finds is told.
const (
	checkWithin = 2 * time.Minute
	maxFound    = 1000
)

func checkInvariants(c *call, _ *none) (int, *api.Invariants, error) {
	if err := c.hold(); err != nil {
		return 0, nil, err
	}
	out, err := Invariants(c.Context(), c.s.engine, checkWithin)
	return 0, out, err
}

// Invariants checks a whole store, and goes no further after so long; zero: however long it takes.
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
	for _, x := range found.Violations[:min(len(found.Violations), maxFound)] {
		out.Violations = append(out.Violations, api.Violation{ID: x.ID, Statement: x.Statement, Row: x.Row})
	}
	return out, nil
}
