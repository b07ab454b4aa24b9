package httpd

import (
	"regexp"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

// isLogID matches a cursor of the watchdog's log.
var isLogID = regexp.MustCompile(`^[0-9a-f]{14}(-[0-9a-f]{8}){2}$`)

// watchdogLog lists the actions of the watchdog, newest first. A rule is given by its number, its
// name or its full name; see watchdog.Rule.
func watchdogLog(c *call, _ *none) (int, *api.WatchdogLog, error) {
	q := c.URL.Query()
	limit, err := c.intParam("limit", 50, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	f := reads.WatchFilter{Rule: q.Get("rule"), Tenant: perdure.TenantID(q.Get("tenant")),
		Run: perdure.RunID(q.Get("run_id")), Before: q.Get("cursor"), Limit: int(limit)}
	if f.Before != "" && !isLogID.MatchString(f.Before) {
		return 0, nil, perdure.Invalid("cursor", "takes the next_cursor of the page before")
	}
	if err := c.s.checkWatchFilter(&f); err != nil {
		return 0, nil, err
	}
	list, err := c.s.engine.WatchdogLog(c.Context(), f, c.tenant())
	out := &api.WatchdogLog{Actions: append([]perdure.WatchdogAction{}, list...)}
	if n := len(list); n == int(limit) {
		out.NextCursor = list[n-1].ID
	}
	return 0, out, err
}

// checkWatchFilter checks what selects actions of the watchdog, and gives the rule the name by which
// the log has it.
func (s *Server) checkWatchFilter(f *reads.WatchFilter) (err error) {
	for name, text := range map[string]string{"rule": f.Rule, "tenant": string(f.Tenant), "run_id": string(f.Run)} {
		if text != "" {
			if err := perdure.CheckName(name, text); err != nil {
				return err
			}
		}
	}
	if f.Rule != "" {
		f.Rule, err = s.storedRule(f.Rule)
	}
	return err
}

// storedRule returns the number or name by which the log stores the actions of a rule.
func (s *Server) storedRule(name string) (string, error) {
	stored := name
	if s.opt.StoredRule != nil {
		stored = s.opt.StoredRule(name)
	}
	if !slices.Contains(s.opt.Rules, stored) {
		return "", perdure.Invalid("rule", "there is no rule %q: it is W1 to W15, or the name of one", name)
	}
	return stored, nil
}
