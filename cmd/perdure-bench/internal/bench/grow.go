package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// How a store grows. Before jobs are measured, the store gets runs that have nothing to do with them:
// ended ones, queued ones in other queues, and queued ones of other tenants.

// restRuns is how many queued runs each further queue and each further tenant has.
const restRuns = 10

// grow fills a place before a measurement.
func (b *Bench) grow(ctx context.Context, p *place) (err error) {
	if b.Ended+b.Queues+b.Tenants == 0 {
		return nil
	}
	t, err := openProcess(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if b.Ended > 0 {
		b.phase("loading %d ended runs", b.Ended)
	}
	for left := b.Ended; left > 0 && err == nil; left -= growStep {
		if _, err = t.load(ctx, quiet(b), min(left, growStep), func(perdure.Instant) perdure.Submission {
			return benchRun
		}); err == nil {
			err = t.endAll(ctx, b)
		}
	}
	if err == nil && b.Queues > 0 {
		b.phase("loading %d queues", b.Queues)
		err = t.fill(ctx, b, b.Queues, func(i int, op *life.Submit) { op.Submission.Queue = fmt.Sprint("queue-", i) })
	}
	if err == nil && b.Tenants > 0 {
		b.phase("loading %d tenants", b.Tenants)
		err = t.fill(ctx, b, b.Tenants, func(i int, op *life.Submit) {
			op.Tenant = perdure.TenantID(fmt.Sprint("tenant-", i))
		})
	}
	return err
}

// growStep is how many runs are loaded before they are ended.
const growStep = 1000

// quiet returns a bench whose progress is not printed.
func quiet(b *Bench) *Bench {
	q := *b
	q.progress = &progress{}
	return &q
}

// endAll claims and completes all queued runs.
func (t *processTarget) endAll(ctx context.Context, b *Bench) error {
	for ctx.Err() == nil {
		claim := &dispatch.Claim{Tenant: tenant, Worker: "grow", Queues: []string{perdure.DefaultQueue},
			Slots: growStep, Start: true}
		if err := t.engine.Step(t.store.Now(), claim)[0]; err != nil {
			return err
		}
		if len(claim.Grants) == 0 {
			return nil
		}
		ops := make([]kernel.Op, len(claim.Grants))
		for i, g := range claim.Grants {
			ops[i] = &life.Commit{Tenant: tenant, Worker: "grow", Commit: grant{string(g.Run.ID), g.Run.Epoch}.done()}
		}
		if err := errors.Join(t.engine.Step(t.store.Now(), ops...)...); err != nil {
			return err
		}
		b.did(len(ops))
	}
	return ctx.Err()
}

// fill submits restRuns runs for each of n places, which nobody works on.
func (t *processTarget) fill(ctx context.Context, b *Bench, n int, at func(i int, op *life.Submit)) error {
	var ops []kernel.Op
	for i := range n {
		for range restRuns {
			op := &life.Submit{Tenant: tenant, Submission: benchRun}
			at(i, op)
			ops = append(ops, op)
		}
		if len(ops) < growStep && i < n-1 {
			continue
		}
		if err := errors.Join(append(t.engine.Step(t.store.Now(), ops...), ctx.Err())...); err != nil {
			return err
		}
		b.did(len(ops))
		ops = nil
	}
	return nil
}
