package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/internal/wire/timer"
)

// This file has the calls to the server. Each is repeated while the server is away; only the context,
// or the news that the run is another's, ends that.

// callTimeout is how long an answer may take. A server that is frozen looks like one that is slow.
const callTimeout = 10 * time.Second

// connect returns a client for the server.
func (s *Server) connect() (*client.Client, error) {
	opt := client.Options{Timeout: callTimeout}
	if s.CA != "" {
		pool, err := client.LoadCA(s.CA)
		if err != nil {
			return nil, err
		}
		opt.RootCAs = pool
	}
	return client.New(s.URL, s.Key, opt), nil
}

// errLost means that the server has ended the run, or given it to another runner.
var errLost = errors.New("the run is no longer this runner's")

// backoff returns the pause after the n-th failure in a row.
func backoff(n int) time.Duration {
	d := 5 * time.Second
	if n < 7 {
		d = 50 * time.Millisecond << n
	}
	return d/2 + rand.N(d/2)
}

// A link is the connection of a runner to the server.
type link struct {
	c       *client.Client
	worker  string
	log     *slog.Logger
	contact *contact
}

// maxDefects is how often a call is repeated that the server has answered with a defect of its own.
const maxDefects = 8

// persist makes a call until it is answered. The call says whether its error can be met by trying again.
func (l *link) persist(ctx context.Context, what string, call func(ctx context.Context) (again bool, err error)) error {
	for n := 1; ; n++ {
		one, once := session.WithoutRetry(ctx)
		again, err := call(one)
		if l.contact.note(err) || n >= maxDefects && client.CodeOf(err) == perdure.CodeInternal {
			again = false
		}
		switch {
		case err == nil:
			if n > 1 {
				l.log.Info("the server is back", "call", what, "tries", n)
			}
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !again:
			return err
		case n == 1:
			l.log.Warn("a call is repeated", "call", what, "error", err)
		}
		if !timer.Sleep(ctx, max(backoff(n), once.After)) {
			return context.Cause(ctx)
		}
	}
}

// temporary tells whether a call may succeed later: the server is away, or the key is refused, which an
// administrator may change.
func temporary(err error) bool {
	switch client.CodeOf(err) {
	case api.CodeUnauthorized, api.CodeForbidden, api.CodeHost, perdure.CodeInternal, "":
		return true
	}
	return client.Transient(err)
}

// isLost tells whether a refusal means that the run is no longer this runner's.
func isLost(c perdure.Code) bool {
	return c == perdure.CodeStaleEpoch || c == perdure.CodeNotFound || c == perdure.CodeRunEnded
}

// Bounds of waiting for a run.
const (
	leaseAgain = 100 * time.Millisecond // until a run is asked for that was not claimable
	pollWait   = 30 * time.Second
)

// lease leases the run, or the next one of the queues.
func (l *link) lease(ctx context.Context, j *Job) (*api.Grant, error) {
	poll := api.Poll{Slots: 1, Start: true, Confirms: true, Queues: j.Queues, Kinds: []string{Kind},
		Wait: perdure.Duration(pollWait)}
	if j.RunID != "" {
		poll = api.Poll{Slots: 1, Start: true, Confirms: true, RunIDs: []perdure.RunID{j.RunID}}
	}
	for n := 0; ; n++ {
		var polled *api.Polled
		err := l.persist(ctx, "poll", func(ctx context.Context) (_ bool, err error) {
			polled, err = session.Of(l.c).Poll(ctx, l.worker, poll)
			return client.Transient(err), err
		})
		switch {
		case err != nil:
			return nil, err
		case len(polled.Runs) > 0:
			return &polled.Runs[0], nil
		case j.RunID == "":
			if !timer.Sleep(ctx, leaseAgain/2) { // a server that is closing answers at once
				return nil, context.Cause(ctx)
			}
			continue
		}
		// The run has ended, or waits: for a thread, or for a limit of its tenant.
		r, err := l.c.Get(ctx, j.RunID)
		if err == nil && (r.State.Terminal() || r.State == perdure.Running || r.State == perdure.Dispatched) {
			return nil, fmt.Errorf("%w: it is %s", errLost, r.State)
		}
		if !timer.Sleep(ctx, leaseAgain*time.Duration(min(n+1, 20))) {
			return nil, context.Cause(ctx)
		}
	}
}

// confirm waits until the server has heard that this runner has the run, as its poll promises. A grant
// that is not heard from is given to another runner, so the command does not start before.
func (l *link) confirm(ctx context.Context, g *api.Grant) (cancel bool, err error) {
	err = l.persist(ctx, "heartbeat", func(ctx context.Context) (bool, error) {
		answer, err := session.Of(l.c).Heartbeat(ctx, l.worker, api.Beat{RunID: g.RunID, Epoch: g.Epoch})
		if err != nil {
			return temporary(err), err
		}
		for _, lost := range answer.Lost {
			if lost.Error != nil {
				return false, fmt.Errorf("%w: %s", errLost, lost.Error.Detail)
			}
		}
		cancel = len(answer.Cancel) > 0
		return false, nil
	})
	return cancel, err
}

// A refusedError is the server's answer to a commit that it does not take.
type refusedError struct{ api.Refusal }

func (e *refusedError) Error() string { return string(e.Code) + ": " + e.Detail }

// commit sends a commit until it is answered. A refusal is a *refusedError, or errLost.
func (l *link) commit(ctx context.Context, c perdure.Commit) (cancel bool, err error) {
	err = l.persist(ctx, "commit", func(ctx context.Context) (bool, error) {
		results, err := session.Of(l.c).Commit(ctx, l.worker, c)
		if err != nil {
			return temporary(err), err
		}
		r := &results[0]
		cancel = r.Cancel
		switch {
		case r.Error == nil:
			return false, nil
		case isLost(r.Error.Code):
			return false, fmt.Errorf("%w: %s", errLost, r.Error.Detail)
		}
		return false, &refusedError{*r.Error}
	})
	if client.CodeOf(err) == perdure.CodeInternal { // it would be the same again
		err = &refusedError{api.Refusal{Code: perdure.CodeInternal, Detail: err.Error()}}
	}
	return cancel, err
}

// logged returns how much of the output the log has.
func (l *link) logged(
	ctx context.Context, id perdure.RunID, epoch int64, former ...int64,
) (o jobdir.Offsets, err error) {
	err = l.persist(ctx, "view", func(ctx context.Context) (bool, error) {
		v, err := l.c.View(ctx, id, jobdir.OutputView)
		if client.CodeOf(err) == perdure.CodeNotFound {
			return false, nil
		}
		if err != nil {
			return temporary(err), err
		}
		o = jobdir.LoggedOutput(v.Value, epoch, former...)
		return false, nil
	})
	return o, err
}

// Times of heartbeats.
const (
	beatEvery = 20 * time.Second
	// afterDeadline is when, after the deadline of the run, the server is asked what became of it.
	afterDeadline = 200 * time.Millisecond
)

// beatLoop sends heartbeats: at once, then regularly, and when there is news.
func (e *execution) beatLoop(ctx context.Context) {
	every := min(beatEvery, e.job.SentinelEvery)
	deadline := e.grant.DeadlineAt.Time().Add(afterDeadline)
	for failed := 0; ; {
		err := e.beat(ctx)
		wait := every - rand.N(every/8)
		// The server ends the run at its deadline, and its next answer says so.
		if left := time.Until(deadline); left < wait {
			if wait = left; left <= 0 {
				wait = min(every, time.Second)
			}
		}
		if failed++; err == nil {
			failed = 0
		} else {
			wait = min(wait, backoff(failed))
		}
		select {
		case <-time.After(wait):
		case <-e.kickBeat:
		case <-ctx.Done():
			return
		}
	}
}

// beat sends one heartbeat.
func (e *execution) beat(ctx context.Context) error {
	answer, err := e.sendBeat(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if e.away.note(err) {
		e.log.Warn("heartbeats are not answered", "error", err)
	}
	if err != nil {
		return err
	}
	refused := refusalOf(answer)
	switch {
	case refused != nil && refused.Error.Code == perdure.CodeRestored:
		if !e.renew(refused) {
			return errors.New(refused.Error.Detail) // the next heartbeat comes soon
		}
	case e.ending.is(): // the answer to the end decides
	case refused != nil && isLost(refused.Error.Code):
		e.lose(fmt.Errorf("%w: %s", errLost, refused.Error.Detail))
	case len(answer.Cancel) > 0:
		e.askToStop()
	}
	return nil
}

// sendBeat makes the call of a heartbeat.
func (e *execution) sendBeat(ctx context.Context) (*api.Beaten, error) {
	one, _ := session.WithoutRetry(ctx)
	one, cancel := context.WithTimeout(one, callTimeout)
	defer cancel()
	lease, _ := e.hold.now()
	return session.Of(e.link.c).Heartbeat(one, e.link.worker, api.Beat{RunID: lease.RunID, Epoch: lease.Epoch,
		Activity: e.activity(), CancelAck: e.cancelled.is()})
}

// refusalOf returns the refusal of a heartbeat, or nil.
func refusalOf(answer *api.Beaten) *api.LeaseResult {
	if len(answer.Lost) == 0 || answer.Lost[0].Error == nil {
		return nil
	}
	return &answer.Lost[0]
}

// newsLoop learns of a cancel request at once: one call waits at the server until there is one. The
// next heartbeat has the request.
func (e *execution) newsLoop(ctx context.Context) {
	for failed := 0; ctx.Err() == nil && !e.cancelled.is(); {
		sent := time.Now()
		one, once := session.WithoutRetry(ctx)
		lease, _ := e.hold.now()
		polled, err := session.Of(e.link.c).Poll(one, e.link.worker,
			api.Poll{News: true, Holding: []api.Lease{lease}, Wait: perdure.Duration(pollWait)})
		switch {
		case err != nil:
			failed++
			timer.Sleep(ctx, max(backoff(failed), once.After))
		case polled.News:
			failed = 0
			kick(e.kickBeat)
			select {
			case <-e.cancelled.when: // by the heartbeat
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		case time.Since(sent) < pollWait/2: // the server is closing
			timer.Sleep(ctx, backoff(1))
		}
	}
}

// kick wakes a loop. It never blocks.
func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
