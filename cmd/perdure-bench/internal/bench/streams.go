package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/wire/timer"
)

const (
	eventRate      = 2000 // events a second
	eventRuns      = 5000 // runs of these events
	rounds         = 3    // the least events to all streams
	caughtUp       = 2 * time.Minute
	whatEachOwn    = "memory of a stream, a run each"
	whatEachShared = "memory of a stream, all on one run"
	whatIdleOwn    = "cpu when idle, a run each"
	whatIdleShared = "cpu when idle, all on one run"
	whatToAll      = "one event to all"
	whatToClient   = "commit to client"
	whatDueClient  = "due to client"
	benchTick      = "x:tick" // an event whose data is a number
)

// A heldRun is a run that a worker of the bench has leased, with the number of its last line.
type heldRun struct {
	grant
	seq int64
}

// says returns a commit of some lines.
func (h *heldRun) says(id string, lines ...perdure.Emitted) perdure.Commit {
	return perdure.Commit{ID: id, RunID: perdure.RunID(h.id), Epoch: h.epoch, Events: lines}
}

// tick returns an event with a number by which it is recognized.
func tick(n int64) perdure.Emitted {
	return perdure.Emitted{Type: benchTick, Data: strconv.AppendInt(nil, n, 10)}
}

// hold loads runs and leases them, in this process because that is faster than over HTTP.
func (p *place) hold(ctx context.Context, b *Bench, n int) (runs []heldRun, err error) {
	p.leased = true
	b.phase("loading %d runs", n)
	t, err := openProcess(p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if _, err := t.load(ctx, b, n, func(perdure.Instant) perdure.Submission {
		// agents have a timeout of a day
		return perdure.Submission{Kind: kind, Class: perdure.Agent, Input: benchRun.Input}
	}); err != nil {
		return nil, err
	}
	for len(runs) < n && ctx.Err() == nil {
		op := &dispatch.Claim{Tenant: tenant, Worker: workerName, Kinds: []string{kind}, Slots: min(n-len(runs), 500),
			Start: true}
		if err := t.engine.Do(ctx, op); err != nil {
			return nil, fmt.Errorf("hold: %w", err)
		}
		if len(op.Grants) == 0 {
			return nil, fmt.Errorf("hold: only %d of %d runs could be claimed", len(runs), n)
		}
		for _, g := range op.Grants {
			runs = append(runs, heldRun{grant{string(g.Run.ID), g.Run.Epoch}, g.Run.Seq})
		}
	}
	return runs, ctx.Err()
}

const workerName = "w"

// commit commits for several runs in one call.
func (t *httpTarget) commit(ctx context.Context, commits ...perdure.Commit) error {
	var out api.CommitResults
	if err := t.call(ctx, "POST", "/workers/"+workerName+"/commit", api.Commits{Commits: commits}, &out); err != nil {
		return err
	}
	for _, r := range out.Results {
		if r.Error != nil {
			return fmt.Errorf("commit of %s: %s %s", r.RunID, r.Error.Code, r.Error.Detail)
		}
	}
	return nil
}

// attach returns the request to follow runs from their beginning.
func (t *httpTarget) attach(runs []heldRun, streams int) clientRequest {
	a := clientRequest{Do: askAttach, URL: t.url, Key: t.key, Streams: streams}
	for _, r := range runs {
		a.Runs = append(a.Runs, r.id)
	}
	return a
}

// upto returns the request to wait until every stream has the last line of its run.
func upto(runs []heldRun) clientRequest {
	a := clientRequest{Do: askAwait, Limit: caughtUp}
	for _, r := range runs {
		a.Upto = append(a.Upto, r.seq)
	}
	return a
}

// measureStreams attaches streams: first each to a run of its own, and then all to the same.
func measureStreams(ctx context.Context, b *Bench, p *place, _ string) ([]Figure, error) {
	runs, err := p.hold(ctx, b, b.Streams)
	if err != nil {
		return nil, err
	}
	own, err := b.attached(ctx, p, runs, whatEachOwn, whatIdleOwn, nil)
	if err != nil {
		return nil, err
	}
	var s samples
	shared, err := b.attached(ctx, p, runs[:1], whatEachShared, whatIdleShared,
		func(t *httpTarget, c *clientProcess) error {
			return b.measureFanOut(ctx, t, c, &runs[0], &s)
		})
	if err != nil {
		return nil, err
	}
	return append(append(own, shared...), s.latencies(whatToAll, closedLoops)), nil
}

// attached measures memory and CPU of a server with idle streams, and then calls a function.
func (b *Bench) attached(ctx context.Context, p *place, runs []heldRun, memory, idle string,
	then func(*httpTarget, *clientProcess) error) (f []Figure, err error) {
	t, err := openServer(ctx, p, "node")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	c, err := startClients(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	pid := t.server.Cmd.Process.Pid
	before, err := residentMemory(pid)
	if err != nil {
		return nil, err
	}
	b.phase("attaching %d streams to %d runs", b.Streams, len(runs))
	if _, err := c.ask(ctx, t.attach(runs, b.Streams)); err != nil {
		return nil, err
	}
	if _, err := c.ask(ctx, upto(runs)); err != nil {
		return nil, err
	}
	b.phase("idling for %s", b.Settle)
	timer.Sleep(ctx, b.Settle)
	w := startWatch(t)
	timer.Sleep(ctx, b.Duration)
	took, cpu := time.Since(w.begin), t.cpu()-w.cpu
	after, err := residentMemory(pid)
	if err != nil {
		return nil, err
	}
	f = []Figure{{What: memory, Count: b.Streams, Value: float64(after-before) / 1e3 / float64(b.Streams),
		Unit: unitKilobytes},
		{What: idle, Count: b.Streams, Seconds: took.Seconds(), Value: 100 * cpu.Seconds() / took.Seconds(),
			Unit: unitPercent}}
	if err := p.snapshot(ctx, t); err != nil {
		return nil, err
	}
	if then != nil {
		err = then(t, c)
	}
	return f, err
}

// measureFanOut measures one event to all streams, several times. The time begins when the commit
// is sent, so it includes the time until the event is durable.
func (b *Bench) measureFanOut(ctx context.Context, t *httpTarget, c *clientProcess, run *heldRun, s *samples) error {
	b.phase("one event to %d streams", b.Streams)
	begin := time.Now()
	for n := 0; (n < rounds || time.Since(begin) < b.Duration) && ctx.Err() == nil; n++ {
		sent := monotonic()
		if err := t.commit(ctx, run.says(fmt.Sprint("all-", n), tick(int64(n)))); err != nil {
			return err
		}
		run.seq++
		reply, err := c.ask(ctx, upto([]heldRun{*run}))
		if err != nil {
			return err
		}
		for _, at := range reply.At {
			s.add(time.Duration(at - sent))
		}
		b.did(1)
	}
	return ctx.Err()
}

// measureEvents commits events of many runs in an open loop, one call each, while every run has a
// stream.
func measureEvents(ctx context.Context, b *Bench, p *place, _ string) (f []Figure, err error) {
	runs, err := p.hold(ctx, b, min(b.Streams, eventRuns))
	if err != nil {
		return nil, err
	}
	t, err := openServer(ctx, p, "node")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	c, err := startClients(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	b.phase("attaching %d streams", len(runs))
	a := t.attach(runs, len(runs))
	a.Note = true
	if _, err := c.ask(ctx, a); err != nil {
		return nil, err
	}
	if _, err := c.ask(ctx, upto(runs)); err != nil {
		return nil, err
	}
	rate := b.rateOr(eventRate)
	b.phase("%g events a second", rate)
	w := startWatch(t)
	due, err := b.tickAll(ctx, t, runs, rate, 0)
	if err != nil {
		return nil, err
	}
	reply, err := c.ask(ctx, upto(runs))
	if err != nil {
		return nil, err
	}
	var commits, dues samples
	for _, n := range reply.Arrivals {
		commits.add(n.Age)
		dues.add(time.Duration(n.At - due[n.N]))
	}
	if len(reply.Arrivals) != len(due) {
		err = fmt.Errorf("%d events were committed, and %d came", len(due), len(reply.Arrivals))
	}
	f = []Figure{w.throughput(whatToClient, openLoops, len(due), &commits), dues.latencies(whatDueClient, openLoops)}
	return f, err
}

// tickAll commits events of all runs in turn, numbered after a given number, and returns when each
// was due.
func (b *Bench) tickAll(
	ctx context.Context, t *httpTarget, runs []heldRun, rate float64, after int64,
) (map[int64]int64, error) {
	var mu sync.Mutex
	dues := make(map[int64]int64)
	var last atomic.Int64
	last.Store(after)
	err := openLoop(ctx, rate, b.Duration, func(at time.Time) error {
		due := monotonic() - int64(time.Since(at))
		n := last.Add(1)
		run := &runs[n%int64(len(runs))]
		if err := t.commit(ctx, run.says(fmt.Sprint("tick-", n), tick(n))); err != nil {
			return err
		}
		mu.Lock()
		dues[n] = due
		run.seq++
		mu.Unlock()
		b.did(1)
		return nil
	})
	return dues, err
}

// sampleLine returns a log line of about a hundred bytes.
func sampleLine(n int) perdure.Emitted {
	data, _ := json.Marshal(map[string]any{"n": n,
		"text": "looked at the disk of cube, which is 45 % full, and went on to the next one"})
	return perdure.Emitted{Type: "x:line", Data: data}
}
