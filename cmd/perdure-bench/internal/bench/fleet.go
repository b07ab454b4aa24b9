package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
)

// Figures of several servers on one PostgreSQL. The scenario wake measures how long a ring takes from one to
// another. Callers and workers use the servers in turns.

const (
	fleetSize  = 3
	fleetLease = 3 * time.Second
	// deadRuns are the runs that the worker of the dead server holds.
	deadRuns = 100
	// fleetTenants is the number of tenants beside the noisy one, if none is set.
	fleetTenants = 1000

	whatOneNode     = "one node"
	whatThree       = "three nodes"
	whatThreeToOne  = "three nodes / one"
	whatElsewhere   = "a dead node's runs, after the lease"
	whatCalm        = "submit of others, calm"
	whatNoisy       = "submit of others, one noisy"
	whatNoisyToCalm = "p99 one noisy / calm"
	whatIndexed     = "submit while an index is built"
)

// A fleet is several servers that are used in turns.
type fleet struct {
	nodes []*httpTarget
	next  atomic.Int64
}

// openFleet starts servers on a place.
func openFleet(ctx context.Context, p *place, size int) (*fleet, error) {
	f := &fleet{}
	for i := range size {
		t, err := openServer(ctx, p, fmt.Sprint("node", i))
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		f.nodes = append(f.nodes, t)
	}
	return f, nil
}

func (f *fleet) close() (err error) {
	for _, t := range f.nodes {
		err = errors.Join(err, t.close())
	}
	return err
}

func (f *fleet) node() *httpTarget { return f.nodes[int(f.next.Add(1))%len(f.nodes)] }

func (f *fleet) cpu() (all time.Duration) {
	for _, t := range f.nodes {
		all += t.cpu()
	}
	return all
}

func (f *fleet) submit(ctx context.Context, sub perdure.Submission) (string, error) {
	return f.node().submit(ctx, sub)
}

func (f *fleet) ended(ctx context.Context, id string) (bool, error) { return f.node().ended(ctx, id) }

func (f *fleet) take(ctx context.Context, worker string, slots int, wait time.Duration) ([]grant, error) {
	return f.node().take(ctx, worker, slots, wait)
}

func (f *fleet) finish(ctx context.Context, worker string, l []grant) error {
	return f.node().finish(ctx, worker, l)
}

// measureFleet measures each in turn, with servers of its own.
func measureFleet(ctx context.Context, b *Bench, p *place, _ string) (out []Figure, err error) {
	if b.Doorbell != "" {
		p.doorbell = b.Doorbell
	}
	for _, f := range []func(context.Context, *Bench, *place) ([]Figure, error){
		fleetThroughput, fleetLoss, fleetNoise, fleetIndex} {
		more, err := f(ctx, b, p)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// fleetThroughput measures whole lives of runs on one server, and on several.
func fleetThroughput(ctx context.Context, b *Bench, p *place) ([]Figure, error) {
	life := func(what string, size int) (Figure, error) {
		b.phase("%s", what)
		nodes, err := openFleet(ctx, p, size)
		if err != nil {
			return Figure{}, err
		}
		f, err := b.closedLife(ctx, nodes)
		if err = errors.Join(err, nodes.close()); err != nil {
			return Figure{}, err
		}
		f[0].What = what
		return f[0], nil
	}
	one, err := life(whatOneNode, 1)
	if err != nil {
		return nil, err
	}
	three, err := life(whatThree, fleetSize)
	return []Figure{one, three, {What: whatThreeToOne, Value: three.Value / one.Value, Unit: unitTimes}}, err
}

// fleetLoss kills a server, and with it a worker that holds runs, and measures how long after the end of
// their leases a worker of another server has all of them.
func fleetLoss(ctx context.Context, b *Bench, p *place) (out []Figure, err error) {
	b.phase("a dead node")
	own := *p
	own.flags = append(own.flags[:len(own.flags):len(own.flags)], "--policy", "lease="+fleetLease.String(),
		"--policy", "backoff_base=1ms", "--policy", "backoff_max=1ms", "--policy", "max_attempts=10")
	nodes, err := openFleet(ctx, &own, 2)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, nodes.close()) }()
	dies, lives := nodes.nodes[0], nodes.nodes[1]
	left := make(map[string]bool)
	for range deadRuns {
		if _, err := dies.submit(ctx, benchRun); err != nil {
			return nil, err
		}
	}
	for len(left) < deadRuns {
		l, err := dies.take(ctx, "dies", deadRuns, time.Second)
		if err != nil {
			return nil, err
		}
		for _, g := range l {
			left[g.id] = true
		}
	}
	granted := time.Now()
	dies.server.Dead = true
	if err := dies.server.Cmd.Process.Kill(); err != nil {
		return nil, err
	}
	_ = dies.server.Cmd.Wait() // it was killed
	dies.client.CloseIdleConnections()
	err = await(ctx, "another worker has the runs", lastRuns, func() (bool, error) {
		l, err := lives.take(ctx, "lives", deadRuns, time.Second)
		if err != nil || len(l) == 0 {
			return false, err
		}
		for _, g := range l {
			delete(left, g.id)
		}
		return len(left) == 0, lives.finish(ctx, "lives", l)
	})
	after := max(0, time.Since(granted)-fleetLease)
	return []Figure{{What: whatElsewhere, Count: deadRuns, Value: after.Seconds(), Unit: unitSeconds}}, err
}

// fleetNoise measures submits of many tenants, and again while one other tenant submits as fast as it can.
func fleetNoise(ctx context.Context, b *Bench, p *place) (out []Figure, err error) {
	tenants := b.Tenants
	if tenants == 0 {
		tenants = fleetTenants
	}
	nodes, err := openFleet(ctx, p, fleetSize)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, nodes.close()) }()
	b.phase("making %d tenants", tenants)
	c := client.New(nodes.nodes[0].url, p.key, client.Options{})
	defer c.Close()
	as := make([]httpTarget, tenants)
	for i := range as {
		t := nodes.nodes[i%fleetSize]
		key, err := keyOf(ctx, c, perdure.TenantID(fmt.Sprint("other", i)))
		if err != nil {
			return nil, err
		}
		as[i] = httpTarget{url: t.url, key: key, client: t.client}
	}
	var next atomic.Int64
	others := func(what string) (Figure, error) {
		b.phase("%s", what)
		var s samples
		err := openLoop(ctx, b.rateOr(idleRate), b.Duration, func(at time.Time) error {
			_, err := as[int(next.Add(1))%tenants].submit(ctx, benchRun)
			s.add(time.Since(at))
			b.did(1)
			return err
		})
		return s.latencies(what, openLoops), err
	}
	calm, err := others(whatCalm)
	if err != nil {
		return nil, err
	}
	noise, quiet := context.WithCancel(ctx)
	defer quiet()
	var noisy sync.WaitGroup
	for range b.Callers {
		noisy.Go(func() {
			for noise.Err() == nil {
				_, _ = nodes.submit(noise, benchRun) // may be refused for its share
			}
		})
	}
	loud, err := others(whatNoisy)
	quiet()
	noisy.Wait()
	if err != nil {
		return nil, err
	}
	return []Figure{calm, loud, {What: whatNoisyToCalm, Value: loud.Latency.P99 / calm.Latency.P99,
		Unit: unitTimes}}, nil
}

// fleetIndex measures submits while an index of the runs is built as a migration does it.
func fleetIndex(ctx context.Context, b *Bench, p *place) (out []Figure, err error) {
	b.phase("loading %d runs", b.Live)
	if err := p.load(ctx, b, b.Live, func(perdure.Instant) perdure.Submission {
		return perdure.Submission{Kind: kindLive, Class: perdure.Agent, Input: benchRun.Input,
			Delay: perdure.Duration(12 * time.Hour)}
	}); err != nil {
		return nil, err
	}
	nodes, err := openFleet(ctx, p, fleetSize)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, nodes.close()) }()
	b.phase("building an index")
	var s samples
	loop, stop := context.WithCancel(ctx)
	defer stop()
	loaded := make(chan error, 1)
	go func() {
		loaded <- openLoop(loop, b.rateOr(idleRate), allEnded, func(at time.Time) error {
			_, err := nodes.submit(ctx, benchRun)
			s.add(time.Since(at))
			b.did(1)
			return err
		})
	}()
	err = await(ctx, "a submit succeeds", lastRuns, func() (bool, error) { return s.count() > 0, nil })
	begin := time.Now()
	if err == nil {
		err = execPostgres(ctx, p.url, "CREATE INDEX CONCURRENTLY bench_built ON runs (tenant, kind, created_at)")
	}
	took := time.Since(begin)
	stop()
	if failed := <-loaded; !errors.Is(failed, context.Canceled) {
		err = errors.Join(err, failed)
	}
	f := s.latencies(whatIndexed, openLoops)
	f.Seconds = took.Seconds()
	return []Figure{f}, err
}
