package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A fault is a kind of thing that is broken.
type fault string

// The faults. Those of lines are about one of the edges.
const (
	nodeKill   fault = "kill -9 of a node"
	nodeTerm   fault = "SIGTERM of a node"
	nodeStop   fault = "SIGSTOP of a node"
	workerKill fault = "kill -9 of a worker"
	stepKill   fault = "kill -9 of a worker in a step" // after the step's effect, before it is recorded
	workerStop fault = "SIGSTOP of a worker"
	workerTime fault = "jump of a worker's clock"
	pgSmart    fault = "PostgreSQL restarted, smart"
	pgFast     fault = "PostgreSQL restarted, fast"
	pgNow      fault = "PostgreSQL restarted, immediate"
	pgKill     fault = "PostgreSQL killed with -9"
	natsKill   fault = "NATS gone"
	natsStop   fault = "NATS silent"
	lineCut    fault = "line cut"
	lineDelay  fault = "line delayed"
	lineHalf   fault = "line half open"
	lineUp     fault = "line one-way, requests lost"
	lineDown   fault = "line one-way, answers lost"
	nothing    fault = "nothing" // more time without a fault
)

// The edges between processes. Each node has one of each.
var edges = []string{"clients", "workers", "PostgreSQL", "NATS"}

// A step of a plan breaks one thing for a while.
type step struct {
	At, For time.Duration // from the beginning of the plan
	Fault   fault
	Target  int    // of the nodes or workers
	Edge    string // of a line
	Delay   time.Duration
	Reset   bool // a line that is mended loses its connections, with the bytes that it held back
}

func (s step) String() string {
	text := fmt.Sprintf("%7.2fs for %5.2fs  %s", s.At.Seconds(), s.For.Seconds(), s.Fault)
	switch {
	case s.Edge != "":
		text += fmt.Sprintf(" between node %d and %s", s.Target, s.Edge)
	case s.Fault != nothing && !strings.HasPrefix(string(s.Fault), "PostgreSQL") &&
		!strings.HasPrefix(string(s.Fault), "NATS"):
		text += fmt.Sprintf(" %d", s.Target)
	}
	if s.Delay > 0 {
		text += fmt.Sprintf(" by %s", s.Delay)
	}
	if s.Reset {
		text += ", reset at the end"
	}
	return text
}

// stepWait is how long a kill in a step waits for the step.
const stepWait = 3 * time.Second

// A shape says how long a fault lasts at least and at most, in milliseconds.
type shape struct {
	fault     fault
	from, to  int
	onWorkers bool
}

// last is 1 for the fault that comes last in a round.
func last(s shape) int {
	if s.fault == workerStop {
		return 1
	}
	return 0
}

var shapes = []shape{
	{fault: nodeKill, from: 300, to: 3000}, {fault: nodeTerm, from: 300, to: 2000},
	{fault: nodeStop, from: 1000, to: 6000},
	{fault: workerKill, from: 100, to: 2000, onWorkers: true},
	{fault: stepKill, from: 100, to: 2000, onWorkers: true},
	// Longer than a lease, also after a gap, which holds its expiry back for another one.
	{fault: workerStop, from: 6000, to: 9000, onWorkers: true},
	{fault: workerTime, from: 100, to: 100, onWorkers: true},
	{fault: pgSmart, from: 1000, to: 2500}, {fault: pgFast, from: 0, to: 1500},
	{fault: pgNow, from: 0, to: 1500}, {fault: pgKill, from: 0, to: 1500},
	{fault: natsKill, from: 500, to: 5000}, {fault: natsStop, from: 500, to: 5000},
	{fault: lineCut, from: 200, to: 4000}, {fault: lineDelay, from: 2000, to: 8000},
	{fault: lineHalf, from: 1000, to: 6000}, {fault: lineUp, from: 1000, to: 5000},
	{fault: lineDown, from: 1000, to: 5000},
}

// wants are the faults of a plan.
func wants(nats bool) (out []fault) {
	for _, s := range shapes {
		if nats || s.fault != natsKill && s.fault != natsStop {
			out = append(out, s.fault)
		}
	}
	return out
}

// newPlan makes a plan. It has rounds, each with every fault once, until it is long enough. Faults overlap,
// but no two break the same thing.
func newPlan(seed uint64, length time.Duration, nodes, workers int, nats bool) (plan []step) {
	rng := rand.New(rand.NewPCG(seed, 1))
	busy := make(map[string]time.Duration)
	between := func(from, to int) time.Duration {
		return time.Duration(from+rng.IntN(to-from+1)) * time.Millisecond
	}
	at := 500 * time.Millisecond
	for len(plan) == 0 || at < length {
		round := slices.Clone(shapes)
		rng.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		// Stopped last, a worker loses its leases: a gap, which holds their expiry back, comes seldom then.
		slices.SortStableFunc(round, func(a, b shape) int { return last(a) - last(b) })
		for _, s := range round {
			if !slices.Contains(wants(nats), s.fault) {
				continue
			}
			x := step{At: at, For: between(s.from, s.to), Fault: s.fault}
			of := nodes
			if s.onWorkers {
				of = workers
			}
			x.Target = rng.IntN(of)
			thing := string(s.fault)
			switch kind, _, _ := strings.Cut(thing, " "); {
			case kind == "line":
				x.Edge = edges[rng.IntN(len(edges))]
				if !nats && x.Edge == "NATS" {
					x.Edge = "PostgreSQL"
				}
				x.Reset = rng.IntN(2) == 0
				if s.fault == lineDelay {
					x.Delay = between(10, 150)
				}
				thing = fmt.Sprint(x.Edge, x.Target)
			case kind == "PostgreSQL" || kind == "NATS":
				thing, x.Target = kind, 0
			case s.onWorkers:
				thing = fmt.Sprint("worker", x.Target)
			default:
				thing = fmt.Sprint("node", x.Target)
			}
			x.At = max(x.At, busy[thing])
			busy[thing] = x.At + x.For + 500*time.Millisecond
			if s.fault == stepKill {
				busy[thing] += stepWait
			}
			plan = append(plan, x)
			at += between(200, 1400)
		}
	}
	slices.SortStableFunc(plan, func(a, b step) int { return int(a.At - b.At) })
	return plan
}

// The faults that lead to a situation, if the plan did not. The rounds have other targets.

// lostAnswers has all calls lose their answers over the lines of an edge, three times: a call has to be under way.
func lostAnswers(edge string) func(int) []step {
	return func(int) (out []step) {
		for k := range 3 {
			for i := range nodeCount {
				out = append(out, step{At: time.Duration(k) * 1600 * time.Millisecond, For: 800 * time.Millisecond,
					Fault: lineDown, Target: i, Edge: edge, Reset: true})
			}
		}
		return out
	}
}

// frozenWorker has a worker lose its leases.
func frozenWorker(round int) []step {
	return []step{{For: 6 * time.Second, Fault: workerStop, Target: round % workerCount}}
}

// killedInStep kills a worker after an effect that is not recorded yet.
func killedInStep(round int) []step {
	return []step{{For: 100 * time.Millisecond, Fault: stepKill, Target: round % workerCount}}
}

// noDatabase is a restart that takes longer than nodes try to reconnect.
func noDatabase(int) []step { return []step{{For: 6 * time.Second, Fault: pgFast}} }

// calm is time for what comes up by itself.
func calm(int) []step { return []step{{For: 3 * time.Second, Fault: nothing}} }
