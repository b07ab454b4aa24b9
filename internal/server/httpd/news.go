package httpd

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/httpd/stream"
	"github.com/perdure/perdure/internal/server/httpd/waiting"
)

// pollNews waits until a run that the worker holds is asked to stop. It listens to the doorbell
// first and then reads the runs that the call names, so that no cancel request is missed. If a ring
// is lost, the worker learns of the request from its next heartbeat.
func pollNews(c *call, in *pollBody, wait time.Duration) (int, *api.Polled, error) {
	if in.Slots != 0 {
		return 0, nil, perdure.Invalid("slots", "a poll for news leases nothing")
	}
	if err := perdure.CheckName("worker_id", c.PathValue("id")); err != nil {
		return 0, nil, err
	}
	if len(in.Holding) > perdure.MaxList {
		return 0, nil, perdure.Errorf(perdure.CodeTooLarge, "a poll for news names at most %d runs", perdure.MaxList)
	}
	topic := doorbell.Worker(c.tenant(), c.worker())
	if in.AllTenants {
		topic.Tenant = ""
	}
	rung, stop := c.s.bell.Listen(topic)
	defer stop()
	out := &api.Polled{Runs: []api.Grant{}}
	var err error
	if out.News, err = anyToStop(c, in.Holding); err != nil || out.News {
		return 0, out, err
	}
	if err := c.watchKey(); err != nil {
		return 0, nil, err
	}
	if wait > 0 {
		if err := block(c, stream.Poll); err != nil {
			return 0, nil, err
		}
		defer c.share.unblock()
	}
	c.s.pollReads.Add(1)
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	out.News = c.s.waits.Pause(c.Context(), waiting.Pause{Rung: rung, Deadline: deadline.C}) == waiting.Rung
	return 0, out, nil
}

// anyToStop tells whether the run of a valid lease was asked to stop and its worker has not
// acknowledged that yet.
func anyToStop(c *call, held []api.Lease) (bool, error) {
	if len(held) == 0 {
		return false, nil
	}
	leases := make(map[perdure.TenantID]map[perdure.RunID]int64)
	for _, l := range held {
		t, err := c.tenantOf(l.RunID)
		if err != nil {
			return false, err
		}
		if leases[t] == nil {
			leases[t] = make(map[perdure.RunID]int64)
		}
		leases[t][l.RunID] = l.Epoch
	}
	return c.s.engine.Runs.AnyToStop(c.Context(), leases)
}
