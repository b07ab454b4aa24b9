package watchdog

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

// A Watchdog sweeps one store. It is not safe for concurrent sweeps: several nodes have one each.
type Watchdog struct {
	engine *engine.Engine
	log    *slog.Logger
	patrol patrolCursor
	retain upkeep.Retention

	// OnActions is called with a sweep's actions after they are durable. Set it before the first
	// sweep. It must not block.
	OnActions func([]Action)
	// OnSetAside is called with the part of the sweep when a row is set aside. It must not block.
	OnSetAside func(part string)

	// aside has the rows that are left alone because acting on them fails.
	aside asideList
	// outage tells that sweeps fail because the store takes no writes.
	outage bool
	// draining is set once the server shuts down.
	draining atomic.Bool
	// maxRows limits the rows of each part that the next sweep reads; see pace.
	maxRows int
	// runRows limits the due runs that the next sweep reads; see readRuns.
	runRows int
	// lastTenant is, for each part, the tenant that was acted on last.
	lastTenant map[string]perdure.TenantID
	copies     copies

	// actionCount numbers the actions of this process.
	actionCount atomic.Uint32
	// untrimmed counts the log entries that were written since the log was trimmed.
	untrimmed atomic.Int64
	// trimAt is when the log is trimmed even if it has few new entries.
	trimAt perdure.Instant
}

// New returns a watchdog for an engine. Without a logger it logs nothing.
func New(e *engine.Engine, log *slog.Logger) *Watchdog {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Watchdog{engine: e, log: log, maxRows: sweepRows, runRows: sweepRows,
		lastTenant: make(map[string]perdure.TenantID), copies: newCopies()}
}

// Drain tells the watchdog that the server shuts down: workers can't reach it any more, so their silence
// means nothing. Sweeps go on, without the rules that judge by silence.
func (w *Watchdog) Drain() { w.draining.Store(true) }

// Run sweeps, and removes expired data beside it, until the context ends.
func (w *Watchdog) Run(ctx context.Context) error {
	var retiring sync.WaitGroup
	defer retiring.Wait()
	retiring.Go(func() { w.retire(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-w.engine.Earlier():
		}
		pause := w.SweepOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		timer.Reset(pause)
	}
}

// maxYield bounds the pause between two sweeps when there is more to do. While callers write, the
// watchdog pauses as long as the sweep took, so that it leaves half of the store's time to them.
const maxYield = 100 * time.Millisecond

// sweepGoal is the time that a sweep should take while callers write. A deadline that passes during
// a sweep waits for the end of it, for the pause and for the next sweep.
const sweepGoal = 50 * time.Millisecond

// pace sets how many rows of each part the next sweep reads, by the time that this one took: half as
// many if it was too long, twice as many if it was short.
func (w *Watchdog) pace(took time.Duration) {
	switch {
	case took > sweepGoal:
		w.maxRows = max(minSweepRows, w.maxRows/2)
	case took < sweepGoal/2:
		w.maxRows = min(sweepRows, 2*w.maxRows)
	}
}

// readRuns sets how many due runs the next sweep reads, by the number that this one acted on: twice as
// many. Reading a run costs about as much as acting on it, so a sweep that its budget stops after a few
// runs should not read hundreds.
func (w *Watchdog) readRuns(acted int, stopped bool) {
	if !stopped {
		acted = w.runRows
	}
	w.runRows = max(minSweepRows, min(sweepRows, 2*acted))
}

// SweepOnce makes one sweep and returns how long to sleep before the next one. If the sweep can't
// be written, it is repeated in parts.
func (w *Watchdog) SweepOnce(ctx context.Context) (pause time.Duration) {
	op, begin := w.Pass(), time.Now()
	err := w.engine.Do(ctx, op)
	took := time.Since(begin)
	switch {
	case err == nil:
		w.noteSuccess()
		w.pace(took)
	case ctx.Err() == nil:
		w.sweepInParts(ctx, err)
	}
	for _, ref := range op.Contended {
		w.sweepRun(ctx, ref)
	}
	pause = w.engine.Policy().WatchdogInterval
	switch {
	case err != nil:
	case op.More:
		pause = 0
		if w.engine.Store().InUse() {
			pause = min(maxYield, took)
		}
	case op.Locked > 0 || w.aside.any():
		// The alarms of skipped rows stay due: the next alarm says nothing about when to sweep.
	default:
		pause = w.untilNext(ctx, pause)
	}
	return pause
}

// untilNext returns the time until the next alarm, and limit at most. An operation that sets an
// earlier alarm wakes the loop. The sleep is announced before the alarms are read: an alarm that is
// set in between is either read here or wakes the loop.
func (w *Watchdog) untilNext(ctx context.Context, limit time.Duration) time.Duration {
	s := w.engine.Store()
	w.engine.Sleep(s.Now().Add(limit))
	pause := limit
	err := s.Keep(ctx, func(v *store.View) error {
		at, err := v.NextAlarm()
		if err == nil && at != 0 {
			pause = min(limit, max(0, at.Sub(s.Now())))
		}
		return err
	})
	if err != nil {
		return limit
	}
	// An alarm that is due after the end of this sleep need not wake the loop.
	w.engine.Sleep(s.Now().Add(pause))
	return pause
}
