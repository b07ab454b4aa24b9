package client

import (
	"context"

	"github.com/perdure/perdure/api"
)

// Queues lists the tenant's queues with their numbers of runs.
func (c *Client) Queues(ctx context.Context) ([]api.Queue, error) {
	return pages(ctx, c, v1+"/queues", func(p *api.Queues) ([]api.Queue, string) { return p.Queues, p.NextCursor })
}

// PauseQueue stops all grants from a queue. It accepts runs meanwhile, and workers keep those that they
// hold. Pausing a paused queue sets its reason and its end anew.
func (c *Client) PauseQueue(
	ctx context.Context, name string, in api.PauseQueue, opts ...CallOptions,
) (*api.QueuePaused, error) {
	r := &request{method: "POST", path: path(v1+"/queues/%s/pause", name), body: in}
	return answer[api.QueuePaused](ctx, c, r, opts...)
}

// ResumeQueue ends the pause of a queue. One that is not paused stays as it is.
func (c *Client) ResumeQueue(ctx context.Context, name string, opts ...CallOptions) (*api.QueuePaused, error) {
	r := &request{method: "POST", path: path(v1+"/queues/%s/resume", name), body: struct{}{}}
	return answer[api.QueuePaused](ctx, c, r, opts...)
}
