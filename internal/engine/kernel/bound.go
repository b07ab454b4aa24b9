package kernel

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
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
		f(x)
	}
	if len(x.rings) > 0 || len(x.touched) > 0 || len(x.ready) > 0 || x.alarm != 0 || len(x.observed) > 0 ||
		x.scratch != ([maxParts]any{}) {
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
