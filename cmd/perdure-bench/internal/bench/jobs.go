package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/timer"
	"github.com/perdure/perdure/worker"
)

// The scenarios of this file are jobs as programs have them: with the client, which gives every call
// an Idempotency-Key, and with a worker of the SDK. The scenarios engine-submit, engine-drain and
// engine-life do similar work without the SDK, without keys, and without anybody who waits.

// taskSlots are the slots of a worker, as a user with so many callers would set them.
const taskSlots = 200

// drainSlots are the slots of the worker that drains a backlog.
const drainSlots = 1000

// slots returns the slots of the place's worker.
func (p *place) slots() int { return cmp.Or(p.workerSlots, taskSlots) }

// measureJobs runs handlers that do nothing, for callers who wait for the result.
func measureJobs(ctx context.Context, b *Bench, p *place, target string) ([]Figure, error) {
	if err := b.grow(ctx, p); err != nil {
		return nil, err
	}
	return b.waitingCallers(ctx, p, target, b.job(), 1, doNothing)
}

// job returns the run that a caller starts, with an input of the size that is measured.
func (b *Bench) job() perdure.Submission {
	job := benchRun
	if b.Input > 0 {
		job.Input = json.RawMessage(`"` + strings.Repeat("x", b.Input-2) + `"`)
	}
	return job
}

// doNothing registers a handler that returns at once.
func doNothing(w *worker.Worker) {
	worker.Handle(w, kind, func(context.Context, json.RawMessage) (int, error) { return 1, nil })
}

// measureJobsGrown measures jobs with no ended runs in the store, and again each time that it has got
// more of them, up to b.Ended.
func measureJobsGrown(ctx context.Context, b *Bench, p *place, target string) (f []Figure, err error) {
	most, have := cmp.Or(b.Ended, 1_000_000), 0
	for _, size := range []int{0, 100_000, 1_000_000, 5_000_000, most} {
		if size = min(size, most); size == have && have > 0 {
			continue
		}
		more := *b
		more.Ended, more.Queues, more.Tenants = size-have, 0, 0
		if err := more.grow(ctx, p); err != nil {
			return nil, err
		}
		if size > have { // the database still writes the loaded runs
			b.phase("idling for %s", b.Settle)
			timer.Sleep(ctx, b.Settle)
		}
		have = size
		figures, err := b.waitingCallers(ctx, p, target, b.job(), 1, doNothing)
		if err != nil {
			return nil, err
		}
		for _, x := range figures {
			x.What = strings.TrimSuffix(fmt.Sprintf("%d ended runs, %s", size, x.What), ", ")
			f = append(f, x)
		}
	}
	return f, nil
}

// measureJobsEnqueue starts runs that nobody works on yet, one call for each.
func measureJobsEnqueue(ctx context.Context, b *Bench, p *place, target string) (f []Figure, err error) {
	a, err := p.agents(ctx, target, func(w *worker.Worker) {
		worker.Handle(w, "another kind", func(context.Context, json.RawMessage) (int, error) { return 1, nil })
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	var s samples
	atOnce := min(b.Callers, agentsAtOnce)
	w := startWatch(a.server)
	err = parallel(atOnce, func(int) error {
		for time.Since(w.begin) < b.Duration && a.ctx.Err() == nil {
			at := time.Now()
			if _, err := a.c.Start(a.ctx, benchRun); err != nil {
				return err
			}
			s.add(time.Since(at))
			b.did(1)
		}
		return nil
	})
	return []Figure{w.throughput("", closedLoops, s.count(), &s)}, err
}

// batchRuns is the number of runs of one call of jobs-batch, batchCallers the number of callers.
const (
	batchRuns    = 1000
	batchCallers = 4
)

// measureJobsBatch starts runs that nobody works on yet, many with each call.
func measureJobsBatch(ctx context.Context, b *Bench, p *place, target string) (f []Figure, err error) {
	a, err := p.agents(ctx, target, func(w *worker.Worker) {
		worker.Handle(w, "another kind", func(context.Context, json.RawMessage) (int, error) { return 1, nil })
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	runs := make([]api.BatchRun, batchRuns)
	for i := range runs {
		runs[i].Submission = benchRun
	}
	var s samples
	w := startWatch(a.server)
	err = parallel(min(b.Callers, batchCallers), func(int) error {
		for time.Since(w.begin) < b.Duration && a.ctx.Err() == nil {
			at := time.Now()
			results, err := a.c.StartMany(a.ctx, runs)
			if err != nil {
				return err
			}
			for _, r := range results {
				if r.Error != nil {
					return fmt.Errorf("run %d of a batch: %s", r.Index, r.Error.Detail)
				}
			}
			s.add(time.Since(at))
			b.did(len(results))
		}
		return nil
	})
	return []Figure{w.throughput("", closedLoops, batchRuns*s.count(), &s)}, err
}

// measureJobsDrain measures a backlog of ordinary runs.
func measureJobsDrain(ctx context.Context, b *Bench, p *place, target string) ([]Figure, error) {
	f, err := b.drain(ctx, p, target, benchRun)
	return []Figure{f}, err
}

// drain starts a worker that finds a backlog, and measures until every run of it has ended.
func (b *Bench) drain(ctx context.Context, p *place, target string, sub perdure.Submission) (f Figure, err error) {
	b.phase("loading %d runs", b.Backlog)
	if err := p.load(ctx, b, b.Backlog, func(perdure.Instant) perdure.Submission { return sub }); err != nil {
		return f, err
	}
	b.phase("draining")
	var executed atomic.Int64
	all := make(chan struct{})
	p.workerSlots = drainSlots
	// The watch begins once the server is up, with the first run that the worker gets.
	var first atomic.Int64
	a, err := p.agents(ctx, target, func(w *worker.Worker) {
		worker.Handle(w, kind, func(context.Context, json.RawMessage) (int, error) {
			first.CompareAndSwap(0, time.Now().UnixNano())
			b.did(1)
			if executed.Add(1) == int64(b.Backlog) {
				close(all)
			}
			return 1, nil
		})
	})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	w := startWatch(a.server)
	select {
	case <-all:
	case <-a.ctx.Done():
		return f, context.Cause(a.ctx)
	}
	// All were executed. The measurement ends when that is stored.
	for {
		live, err := a.live(ctx)
		if err != nil {
			return f, err
		}
		if live == 0 {
			break
		}
	}
	w.begin = time.Unix(0, first.Load())
	if n := executed.Load(); n != int64(b.Backlog) {
		return f, fmt.Errorf("%d executions of %d runs", n, b.Backlog)
	}
	return w.throughput("", closedLoops, b.Backlog, &samples{}), nil
}

// live returns how many runs have not ended, one of each state at most.
func (a *agents) live(ctx context.Context) (n int, err error) {
	for _, s := range []perdure.State{perdure.Queued, perdure.Dispatched, perdure.Running} {
		page, err := a.c.List(ctx, client.Filter{State: s, Limit: 1})
		if err != nil {
			return 0, err
		}
		n += len(page.Runs)
	}
	return n, nil
}
