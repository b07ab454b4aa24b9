package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/sentinel"
	"github.com/perdure/perdure/internal/server/store"
)

// Processes: runners that outlive the servers, the folders that they leave, and the monitor of node A.
//
// A folder is a model of the files: lock, count, result and output are fields. The product
// judges them (sentinel.Memory), and its operations write the consequences. Everything is drawn from
// a stream of its own. A seed without processes has the history that it always had.

// processQueue is the queue of processes. Workers do not poll it.
const processQueue = "processes"

// processes is everything about processes of one simulation.
type processes struct {
	s       *sim
	dice    stream
	folders map[perdure.RunID]*folder
	order   []perdure.RunID
	left    int // submissions to come
	asking  bool

	every  time.Duration // how often a runner writes its sentinel
	scan   time.Duration // how often the monitor looks
	window time.Duration // how long a process is watched after a start
	crash  float64       // per step of a runner
	hang   float64
	cut    float64 // per step: the network is away for a while

	// memory is the monitor's. It is lost with its node, whose start gen tells.
	memory map[perdure.RunID]*sentinel.Memory
	gen    int
}

// A folder is what a process has on disk.
type folder struct {
	run     perdure.RunID
	epoch   int64
	former  []int64 // epochs from before restores
	counter int64
	locked  bool
	output  int64
	result  *perdure.Commit
	runner  *runner
}

// A runner executes one run. It needs no server to go on.
type runner struct {
	p      *processes
	f      *folder
	alive  bool
	hung   bool
	steps  int // left until the command ends
	logged int64
	cancel bool
	cutTo  perdure.Instant // the network is away until then
	moved  int64           // the epoch of which the log says that it has the output so far; zero: the first one
}

// addProcesses adds processes to some seeds.
func (s *sim) addProcesses() {
	dice := newStream(s.seed, "processes")
	if !dice.chance(0.4) {
		return
	}
	p := &processes{s: s, dice: dice, folders: make(map[perdure.RunID]*folder), left: dice.IntN(6) + 2,
		memory: make(map[perdure.RunID]*sentinel.Memory)}
	beat := max(s.cfg.policy.DeadAfter/8, 100*time.Millisecond)
	p.every, p.scan = dice.scaled(beat/2, beat), dice.scaled(beat/2, 2*beat)
	p.window = dice.scaled(s.cfg.policy.DeadAfter/2, 4*s.cfg.policy.DeadAfter)
	share := func(a, b float64) float64 {
		if !dice.chance(0.6) {
			return 0
		}
		return dice.share(a, b)
	}
	p.crash, p.hang, p.cut = share(0.02, 0.2), share(0.01, 0.1), share(0.02, 0.3)
	s.processes = p
	s.after(dice.between(0, s.cfg.tempo), p.submit)
	s.after(dice.between(0, s.cfg.poll), p.poll)
	s.after(dice.between(0, p.scan), p.look)
}

// submit submits a process.
func (p *processes) submit() {
	s := p.s
	if s.faultsStopped || p.left == 0 {
		return
	}
	p.left--
	n := p.dice.Uint64()>>12 + 1
	sub := perdure.Submission{Kind: "exec", Queue: processQueue, Class: perdure.Process,
		MaxAttempts: p.dice.IntN(3) + 1}
	sub.Input, _ = json.Marshal(input{n, 0})
	key := s.name("s")
	s.model.asked(n, key)
	s.sendUntilAnswered(func() kernel.Op { return &life.Submit{Tenant: tenant, Submission: sub, Key: key} }, nil)
	s.after(p.dice.between(s.cfg.tempo, 6*s.cfg.tempo), p.submit)
}

// poll leases processes for the pool of runners.
func (p *processes) poll() {
	s := p.s
	s.after(p.dice.between(s.cfg.poll/2, s.cfg.poll), p.poll)
	if p.asking || !s.reachable() {
		return
	}
	p.asking = true
	sure := s.promises.chance(0.5)
	s.send(func() kernel.Op {
		return &dispatch.Claim{Tenant: tenant, Worker: "pool", Slots: 1000, Start: true, Confirms: sure,
			Queues: []string{processQueue}}
	}, func(r reply) {
		p.asking = false
		if r.lost || r.err != nil {
			return
		}
		for _, g := range r.op.(*dispatch.Claim).Grants {
			if sure {
				s.confirmed(g, "pool", func() { p.begin(g) })
			} else {
				p.begin(g)
			}
		}
	})
}

// begin starts the runner of a grant, unless another one has the folder locked.
func (p *processes) begin(g dispatch.Grant) {
	s := p.s
	f := p.folders[g.Run.ID]
	switch {
	case f == nil:
		f = &folder{run: g.Run.ID}
		p.folders[f.run] = f
		p.order = append(p.order, f.run)
	case f.locked || f.epoch >= g.Run.Epoch:
		s.sometimes("a folder was locked by the runner before")
		return
	}
	r := &runner{p: p, f: f, alive: true, steps: p.dice.IntN(8) + 1, cancel: g.Cancel}
	*f = folder{run: f.run, epoch: g.Run.Epoch, counter: 1, locked: true, runner: r}
	s.say("process %s@%d starts", s.short(f.run), f.epoch)
	s.began(&g.Run, g.Cancel)
	r.beat()
	s.after(p.every, r.write)
	s.after(p.dice.between(0, s.pace), r.step)
}

// exit ends runner and command. The kernel releases the lock.
func (r *runner) exit() {
	if r.alive {
		r.alive, r.f.locked = false, false
		r.p.s.say("process %s@%d is gone", r.p.s.short(r.f.run), r.f.epoch)
	}
}

// write writes the sentinel.
func (r *runner) write() {
	if !r.alive || r.hung {
		return
	}
	r.f.counter++
	r.p.s.after(r.p.every, r.write)
}

// away tells whether the runner reaches no server.
func (r *runner) away() bool { return r.p.s.now < r.cutTo || !r.p.s.reachable() }

// beat sends heartbeats.
func (r *runner) beat() {
	s, f := r.p.s, r.f
	if !r.alive || r.hung {
		return
	}
	s.after(max(s.cfg.policy.Lease/3, 100*time.Millisecond), r.beat)
	if r.away() {
		return
	}
	b := life.BeatOf{Lease: life.Lease{RunID: f.run, Epoch: f.epoch}}
	s.send(func() kernel.Op { return &life.Heartbeat{Tenant: tenant, Worker: "pool", Beats: []life.BeatOf{b}} },
		func(re reply) {
			if re.lost || re.err != nil || !r.alive || r.hung {
				return
			}
			op := re.op.(*life.Heartbeat)
			for _, l := range op.Lost {
				switch {
				case l.Epoch != f.epoch:
				case l.NewEpoch > f.epoch:
					s.sometimes("a process went on under a new epoch")
					f.renew(l.NewEpoch)
				case l.Error.Code == perdure.CodeRestored: // it is looked for
				default:
					s.sometimes("a runner of an older epoch was told to stop")
					r.exit()
				}
			}
			r.cancel = r.cancel || len(op.Cancel) > 0
		})
}

// renew takes the epoch under which a restored run goes on.
func (f *folder) renew(epoch int64) {
	f.former = append(f.former, f.epoch)
	f.epoch = epoch
	if f.result != nil {
		f.result.Epoch, f.result.ID = epoch, fmt.Sprintf("end-%d", epoch)
	}
}

// step lets the command work, and sends what it has written.
func (r *runner) step() {
	s, p, f := r.p.s, r.p, r.f
	if !r.alive || r.hung {
		return
	}
	if !s.faultsStopped {
		switch {
		case p.dice.chance(p.crash):
			s.injected("runner killed")
			r.exit()
			return
		case p.dice.chance(p.hang):
			s.injected("runner stopped")
			r.hung = true
			return
		case p.dice.chance(p.cut):
			s.injected("runner cut off")
			r.cutTo = s.now.Add(p.dice.scaled(time.Second, 4*s.cfg.policy.DeadAfter))
		}
	}
	s.after(p.dice.between(s.pace/4, s.pace), r.step)
	if f.result == nil {
		if f.output += int64(p.dice.IntN(3)); r.steps == 0 || r.cancel {
			r.end()
		}
		r.steps--
	}
	if !r.away() {
		r.forward()
	}
}

// end leaves the result of the command.
func (r *runner) end() {
	f := r.f
	f.result = &perdure.Commit{ID: fmt.Sprintf("end-%d", f.epoch), RunID: f.run, Epoch: f.epoch,
		Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete,
			Result: json.RawMessage(fmt.Sprintf(`{"output":%d}`, f.output))}}
	if r.cancel {
		f.result.Outcome = &perdure.Outcome{Type: perdure.OutcomeCancelled}
	}
}

// forward sends the next part of the output, or the result.
func (r *runner) forward() {
	s, f := r.p.s, r.f
	if len(f.former) > 0 && r.moved != f.epoch {
		r.moveOutput()
		return
	}
	c := f.next(f.epoch, r.logged, r.logged < f.output)
	if c == nil {
		return
	}
	s.send(copyOf(c, "pool"), func(re reply) {
		if !r.alive || r.hung || re.unsure() {
			return
		}
		op := re.op.(*life.Commit)
		switch {
		case perdure.CodeOf(re.err) == perdure.CodeReused:
			r.logged = s.loggedOutput(f, f.epoch)
		case c.Epoch != f.epoch: // it has got another one meanwhile
		case s.restoredSince(f):
		case re.err != nil || op.Refused != nil || c.Outcome != nil:
			r.exit()
		default:
			r.logged = max(r.logged, outputAfter(c))
		}
	})
}

// moveOutput says that the output in the log is of the runner's new epoch.
func (r *runner) moveOutput() {
	s, f := r.p.s, r.f
	at := s.loggedOutput(f, f.epoch)
	c, _ := jobdir.MoveOutput(f.run, f.epoch, jobdir.Offsets{Stdout: at})
	s.send(copyOf(&c, "pool"), func(re reply) {
		if !r.alive || r.hung || re.unsure() || c.Epoch != f.epoch || re.err != nil ||
			re.op.(*life.Commit).Refused != nil {
			return // the next step tries again, or a heartbeat tells why not
		}
		r.logged, r.moved = at, f.epoch
	})
}

// restoredSince tells whether a runner's refusal is that of a store that was restored: it waits for
// its new epoch.
func (s *sim) restoredSince(f *folder) bool {
	r := s.model.rows[f.run]
	return r != nil && life.Outlived(&r.Run, f.epoch)
}

// next makes the next commit from an offset: output while there is some, then the result.
func (f *folder) next(epoch, from int64, more bool) *perdure.Commit {
	if !more {
		if f.result == nil || f.result.Epoch == epoch {
			return f.result
		}
		c := *f.result
		c.Epoch, c.ID = epoch, fmt.Sprintf("end-%d", epoch)
		return &c
	}
	view, _ := json.Marshal(jobdir.Logged{Epoch: epoch, Offsets: jobdir.Offsets{Stdout: f.output}})
	data, _ := json.Marshal(jobdir.Output{Stream: jobdir.Stdout, Offset: from, Size: f.output - from})
	return &perdure.Commit{ID: fmt.Sprintf("output-%d-%d-0", epoch, from), RunID: f.run, Epoch: epoch,
		Events: []perdure.Emitted{{Type: jobdir.EventOutput, Data: data}},
		Views:  []perdure.View{{Name: jobdir.OutputView, Value: view}}}
}

// outputAfter returns how much output the log has after a commit of output.
func outputAfter(c *perdure.Commit) int64 {
	return jobdir.LoggedOutput(c.Views[0].Value, c.Epoch).Stdout
}

// copyOf returns a maker of operations for a commit. The engine fills in defaults, so each gets a copy.
func copyOf(c *perdure.Commit, worker string) func() kernel.Op {
	raw, _ := json.Marshal(c)
	return func() kernel.Op {
		op := &life.Commit{Tenant: tenant, Worker: worker}
		_ = json.Unmarshal(raw, &op.Commit)
		return op
	}
}

// loggedOutput reads how much of a folder's output is in the log of a run with an epoch.
func (s *sim) loggedOutput(f *folder, epoch int64) (n int64) {
	s.view(func(v *store.View) error {
		p, _, err := v.Views.Get(tenant, f.run, jobdir.OutputView)
		n = jobdir.LoggedOutput([]byte(p.Value), epoch, append(f.former, f.epoch)...).Stdout
		return err
	})
	return n
}

// look is a scan of the monitor, on node A.
func (p *processes) look() {
	s := p.s
	s.after(p.dice.between(p.scan*3/4, p.scan), p.look)
	n := s.nodes[0]
	if !n.up || s.nested > 0 {
		return
	}
	if p.gen != n.gen {
		p.gen, p.memory = n.gen, make(map[perdure.RunID]*sentinel.Memory)
		p.watch(n)
	}
	for _, id := range p.order {
		if !n.up || p.gen != n.gen || s.broken != nil {
			return
		}
		p.lookAt(n, p.folders[id])
	}
}

// do has the monitor's node decide an operation. ok is false if the node failed.
func (p *processes) do(n *node, op kernel.Op) (err error, ok bool) {
	err = n.step(op)[0]
	n.restartIfFailed()
	return err, n.up && p.gen == n.gen
}

// watch has the runs of locked folders watched, as a start does.
func (p *processes) watch(n *node) {
	for _, id := range p.order {
		f, r := p.folders[id], p.s.model.rows[id]
		if !f.locked || r == nil || r.State != perdure.Running || r.Epoch != f.epoch || !n.up {
			continue
		}
		if _, ok := p.do(n, &life.WatchProcess{Tenant: tenant, RunID: id, Epoch: f.epoch, For: p.window}); !ok {
			return
		}
	}
}

// lookAt judges one folder and acts on it.
func (p *processes) lookAt(n *node, f *folder) {
	s := p.s
	row := s.model.rows[f.run]
	if row == nil {
		return
	}
	m := p.memory[f.run]
	if m == nil {
		m = &sentinel.Memory{}
		p.memory[f.run] = m
	}
	l := sentinel.Look{Epoch: f.epoch, Counter: f.counter, Lock: sentinel.LockFree, Result: f.result != nil}
	if f.locked {
		l.Lock = sentinel.LockHeld
	}
	run := row.Run
	switch {
	case run.Former != 0 && run.Former == f.epoch:
		l.Epoch = run.Epoch // its runner does not know the new epoch yet
	case life.Outlived(&run, f.epoch) && run.Former == 0:
		if _, ok := p.do(n, &life.ReadoptProcess{Tenant: tenant, RunID: f.run, Former: f.epoch, For: p.window}); ok {
			s.sometimes("a process was found that had outlived its store")
		}
		return
	}
	moved := m.Observe(l, s.clock())
	j := m.Judge(l, &run, moved)
	if j.Beat {
		beat := &life.ProcessBeat{Beats: []life.Sentinel{{Tenant: tenant, RunID: f.run, Epoch: l.Epoch,
			Counter: f.counter}}}
		if _, ok := p.do(n, beat); !ok {
			return
		}
		if beat.Written > 0 {
			s.sometimes("a sentinel was a sign of life")
		}
	}
	switch {
	case j.Adopt:
		p.adopt(n, f, l.Epoch)
	case j.Lost:
		p.do(n, &life.LoseProcess{Tenant: tenant, RunID: f.run, Epoch: l.Epoch, Since: m.FreeSince, Why: "gone"})
	}
}

// adopt sends what a runner has left, under the epoch of its run.
func (p *processes) adopt(n *node, f *folder, epoch int64) {
	s := p.s
	for range 4 {
		from := s.loggedOutput(f, epoch)
		done := sentinel.Complete(jobdir.Offsets{Stdout: from}, jobdir.Offsets{Stdout: f.output})
		err, ok := p.do(n, copyOf(f.next(epoch, from, !done), "")())
		if !ok || err != nil && perdure.CodeOf(err) != perdure.CodeReused {
			return
		}
		if done && err == nil {
			s.sometimes("a result was adopted")
			return
		}
	}
}

// gone tells whether the process that held a run has ended. Then the run may be given up at once.
func (p *processes) gone(r *row) bool {
	if p == nil {
		return false
	}
	f := p.folders[r.ID]
	return f != nil && (f.epoch > r.Epoch || (f.epoch == r.Epoch || r.Former != 0 && f.epoch == r.Former) && !f.locked)
}

// faultsStop ends stopped runners, and the network is back.
func (p *processes) faultsStop() {
	if p == nil {
		return
	}
	for _, id := range p.order {
		if r := p.folders[id].runner; r != nil {
			if r.cutTo = 0; r.hung {
				r.exit()
			}
		}
	}
}

// checkEnd checks that the log of a process which has completed has all of its output, once.
func (p *processes) checkEnd() {
	if p == nil {
		return
	}
	s := p.s
	s.view(func(v *store.View) error {
		for _, id := range p.order {
			f, r := p.folders[id], s.model.rows[id]
			if r == nil || r.State != perdure.Completed || r.adopted || f.result == nil ||
				r.Epoch != f.epoch && r.Former != f.epoch {
				continue
			}
			lines, err := v.Events.After(tenant, id, 0, 10000)
			if err != nil {
				return err
			}
			at := int64(0)
			for _, l := range lines {
				var o jobdir.Output
				if l.Type != jobdir.EventOutput || l.Epoch != r.Epoch && l.Epoch != f.epoch &&
					!slices.Contains(f.former, l.Epoch) {
					continue
				}
				if err := json.Unmarshal([]byte(l.Data), &o); err != nil || o.Offset != at {
					s.violate("X1", "%s has output at %d after %d bytes", s.short(id), o.Offset, at)
				}
				at += o.Size
			}
			if at != f.output {
				s.violate("X1", "%s has completed, and its log has %d bytes of %d", s.short(id), at, f.output)
			}
			s.sometimes("a process completed with all of its output")
		}
		return nil
	})
}
