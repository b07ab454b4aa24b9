package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/wire/timer"
)

const (
	idleRate    = 50               // submits a second of idle and wake, so few that workers are mostly idle
	longPoll    = 10 * time.Second // how long a poll waits
	lastRuns    = time.Minute      // limit for the last runs to end
	openLoops   = "open"
	closedLoops = "closed"
)

// rateOr returns the rate of the bench, or another if none is set.
func (b *Bench) rateOr(other float64) float64 {
	if b.Rate > 0 {
		return b.Rate
	}
	return other
}

func measureSubmit(ctx context.Context, b *Bench, p *place, target string) (f []Figure, err error) {
	t, err := p.target(ctx, target)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	var s samples
	submit := func(at time.Time) error {
		_, err := t.submit(ctx, benchRun)
		s.add(time.Since(at))
		b.did(1)
		return err
	}
	w := startWatch(t)
	if b.Rate > 0 {
		err := openLoop(ctx, b.Rate, b.Duration, submit)
		return []Figure{w.throughput(fmt.Sprintf("at %g/s", b.Rate), openLoops, s.count(), &s)}, err
	}
	err = parallel(b.Callers, func(int) error {
		for time.Since(w.begin) < b.Duration && ctx.Err() == nil {
			if err := submit(time.Now()); err != nil {
				return err
			}
		}
		return nil
	})
	return []Figure{w.throughput("", closedLoops, s.count(), &s)}, err
}

func measureDrain(ctx context.Context, b *Bench, p *place, target string) (f []Figure, err error) {
	b.phase("loading %d runs", b.Backlog)
	if err := p.load(ctx, b, b.Backlog, func(perdure.Instant) perdure.Submission { return benchRun }); err != nil {
		return nil, err
	}
	t, err := p.target(ctx, target)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	b.phase("draining")
	var s samples
	var done atomic.Int64
	w := startWatch(t)
	err = b.work(ctx, t, func(l []grant, took, ended time.Time) bool {
		s.add(ended.Sub(took))
		return done.Add(int64(len(l))) < int64(b.Backlog)
	}, func() bool { return done.Load() < int64(b.Backlog) })
	return []Figure{w.throughput("", closedLoops, int(done.Load()), &s)}, err
}

// load opens the store in this process, puts runs into it, and closes it again.
func (p *place) load(ctx context.Context, b *Bench, n int, sub func(now perdure.Instant) perdure.Submission) error {
	t, err := openProcess(p)
	if err != nil {
		return err
	}
	_, err = t.load(ctx, b, n, sub)
	return errors.Join(err, t.close())
}

// work runs the workers, which take and finish runs. It calls done for every portion, with the
// times of the poll and of the end. It returns when done or more returns false.
func (b *Bench) work(ctx context.Context, t system, done func(l []grant, took, ended time.Time) bool,
	more func() bool) error {
	return parallel(b.Workers, func(i int) error {
		worker := fmt.Sprint("w", i)
		for more() {
			took := time.Now()
			l, err := t.take(ctx, worker, b.Slots, 100*time.Millisecond)
			if err != nil {
				return err
			}
			if len(l) == 0 {
				continue
			}
			if err := t.finish(ctx, worker, l); err != nil {
				return err
			}
			b.did(len(l))
			if !done(l, took, time.Now()) {
				break
			}
		}
		return nil
	})
}

// measureLife measures whole lives of runs. Its closed loop keeps a number of runs live and counts
// those that end. With a rate it is an open loop.
func measureLife(ctx context.Context, b *Bench, p *place, target string) (f []Figure, err error) {
	t, err := p.target(ctx, target)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	b.phase("")
	if b.Rate > 0 {
		return b.openLife(ctx, t)
	}
	return b.closedLife(ctx, t)
}

// errOver ends a loop whose time is up.
var errOver = errors.New("time is up")

func (b *Bench) closedLife(ctx context.Context, t system) ([]Figure, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var s samples
	var handoffs handoffTable
	var done atomic.Int64
	live := make(chan struct{}, b.Callers*8)
	arrived := func(way handoff, ok bool) {
		if ok {
			s.add(way.taken.Sub(way.due))
		}
	}
	caller := func(int) error {
		for {
			select {
			case live <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			at := time.Now()
			id, err := t.submit(ctx, benchRun)
			if err != nil {
				return err
			}
			arrived(handoffs.submitted(id, at, time.Now()))
		}
	}
	finished := func(l []grant, _, ended time.Time) bool {
		done.Add(int64(len(l)))
		for _, x := range l {
			select {
			case <-live:
			case <-ctx.Done(): // a run that was granted again has ended twice
			}
			arrived(handoffs.taken(x.id, ended))
		}
		return true
	}
	var both sync.WaitGroup
	w := startWatch(t)
	both.Go(func() { cancel(parallel(b.Callers, caller)) })
	both.Go(func() { cancel(b.work(ctx, t, finished, func() bool { return ctx.Err() == nil })) })
	timer.Sleep(ctx, b.Duration)
	if err := await(ctx, "a run ends", lastRuns, func() (bool, error) { return s.count() > 0, nil }); err != nil {
		cancel(err)
	}
	f := w.throughput("", closedLoops, int(done.Load()), &s)
	cancel(errOver) // runs that have not ended do not count
	both.Wait()
	err := context.Cause(ctx)
	if errors.Is(err, errOver) {
		err = nil
	}
	return []Figure{f}, err
}

func (b *Bench) openLife(ctx context.Context, t system) ([]Figure, error) {
	var s samples
	var handoffs handoffTable
	var submitted, done atomic.Int64
	var over atomic.Bool
	arrived := func(way handoff, ok bool) {
		if ok {
			s.add(way.taken.Sub(way.due))
		}
	}
	w := startWatch(t)
	worked := make(chan error, 1)
	more := func() bool { return ctx.Err() == nil && (!over.Load() || done.Load() < submitted.Load()) }
	go func() {
		worked <- b.work(ctx, t, func(l []grant, _, ended time.Time) bool {
			done.Add(int64(len(l)))
			for _, x := range l {
				arrived(handoffs.taken(x.id, ended))
			}
			return true
		}, more)
	}()
	err := openLoop(ctx, b.Rate, b.Duration, func(at time.Time) error {
		id, err := t.submit(ctx, benchRun)
		if err != nil {
			return err
		}
		submitted.Add(1)
		arrived(handoffs.submitted(id, at, time.Now()))
		return nil
	})
	if err != nil {
		submitted.Store(0)
	}
	over.Store(true)
	err = errors.Join(err, <-worked)
	return []Figure{w.throughput(fmt.Sprintf("at %g/s", b.Rate), openLoops, int(done.Load()), &s)}, err
}

func measureIdle(ctx context.Context, b *Bench, p *place, target string) (f []Figure, err error) {
	t, err := p.target(ctx, target)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	return b.dispatch(ctx, t, t, "")
}

// dispatch submits runs in an open loop, so seldom that a worker is waiting. It measures when a
// worker has each: since the submit returned, and since it was due.
func (b *Bench) dispatch(ctx context.Context, caller, worker system, by string) ([]Figure, error) {
	var dispatch, whole samples
	var handoffs handoffTable
	arrived := func(w handoff, ok bool) {
		if ok {
			dispatch.add(w.taken.Sub(w.returned))
			whole.add(w.taken.Sub(w.due))
			b.did(1)
		}
	}
	work, stop := context.WithCancel(ctx)
	defer stop()
	worked := make(chan error, 1)
	go func() {
		worked <- parallel(b.Workers, func(i int) error {
			name := fmt.Sprint("w", i)
			for {
				l, err := worker.take(work, name, 1, longPoll)
				at := time.Now()
				for _, x := range l {
					arrived(handoffs.taken(x.id, at))
				}
				if err == nil && len(l) > 0 {
					err = worker.finish(work, name, l)
				}
				if work.Err() != nil {
					return nil
				}
				if err != nil {
					stop()
					return err
				}
			}
		})
	}()
	timer.Sleep(ctx, min(b.Duration/10, 200*time.Millisecond)) // the workers poll before the callers submit
	err := openLoop(work, b.rateOr(idleRate), b.Duration, func(at time.Time) error {
		id, err := caller.submit(ctx, benchRun)
		if err == nil {
			arrived(handoffs.submitted(id, at, time.Now()))
		}
		return err
	})
	if err == nil {
		err = await(work, "a worker has the last runs", lastRuns, func() (bool, error) {
			return handoffs.open() == 0, nil
		})
	}
	stop()
	err = errors.Join(err, <-worked)
	return []Figure{dispatch.latencies(named("dispatch", by), openLoops),
		whole.latencies(named("submit to worker", by), openLoops)}, err
}

func named(what, by string) string {
	if by != "" {
		what += ", " + by
	}
	return what
}

// measureWake measures dispatch with two servers on one database, one for the caller and one for
// the worker.
func measureWake(ctx context.Context, b *Bench, p *place, _ string) ([]Figure, error) {
	out, err := b.across(ctx, p, "LISTEN/NOTIFY")
	if err != nil || b.Doorbell == "" {
		return out, err
	}
	p.doorbell = b.Doorbell
	more, err := b.across(ctx, p, "NATS")
	return append(out, more...), err
}

func (b *Bench) across(ctx context.Context, p *place, by string) (f []Figure, err error) {
	b.phase("%s", by)
	here, err := openServer(ctx, p, "here")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, here.close()) }()
	there, err := openServer(ctx, p, "there")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, there.close()) }()
	return b.dispatch(ctx, here, there, by)
}
