package worker

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/session"
)

// newsLoop has the worker learn at once that a run is asked to stop. While it has runs that are older than a
// heartbeat, one call waits at the server for that; what it brings hurries the next heartbeat on, and says no
// more. Whatever it misses, the heartbeats find.
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
		one, once := session.SendOnce(life)
		polled, err := w.c.Poll(one, w.opt.ID, api.Poll{News: true, Holding: w.untold(), Wait: perdure.Duration(w.opt.PollWait), AllTenants: w.opt.AllTenants})
		switch {
		case life.Err() != nil, refusesWorker(err): // a server that knows of no news
			return
		case err != nil:
			failed++
			sleep(life, max(pause(failed), once.After))
		case polled.News:
			failed = 0
			for _, r := range w.holding() {
				r.dueNow()
			}
		default:
			failed = 0
			if time.Since(sent) < w.opt.PollWait/2 { // a server that shuts down
				sleep(life, pause(1))
			}
			kick(w.kickNews)
		}
	}
}

// untold gives the leases whose handlers do not know of a wish to stop. The server looks at them when the call comes:
// what was asked for while no call waited is not lost.
func (w *Worker) untold() (out []api.Lease) {
	for _, r := range w.holding() {
		r.mu.Lock()
		if !r.cancel && !r.gone && !r.released && len(out) < perdure.MaxBatch {
			out = append(out, r.lease)
		}
		r.mu.Unlock()
	}
	return out
}
