package client

import (
	"context"
	"net/url"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
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
	return answer[api.RecoveryStatus](ctx, c, &request{method: "GET", path: recovery + "/status"})
}

// JobHeartbeats returns a page of live processes with the age of their heartbeats.
func (c *Client) JobHeartbeats(ctx context.Context, f JobFilter) (*api.JobHeartbeats, error) {
	return answer[api.JobHeartbeats](ctx, c, &request{method: "GET", path: recovery + "/heartbeats", query: f.query()})
}

// StaleJobs returns a page of live processes without a recent sign of life.
func (c *Client) StaleJobs(ctx context.Context, f JobFilter) (*api.StaleJobs, error) {
	return answer[api.StaleJobs](ctx, c, &request{method: "GET", path: recovery + "/stale", query: f.query()})
}

// JobHealth returns the health of a process.
func (c *Client) JobHealth(ctx context.Context, id perdure.RunID) (*api.JobHealth, error) {
	return answer[api.JobHealth](ctx, c, &request{method: "GET", path: path("/api/admin/jobs/%s/health", string(id))})
}

// Sentinels returns a page of the sentinels that the node which answers has read.
func (c *Client) Sentinels(ctx context.Context, f JobFilter) (*api.Sentinels, error) {
	return answer[api.Sentinels](ctx, c, &request{method: "GET", path: recovery + "/sentinels", query: f.query()})
}

// RecoveryMetrics counts live processes by tier, and what the node that answers did.
func (c *Client) RecoveryMetrics(ctx context.Context) (*api.RecoveryMetrics, error) {
	return answer[api.RecoveryMetrics](ctx, c, &request{method: "GET", path: recovery + "/metrics"})
}

// FailedJobs returns a page of the processes that were lost, newest first.
func (c *Client) FailedJobs(ctx context.Context, f JobFilter) (*api.FailedJobs, error) {
	return answer[api.FailedJobs](ctx, c, &request{method: "GET", path: recovery + "/failed", query: f.query()})
}

// ResumeJobs has live processes watched once more, and makes new runs of those that were lost. Repeating
// it makes no second run.
func (c *Client) ResumeJobs(ctx context.Context, ids []perdure.RunID, opts ...CallOptions) (*api.ResumedJobs, error) {
	return answer[api.ResumedJobs](ctx, c, &request{method: "POST", path: recovery + "/resume",
		body: api.ResumeJobs{JobIDs: ids}}, opts...)
}

// StartupLog returns a page of what recovery did at the start of the node that answers, after so many
// lines.
func (c *Client) StartupLog(ctx context.Context, after int) (*api.StartupLog, error) {
	return answer[api.StartupLog](ctx, c, &request{method: "GET", path: "/api/admin/startup-log",
		query: url.Values{"after": {strconv.Itoa(after)}}})
}
