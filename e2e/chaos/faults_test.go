package chaos

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/tcpline"
)

// A happening is a fault that was there.
type happening struct {
	step
	span
	err error
}

// A nemesis executes a plan.
type nemesis struct {
	*fleet
	begun time.Time // of the plan
	mu    sync.Mutex
	pgMu  sync.Mutex
	did   []happening
}

// run executes the plan, and returns when everything is well again.
func (n *nemesis) run(plan []step) {
	begun := time.Now()
	if n.begun.IsZero() {
		n.begun = begun
	}
	var all sync.WaitGroup
	for _, s := range plan {
		time.Sleep(time.Until(begun.Add(s.At)))
		all.Go(func() {
			h := happening{step: s}
			h.from = monotonic()
			h.err = n.do(s)
			h.to = monotonic()
			n.mu.Lock()
			defer n.mu.Unlock()
			n.did = append(n.did, h)
		})
	}
	all.Wait()
}

// more executes steps after the plan, and gives them with their instants in it.
func (n *nemesis) more(steps []step) []step {
	at := time.Since(n.begun)
	n.run(steps)
	out := slices.Clone(steps)
	for i := range out {
		out[i].At += at
	}
	return out
}

// errGone is the error of a fault whose process was not there.
var errGone = errors.New("there was no process")

// do breaks one thing, waits, and mends it.
func (n *nemesis) do(s step) error {
	pause := func() { time.Sleep(s.For) }
	there := func(was bool) error {
		if !was {
			return errGone
		}
		return nil
	}
	switch s.Fault {
	case nothing:
		pause()
	case nodeKill, nodeTerm, workerKill, stepKill:
		p, sig := n.nodes[s.Target], syscall.SIGKILL
		if s.Fault == workerKill || s.Fault == stepKill {
			p = n.workers[s.Target]
		}
		if s.Fault == stepKill {
			n.awaitEffect(s.Target)
		}
		if s.Fault == nodeTerm {
			sig = syscall.SIGTERM
		}
		was := p.take(sig)
		pause()
		p.give()
		return there(was)
	case nodeStop, workerStop:
		p := n.nodes[s.Target]
		if s.Fault == workerStop {
			p = n.workers[s.Target]
		}
		was := p.signal(syscall.SIGSTOP)
		pause()
		p.signal(syscall.SIGCONT)
		return there(was)
	case workerTime:
		return there(n.workers[s.Target].signal(syscall.SIGUSR1))
	case pgSmart, pgFast, pgNow, pgKill:
		return n.restart(s)
	case natsKill:
		n.nats.Kill()
		pause()
		n.nats.Restart()
	case natsStop:
		n.nats.Freeze()
		pause()
		n.nats.Thaw()
	default:
		line := n.lines[s.Target][s.Edge]
		line.Set(map[fault]tcpline.State{lineCut: {Cut: true}, lineDelay: {Delay: s.Delay},
			lineHalf: {HoldUp: true, HoldDown: true}, lineUp: {HoldUp: true}, lineDown: {HoldDown: true}}[s.Fault])
		pause()
		if s.Reset {
			line.Reset()
		}
		line.Set(tcpline.State{})
	}
	return nil
}

// awaitEffect waits for the next effect of a worker, for a while: the worker may be down.
func (n *nemesis) awaitEffect(worker int) {
	seen := make(chan struct{})
	n.effects.Store(fmt.Sprintf("w%d.", worker), seen)
	select {
	case <-seen:
	case <-time.After(stepWait):
	}
}

// restart takes PostgreSQL down for a while. A smart shutdown waits for its connections. The operator loses
// patience with them after the step's time: then they are cut.
func (n *nemesis) restart(s step) error {
	n.pgMu.Lock()
	defer n.pgMu.Unlock()
	if s.Fault == pgSmart {
		halted := make(chan error, 1)
		go func() { halted <- n.pg.Halt(pgtest.Smart) }()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		wait := time.After(s.For)
		for over := false; ; {
			select {
			case err := <-halted:
				if err != nil {
					return err
				}
				return n.pg.Launch()
			case <-wait:
				over = true
			case <-tick.C:
			}
			if over {
				for i := range n.lines {
					n.lines[i]["PostgreSQL"].Reset()
				}
			}
		}
	}
	mode := map[fault]pgtest.Mode{pgFast: pgtest.Fast, pgNow: pgtest.Immediate, pgKill: pgtest.Kill}[s.Fault]
	if err := n.pg.Halt(mode); err != nil {
		return err
	}
	time.Sleep(s.For)
	return n.pg.Launch()
}

// recovery is how long a node may take to notice that a fault is over. It includes that of its connections.
const recovery = time.Second

// up are the times in which at least one node could do its work: it said so, neither it nor its line to
// PostgreSQL nor PostgreSQL was broken, and no node was frozen.
func (n *nemesis) up() (out []span) {
	for i, spans := range n.healthy {
		for _, s := range spans {
			broken := false
			for _, d := range n.did {
				// The open transaction of a frozen node locks rows, also for the other nodes.
				frozen := d.Fault == nodeStop || d.Edge == "PostgreSQL" && d.Fault != lineCut && d.Fault != lineDelay
				touches := frozen || strings.HasPrefix(string(d.Fault), "PostgreSQL") || d.Target == i &&
					(d.Edge == "PostgreSQL" || d.Fault == nodeKill || d.Fault == nodeTerm)
				broken = broken || touches && s.to > d.from && s.from < d.to+int64(recovery)
			}
			if !broken {
				out = append(out, s)
			}
		}
	}
	return united(out)
}
