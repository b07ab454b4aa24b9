package rules

import (
	"encoding/json"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// A queueRef names a queue of a tenant.
type queueRef struct {
	tenant perdure.TenantID
	queue  string
}

// queueLimits are the limits that runs of a queue are under. Every submission needs them, so in the common case that
// costs no query. Those of a queue that nobody has used are cached as well.
type queueLimits struct {
	Names       []string
	Concurrency int
}

var cachedQueues = kernel.NewPart(func(*kernel.Engine) *kernel.Cache[queueRef, queueLimits] {
	return &kernel.Cache[queueRef, queueLimits]{TTL: KindTTL, Most: maxCachedKinds}
})

// LimitsOfQueue gives the limits that new runs of a queue are under, and how many of its runs may be leased at
// once. The list is shared: callers do not change it.
func LimitsOfQueue(tx *kernel.Tx, t perdure.TenantID, queue string) (names []string, concurrency int, err error) {
	q, err := cachedQueues.Of(tx.Engine).Get(kernel.LookOf(tx), queueRef{t, queue}, func() (queueLimits, error) {
		row, _, err := tx.DB.Queues.Get(t, queue)
		return queueLimits{row.LimitNames(), row.Concurrency}, err
	})
	return q.Names, q.Concurrency, err
}

// PutQueueLimits sets the limits of a queue, and makes the queue if there is none. Runs that were accepted
// before keep theirs. With a Key it counts once.
type PutQueueLimits struct {
	Tenant      perdure.TenantID
	Queue       string
	Limits      []string
	Concurrency int
	Key         string

	Row store.QueueRow
}

func (*PutQueueLimits) Needs() []store.Ref { return nil }

// Do sets the limits.
func (op *PutQueueLimits) Do(tx *kernel.Tx) error {
	if err := perdure.CheckName("name", op.Queue); err != nil {
		return err
	}
	def := perdure.KindDef{Limits: op.Limits, Concurrency: op.Concurrency} // the bounds are those of a kind
	if err := def.Validate(); err != nil {
		return err
	}
	_, err := kernel.UnderKey(tx, op.Tenant, "queue.set:"+op.Queue, op.Key, []any{op.Limits, op.Concurrency},
		func() (string, error) { return "", op.put(tx) }, func(string) (err error) {
			op.Row, _, err = tx.DB.Queues.Get(op.Tenant, op.Queue)
			return err
		})
	return err
}

func (op *PutQueueLimits) put(tx *kernel.Tx) error {
	if err := EnsureQueue(tx, op.Tenant, op.Queue); err != nil {
		return err
	}
	op.Row = store.QueueRow{Tenant: op.Tenant, Name: op.Queue, Concurrency: op.Concurrency}
	if len(op.Limits) > 0 {
		text, err := json.Marshal(op.Limits)
		if err != nil {
			return err
		}
		op.Row.Limits = string(text)
	}
	was, _, err := tx.DB.Queues.Get(op.Tenant, op.Queue)
	if err != nil || was.Limits == op.Row.Limits && was.Concurrency == op.Row.Concurrency {
		return err
	}
	if op.Row.Limits != "" || op.Row.Concurrency != 0 {
		if err := tx.Requires(kernel.Limits); err != nil {
			return err
		}
	}
	tx.DB.Queues.SetLimits(&op.Row)
	tx.DB.After(func() { cachedQueues.Of(tx.Engine).Forget(queueRef{op.Tenant, op.Queue}) })
	if err := lookAtLimit(tx, op.Tenant, perdure.LimitOfQueue+op.Queue); err != nil {
		return err
	}
	return tx.Audit(op.Tenant, perdure.AuditQueueChange, op.Queue, "limits", op.Limits, "concurrency", op.Concurrency)
}

// OwnConcurrency gives what a limit allows that is the concurrency of a kind or a queue. own is false if it is
// neither.
func OwnConcurrency(tx *kernel.Tx, t perdure.TenantID, limit string) (n int, own bool, err error) {
	if kind, ok := strings.CutPrefix(limit, perdure.LimitOfKind); ok {
		def, err := KindOf(tx, t, kind)
		if err != nil {
			return 0, true, err
		}
		return def.Concurrency, true, nil
	}
	if queue, ok := strings.CutPrefix(limit, perdure.LimitOfQueue); ok {
		_, n, err = LimitsOfQueue(tx, t, queue)
		return n, true, err
	}
	return 0, false, nil
}
