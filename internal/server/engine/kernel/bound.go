package kernel

import (
	"context"
	"fmt"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
)

// A boundOp is an Op as the store sees it, with its engine and its actor.
type boundOp struct {
	e  *Engine
	op Op
	// by may be nil.
	by *Actor
}

// Lookups names the rows that the Op reads beside runs. Default: none.
func (b boundOp) Lookups() []store.Lookup {
	if l, ok := b.op.(interface{ Lookups() []store.Lookup }); ok {
		return l.Lookups()
	}
	return nil
}

// Needs names the runs that the Op reads.
func (b boundOp) Needs() []store.Ref { return b.op.Needs() }

// Name gives the type of the Op, for logs and tests.
func (b boundOp) Name() string { return strings.TrimPrefix(fmt.Sprintf("%T", b.op), "*") }

// Lane gives the lane that the Op runs in. Default: LaneWork.
func (b boundOp) Lane() store.Lane {
	if l, ok := b.op.(interface{ Lane() store.Lane }); ok {
		return l.Lane()
	}
	return store.LaneWork
}

// Slow tells whether others should not wait for the Op.
func (b boundOp) Slow() bool {
	x, ok := b.op.(interface{ Slow() bool })
	return ok && x.Slow()
}

// Weight estimates the rows and bytes that the Op costs. The store forms batches by it.
func (b boundOp) Weight() (rows, bytes int) {
	if w, ok := b.op.(interface{ Weight() (rows, bytes int) }); ok {
		return w.Weight()
	}
	return 4, 1 << 10
}

// Do runs the Op, and registers its effects for when the batch is durable.
func (b boundOp) Do(tx *store.Tx) error {
	x := &Tx{DB: tx, Now: tx.Now, Engine: b.e, Actor: b.by, StopsLeft: maxStops, spendable: 1, began: tx.Cost()}
	if err := b.op.Do(x); err != nil {
		return err
	}
	for _, f := range b.e.hooks.decided {
		if err := f(x); err != nil {
			return err
		}
	}
	if len(x.rings) > 0 || len(x.touched) > 0 || len(x.ready) > 0 || x.alarm != 0 || len(x.observed) > 0 ||
		x.scratch != ([maxScratches]any{}) {
		tx.After(x.afterCommit)
	}
	return nil
}

// Last has an Op decided as the last one of the batch. The first call for a batch makes it; the others get
// the same.
func (tx *Tx) Last(begin func() Op) Op {
	return tx.DB.Last(func() store.Op { return boundOp{tx.Engine, begin(), nil} }).(boundOp).op
}

// IdempotencyKey names the key that the Op looks up. Default: none.
func (b boundOp) IdempotencyKey() (perdure.TenantID, string) {
	if k, ok := b.op.(interface {
		IdempotencyKey() (perdure.TenantID, string)
	}); ok {
		return k.IdempotencyKey()
	}
	return "", ""
}

// Do runs an Op in a batch with other waiting operations, and returns once it is durable.
func (e *Engine) Do(ctx context.Context, op Op) error {
	return e.store.DoAll(ctx, e.bind(actorOf(ctx), []Op{op})...)[0]
}

// DoAll is Do for several Ops. They are decided in order, in one batch as far as they fit, and each
// has an error of its own.
func (e *Engine) DoAll(ctx context.Context, ops ...Op) []error {
	return e.store.DoAll(ctx, e.bind(actorOf(ctx), ops)...)
}

// Step decides and commits a batch at an instant, synchronously, as the group commit does. It gives
// one error per Op, in order.
func (e *Engine) Step(now perdure.Instant, ops ...Op) []error {
	return e.store.Batch(now, e.bind(nil, ops)...)
}

// StepBy is Step on behalf of an actor, whom the audit log names.
func (e *Engine) StepBy(by Actor, now perdure.Instant, ops ...Op) []error {
	return e.store.Batch(now, e.bind(&by, ops)...)
}

// bind wraps Ops for the store. It runs an Op's prepare method outside of the lane, so that
// validating and hashing do not hold up the batch.
func (e *Engine) bind(by *Actor, ops []Op) []store.Op {
	list := make([]store.Op, len(ops))
	for i, op := range ops {
		if p, ok := op.(interface{ Prepare() }); ok {
			p.Prepare()
		}
		list[i] = boundOp{e, op, by}
	}
	return list
}
