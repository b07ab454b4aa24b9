package admin

import (
	"context"
	"net/url"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A WatchdogFilter selects entries of the watchdog's log. An empty field selects all.
type WatchdogFilter struct {
	Rule   string // W1 to W15, or the name of one of them
	RunID  perdure.RunID
	Tenant perdure.TenantID
	Limit  int
	Cursor string // NextCursor of the page before
}

// Watchdog returns a page of the watchdog's log, newest first. It needs a platform key.
func (c *Client) Watchdog(ctx context.Context, f WatchdogFilter) (*api.WatchdogLog, error) {
	q := url.Values{}
	for name, text := range map[string]string{
		"rule": f.Rule, "run_id": string(f.RunID), "tenant": string(f.Tenant), "cursor": f.Cursor,
	} {
		if text != "" {
			q.Set(name, text)
		}
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return get[api.WatchdogLog](ctx, c, "/api/admin/watchdog", q)
}

// Policy returns the settings of the policy that are in force on the node that answers. It needs a
// platform key.
func (c *Client) Policy(ctx context.Context) (*api.Policy, error) {
	return get[api.Policy](ctx, c, "/api/admin/policy", nil)
}

// Locks lists the locks of other sessions of the database that are in the way of a node.
func (c *Client) Locks(ctx context.Context) (*api.Locks, error) {
	return get[api.Locks](ctx, c, "/api/admin/locks", nil)
}
