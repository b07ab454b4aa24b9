package sim

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// A worker leases runs and executes their plans. It may crash for ever, stall and answer late, send
// things twice, or hang while its heartbeats go on.
type worker struct {
	s      *sim
	id     string
	build  string
	alive  bool
	slots  int
	tasks  []*task
	asleep perdure.Instant // stalled until then
	pollAt perdure.Instant
	asking bool
	beatAt perdure.Instant
	wait   *standby // a poll that stands by; nil: none
}

// A standby is a worker's poll that stands by at a node.
type standby struct {
	*dispatch.Standby
	at    *node
	gen   int
	start bool
	sure  bool // the poll has promised to wait for an answer
}

// A task is one run that a worker executes. It is lost with the worker.
type task struct {
	w       *worker
	run     perdure.RunID
	epoch   int64
	attempt int
	thread  bool
	plan    *plan
	journal map[string]bool
	theirs  map[string]bool // entries of the original, if the run is a retry
	opened  map[int]bool
	// admitted are the steps that have taken their limits.
	admitted map[string]bool
	inbox    []perdure.Item
	cancel   bool // it was asked to stop
	acked    bool // it has acknowledged that
	done     bool
	hung     bool
	left     bool            // it has left an artifact
	pending  *perdure.Commit // sent, without a definite answer
	tries    int
	beats    int // heartbeats sent
	granted  perdure.Run
	turns    int // scheduled steps, of which only the last is executed
}

// addWorker adds a worker.
func (s *sim) addWorker() *worker {
	s.workerCount++
	w := &worker{s: s, id: fmt.Sprintf("w%d", s.workerCount), build: buildOf(s.workerCount), alive: true,
		slots: s.cfg.slots}
	s.workers = append(s.workers, w)
	w.pollSoon(s.work.between(0, s.cfg.poll))
	return w
}

// buildOf returns the build of the n-th worker. There are more builds than a run remembers, and some
// workers have none.
func buildOf(n int) string {
	if n%5 == 0 {
		return ""
	}
	return fmt.Sprintf("b%d", n%11)
}

// leave removes a worker. Another one is added some time later.
func (w *worker) leave() {
	s := w.s
	w.alive = false
	for i, x := range s.workers {
		if x == w {
			s.workers = append(s.workers[:i:i], s.workers[i+1:]...)
			break
		}
	}
	if len(s.workers) == 0 {
		s.addWorker()
		return
	}
	s.after(s.work.between(0, 10*s.cfg.tempo), func() {
		if !s.faultsStopped {
			s.addWorker()
		}
	})
}

// pollSoon schedules a poll after d, unless there is an earlier one.
func (w *worker) pollSoon(d time.Duration) {
	at := w.s.now.Add(d)
	if !w.alive || (w.pollAt > w.s.now && w.pollAt <= at) {
		return
	}
	w.pollAt = at
	w.s.at(at, func() {
		if w.alive && w.pollAt == at {
			w.poll()
		}
	})
}

func (w *worker) poll() {
	s := w.s
	w.pollAt = 0
	w.pollSoon(s.work.between(s.cfg.poll*3/4, s.cfg.poll))
	free := w.slots - len(w.tasks)
	if free < 1 || w.asking || s.now < w.asleep || !s.reachable() {
		return
	}
	w.asking = true
	start, sure := s.work.chance(0.5), s.promises.chance(0.5)
	s.send(func() kernel.Op {
		return &dispatch.Claim{Tenant: tenant, Worker: w.id, Build: w.build, Slots: free, Start: start, Confirms: sure,
			Queues: []string{"default", "other"}, Key: s.beside.key}
	}, func(r reply) {
		w.asking = false
		if r.lost || r.err != nil || !w.alive {
			return
		}
		op := r.op.(*dispatch.Claim)
		for _, g := range op.Grants {
			w.begin(g, start, sure)
		}
		if len(op.Grants) == 0 && w.wait == nil && s.work.chance(0.5) {
			w.standBy(op)
		}
	})
}

// standBy has a poll that found nothing stand by at a node for a while.
func (w *worker) standBy(op *dispatch.Claim) {
	s := w.s
	at := pick(s.net, s.nodes...)
	if !at.up {
		return
	}
	wait := &standby{at.e.StandBy(op), at, at.gen, op.Start, op.Confirms}
	w.wait = wait
	s.after(s.work.between(0, 2*s.cfg.poll), func() {
		if w.wait == wait {
			w.wait = nil
			if at.gen == wait.gen && at.up {
				wait.End()
			}
		}
	})
}

// handedOver gives the workers what a node's batch has granted to their standing polls. The answer may
// be lost.
func (s *sim) handedOver(n *node) {
	for _, w := range s.workers {
		wait := w.wait
		if wait == nil || wait.at != n || wait.gen != n.gen {
			continue
		}
		select {
		case <-wait.Settled():
		default:
			continue
		}
		w.wait = nil
		op := &dispatch.Claim{Worker: w.id, Grants: wait.End()}
		if len(op.Grants) == 0 {
			s.sometimes("a poll that stood by ended with its key")
			continue
		}
		s.say("%s handed over: %s", n.name, s.summary(op))
		s.judgeGrants(op)
		s.sometimes("a run was granted by the batch that made it claimable")
		var granted []perdure.Run
		for _, g := range op.Grants {
			granted = append(granted, g.Run)
		}
		s.stoodBy(granted)
		if !s.faultsStopped && s.net.chance(s.cfg.faults.requestLost) {
			s.injected("answer of a standing poll lost")
			continue
		}
		s.after(s.net.between(time.Millisecond, s.cfg.latency), func() {
			if !w.alive {
				return
			}
			for _, g := range op.Grants {
				w.begin(g, wait.start, wait.sure)
			}
		})
	}
}

// begin begins a granted run. Without start:true the work begins when the start is acknowledged. So does
// the work of a single attempt if the poll has promised it, and without a promise it begins at once.
func (w *worker) begin(g dispatch.Grant, started, sure bool) {
	s := w.s
	t := &task{w: w, run: g.Run.ID, epoch: g.Run.Epoch, attempt: g.Run.Attempt, thread: g.Run.ThreadID != "",
		cancel: g.Cancel,
		plan:   planOf(s.inputOf(&g), g.Run.Kind, s.cfg.tempo, s.model.threads), journal: make(map[string]bool),
		theirs: make(map[string]bool), opened: make(map[int]bool), admitted: make(map[string]bool),
		inbox: g.Inbox, granted: g.Run}
	if g.Run.MaxAttempts == 1 {
		started = !sure
	}
	if !t.thread {
		t.plan.withoutMessages()
	}
	if s.anews != nil {
		t.plan.anew = roundOf(&g.Run, s.inputOf(&g))
	}
	for _, j := range g.Journal {
		t.journal[j.Key], t.theirs[j.Key] = true, j.Seq <= g.Run.CopyTo
	}
	w.tasks = append(w.tasks, t)
	if g.Cancel {
		s.sometimes("a grant was marked to be cancelled")
	}
	if started {
		w.beatSoon(min(2*time.Second, s.cfg.policy.DispatchedRetry/2))
		s.began(&t.granted, t.cancel)
		t.soon()
		return
	}
	t.start()
}

func (t *task) start() {
	s := t.w.s
	s.send(func() kernel.Op {
		return &life.Start{Tenant: tenant, Worker: t.w.id, Leases: []life.Lease{{RunID: t.run, Epoch: t.epoch}}}
	}, func(r reply) {
		switch {
		case !t.w.alive || t.done:
		case r.unsure():
			if t.tries++; t.tries > 5 {
				t.drop()
				return
			}
			s.after(time.Second, t.start)
		case r.err != nil:
			s.violate("start", "a start was refused as a whole: %v", r.err)
		default:
			res := r.op.(*life.Start).Results[0]
			if !res.OK {
				t.drop()
				return
			}
			t.cancel = t.cancel || res.Cancel
			t.w.beatSoon(t.w.rhythm())
			s.began(&t.granted, t.cancel)
			t.soon()
		}
	})
}

func (w *worker) rhythm() time.Duration { return max(w.s.cfg.policy.Lease/3, 100*time.Millisecond) }

// beatSoon schedules a heartbeat after d, unless there is an earlier one.
func (w *worker) beatSoon(d time.Duration) {
	at := w.s.now.Add(d)
	if w.beatAt > w.s.now && w.beatAt <= at {
		return
	}
	w.beatAt = at
	w.s.at(at, func() {
		if w.alive && w.beatAt == at {
			w.beat()
		}
	})
}

func (w *worker) beat() {
	s := w.s
	w.beatAt = 0
	if len(w.tasks) == 0 {
		return
	}
	w.beatSoon(w.rhythm())
	if s.now < w.asleep || !s.reachable() {
		return
	}
	beats := make([]life.BeatOf, len(w.tasks))
	tasks := append([]*task(nil), w.tasks...)
	for i, t := range tasks {
		beats[i] = t.sign()
	}
	s.send(func() kernel.Op { return &life.Heartbeat{Tenant: tenant, Worker: w.id, Beats: beats} }, func(r reply) {
		if r.lost || r.err != nil || !w.alive {
			return
		}
		op := r.op.(*life.Heartbeat)
		for _, l := range op.Lost {
			for _, t := range tasks {
				if t.run == l.RunID && !t.done && s.lost(t, l) {
					t.drop()
				}
			}
		}
		for _, l := range op.Cancel {
			for _, t := range tasks {
				if t.run == l.RunID {
					t.cancel = true
				}
			}
		}
	})
}

// lost tells whether a task stops because its lease is lost. Some ignore it.
func (s *sim) lost(t *task, l life.LeaseResult) bool {
	if r := s.model.rows[t.run]; r != nil && r.Epoch == t.epoch && r.State.Leased() {
		return false // the answer is about an older lease of the same run
	}
	if !s.faultsStopped && s.fault.chance(s.cfg.faults.rude) {
		s.injected("lost lease ignored")
		return false
	}
	return true
}

func (t *task) sign() life.BeatOf {
	t.beats++
	b := life.BeatOf{Lease: life.Lease{RunID: t.run, Epoch: t.epoch},
		Activity: []string{"llm_thinking", "tool_executing"}[t.beats/4%2]}
	if t.cancel && t.plan.onCancel == cleansUp {
		b.CancelAck, t.acked = true, true
	}
	return b
}

// drop removes a task.
func (t *task) drop() {
	t.done = true
	for i, x := range t.w.tasks {
		if x == t {
			t.w.tasks = append(t.w.tasks[:i:i], t.w.tasks[i+1:]...)
			return
		}
	}
}

// soon schedules the next step of the task after some work.
func (t *task) soon() {
	s := t.w.s
	t.at(s.now.Add(s.work.between(s.pace/20, s.pace)))
}

// at schedules the next step of the task at an instant.
func (t *task) at(at perdure.Instant) {
	t.turns++
	turn := t.turns
	t.w.s.at(at, func() {
		if t.turns == turn {
			t.act()
		}
	})
}

// act executes the next step of the task, or a fault.
func (t *task) act() {
	s, w := t.w.s, t.w
	if t.done || !w.alive || t.hung {
		return
	}
	if s.now < w.asleep {
		t.at(w.asleep)
		return
	}
	t.lookAtSelect()
	if !s.faultsStopped && t.injectFault() {
		return
	}
	if t.takesLimits() {
		return
	}
	if t.pending == nil {
		if st := t.waitsNow(); st != nil && st.peek {
			st.peek = false
			t.peek()
			return
		}
		t.pending, t.tries = t.next(), 0
		t.recordWith(t.pending)
		s.flow.closeWith(t.pending)
	}
	t.commit()
}

// injectFault may inject a fault. It tells whether the step is not executed because of it.
func (t *task) injectFault() bool {
	s, w, f := t.w.s, t.w, &t.w.s.cfg.faults
	switch {
	case s.fault.chance(f.crash):
		s.injected("worker crashed")
		s.say("%s crashes", w.id)
		w.leave()
		return true
	case s.fault.chance(f.stall):
		s.injected("worker stalled")
		w.asleep = s.now.Add(s.fault.between(s.cfg.policy.Lease/2, 3*s.cfg.policy.Lease))
		s.say("%s stalls", w.id)
		t.at(w.asleep)
		return true
	case s.fault.chance(f.hang):
		s.injected("program hung")
		t.hung = true
		return true
	case t.pending == nil && s.defect.chance(f.defect):
		s.injected("code defect")
		c := &perdure.Commit{ID: s.name("k"), RunID: t.run, Epoch: t.epoch,
			Outcome: &perdure.Outcome{Type: perdure.OutcomeFail, Defect: true,
				Error: &perdure.Failure{Code: "panic", Message: "of build " + w.build}}}
		t.pending, t.tries = c, 0
		t.commit()
		return true
	case s.fault.chance(f.release):
		s.injected("run released")
		s.send(func() kernel.Op {
			return &life.Release{Tenant: tenant, Worker: w.id, Leases: []life.Lease{{RunID: t.run, Epoch: t.epoch}}}
		}, func(reply) {})
		t.drop()
		return true
	}
	return false
}

// waitsNow returns the stage in which the task is about to suspend.
func (t *task) waitsNow() *stage {
	if t.cancel {
		return nil
	}
	if st, _ := t.current(); st != nil && (st.do == "wait" || st.do == "select") && t.ended(st) == nil {
		return st
	}
	return nil
}

// current returns the first stage that is not recorded, and its key. It returns nil if all are.
func (t *task) current() (*stage, string) {
	for i := range t.plan.stages {
		if key := fmt.Sprintf("st%d", i); !t.journal[key] {
			return &t.plan.stages[i], key
		}
	}
	return nil, ""
}

// lookAtSelect has the program find the winner of a select. A fault may come before it is recorded.
func (t *task) lookAtSelect() {
	if st, key := t.current(); st != nil && st.do == "select" {
		if won := t.ended(st); won != nil {
			t.w.s.checkWinner(t, key, won)
		}
	}
}

// peek reads the inbox again, until it gets an answer: what was handed over counts as told.
func (t *task) peek() {
	t.w.s.send(func() kernel.Op { return &life.Inbox{Tenant: tenant, RunID: t.run, Epoch: t.epoch} }, func(r reply) {
		if !t.w.alive || t.done {
			return
		}
		if r.unsure() {
			t.w.s.after(time.Second, t.peek)
			return
		}
		if r.err == nil {
			t.inbox = r.op.(*life.Inbox).Page
		}
		t.soon()
	})
}

// commit sends the pending commit until it is answered.
func (t *task) commit() {
	s, c := t.w.s, t.pending
	s.send(t.makeCommit(c), func(r reply) { t.answered(c, r) })
	if !s.faultsStopped && s.fault.chance(s.cfg.faults.again) {
		s.injected("commit sent again")
		s.after(s.fault.between(0, 2*s.cfg.tempo), func() { s.send(t.makeCommit(c), func(reply) {}) })
	}
}

func (t *task) makeCommit(c *perdure.Commit) func() kernel.Op {
	raw, _ := json.Marshal(c)
	return func() kernel.Op {
		op := &life.Commit{Tenant: tenant, Worker: t.w.id}
		_ = json.Unmarshal(raw, &op.Commit) // a copy: the engine fills in defaults
		return op
	}
}

// answered handles the answer to a commit.
func (t *task) answered(c *perdure.Commit, r reply) {
	s := t.w.s
	if !t.w.alive || t.done || t.pending != c {
		return
	}
	if r.unsure() {
		if t.tries++; t.tries > 8 && !s.faultsStopped {
			t.drop()
			return
		}
		s.after(s.work.between(time.Second, 2*s.pace+time.Second), func() {
			if t.pending == c && !t.done && t.w.alive {
				s.sometimes("a commit was sent again because its outcome was unknown")
				t.commit()
			}
		})
		return
	}
	t.pending = nil
	if op := r.op.(*life.Commit); r.err == nil && op.Refused == nil {
		t.took(c, &op.Answer)
		return
	}
	switch code := perdure.CodeOf(r.err); {
	case code == "", code == perdure.CodeStaleEpoch, code == perdure.CodeWrongState,
		code == perdure.CodeNotFound && s.anews.deleted(t.run): // "" means that it was kept as a late result
		t.drop()
	case code == perdure.CodeCancelRequested:
		s.sometimes("a suspend was refused because of a cancel request")
		t.cancel = true
		t.plan.onCancel = obeys
		t.soon()
	case code == perdure.CodeThreadBusy:
		t.plan.withoutThread = true
		t.soon()
	case code == perdure.CodeUnknownLimit || code == perdure.CodeNotUnique:
		t.plan.plain = t.plan.plain || code == perdure.CodeNotUnique
		t.soon()
	case code == perdure.CodeQuota: // it spawns, and the tenant has as many runs as it may have
		s.sometimes("a tenant at its limit could not spawn")
		t.soon()
	default:
		s.violate("commit", "%s refused %s of %s: %v", t.w.id, c.ID, s.short(t.run), r.err)
	}
}

// took continues after a commit was accepted.
func (t *task) took(c *perdure.Commit, a *life.CommitAnswer) {
	s := t.w.s
	t.cancel = t.cancel || a.Cancel
	for _, cb := range a.Callbacks {
		s.model.token(cb.Token)
	}
	for _, j := range c.Journal {
		t.journal[j.Key] = true
	}
	if c.Outcome != nil {
		if c.Outcome.Type == perdure.OutcomeSuspend && a.State == perdure.Queued {
			s.sometimes("a wait was over already when the run suspended")
		}
		t.drop()
		return
	}
	t.soon()
}

// holder returns a task that believes to hold a run.
func (s *sim) holder(id perdure.RunID) *task {
	for _, w := range s.workers {
		for _, t := range w.tasks {
			if t.run == id && !t.done {
				return t
			}
		}
	}
	return nil
}

// nextMessage returns what a task would send now: a heartbeat or a commit.
func (t *task) nextMessage(n *node) *flight {
	s := t.w.s
	if t.hung || t.pending != nil || s.fault.chance(0.5) {
		b := t.sign()
		return &flight{s: s, to: n, make: func() kernel.Op {
			return &life.Heartbeat{Tenant: tenant, Worker: t.w.id, Beats: []life.BeatOf{b}}
		}}
	}
	c := t.next()
	t.pending, t.tries = c, 0
	return &flight{s: s, to: n, make: t.makeCommit(c), then: func(r reply) { t.answered(c, r) }}
}
