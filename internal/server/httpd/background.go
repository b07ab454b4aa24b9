package httpd

import (
	"context"
	"sync"
	"time"

	"github.com/perdure/perdure/internal/server/doorbell"
)

// Run does the server's background work until the context ends. It reads logs for the streams, ends
// the calls of revoked keys, and renews the waiters of this node. Every Options.Poll it rings for
// the queues that have claimable runs, so that a lost ring costs latency and nothing else.
func (s *Server) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.awaitStreams()
	wg.Go(func() { s.reader.Run(ctx) })
	rung, stop := s.bell.Listen(doorbell.Keys())
	defer stop()
	wg.Go(func() { s.keyWatcher.run(ctx, rung) })
	loaded := s.loadLimits(ctx) == nil
	poll := time.NewTicker(s.opt.Poll)
	defer poll.Stop()
	renew := time.NewTicker(s.engine.Policy().WaiterTTL / 3)
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			s.flushHistory(end, true)
			return nil
		case <-poll.C:
			s.ringQueues(ctx)
			s.flushHistory(ctx, false)
			if loaded && !s.engine.Shared() {
				continue // limits change only through this server
			}
			loaded = s.loadLimits(ctx) == nil
		case <-renew.C:
			s.waiters.Renew(ctx)
		}
	}
}

// flushHistory stores what was counted for the history. What can't be stored is lost.
func (s *Server) flushHistory(ctx context.Context, all bool) {
	if err := s.engine.FlushHistory(ctx, all); err != nil && ctx.Err() == nil {
		s.log.Warn("a minute of the history was not stored", "error", err)
	}
}

// ringQueues rings for each queue and kind that has a claimable run. One read of the store serves
// all polls of this node.
func (s *Server) ringQueues(ctx context.Context) {
	ready, err := s.engine.Ready(ctx, &s.ready)
	if err != nil && ctx.Err() == nil {
		s.log.Error("the queues could not be looked at", "error", err)
	}
	// Other builds may claim runs that another node has held.
	held, err := s.engine.Held(ctx)
	if err != nil && ctx.Err() == nil {
		s.log.Error("held runs could not be looked at", "error", err)
	}
	for _, r := range append(ready, held...) {
		s.bell.Ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	}
}
