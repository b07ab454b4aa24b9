package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

const (
	agentKind     = "bench-agent"
	agentsAtOnce  = 64  // the most callers, each waiting for an agent
	agentSteps    = 5   // steps of each run of agent-steps
	agentChildren = 100 // children of each run of agent-children
	agentParallel = 100 // steps at the same time of each run of agent-parallel
	warmUps       = 3
	whatAlone     = "alone"
)

// agents is a server and a worker of the SDK. As target process, the server is embedded
// in the bench, without a socket. As target http it is a process of its own.
type agents struct {
	server interface {
		cpuMeter
		close() error
	}
	c      *client.Client // of the callers; the worker has one of its own
	stop   context.CancelFunc
	worked chan error
	ctx    context.Context // ends when the worker does, with the reason
}

// agents opens a server on a place, and starts a worker with the registered handlers.
func (p *place) agents(ctx context.Context, target string, register func(*worker.Worker)) (*agents, error) {
	a := &agents{worked: make(chan error, 1)}
	var mine *client.Client
	if target == targetHTTP {
		t, err := openServer(ctx, p, "node")
		if err != nil {
			return nil, err
		}
		a.server = t
		a.c, mine = client.New(t.url, t.key, client.Options{}), client.New(t.url, t.key, client.Options{})
	} else {
		t, err := openEmbedded(ctx, p)
		if err != nil {
			return nil, err
		}
		a.server = t
		a.c = t.client(t.key)
		mine = a.c
	}
	w := worker.New(mine, worker.Options{Slots: p.slots(), AgentSlots: agentsAtOnce})
	register(w)
	working, stop := context.WithCancel(ctx)
	alive, end := context.WithCancelCause(ctx)
	a.stop, a.ctx = stop, alive
	go func() {
		err := w.Run(working)
		mine.Close()
		end(err)
		a.worked <- err
	}()
	return a, nil
}

// close ends the worker, and then the server.
func (a *agents) close() error {
	a.stop()
	err := <-a.worked
	a.c.Close()
	return errors.Join(err, a.server.close())
}

// do starts a run and waits for its end.
func (a *agents) do(sub perdure.Submission) (*api.Run, error) {
	run, deferred, err := a.c.Run(a.ctx, sub, lastRuns)
	switch {
	case a.ctx.Err() != nil:
		return nil, context.Cause(a.ctx)
	case err != nil:
		return nil, err
	case deferred:
		return nil, fmt.Errorf("a run has not ended after %s", lastRuns)
	case run.State != perdure.Completed:
		return nil, fmt.Errorf("a run is %s: %+v", run.State, run.Error)
	}
	return run, nil
}

// agentRun returns a submission of an agent.
func agentRun(input any) perdure.Submission {
	return perdure.Submission{Kind: agentKind, Class: perdure.Agent, Input: client.JSON(input)}
}

// embeddedTarget is a server in this process.
type embeddedTarget struct {
	server *embedded.Server
	key    string
}

func openEmbedded(ctx context.Context, p *place) (*embeddedTarget, error) {
	policy := p.policy()
	opt := embedded.Options{Dir: p.dir, Store: p.url, Doorbell: p.doorbell, Policy: &policy}
	if p.url != "" {
		opt.Key = p.key
	}
	srv, err := embedded.Open(opt)
	if err != nil {
		return nil, err
	}
	p.key = srv.Key()
	t := &embeddedTarget{server: srv}
	if t.key, err = tenantKey(ctx, t.client(srv.Key())); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

func (t *embeddedTarget) client(key string) *client.Client {
	return client.New("http://perdure", key, client.Options{Transport: t.server.Transport()})
}

func (t *embeddedTarget) cpu() time.Duration { return ownCPU() }

func (t *embeddedTarget) close() error { return t.server.Close() }

// measureAgentSteps runs agents that record empty steps, one after the other.
func measureAgentSteps(ctx context.Context, b *Bench, p *place, target string) ([]Figure, error) {
	return b.waitingCallers(ctx, p, target, agentRun(agentSteps), agentSteps, func(w *worker.Worker) {
		worker.Agent(w, agentKind, func(ctx *agent.Context, n int) (sum int, err error) {
			for range n {
				one, err := agent.Step(ctx, "look", func(context.Context) (int, error) { return 1, nil })
				if err != nil {
					return 0, err
				}
				sum += one
			}
			return sum, nil
		})
	})
}

// measureAgentChildren runs agents that spawn children without work and join them.
func measureAgentChildren(ctx context.Context, b *Bench, p *place, target string) ([]Figure, error) {
	return b.waitingCallers(ctx, p, target, agentRun(agentChildren), agentChildren, func(w *worker.Worker) {
		worker.Handle(w, kind, func(context.Context, json.RawMessage) (int, error) { return 1, nil })
		worker.Agent(w, agentKind, func(ctx *agent.Context, n int) (sum int, err error) {
			children := make([]*agent.Future[int], n)
			for i := range children {
				children[i] = agent.Spawn[int](ctx, kind, benchRun.Input)
			}
			ones, err := agent.JoinAll(ctx, children...)
			for _, one := range ones {
				sum += one
			}
			return sum, err
		})
	})
}

// measureAgentParallel runs agents that record many steps at the same time.
func measureAgentParallel(ctx context.Context, b *Bench, p *place, target string) ([]Figure, error) {
	return b.waitingCallers(ctx, p, target, agentRun(agentParallel), agentParallel, func(w *worker.Worker) {
		worker.Agent(w, agentKind, func(ctx *agent.Context, n int) (sum int, err error) {
			ones, err := agent.Parallel(ctx, "look", make([]struct{}, n),
				func(context.Context, struct{}) (int, error) { return 1, nil }, agent.MapOptions{Limit: n})
			for _, one := range ones.Results {
				sum += one
			}
			return sum, err
		})
	})
}

// waitingCallers measures callers that start one run after the other and wait for its result: one
// caller alone, and then many at once. A run counts when its caller has the result that is wanted.
func (b *Bench) waitingCallers(ctx context.Context, p *place, target string, sub perdure.Submission, want int,
	register func(*worker.Worker)) (f []Figure, err error) {
	a, err := p.agents(ctx, target, register)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	once := func() error {
		run, err := a.do(sub)
		if err != nil {
			return err
		}
		got, err := client.Result[int](run)
		if err == nil && got != want {
			err = fmt.Errorf("a run results in %d, not in %d", got, want)
		}
		return err
	}
	callers := func(atOnce int, s *samples) error {
		begin := time.Now()
		return parallel(atOnce, func(int) error {
			for time.Since(begin) < b.Duration {
				at := time.Now()
				if err := once(); err != nil {
					return err
				}
				s.add(time.Since(at))
				b.did(1)
			}
			return nil
		})
	}
	for range warmUps {
		if err := once(); err != nil {
			return nil, err
		}
	}
	var alone, many samples
	b.phase("one at a time")
	if err := callers(1, &alone); err != nil {
		return nil, err
	}
	atOnce := min(b.Callers, agentsAtOnce)
	b.phase("%d at once", atOnce)
	w := startWatch(a.server)
	if err := callers(atOnce, &many); err != nil {
		return nil, err
	}
	return []Figure{w.throughput("", closedLoops, many.count(), &many), alone.latencies(whatAlone, closedLoops)}, nil
}
