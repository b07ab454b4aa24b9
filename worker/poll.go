package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/release"
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/internal/wire/timer"
)

// fullWait is how long a poll waits that leaves out tenants, and how long a worker without room waits
// before it looks again. One that has no free slot is told when that changes.
const (
	fullWait  = time.Second
	fullAgain = time.Hour
)

// pollLoop leases runs while a pool has free slots, until ctx ends or the server refuses this
// worker.
func (w *Worker) pollLoop(ctx, life context.Context, p *pool) error {
	for failed := 0; ctx.Err() == nil; {
		free, full, changed := w.slots(p)
		if free < 1 {
			again := fullAgain
			if w.opt.Full != nil { // it may have room before a run ends
				again = fullWait
			}
			select {
			case <-changed:
			case <-ctx.Done():
			case <-time.After(again):
			}
			continue
		}
		sent := time.Now()
		wait := w.opt.PollWait
		if len(full) > 0 {
			wait = min(wait, fullWait) // a tenant that is left out may have a free slot soon
		}
		one, once := session.WithoutRetry(ctx)
		polled, err := w.calls.Poll(one, w.opt.ID, api.Poll{Queues: w.opt.Queues, Kinds: p.kinds,
			Slots: min(free, perdure.MaxList), Wait: perdure.Duration(wait), Start: true, Confirms: true,
			AllTenants: w.opt.AllTenants, ExceptTenants: full, Build: w.opt.Build, Release: release.Version})
		if ctx.Err() != nil && err != nil {
			return nil
		}
		if refusesWorker(err) {
			return err
		}
		if client.CodeOf(err) == perdure.CodeNotFound {
			return fmt.Errorf("the server's address is wrong: %w", err)
		}
		w.away.note(err)
		if err != nil {
			failed++
			timer.Sleep(ctx, max(pause(failed), once.After)) // a busy server sends Retry-After
			continue
		}
		failed = 0
		for i := range polled.Runs {
			w.accept(life, &polled.Runs[i], sent)
		}
		// A server that shuts down answers at once, without runs. The pause prevents a busy loop.
		if len(polled.Runs) == 0 && time.Since(sent) < wait/2 {
			timer.Sleep(ctx, pause(1))
		}
	}
	return nil
}

// refusesWorker tells whether an error means that no poll of this worker will ever succeed.
func refusesWorker(err error) bool {
	switch client.CodeOf(err) {
	case api.CodeUnauthorized, api.CodeForbidden, api.CodeHost, perdure.CodeInvalid, perdure.CodeTooLarge:
		return true
	}
	return false
}

// pause returns the backoff after the n-th failure in a row: up to 5 s, with jitter.
func pause(n int) time.Duration {
	d := 5 * time.Second
	if n < 7 {
		d = 50 * time.Millisecond << n
	}
	return d/2 + rand.N(d/2)
}

// accept starts the execution of a granted run.
func (w *Worker) accept(life context.Context, g *api.Grant, sent time.Time) {
	r := newRun(w, life, g, sent)
	if slices.Contains(w.opt.SelfFence, g.Kind) {
		r.fence = time.AfterFunc(r.leaseLeft(sent), func() {
			if w.holds(r) {
				r.lost(errSilence)
			}
		})
	}
	w.hold(r)
	h, ok := w.handlers[g.Kind]
	if err := w.verify(g); err != nil {
		w.log.Error("a run is rejected: its signature is not valid", "run", g.RunID, "kind", g.Kind, "error", err)
		r.finish(&perdure.Outcome{Type: perdure.OutcomeReject, Reason: string(perdure.CodeSignatureInvalid)})
		return
	}
	switch {
	case g.Cancel && h.agent:
		r.cancelled() // the agent is called, because it may have to undo earlier steps
	case g.Cancel:
		// The cancel request is older than the grant. A handler that has not begun has nothing to
		// clean up.
		r.stop(ErrCancelled)
		r.finish(&perdure.Outcome{Type: perdure.OutcomeCancelled})
		return
	case !ok: // not expected: the poll names the registered kinds
		w.log.Warn("a run of a kind without a handler is handed back", "run", g.RunID, "kind", g.Kind)
		r.abandon()
		go w.release(life, []api.ReleasedLease{{Lease: r.lease}})
		return
	}
	go r.execute(h)
}
