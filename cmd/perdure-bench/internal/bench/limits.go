package bench

import (
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
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/wire/timer"
	"github.com/perdure/perdure/worker"
)

// What limits and schedules cost: a backlog under a limit that never binds, how soon a slot is used again,
// a claim beside very many runs that wait at limits, and very many schedules.

const (
	limitName = "bench"
	roomy     = 1_000_000 // a concurrency that never binds

	slotRuns  = 1000 // runs that follow one another under a limit of one slot, at most
	slotBurst = 10   // of them are not counted, because caches and plans are cold

	blockedKeys    = 10_000
	blockedTenants = 1000
	blockedBatch   = 500 // runs that are submitted together

	planned       = 10_000 // schedules, at most
	plannedOver   = time.Minute
	kindPlanned   = "planned"
	kindBeside    = "beside"
	besideTenant  = perdure.TenantID("beside")
	besideRate    = 20 // deadlines a second of another tenant meanwhile
	besideTimeout = time.Second

	whatDrainFree    = "drain, no limit"
	whatDrainRoomy   = "drain, a limit that never binds"
	whatRoomyToFree  = "drain, such a limit / none"
	whatFreed        = "a freed slot, until the next grant"
	whatFreedTwo     = "a freed slot, until the next grant, two nodes"
	whatBlockedOne   = "p99 blocked / empty, one limit"
	whatBlockedKeys  = "p99 blocked / empty, many keys"
	whatBlockedMany  = "p99 blocked / empty, many tenants"
	whatPlannedLate  = "lateness of schedules"
	whatDeadlineLate = "deadlines of another tenant meanwhile"
)

// putLimit makes the limit of a tenant in this process.
func (t *processTarget) putLimit(of perdure.TenantID, concurrency int, perKey bool) error {
	return t.engine.Step(t.store.Now(), &life.PutLimit{Tenant: of, Name: limitName, PerKey: perKey,
		Values: perdure.LimitValues{Concurrency: concurrency}})[0]
}

// measureLimits measures a backlog with and without a limit, and the time from a freed slot to its next grant.
func measureLimits(ctx context.Context, b *Bench, p *place, target string) (f []Figure, err error) {
	t, err := openProcess(p)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(t.putLimit(tenant, roomy, false), t.close()); err != nil {
		return nil, err
	}
	limited := benchRun
	limited.Limits = []string{limitName}
	what := map[bool]string{false: whatDrainFree, true: whatDrainRoomy}
	seconds := make(map[bool]float64)
	for _, under := range []bool{false, true, true, false} { // in turns, because the store grows
		sub := benchRun
		if under {
			sub = limited
		}
		one, err := b.drain(ctx, p, target, sub)
		if err != nil {
			return nil, err
		}
		one.What = what[under]
		seconds[under] += one.Seconds
		f = append(f, one)
	}
	f = append(f, Figure{What: whatRoomyToFree, Value: seconds[false] / seconds[true], Unit: unitTimes})
	one, err := b.freeSlots(ctx, p, target, 1)
	if err != nil {
		return nil, err
	}
	f = append(f, one)
	if p.url != "" && target == targetHTTP {
		two, err := b.freeSlots(ctx, p, target, 2)
		if err != nil {
			return nil, err
		}
		f = append(f, two)
	}
	return f, nil
}

// freeSlots executes runs under a limit of one slot, with a worker at each of the servers, and reads from the
// store how soon each was granted after the one before it had ended.
func (b *Bench) freeSlots(ctx context.Context, p *place, target string, nodes int) (f Figure, err error) {
	what := whatFreed
	if nodes > 1 {
		what = whatFreedTwo
	}
	b.phase("%s", what)
	name := fmt.Sprint("slot", nodes)
	register := func(w *worker.Worker) {
		worker.Handle(w, name, func(context.Context, json.RawMessage) (int, error) {
			b.did(1)
			return 1, nil
		})
	}
	a, err := p.agents(ctx, target, register)
	if err != nil {
		return f, err
	}
	open := true
	defer func() {
		if open {
			err = errors.Join(err, a.close())
		}
	}()
	if nodes > 1 {
		other, err := openServer(ctx, p, "other")
		if err != nil {
			return f, err
		}
		defer func() { err = errors.Join(err, other.close()) }()
		mine := client.New(other.url, other.key, client.Options{})
		defer mine.Close()
		w := worker.New(mine, worker.Options{Slots: taskSlots})
		register(w)
		working, stop := context.WithCancel(ctx)
		worked := make(chan error, 1)
		go func() { worked <- w.Run(working) }()
		defer func() {
			stop()
			err = errors.Join(err, <-worked)
		}()
	}
	single := 1
	if _, err := a.c.PutLimit(ctx, name, api.PutLimit{Concurrency: &single}); err != nil {
		return f, err
	}
	runs := make([]api.BatchRun, min(slotRuns, b.Backlog))
	for i := range runs {
		runs[i].Submission = perdure.Submission{Kind: name, Input: benchRun.Input, Limits: []string{name}}
	}
	results, err := a.c.StartMany(ctx, runs)
	if err != nil {
		return f, err
	}
	for _, r := range results {
		if r.Error != nil {
			return f, fmt.Errorf("run %d under a limit: %s", r.Index, r.Error.Detail)
		}
	}
	if err := await(ctx, "all runs under the limit have ended", lastRuns, func() (bool, error) {
		n, err := a.live(ctx)
		return n == 0, err
	}); err != nil {
		return f, err
	}
	open = false
	if err := a.close(); err != nil {
		return f, err
	}
	return readSlots(ctx, p, name, what, len(runs))
}

// readSlots reads when the runs of a kind held the one slot, and checks that none held it beside another one.
func readSlots(ctx context.Context, p *place, kind, what string, n int) (Figure, error) {
	st, err := p.open()
	if err != nil {
		return Figure{}, err
	}
	var s samples
	count := 0
	var freed perdure.Instant
	err = st.Audit(ctx, func(v *store.View) error {
		return v.Rows("SELECT started_at, finished_at FROM runs WHERE tenant='bench' AND kind='"+kind+
			"' ORDER BY started_at", nil, func(scan func(...any) error) error {
			var granted, finished perdure.Instant
			if err := scan((*int64)(&granted), (*int64)(&finished)); err != nil {
				return err
			}
			// A batch has the time at which it began, so that it may read a slot that was freed a little later.
			if freed.Sub(granted) > store.MaxAge {
				return fmt.Errorf("two runs held the one slot: one until %s, one from %s", freed.Time(), granted.Time())
			}
			if count++; count > slotBurst {
				s.add(granted.Sub(freed))
			}
			freed = finished
			return nil
		})
	})
	if err == nil && count != n {
		err = fmt.Errorf("%d of %d runs were granted", count, n)
	}
	return s.latencies(what, closedLoops), errors.Join(err, st.Close())
}

// measureLimitsBacklog measures a claim of one run, first in an empty store and then beside very many runs that
// wait at limits: at one, at one with many keys, and at those of many tenants.
func measureLimitsBacklog(ctx context.Context, b *Bench, p *place, target string) (f []Figure, err error) {
	p.leased = true
	empty, err := b.claims(ctx, p, target, "empty")
	if err != nil {
		return nil, err
	}
	f = append(f, empty)
	keys, tenants := min(blockedKeys, b.Live), max(1, min(blockedTenants, b.Live/blockedBatch))
	for _, x := range []struct {
		what, about string
		tenants     int
		keys        int
	}{
		{whatBlockedOne, "one limit", 1, 0},
		{whatBlockedKeys, "many keys", 1, keys},
		{whatBlockedMany, "many tenants", tenants, 0},
	} {
		if err := p.clear(ctx, b); err != nil {
			return nil, err
		}
		if err := b.block(ctx, p, x.tenants, x.keys); err != nil {
			return nil, err
		}
		full, err := b.claims(ctx, p, target, fmt.Sprintf("%d blocked, %s", b.Live, x.about))
		if err != nil {
			return nil, err
		}
		f = append(f, full, Figure{What: x.what, Value: full.Latency.P99 / empty.Latency.P99, Unit: unitTimes})
	}
	return f, nil
}

// clear gives the place new data.
func (p *place) clear(ctx context.Context, b *Bench) error {
	next, err := b.newPlace(ctx, p.template())
	if err != nil {
		return err
	}
	next.flags, next.workerSlots, next.leased = p.flags, p.workerSlots, p.leased
	err = p.remove(ctx)
	*p = *next
	return err
}

// block submits b.Live runs, of one tenant or many, under one key or many. Those with a slot are leased for good.
func (b *Bench) block(ctx context.Context, p *place, tenants, keys int) (err error) {
	t, err := openProcess(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	b.phase("loading %d runs that wait at limits", b.Live)
	n := 0
	for i := range tenants {
		of := tenant
		if tenants > 1 {
			of = perdure.TenantID(fmt.Sprint("blocked", i))
		}
		if err := t.putLimit(of, 1, keys > 0); err != nil {
			return err
		}
		for range (b.Live/tenants + blockedBatch - 1) / blockedBatch {
			ops := make([]kernel.Op, blockedBatch)
			for j := range ops {
				sub := perdure.Submission{Kind: kindLive, Class: perdure.Agent, Input: benchRun.Input,
					Limits: []string{limitName}}
				if keys > 0 {
					sub.LimitKey = fmt.Sprint("key", n%keys)
				}
				ops[j] = &life.Submit{Tenant: of, Submission: sub}
				n++
			}
			for _, err := range t.engine.Step(t.store.Now(), ops...) {
				if err != nil {
					return fmt.Errorf("load: %w", err)
				}
			}
			b.did(len(ops))
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		for {
			claim := &dispatch.Claim{Tenant: of, Worker: "holder", Kinds: []string{kindLive}, Slots: 1000,
				Start: true}
			if err := t.engine.Step(t.store.Now(), claim)[0]; err != nil {
				return err
			}
			if len(claim.Grants) == 0 {
				break
			}
		}
	}
	return nil
}

// measureSchedules measures how late very many schedules fire whose instants are in one minute, and how late
// deadlines of another tenant are acted on meanwhile. It begins anew if making them took longer than was left
// until the first instant.
func measureSchedules(ctx context.Context, b *Bench, p *place, target string) ([]Figure, error) {
	n, over := min(planned, b.Due), min(plannedOver, 10*b.Duration)
	for ahead := time.Second + time.Duration(n)*4*time.Millisecond; ; ahead *= 3 {
		err := b.fireSchedules(ctx, p, target, n, ahead, over)
		if err == nil {
			return readSchedules(ctx, p, n)
		}
		if !errors.Is(err, errTooLate) || ahead > 5*time.Minute {
			return nil, err
		}
		if err := p.clear(ctx, b); err != nil {
			return nil, err
		}
	}
}

// errTooLate says that the first instant had passed before all schedules were made.
var errTooLate = errors.New("the schedules were made too slowly")

// fireSchedules makes n schedules whose first instants are spread over a time that begins ahead from now, and
// waits until the last one has fired.
func (b *Bench) fireSchedules(
	ctx context.Context, p *place, target string, n int, ahead, over time.Duration,
) (err error) {
	b.phase("making %d schedules", n)
	a, err := p.agents(ctx, target, func(w *worker.Worker) {
		worker.Handle(w, "another kind", func(context.Context, json.RawMessage) (int, error) { return 1, nil })
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	other, err := p.beside(ctx, a)
	if err != nil {
		return err
	}
	defer other.Close()
	begin := time.Now().Add(ahead)
	name := func(i int) string { return fmt.Sprintf("s%05d", i) }
	var next atomic.Int64
	if err := parallel(8, func(int) error {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			at := perdure.At(begin.Add(time.Duration(i) * over / time.Duration(n)))
			if _, err := a.c.PutSchedule(ctx, name(i), api.PutSchedule{Every: perdure.Duration(time.Hour), StartAt: at,
				Submission: perdure.Submission{Kind: kindPlanned, Input: benchRun.Input}}); err != nil {
				return err
			}
			b.did(1)
		}
		return nil
	}); err != nil {
		return err
	}
	if time.Now().After(begin) {
		return errTooLate
	}
	timer.Sleep(ctx, time.Until(begin))
	b.phase("%d schedules in %s", n, over)
	last := ""
	if err := openLoop(ctx, besideRate, over, func(time.Time) error {
		run, err := other.Start(ctx, perdure.Submission{Kind: kindBeside, Input: benchRun.Input,
			Timeout: perdure.Duration(besideTimeout)})
		if err == nil {
			b.mu.Lock()
			last = max(last, string(run.RunID))
			b.mu.Unlock()
			b.did(1)
		}
		return err
	}); err != nil {
		return err
	}
	return await(ctx, "the last instant and the last deadline are acted on", lastRuns, func() (bool, error) {
		s, err := a.c.Schedule(ctx, name(n-1))
		if err != nil || s.Fired == 0 {
			return false, err
		}
		run, err := other.Get(ctx, perdure.RunID(last))
		return err == nil && run.State.Terminal(), err
	})
}

// beside gives a client of another tenant at the server of agents.
func (p *place) beside(ctx context.Context, a *agents) (*client.Client, error) {
	open := func(key string) *client.Client {
		if t, ok := a.server.(*httpTarget); ok {
			return client.New(t.url, key, client.Options{})
		}
		return a.server.(*embeddedTarget).client(key)
	}
	platform := open(p.key)
	defer platform.Close()
	key, err := keyOf(ctx, platform, besideTenant)
	if err != nil {
		return nil, err
	}
	return open(key), nil
}

// readSchedules reads from the store how late each schedule fired and each deadline was acted on, and checks that
// each schedule fired once.
func readSchedules(ctx context.Context, p *place, n int) ([]Figure, error) {
	st, err := p.open()
	if err != nil {
		return nil, err
	}
	var fired, ended samples
	var wrong []string
	err = st.Audit(ctx, func(v *store.View) error {
		err := v.Rows("SELECT name, last_at, last_fired_at, fired, missed FROM schedules", nil,
			func(scan func(...any) error) error {
				var name string
				var at, firedAt perdure.Instant
				var times, missed int64
				if err := scan(&name, (*int64)(&at), (*int64)(&firedAt), &times, &missed); err != nil {
					return err
				}
				if times != 1 || missed != 0 {
					wrong = append(wrong, fmt.Sprintf("%s fired %d times and missed %d", name, times, missed))
				}
				fired.add(firedAt.Sub(at))
				return nil
			})
		if err != nil {
			return err
		}
		return v.Rows("SELECT deadline_at, finished_at FROM runs WHERE tenant='beside'", nil,
			func(scan func(...any) error) error {
				var deadline, finished perdure.Instant
				if err := scan((*int64)(&deadline), (*int64)(&finished)); err != nil {
					return err
				}
				if finished == 0 {
					wrong = append(wrong, "a run outlived its deadline")
				}
				ended.add(finished.Sub(deadline))
				return nil
			})
	})
	if err == nil && fired.count() != n {
		err = fmt.Errorf("%d of %d schedules are there", fired.count(), n)
	}
	if err == nil && len(wrong) > 0 {
		err = fmt.Errorf("%d are wrong: %s", len(wrong), strings.Join(wrong[:min(3, len(wrong))], "; "))
	}
	return []Figure{fired.latencies(whatPlannedLate, openLoops), ended.latencies(whatDeadlineLate, openLoops)},
		errors.Join(err, st.Close())
}
