package admin

import (
	"context"
	"net/url"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

// A JobFilter selects a page of processes. The zero value is the first page with the default length.
type JobFilter struct {
	Cursor string // the NextCursor of the page before
	Limit  int
}

func (f JobFilter) query() url.Values {
	q := url.Values{}
	if f.Cursor != "" {
		q.Set("cursor", f.Cursor)
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return q
}

// recovery is where the recovery of processes is.
const recovery = "/api/admin/recovery/jobs"

// RecoveryStatus returns what recovery did since the start of the node that answers. All calls about
// recovery need a platform key.
func (c *Client) RecoveryStatus(ctx context.Context) (*api.RecoveryStatus, error) {
	return get[api.RecoveryStatus](ctx, c, recovery+"/status", nil)
}

// JobHeartbeats returns a page of live processes with the age of their heartbeats.
func (c *Client) JobHeartbeats(ctx context.Context, f JobFilter) (*api.JobHeartbeats, error) {
	return get[api.JobHeartbeats](ctx, c, recovery+"/heartbeats", f.query())
}

// StaleJobs returns a page of live processes without a recent sign of life.
func (c *Client) StaleJobs(ctx context.Context, f JobFilter) (*api.StaleJobs, error) {
	return get[api.StaleJobs](ctx, c, recovery+"/stale", f.query())
}

// JobHealth returns the health of a process.
func (c *Client) JobHealth(ctx context.Context, id perdure.RunID) (*api.JobHealth, error) {
	return get[api.JobHealth](ctx, c, path("/api/admin/jobs/%s/health", string(id)), nil)
}

// Sentinels returns a page of the sentinels that the node which answers has read.
func (c *Client) Sentinels(ctx context.Context, f JobFilter) (*api.Sentinels, error) {
	return get[api.Sentinels](ctx, c, recovery+"/sentinels", f.query())
}

// RecoveryMetrics counts live processes by tier, and what the node that answers did.
func (c *Client) RecoveryMetrics(ctx context.Context) (*api.RecoveryMetrics, error) {
	return get[api.RecoveryMetrics](ctx, c, recovery+"/metrics", nil)
}

// FailedJobs returns a page of the processes that were lost, newest first.
func (c *Client) FailedJobs(ctx context.Context, f JobFilter) (*api.FailedJobs, error) {
	return get[api.FailedJobs](ctx, c, recovery+"/failed", f.query())
}

// ResumeJobs has live processes watched once more, and makes new runs of those that were lost. Repeating
// it makes no second run.
func (c *Client) ResumeJobs(
	ctx context.Context, ids []perdure.RunID, opts ...client.CallOptions,
) (*api.ResumedJobs, error) {
	return send[api.ResumedJobs](ctx, c, "POST", recovery+"/resume", api.ResumeJobs{JobIDs: ids}, opts)
}

// StartupLog returns a page of what recovery did at the start of the node that answers, after so many
// lines.
func (c *Client) StartupLog(ctx context.Context, after int) (*api.StartupLog, error) {
	return get[api.StartupLog](ctx, c, "/api/admin/startup-log", url.Values{"after": {strconv.Itoa(after)}})
}
