package client

import (
	"context"

	"github.com/perdure/perdure/api"
)

// Queues lists the tenant's queues with their numbers of runs.
func (c *Client) Queues(ctx context.Context) ([]api.Queue, error) {
	return pages(ctx, c, v1+"/queues", func(p *api.Queues) ([]api.Queue, string) { return p.Queues, p.NextCursor })
}
