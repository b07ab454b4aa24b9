package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/schedule"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/wire/timer"
	"github.com/perdure/perdure/worker"
)

// What limits and schedules cost: a backlog under a limit that never binds, how soon a slot is used again,
// a claim beside very many runs that wait at limits, and very many schedules.

const (
	limitName = "bench"
	roomy     = 1_000_000 // a concurrency that never binds

	slotRuns  = 1000 // runs that follow one another under a limit of one slot
	slotBurst = 10   // of them are not counted, because caches and plans are cold

	blockedKeys    = 10_000
	blockedTenants = 1000

	planned     = 10_000 // schedules
	plannedOver = time.Minute
	// plannedAhead is the time from the first schedule that is made until the first instant: for making
	// them, and for the start of the server.
	plannedAhead  = 30 * time.Second
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
	whatBlockedKeys  = "p99 blocked / empty, 10000 keys"
	whatBlockedMany  = "p99 blocked / empty, 1000 tenants"
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
	runs := make([]api.BatchRun, slotRuns)
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
	return readSlots(ctx, p, name, what)
}

// readSlots reads when the runs of a kind held the one slot, and checks that none held it beside another.
func readSlots(ctx context.Context, p *place, kind, what string) (Figure, error) {
	st, err := p.open()
	if err != nil {
		return Figure{}, err
	}
	var s samples
	count := 0
	var freed perdure.Instant
	err = st.Audit(ctx, func(v *store.View) error {
		return v.Rows("SELECT granted_at, finished_at FROM runs WHERE tenant='bench' AND kind='"+kind+
			"' ORDER BY granted_at", nil, func(scan func(...any) error) error {
			var granted, finished perdure.Instant
			if err := scan((*int64)(&granted), (*int64)(&finished)); err != nil {
				return err
			}
			if granted < freed {
				return fmt.Errorf("two runs held the one slot: one until %s, one from %s", freed.Time(), granted.Time())
			}
			if count++; count > slotBurst {
				s.add(granted.Sub(freed))
			}
			freed = finished
			return nil
		})
	})
	if err == nil && count != slotRuns {
		err = fmt.Errorf("%d of %d runs were granted", count, slotRuns)
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
	for _, x := range []struct {
		what, about string
		tenants     int
		perKey      bool
	}{
		{whatBlockedOne, "one limit", 1, false},
		{whatBlockedKeys, fmt.Sprintf("%d keys", blockedKeys), 1, true},
		{whatBlockedMany, fmt.Sprintf("%d tenants", blockedTenants), blockedTenants, false},
	} {
		if err := p.clear(ctx, b); err != nil {
			return nil, err
		}
		if err := b.block(ctx, p, x.tenants, x.perKey); err != nil {
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

// block submits b.Live runs of which those with a slot are leased for good.
func (b *Bench) block(ctx context.Context, p *place, tenants int, perKey bool) (err error) {
	t, err := openProcess(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	b.phase("loading %d runs that wait at limits", b.Live)
	const batch = 500
	n := 0
	for i := range tenants {
		of := tenant
		if tenants > 1 {
			of = perdure.TenantID(fmt.Sprint("blocked", i))
		}
		if err := t.putLimit(of, 1, perKey); err != nil {
			return err
		}
		for range (b.Live/tenants + batch - 1) / batch {
			ops := make([]kernel.Op, batch)
			for j := range ops {
				sub := perdure.Submission{Kind: kindLive, Class: perdure.Agent, Input: benchRun.Input,
					Limits: []string{limitName}}
				if perKey {
					sub.LimitKey = fmt.Sprint("key", n%blockedKeys)
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
			claim := &dispatch.Claim{Tenant: of, Worker: "holder", Kinds: []string{kindLive}, Slots: 1000, Start: true}
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
// deadlines of another tenant are acted on meanwhile.
func measureSchedules(ctx context.Context, b *Bench, p *place, target string) (f []Figure, err error) {
	b.phase("making %d schedules", planned)
	own, err := openProcess(p)
	if err != nil {
		return nil, err
	}
	first := own.store.Now().Add(plannedAhead)
	begin := time.Now().Add(plannedAhead)
	const batch = 100
	for i := 0; i < planned && ctx.Err() == nil; i += batch {
		ops := make([]kernel.Op, batch)
		for j := range ops {
			at := first.Add(time.Duration(i+j) * plannedOver / planned)
			op := &life.PutSchedule{Tenant: tenant, Name: fmt.Sprintf("s%05d", i+j),
				Plan:       schedule.Plan{Every: perdure.Duration(time.Hour), StartAt: at},
				Submission: perdure.Submission{Kind: kindPlanned, Input: benchRun.Input}}
			op.Prepare()
			ops[j] = op
		}
		for _, err := range own.engine.Step(own.store.Now(), ops...) {
			if err != nil {
				return nil, errors.Join(fmt.Errorf("a schedule: %w", err), own.close())
			}
		}
		b.did(batch)
	}
	if err := own.close(); err != nil {
		return nil, err
	}
	submit, end, err := p.beside(ctx, target)
	if err != nil {
		return nil, err
	}
	if late := time.Since(begin); late > 0 {
		return nil, errors.Join(fmt.Errorf("this machine made %d schedules too slowly: %s too late", planned, late), end())
	}
	timer.Sleep(ctx, time.Until(begin))
	b.phase("%d schedules in %s", planned, plannedOver)
	err = openLoop(ctx, besideRate, plannedOver, func(time.Time) error {
		b.did(1)
		return submit(ctx)
	})
	timer.Sleep(ctx, 5*time.Second) // the last instants and deadlines
	if err := errors.Join(err, end()); err != nil {
		return nil, err
	}
	return readSchedules(ctx, p)
}

// beside opens a target for the schedules, and returns what submits a run with a deadline for another tenant.
func (p *place) beside(ctx context.Context, target string) (submit func(context.Context) error, end func() error,
	err error) {
	sub := perdure.Submission{Kind: kindBeside, Input: benchRun.Input, Timeout: perdure.Duration(besideTimeout)}
	if target == targetProcess {
		t, err := openProcess(p)
		if err != nil {
			return nil, nil, err
		}
		t.startWatchdog()
		return func(ctx context.Context) error {
			return t.engine.Do(ctx, &life.Submit{Tenant: besideTenant, Submission: sub})
		}, t.close, nil
	}
	t, err := startBare(ctx, p, "node")
	if err != nil {
		return nil, nil, err
	}
	c := client.New(t.url, t.key, client.Options{})
	defer c.Close()
	key, err := keyOf(ctx, c, besideTenant)
	if err != nil {
		return nil, nil, errors.Join(err, t.close())
	}
	t.key = key
	return func(ctx context.Context) error {
		_, err := t.submit(ctx, sub)
		return err
	}, t.close, nil
}

// readSchedules reads from the store how late each schedule fired and each deadline was acted on, and checks that
// each schedule fired once.
func readSchedules(ctx context.Context, p *place) ([]Figure, error) {
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
				var n, missed int64
				if err := scan(&name, (*int64)(&at), (*int64)(&firedAt), &n, &missed); err != nil {
					return err
				}
				if n != 1 || missed != 0 {
					wrong = append(wrong, fmt.Sprintf("%s fired %d times and missed %d", name, n, missed))
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
	if err == nil && fired.count() != planned {
		err = fmt.Errorf("%d of %d schedules are there", fired.count(), planned)
	}
	if err == nil && len(wrong) > 0 {
		err = fmt.Errorf("%d are wrong: %s", len(wrong), strings.Join(wrong[:min(3, len(wrong))], "; "))
	}
	return []Figure{fired.latencies(whatPlannedLate, openLoops), ended.latencies(whatDeadlineLate, openLoops)},
		errors.Join(err, st.Close())
}
