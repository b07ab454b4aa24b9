package sim

import (
	"time"

	"github.com/perdure/perdure"
)

// config is what a seed draws before anything happens: the policy, the size of the workload, and
// which faults there are with their probabilities.
type config struct {
	policy  perdure.Policy
	tempo   time.Duration // approximate time of a step of work
	budget  int           // batches after which the faults stop
	horizon time.Duration // time after which the faults stop
	runs    int           // the most runs that clients submit
	clients int
	workers int
	slots   int
	poll    time.Duration // how often a worker polls without a ring
	latency time.Duration // the longest time of one message
	gather  time.Duration // how long a node collects a batch
	release bool          // every wait is answered after the faults have stopped
	faults  faults
	opRows  int  // the budget of an operation, small so that many are split into steps
	hostile bool // there is a hostile tenant
	even    bool // no fault depends on the number of statements
}

// faults has probabilities per occasion, and mean times between faults. Zero means never.
type faults struct {
	requestLost, replyLost, twice          float64 // per message
	stmtBefore, stmtAfter                  float64 // per statement
	commitBefore, commitAfter              float64 // per commit
	dieInside, dieAfter, dieCommitting     float64 // per statement, per commit
	interleave                             float64 // per batch: a batch of the other node inside of it
	crash, stall, hang, again, release     float64 // per action of a worker
	rude                                   float64 // per lost lease: the worker ignores it
	defect                                 float64 // per action of a worker: its code has a defect
	bellLost, bellTwice                    float64 // per ring
	nodeCrash, absence, bellForged, jumped time.Duration
}

const hour = time.Hour

// draw returns the configuration of a seed.
func draw(r stream) config {
	c := config{
		budget:  r.IntN(500) + 250,
		runs:    r.IntN(20) + 8,
		clients: r.IntN(3) + 1,
		workers: r.IntN(4) + 2,
		slots:   r.IntN(6) + 1,
		latency: r.scaled(2*time.Millisecond, 300*time.Millisecond),
		gather:  r.scaled(time.Millisecond, 100*time.Millisecond),
		release: r.chance(0.8),
		policy:  drawPolicy(r),
	}
	c.tempo = max(200*time.Millisecond, min(c.policy.Lease, 20*time.Second))
	c.poll = r.scaled(max(500*time.Millisecond, c.tempo/3), 3*c.tempo+time.Second)
	c.horizon = 4 * hour
	c.faults = drawFaults(r, c.tempo)
	return c
}

// drawHolds draws how often code has defects, and how long they may hold a run. It has a stream of its
// own.
func (c *config) drawHolds(r stream) {
	c.policy.HoldTimeout = r.scaled(10*time.Second, hour)
	c.policy.HoldTimeoutThread = r.scaled(5*time.Second, 10*time.Minute)
	c.policy.HoldDefects = r.chance(0.9)
	if r.chance(0.55) {
		c.faults.defect = r.share(0.02, 0.5)
	}
}

// makeEven leaves out faults that depend on the number of statements. A server still dies when it
// commits, and the other node still interleaves between statements of different kinds.
func (c *config) makeEven() {
	f := &c.faults
	f.dieCommitting = f.commitBefore
	f.stmtBefore, f.stmtAfter, f.dieInside, f.commitBefore, f.commitAfter = 0, 0, 0, 0, 0
	c.even, c.budget, c.runs = true, c.budget/4, c.runs/2+2
}

func drawPolicy(r stream) perdure.Policy {
	p := perdure.DefaultPolicy()
	p.Lease = r.scaled(time.Second, 10*time.Minute)
	unit := min(p.Lease, 20*time.Second)
	p.WatchdogInterval = r.scaled(max(200*time.Millisecond, unit/8), max(time.Second, unit))
	p.GapAfter = max(2*p.WatchdogInterval, r.scaled(time.Second, 10*time.Second))
	p.GapSpare = r.scaled(time.Second, 30*time.Second)
	p.PatrolEvery = r.scaled(time.Second, 30*time.Second)
	p.CancelGrace = r.scaled(time.Second, time.Minute)
	p.CleanupGrace = r.scaled(time.Second, 5*time.Minute)
	p.DispatchedRetry = r.scaled(500*time.Millisecond, 10*time.Second)
	p.DispatchedRetryMax = r.scaled(5*time.Second, 5*time.Minute)
	p.DispatchedTimeout = r.scaled(2*time.Second, time.Minute)
	p.MaxGrants = r.IntN(9) + 2
	p.InboxProcessingTimeout = r.scaled(time.Second, time.Minute)
	p.SuspendTimeout = r.scaled(5*time.Second, 10*time.Minute)
	p.PendingWakeup = r.scaled(time.Second, 10*time.Second)
	p.PendingWakeupSkip = r.scaled(10*time.Second, 10*time.Minute)
	p.ActiveReap = time.Duration(r.IntN(4)+1) * p.Lease
	p.StaleAfter, p.DeadAfter = p.ActiveReap/4, p.ActiveReap/2
	p.QueuedAlert = r.scaled(5*time.Second, 5*time.Minute)
	p.Silent = r.scaled(time.Second, time.Minute)
	p.NoProgress = r.scaled(5*time.Second, 10*time.Minute)
	p.WorkerOffline = r.scaled(5*time.Second, 2*time.Minute)
	p.BackoffBase = r.scaled(100*time.Millisecond, 5*time.Second)
	p.BackoffMax = r.scaled(5*time.Second, 5*time.Minute)
	p.MaxAttempts = r.IntN(5) + 1
	p.HeartbeatEvery = r.scaled(5*time.Second, time.Minute)
	p.WaiterTTL = r.scaled(2*time.Second, 30*time.Second)
	p.DetachGrace = r.scaled(time.Second, 10*time.Second)
	p.Timeouts = perdure.Timeouts{
		Task:    perdure.TimeoutLimits{Default: r.scaled(10*unit, 100*unit), Max: 6 * hour},
		Agent:   perdure.TimeoutLimits{Default: r.scaled(30*unit, 300*unit), Max: 6 * hour},
		Process: perdure.TimeoutLimits{Default: r.scaled(10*unit, 200*unit), Max: 6 * hour},
	}
	return p
}

// drawFaults draws for each kind of fault whether it occurs at all (swarm testing), so that a
// frequent fault can't hide another.
func drawFaults(r stream, tempo time.Duration) faults {
	share := func(a, b float64) float64 {
		if !r.chance(0.55) {
			return 0
		}
		return r.share(a, b)
	}
	every := func(a, b time.Duration) time.Duration {
		if !r.chance(0.5) {
			return 0
		}
		return r.scaled(a, b)
	}
	return faults{
		requestLost: share(0.005, 0.15), replyLost: share(0.005, 0.2), twice: share(0.005, 0.2),
		stmtBefore: share(0.0002, 0.01), stmtAfter: share(0.0002, 0.01),
		commitBefore: share(0.001, 0.02), commitAfter: share(0.001, 0.02),
		dieInside: share(0.0001, 0.002), dieAfter: share(0.001, 0.01),
		interleave: share(0.05, 0.7),
		crash:      share(0.01, 0.15), stall: share(0.01, 0.2), hang: share(0.005, 0.1), again: share(0.01, 0.3),
		release:  share(0.005, 0.05),
		rude:     share(0.1, 1),
		bellLost: share(0.05, 1), bellTwice: share(0.05, 0.5),
		nodeCrash: every(4*tempo, 60*tempo), absence: every(8*tempo, 100*tempo),
		bellForged: every(2*tempo, 50*tempo), jumped: every(5*tempo, 100*tempo),
	}
}
