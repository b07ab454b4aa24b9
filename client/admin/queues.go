package admin

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

// SetQueueLimits puts new runs of a queue under limits, and makes the queue if there is none. Empty limits take
// them away. Runs that were accepted before keep theirs.
func (c *Client) SetQueueLimits(
	ctx context.Context, name string, in api.QueueLimits, opts ...client.CallOptions,
) (*api.QueueLimitsSet, error) {
	return send[api.QueueLimitsSet](ctx, c, "PUT", path(v1+"/queues/%s", name), in, opts)
}

// PauseQueue stops all grants from a queue. It accepts runs meanwhile, and workers keep those that they
// hold. Pausing a paused queue sets its reason and its end anew.
func (c *Client) PauseQueue(
	ctx context.Context, name string, in api.PauseQueue, opts ...client.CallOptions,
) (*api.QueuePaused, error) {
	return send[api.QueuePaused](ctx, c, "POST", path(v1+"/queues/%s/pause", name), in, opts)
}

// ResumeQueue ends the pause of a queue. One that is not paused stays as it is.
func (c *Client) ResumeQueue(ctx context.Context, name string, opts ...client.CallOptions) (*api.QueuePaused, error) {
	return send[api.QueuePaused](ctx, c, "POST", path(v1+"/queues/%s/resume", name), struct{}{}, opts)
}

// PauseKind stops all grants of a kind, as PauseQueue does for a queue.
func (c *Client) PauseKind(
	ctx context.Context, kind string, in api.PauseQueue, opts ...client.CallOptions,
) (*api.QueuePaused, error) {
	return send[api.QueuePaused](ctx, c, "POST", path(v1+"/kinds/%s/pause", kind), in, opts)
}

// ResumeKind ends the pause of a kind. One that is not paused stays as it is.
func (c *Client) ResumeKind(ctx context.Context, kind string, opts ...client.CallOptions) (*api.QueuePaused, error) {
	return send[api.QueuePaused](ctx, c, "POST", path(v1+"/kinds/%s/resume", kind), struct{}{}, opts)
}

// Workers lists the tenant's workers.
func (c *Client) Workers(ctx context.Context) ([]perdure.Worker, error) {
	entries := func(p *api.Workers) ([]perdure.Worker, string) { return p.Workers, p.NextCursor }
	return pages(ctx, c, v1+"/workers", entries)
}
