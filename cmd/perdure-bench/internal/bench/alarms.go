package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/wire/timer"
)

const (
	sweeps      = 200              // idle sweeps that are measured
	lateRate    = 500              // deadlines a second, for lateness
	lateAfter   = time.Second      // timeout of the runs for lateness
	probeRate   = 50               // calls of the API a second during the burst
	allEnded    = 10 * time.Minute // limit for all runs to end
	kindLive    = "live"
	kindDue     = "due"
	kindLate    = "late"
	kindProbe   = "probe"
	whatSweep   = "sweep, nothing due"
	whatAtOnce  = "deadlines at one instant"
	whatProbe   = "submit and get meanwhile"
	whatLate    = "lateness"
	whatRatio50 = "p50 queued / empty"
	whatRatio   = "p99 queued / empty"
	claimWarmup = 50 // claims that don't count, because caches and plans are cold
)

// measureAlarms loads live runs with alarms hours ahead, and then others whose deadlines pass.
func measureAlarms(ctx context.Context, b *Bench, p *place, target string) (f []Figure, err error) {
	own, err := openProcess(p)
	if err != nil {
		return nil, err
	}
	b.phase("loading %d live runs", b.Live)
	begin := time.Now()
	if _, err := own.load(ctx, b, b.Live, func(perdure.Instant) perdure.Submission {
		return perdure.Submission{Kind: kindLive, Class: perdure.Agent, Input: benchRun.Input,
			Delay: perdure.Duration(12 * time.Hour)}
	}); err != nil {
		return nil, errors.Join(err, own.close())
	}
	each := time.Since(begin) / time.Duration(b.Live)
	if target == targetProcess {
		s, err := sweepIdle(b, own)
		if err != nil {
			return nil, errors.Join(err, own.close())
		}
		f = append(f, s)
	}
	b.phase("loading %d runs that end at one instant", b.Due)
	// The deadline is late enough that all runs are loaded and the server is up by then.
	due := own.store.Now().Add(2*time.Duration(b.Due)*each + time.Second + time.Duration(b.Live)*2*time.Microsecond)
	wall := time.Now().Add(due.Sub(own.store.Now()))
	last, err := own.load(ctx, b, b.Due, func(now perdure.Instant) perdure.Submission {
		return perdure.Submission{Kind: kindDue, Input: benchRun.Input, Timeout: perdure.Duration(due.Sub(now))}
	})
	if err != nil {
		return nil, errors.Join(err, own.close())
	}
	var t system = own
	if target == targetProcess {
		own.startWatchdog()
	} else {
		if err := own.close(); err != nil {
			return nil, err
		}
		if t, err = p.target(ctx, target); err != nil {
			return nil, err
		}
	}
	rung, err := b.measureBurst(ctx, t, string(last), wall)
	if err == nil {
		err = b.passDeadlinesSteadily(ctx, t)
	}
	if err := errors.Join(err, t.close()); err != nil {
		return nil, err
	}
	late, err := b.readEnds(ctx, p)
	return append(append(f, rung...), late), err
}

// sweepIdle measures sweeps with nothing due.
func sweepIdle(b *Bench, t *processTarget) (Figure, error) {
	b.phase("sweeping")
	var s samples
	w := watchdog.New(t.engine, nil)
	for range sweeps {
		pass := w.Pass()
		at := time.Now()
		if err := t.engine.Step(t.store.Now(), pass)[0]; err != nil {
			return Figure{}, err
		}
		s.add(time.Since(at))
		b.did(1)
		if len(pass.Actions) > 0 {
			return Figure{}, fmt.Errorf("a sweep with nothing due did something: %+v", pass.Actions[0])
		}
	}
	return s.latencies(whatSweep, closedLoops), nil
}

// measureBurst waits for the instant at which all deadlines pass, and measures how long it takes
// until the last run has ended. Calls of the API are measured meanwhile.
func (b *Bench) measureBurst(ctx context.Context, t system, last string, due time.Time) ([]Figure, error) {
	b.phase("waiting for the instant")
	timer.Sleep(ctx, time.Until(due))
	b.phase("%d deadlines", b.Due)
	var s samples
	var took time.Duration
	probing, stop := context.WithCancel(ctx)
	defer stop()
	probed := make(chan error, 1)
	go func() {
		probed <- openLoop(probing, probeRate, allEnded, func(at time.Time) error {
			id, err := t.submit(ctx, perdure.Submission{Kind: kindProbe, Input: benchRun.Input})
			if err == nil {
				_, err = t.ended(ctx, id)
			}
			s.add(time.Since(at))
			b.did(1)
			return err
		})
	}()
	err := await(ctx, "all deadlines are acted on", allEnded, func() (bool, error) {
		ok, err := t.ended(ctx, last)
		took = time.Since(due)
		return ok, err
	})
	stop()
	if perr := <-probed; !errors.Is(perr, context.Canceled) {
		err = errors.Join(err, perr)
	}
	return []Figure{{What: whatAtOnce, Count: b.Due, Seconds: took.Seconds(), Value: took.Seconds(), Unit: unitSeconds},
		s.latencies(whatProbe, openLoops)}, err
}

// passDeadlinesSteadily submits runs whose deadlines pass at a steady rate.
func (b *Bench) passDeadlinesSteadily(ctx context.Context, t system) error {
	b.phase("%d deadlines a second", lateRate)
	var mu sync.Mutex
	var last string // ids grow with time; calls return in any order
	err := openLoop(ctx, lateRate, b.Duration, func(time.Time) error {
		id, err := t.submit(ctx,
			perdure.Submission{Kind: kindLate, Input: benchRun.Input, Timeout: perdure.Duration(lateAfter)})
		mu.Lock()
		last = max(last, id)
		mu.Unlock()
		b.did(1)
		return err
	})
	if err != nil {
		return err
	}
	timer.Sleep(ctx, lateAfter)
	return await(ctx, "the last deadline is acted on", allEnded, func() (bool, error) { return t.ended(ctx, last) })
}

// readEnds reads from the store how late each deadline ended its run, and checks that it did so
// once.
func (b *Bench) readEnds(ctx context.Context, p *place) (Figure, error) {
	b.phase("reading how they ended")
	st, err := p.open()
	if err != nil {
		return Figure{}, err
	}
	var s samples
	var due, late, open, lines, runs int
	err = st.Audit(ctx, func(v *store.View) error {
		err := v.Rows("SELECT kind, state, deadline_at, finished_at FROM runs WHERE tenant='bench' AND kind IN "+
			"('due','late')", nil, func(scan func(...any) error) error {
			var kind, state string
			var deadline, finished perdure.Instant
			if err := scan(&kind, &state, (*int64)(&deadline), (*int64)(&finished)); err != nil {
				return err
			}
			switch {
			case perdure.State(state) != perdure.TimedOut:
				open++
			case kind == kindDue:
				due++
			default:
				late++
				s.add(finished.Sub(deadline))
			}
			return nil
		})
		if err != nil {
			return err
		}
		query := "SELECT count(*), count(DISTINCT run_id) FROM events " +
			"WHERE tenant='bench' AND type='" + string(perdure.LineTimedOut) + "'"
		return v.Rows(query, nil, func(scan func(...any) error) error {
			return scan(&lines, &runs)
		})
	})
	if err == nil && (open > 0 || due != b.Due || lines != runs || runs != due+late) {
		err = fmt.Errorf("deadlines were not acted on once each: %d runs of %d at one instant, %d later ones, %d that "+
			"did not end; %d ends of %d runs", due, b.Due, late, open, lines, runs)
	}
	return s.latencies(fmt.Sprintf("%s at %d/s", whatLate, lateRate), openLoops), errors.Join(err, st.Close())
}

// measureBacklog measures a claim of one run, first with an empty queue and then with a very long
// one.
func measureBacklog(ctx context.Context, b *Bench, p *place, target string) ([]Figure, error) {
	empty, err := b.claims(ctx, p, target, "empty")
	if err != nil {
		return nil, err
	}
	b.phase("loading %d queued runs", b.Live)
	if err := p.load(ctx, b, b.Live, func(perdure.Instant) perdure.Submission {
		// agents have a timeout of a day
		return perdure.Submission{Kind: kind, Class: perdure.Agent, Input: benchRun.Input}
	}); err != nil {
		return nil, err
	}
	full, err := b.claims(ctx, p, target, fmt.Sprintf("%d queued", b.Live))
	if err != nil {
		return nil, err
	}
	return []Figure{empty, full, {What: whatRatio50, Value: full.Latency.P50 / empty.Latency.P50, Unit: unitTimes},
		{What: whatRatio, Value: full.Latency.P99 / empty.Latency.P99, Unit: unitTimes}}, nil
}

func (b *Bench) claims(ctx context.Context, p *place, target, what string) (f Figure, err error) {
	t, err := p.target(ctx, target)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	b.phase("claiming, %s", what)
	var s samples
	begin := time.Now()
	for n := 0; (time.Since(begin) < b.Duration || n <= claimWarmup) && ctx.Err() == nil; n++ {
		if _, err := t.submit(ctx, benchRun); err != nil {
			return f, err
		}
		at := time.Now()
		l, err := t.take(ctx, "w", 1, time.Second)
		took := time.Since(at)
		if err != nil {
			return f, err
		}
		if len(l) != 1 {
			return f, fmt.Errorf("a claim got %d runs, not 1", len(l))
		}
		if err := t.finish(ctx, "w", l); err != nil {
			return f, err
		}
		if n == claimWarmup {
			begin = time.Now()
		}
		if n >= claimWarmup {
			s.add(took)
		}
		b.did(1)
	}
	return s.latencies("claim, "+what, closedLoops), nil
}
