package httpd

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
)

func listWorkers(c *call, _ *none) (int, *api.Workers, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.Workers(c.Context(), c.tenant(), page)
	return 0, &api.Workers{Workers: append([]perdure.Worker{}, list...), NextCursor: next}, err
}

func listQueues(c *call, _ *none) (int, *api.Queues, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.Queues(c.Context(), c.tenant(), page)
	return 0, &api.Queues{Queues: showQueues(list), NextCursor: next}, err
}

// showQueues returns queues as the API shows them.
func showQueues(list []dispatch.Queue) []api.Queue {
	out := make([]api.Queue, 0, len(list))
	for _, q := range list {
		out = append(out, api.Queue{Name: q.Name, Queued: q.Queued, Claimable: q.Claimable, Running: q.Running,
			Suspended: q.Suspended, AtLeast: q.AtLeast, OldestClaimable: q.OldestFor.Milliseconds(),
			Paused: q.Paused, QueueLimits: api.QueueLimits{Limits: q.LimitNames(), Concurrency: q.Concurrency},
			MissingLimits: q.MissingLimits})
	}
	return out
}
