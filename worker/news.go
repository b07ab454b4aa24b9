package worker

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/internal/wire/timer"
)

// newsLoop lets the worker learn of cancel requests at once. While the worker has runs, one call
// waits at the server until one of them gets a cancel request. The answer only makes the heartbeats
// due, and their answers say which run it is. Requests that the call misses are found by the next
// heartbeat.
func (w *Worker) newsLoop(life context.Context) {
	for failed := 0; ; {
		select {
		case <-w.kickNews:
		case <-life.Done():
			return
		}
		if len(w.holding()) == 0 {
			continue
		}
		sent := time.Now()
		one, once := session.WithoutRetry(life)
		polled, err := w.calls.Poll(one, w.opt.ID, api.Poll{News: true, Holding: w.withoutCancel(),
			Wait: perdure.Duration(w.opt.PollWait), AllTenants: w.opt.AllTenants})
		switch {
		case life.Err() != nil, refusesWorker(err): // the latter from a server without this call
			return
		case err != nil:
			failed++
			timer.Sleep(life, max(pause(failed), once.After))
		case polled.News:
			failed = 0
			for _, r := range w.holding() {
				r.dueNow()
			}
		default:
			failed = 0
			if time.Since(sent) < w.opt.PollWait/2 { // the server shuts down
				timer.Sleep(life, pause(1))
			}
			kick(w.kickNews)
		}
	}
}

// withoutCancel returns the leases without a known cancel request. The server checks them when the
// call arrives, so that a request from between two calls is not missed.
func (w *Worker) withoutCancel() (out []api.Lease) {
	for _, r := range w.holding() {
		r.mu.Lock()
		if !r.cancel && !r.gone && !r.released && len(out) < perdure.MaxList {
			out = append(out, r.lease)
		}
		r.mu.Unlock()
	}
	return out
}
