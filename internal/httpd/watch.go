package httpd

import (
	"context"
	"regexp"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/store"
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
	f := store.WatchFilter{Rule: q.Get("rule"), Tenant: perdure.TenantID(q.Get("tenant")), Run: perdure.RunID(q.Get("run_id")), Before: q.Get("cursor"), Limit: int(limit)}
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
	out := &api.WatchdogLog{Actions: []perdure.WatchdogAction{}}
	err = c.s.engine.Store().View(c.Context(), func(v *store.View) error {
		list, err := v.Watched(f)
		if err == nil && len(list) == 0 && f.Run != "" && f.Before == "" {
			err = c.someRun(v, f.Tenant, f.Run) // that nothing was done to it would be said of a mistyped one too
		}
		out.Actions = append(out.Actions, list...)
		return err
	})
	if n := len(out.Actions); n == int(limit) {
		out.NextCursor = out.Actions[n-1].ID
	}
	return 0, out, err
}

// someRun refuses an id that no run has: of that tenant, or of any.
func (c *call) someRun(v *store.View, t perdure.TenantID, id perdure.RunID) (err error) {
	if t == "" {
		if t, err = v.TenantOf(id, c.tenant()); err != nil {
			return err
		}
	}
	if _, ok, err := v.Run(t, id); err != nil || ok {
		return err
	}
	return perdure.Errorf(perdure.CodeNotFound, "no such run")
}

// How long a check that was asked for over HTTP goes on, and how much of what it finds is told.
const (
	checkWithin = 2 * time.Minute
	maxFound    = 1000
	maxPast     = 20
)

func checkInvariants(c *call, _ *none) (int, *api.Invariants, error) {
	if err := c.hold(); err != nil {
		return 0, nil, err
	}
	out, err := Invariants(c.Context(), c.s.engine.Store(), checkWithin)
	return 0, out, err
}

// Invariants checks a whole store, and goes no further after so long; zero: however long it takes.
func Invariants(ctx context.Context, s *store.Store, within time.Duration) (*api.Invariants, error) {
	out := &api.Invariants{Violations: []api.Violation{}}
	err := s.Audit(ctx, func(v *store.View) error {
		var err error
		if out.Generation, err = v.Generation(); err != nil {
			return err
		}
		n, first, err := v.PastDeadline(maxPast)
		if err != nil {
			return err
		}
		out.PastDeadline = n
		for _, id := range first {
			out.PastRuns = append(out.PastRuns, string(id))
		}
		found, left, err := v.CheckWithin(ctx, within)
		if err != nil {
			return err
		}
		out.Checked, out.Unchecked = len(store.Invariants)+1-len(left), left
		for _, x := range found[:min(len(found), maxFound)] {
			out.Violations = append(out.Violations, api.Violation{ID: x.ID, Statement: x.Statement, Row: x.Row})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
