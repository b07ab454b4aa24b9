package waiting

import (
	"context"
	"hash/fnv"
	"log/slog"
	"slices"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// Waiters counts the callers of this node that wait for runs in the foreground.
//
// A waiter is the store's record that a caller on a node waits for a run. When the last waiter of a
// run is gone, the run is deferred: it goes on, and nobody waits for its result.
//
// The store has one record per run and node, however many callers wait there. The first caller
// writes the record, the last one removes it with life.Defer, which defers the run unless another
// node has a record. A record expires (WaiterTTL), so the node renews all of its records in the
// background. The records of a dead node expire, and the watchdog then defers the runs.
//
// Writing and removing must not overtake each other, or a run would be deferred although a caller
// waits. Both hold the run's lock while they count and while they write.
type Waiters struct {
	engine Engine
	node   string
	log    *slog.Logger

	// locks serialize the changes to a run's waiters; see lock. One is taken before mu, and is held
	// while the waiter is written.
	locks [64]sync.Mutex

	mu sync.Mutex
	of map[kernel.Ref]int
}

// Engine lists the calls of the engine that waiting uses, beside its [Runs].
type Engine interface {
	Do(context.Context, kernel.Op) error
	// Shared tells whether other nodes may use the store.
	Shared() bool
}

// NewWaiters makes the count of a node.
func NewWaiters(e Engine, node string, log *slog.Logger) *Waiters {
	return &Waiters{engine: e, node: node, log: log, of: make(map[kernel.Ref]int)}
}

// Add counts a caller that waits for a run. The first one writes the record, unless it is written
// already.
func (w *Waiters) Add(ctx context.Context, ref kernel.Ref, written bool) error {
	lock := w.lock(ref)
	lock.Lock()
	defer lock.Unlock()
	w.mu.Lock()
	w.of[ref]++
	first := w.of[ref] == 1
	w.mu.Unlock()
	if !first || written {
		return nil
	}
	err := w.write(ctx, ref)
	if err != nil {
		w.drop(ref)
	}
	return err
}

// Count returns how many callers wait for a run. It waits for a record that is being written.
func (w *Waiters) Count(ref kernel.Ref) int {
	lock := w.lock(ref)
	lock.Lock()
	defer lock.Unlock()
	return w.count(ref)
}

// HungUp is the reason of a caller that closed its connection. The store records it as a
// disconnect. If it was the last waiter, it cancels a run that was started with
// on_disconnect=cancel.
const HungUp = "hung up"

// Disconnect is the reason of a caller whose connection was ended by the server, or broke.
const Disconnect = "disconnect"

// Remove counts one caller less. The last one defers the run, unless the run has ended.
func (w *Waiters) Remove(ctx context.Context, ref kernel.Ref, reason string, ended bool) {
	lock := w.lock(ref)
	lock.Lock()
	defer lock.Unlock()
	if !w.drop(ref) || ended {
		return
	}
	w.deferRun(ctx, ref, reason)
}

// renewBatch is the number of waiters that are renewed in one write.
const renewBatch = 256

// Renew renews all records of this node.
func (w *Waiters) Renew(ctx context.Context) {
	w.mu.Lock()
	byTenant := make(map[perdure.TenantID][]perdure.RunID)
	for ref := range w.of {
		byTenant[ref.Tenant] = append(byTenant[ref.Tenant], ref.Run)
	}
	w.mu.Unlock()
	for t, ids := range byTenant {
		for part := range slices.Chunk(ids, renewBatch) {
			if err := w.renew(ctx, t, part); err != nil && ctx.Err() == nil {
				w.log.Warn("waiters could not be renewed", "error", err)
			}
		}
	}
}

// renew renews some records. It does not hold their locks, so it then compares each record with the
// count: a lost record is written again if a caller still waits, and a renewed one is removed if
// none does.
func (w *Waiters) renew(ctx context.Context, t perdure.TenantID, ids []perdure.RunID) error {
	op := &life.Renew{Tenant: t, Node: w.node, RunIDs: ids}
	if err := w.engine.Do(ctx, op); err != nil {
		return err
	}
	for _, id := range ids {
		if err := w.reconcile(ctx, kernel.Ref{Tenant: t, Run: id}, slices.Contains(op.Lost, id)); err != nil {
			return err
		}
	}
	return nil
}

// reconcile makes the record of a run match the count of its waiters.
func (w *Waiters) reconcile(ctx context.Context, ref kernel.Ref, lost bool) error {
	lock := w.lock(ref)
	lock.Lock()
	defer lock.Unlock()
	switch waits := w.count(ref) > 0; {
	case waits && lost:
		return w.write(ctx, ref)
	case !waits && !lost:
		w.deferRun(ctx, ref, Disconnect)
	}
	return nil
}

// lock returns the lock under which the waiters of a run change. Runs share the locks by hash.
func (w *Waiters) lock(ref kernel.Ref) *sync.Mutex {
	h := fnv.New32a()
	h.Write([]byte(ref.Run))
	return &w.locks[h.Sum32()%uint32(len(w.locks))]
}

// write writes this node's record for a run.
func (w *Waiters) write(ctx context.Context, ref kernel.Ref) error {
	return w.engine.Do(ctx, &life.Attach{Tenant: ref.Tenant, Node: w.node, RunIDs: []perdure.RunID{ref.Run}})
}

// deferRun removes this node's record, and defers the run if no other node has one.
func (w *Waiters) deferRun(ctx context.Context, ref kernel.Ref, reason string) {
	op := &life.Defer{Tenant: ref.Tenant, RunID: ref.Run, Node: w.node, Reason: reason}
	if reason == HungUp {
		op.Reason, op.Closed = Disconnect, true
	}
	if err := w.engine.Do(ctx, op); err != nil {
		w.log.Warn("a run could not be deferred; its waiter expires by itself", "run", ref.Run, "error", err)
	}
}

// drop counts one caller less, and tells whether it was the last.
func (w *Waiters) drop(ref kernel.Ref) (last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[ref]--; w.of[ref] > 0 {
		return false
	}
	delete(w.of, ref)
	return true
}

// count returns how many callers wait for a run.
func (w *Waiters) count(ref kernel.Ref) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.of[ref]
}
