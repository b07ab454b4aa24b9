package httpd

import (
	"context"
	"hash/fnv"
	"slices"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
)

// A waiter is the store's record that a caller on a node waits for a run in the foreground. When
// the last waiter of a run is gone, the run is deferred: it goes on, and nobody waits for its
// result.
//
// The store has one record per run and node, however many callers wait there. This file counts the
// callers of this node. The first one writes the record, the last one removes it with engine.Defer,
// which defers the run unless another node has a record. A record expires (WaiterTTL), so the node
// renews all of its records in the background. The records of a dead node expire, and the watchdog
// then defers the runs.
//
// Writing and removing must not overtake each other, or a run would be deferred although a caller
// waits. Both hold the run's waiterLock while they count and while they write.

// addWaiter counts a caller that waits for a run. The first one writes the record, unless it is
// written already.
func (s *Server) addWaiter(ctx context.Context, ref engine.Ref, written bool) error {
	lock := s.waiterLock(ref)
	lock.Lock()
	defer lock.Unlock()
	s.mu.Lock()
	s.waiters[ref]++
	first := s.waiters[ref] == 1
	s.mu.Unlock()
	if !first || written {
		return nil
	}
	err := s.writeWaiter(ctx, ref)
	if err != nil {
		s.dropWaiter(ref)
	}
	return err
}

// waiterLock returns the lock under which the waiters of a run change. Runs share the locks by
// hash.
func (s *Server) waiterLock(ref engine.Ref) *sync.Mutex {
	h := fnv.New32a()
	h.Write([]byte(ref.Run))
	return &s.waiterLocks[h.Sum32()%uint32(len(s.waiterLocks))]
}

// writeWaiter writes this node's record for a run.
func (s *Server) writeWaiter(ctx context.Context, ref engine.Ref) error {
	return s.engine.Do(ctx, &engine.Attach{Tenant: ref.Tenant, Node: s.opt.Node, RunIDs: []perdure.RunID{ref.Run}})
}

// dropWaiter counts one caller less, and tells whether it was the last.
func (s *Server) dropWaiter(ref engine.Ref) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiters[ref]--; s.waiters[ref] > 0 {
		return false
	}
	delete(s.waiters, ref)
	return true
}

// reasonClosed is the reason of a waiter that closed its connection. The store records it as a
// disconnect. If it was the last waiter, it cancels a run that was started with
// on_disconnect=cancel.
const reasonClosed = "hung up"

// removeWaiter counts one caller less. The last one defers the run, unless the run has ended.
func (s *Server) removeWaiter(ctx context.Context, ref engine.Ref, reason string, ended bool) {
	lock := s.waiterLock(ref)
	lock.Lock()
	defer lock.Unlock()
	if !s.dropWaiter(ref) || ended {
		return
	}
	s.deferRun(ctx, ref, reason)
}

// deferRun removes this node's record, and defers the run if no other node has one.
func (s *Server) deferRun(ctx context.Context, ref engine.Ref, reason string) {
	op := &engine.Defer{Tenant: ref.Tenant, RunID: ref.Run, Node: s.opt.Node, Reason: reason}
	if reason == reasonClosed {
		op.Reason, op.Closed = "disconnect", true
	}
	if err := s.engine.Do(ctx, op); err != nil {
		s.log.Warn("a run could not be deferred; its waiter expires by itself", "run", ref.Run, "error", err)
	}
}

// hasWaiter tells whether a caller on this node waits for a run.
func (s *Server) hasWaiter(ref engine.Ref) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiters[ref] > 0
}

// renewBatch is the number of waiters that are renewed in one write.
const renewBatch = 256

// renewWaiters renews all records of this node.
func (s *Server) renewWaiters(ctx context.Context) {
	s.mu.Lock()
	byTenant := make(map[perdure.TenantID][]perdure.RunID)
	for ref := range s.waiters {
		byTenant[ref.Tenant] = append(byTenant[ref.Tenant], ref.Run)
	}
	s.mu.Unlock()
	for t, ids := range byTenant {
		for part := range slices.Chunk(ids, renewBatch) {
			if err := s.renew(ctx, t, part); err != nil && ctx.Err() == nil {
				s.log.Warn("waiters could not be renewed", "error", err)
			}
		}
	}
}

// renew renews some records. It does not hold their locks, so it then compares each record with the
// count: a lost record is written again if a caller still waits, and a renewed one is removed if
// none does.
func (s *Server) renew(ctx context.Context, t perdure.TenantID, ids []perdure.RunID) error {
	op := &engine.Renew{Tenant: t, Node: s.opt.Node, RunIDs: ids}
	if err := s.engine.Do(ctx, op); err != nil {
		return err
	}
	for _, id := range ids {
		if err := s.reconcile(ctx, engine.Ref{Tenant: t, Run: id}, slices.Contains(op.Lost, id)); err != nil {
			return err
		}
	}
	return nil
}

// reconcile makes the record of a run match the count of its waiters.
func (s *Server) reconcile(ctx context.Context, ref engine.Ref, lost bool) error {
	lock := s.waiterLock(ref)
	lock.Lock()
	defer lock.Unlock()
	switch waits := s.hasWaiter(ref); {
	case waits && lost:
		return s.writeWaiter(ctx, ref)
	case !waits && !lost:
		s.deferRun(ctx, ref, "disconnect")
	}
	return nil
}
