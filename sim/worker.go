package sim

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
)

// worker leases runs and executes their plans. It crashes and is never heard of again, stalls and answers
// late, says things twice, hangs while its heartbeats go on.
type worker struct {
	s      *sim
	id     string
	alive  bool
	slots  int
	tasks  []*task
	asleep perdure.Instant // stalled until then
	pollAt perdure.Instant
	asking bool
	beatAt perdure.Instant
}

// task is one run in a worker's hands. It is all that is lost when the worker is.
type task struct {
	w       *worker
	run     perdure.RunID
	epoch   int64
	attempt int
	thread  bool
	plan    *plan
	journal map[string]bool
	opened  map[int]bool
	inbox   []perdure.Item
	cancel  bool // asked to stop
	acked   bool // and it has said that it knows
	over    bool
	hung    bool
	pending *perdure.Commit // sent, and not answered for sure
	tries   int
	said    int // heartbeats
	turns   int // of the program: the latest one counts
}

// hire brings a new worker.
func (s *sim) hire() *worker {
	s.hired++
	w := &worker{s: s, id: fmt.Sprintf("w%d", s.hired), alive: true, slots: s.cfg.slots}
	s.workers = append(s.workers, w)
	w.pollSoon(s.work.between(0, s.cfg.poll))
	return w
}

// leave takes a worker out of the list; another one comes some time later.
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
		s.hire()
		return
	}
	s.after(s.work.between(0, 10*s.cfg.tempo), func() {
		if !s.calm {
			s.hire()
		}
	})
}

// pollSoon has the worker poll after d, unless it does so earlier anyway.
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
	start := s.work.chance(0.5)
	s.send(func() engine.Op {
		return &engine.Claim{Tenant: tenant, Worker: w.id, Slots: free, Start: start, Queues: []string{"default", "other"}}
	}, func(r reply) {
		w.asking = false
		if r.lost || r.err != nil || !w.alive {
			return
		}
		for _, g := range r.op.(*engine.Claim).Grants {
			w.begin(g, start)
		}
	})
}

// begin takes a grant up. Without start:true the work begins once the start was acknowledged.
func (w *worker) begin(g engine.Grant, started bool) {
	s := w.s
	t := &task{w: w, run: g.Run.ID, epoch: g.Run.Epoch, attempt: g.Run.Attempt, thread: g.Run.ThreadID != "", cancel: g.Cancel,
		plan: planOf(g.Input, g.Run.Kind, s.cfg.tempo, s.model.threads), journal: make(map[string]bool), opened: make(map[int]bool), inbox: g.Inbox}
	for _, j := range g.Journal {
		t.journal[j.Key] = true
	}
	w.tasks = append(w.tasks, t)
	if g.Cancel {
		s.sometimes("a grant was marked to be cancelled")
	}
	if started {
		w.beatSoon(min(2*time.Second, s.cfg.policy.DispatchedRetry/2))
		t.soon()
		return
	}
	t.start()
}

func (t *task) start() {
	s := t.w.s
	s.send(func() engine.Op {
		return &engine.Start{Tenant: tenant, Worker: t.w.id, Leases: []engine.Lease{{RunID: t.run, Epoch: t.epoch}}}
	}, func(r reply) {
		switch {
		case !t.w.alive || t.over:
		case r.unsure():
			if t.tries++; t.tries > 5 {
				t.drop()
				return
			}
			s.after(time.Second, t.start)
		case r.err != nil:
			s.violate("start", "a start was refused as a whole: %v", r.err)
		default:
			res := r.op.(*engine.Start).Results[0]
			if !res.OK {
				t.drop()
				return
			}
			t.cancel = t.cancel || res.Cancel
			t.w.beatSoon(t.w.rhythm())
			t.soon()
		}
	})
}

func (w *worker) rhythm() time.Duration { return max(w.s.cfg.policy.Lease/3, 100*time.Millisecond) }

// beatSoon has the worker's heartbeat sent after d, unless it is sent earlier anyway.
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
	beats := make([]engine.BeatOf, len(w.tasks))
	tasks := append([]*task(nil), w.tasks...)
	for i, t := range tasks {
		beats[i] = t.sign()
	}
	s.send(func() engine.Op { return &engine.Heartbeat{Tenant: tenant, Worker: w.id, Beats: beats} }, func(r reply) {
		if r.lost || r.err != nil || !w.alive {
			return
		}
		op := r.op.(*engine.Heartbeat)
		for _, l := range op.Lost {
			for _, t := range tasks {
				if t.run == l.RunID && !t.over && s.lost(t, l) {
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

// lost tells whether a task minds that its lease is gone.
func (s *sim) lost(t *task, l engine.LeaseResult) bool {
	if r := s.model.rows[t.run]; r != nil && r.Epoch == t.epoch && r.State.Leased() {
		return false // an answer about an older lease of the same run
	}
	if !s.calm && s.fault.chance(s.cfg.faults.rude) {
		s.injected("lost lease ignored")
		return false
	}
	return true
}

func (t *task) sign() engine.BeatOf {
	t.said++
	b := engine.BeatOf{Lease: engine.Lease{RunID: t.run, Epoch: t.epoch}, Activity: []string{"llm_thinking", "tool_executing"}[t.said/4%2]}
	if t.cancel && t.plan.manner == cleansUp {
		b.CancelAck, t.acked = true, true
	}
	return b
}

// drop forgets a run.
func (t *task) drop() {
	t.over = true
	for i, x := range t.w.tasks {
		if x == t {
			t.w.tasks = append(t.w.tasks[:i:i], t.w.tasks[i+1:]...)
			return
		}
	}
}

// soon has the task go on after a step's worth of work.
func (t *task) soon() {
	s := t.w.s
	t.at(s.now.Add(s.work.between(s.pace/20, s.pace)))
}

// at has the task go on at an instant.
func (t *task) at(at perdure.Instant) {
	t.turns++
	turn := t.turns
	t.w.s.at(at, func() {
		if t.turns == turn {
			t.act()
		}
	})
}

// act is the next step of the program, or of the disaster.
func (t *task) act() {
	s, w := t.w.s, t.w
	if t.over || !w.alive || t.hung {
		return
	}
	if s.now < w.asleep {
		t.at(w.asleep)
		return
	}
	if !s.calm && t.disaster() {
		return
	}
	if t.pending == nil {
		if st := t.waitsNow(); st != nil && st.peek {
			st.peek = false
			t.peek()
			return
		}
		t.pending, t.tries = t.next(), 0
	}
	t.commit()
}

// disaster tells whether something else happens to the task instead.
func (t *task) disaster() bool {
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
	case s.fault.chance(f.release):
		s.injected("run released")
		s.send(func() engine.Op {
			return &engine.Release{Tenant: tenant, Worker: w.id, Leases: []engine.Lease{{RunID: t.run, Epoch: t.epoch}}}
		}, func(reply) {})
		t.drop()
		return true
	}
	return false
}

// waitsNow is the stage that the task is about to sleep in.
func (t *task) waitsNow() *stage {
	if t.cancel {
		return nil
	}
	for i := range t.plan.stages {
		if !t.journal[fmt.Sprintf("st%d", i)] {
			if st := &t.plan.stages[i]; st.do == "wait" && t.ended(st) == nil {
				return st
			}
			return nil
		}
	}
	return nil
}

// peek looks whether something has come since the grant.
func (t *task) peek() {
	t.w.s.send(func() engine.Op { return &engine.Inbox{Tenant: tenant, RunID: t.run, Epoch: t.epoch} }, func(r reply) {
		if !t.w.alive || t.over {
			return
		}
		if !r.lost && r.err == nil {
			t.inbox = r.op.(*engine.Inbox).Page
		}
		t.soon()
	})
}

// commit sends what is pending, until somebody says what became of it.
func (t *task) commit() {
	s, c := t.w.s, t.pending
	s.send(t.saying(c), func(r reply) { t.answered(c, r) })
	if !s.calm && s.fault.chance(s.cfg.faults.again) {
		s.injected("commit sent again")
		s.after(s.fault.between(0, 2*s.cfg.tempo), func() { s.send(t.saying(c), func(reply) {}) })
	}
}

func (t *task) saying(c *perdure.Commit) func() engine.Op {
	raw, _ := json.Marshal(c)
	return func() engine.Op {
		op := &engine.Commit{Tenant: tenant, Worker: t.w.id}
		_ = json.Unmarshal(raw, &op.Commit) // a copy: the engine fills in defaults
		return op
	}
}

// answered goes on from an answer.
func (t *task) answered(c *perdure.Commit, r reply) {
	s := t.w.s
	if !t.w.alive || t.over || t.pending != c {
		return
	}
	if r.unsure() {
		if t.tries++; t.tries > 8 && !s.calm {
			t.drop()
			return
		}
		s.after(s.work.between(time.Second, 2*s.pace+time.Second), func() {
			if t.pending == c && !t.over && t.w.alive {
				s.sometimes("a commit was sent again because its outcome was unknown")
				t.commit()
			}
		})
		return
	}
	t.pending = nil
	if op := r.op.(*engine.Commit); r.err == nil && op.Refused == nil {
		t.took(c, &op.Answer)
		return
	}
	switch code := perdure.CodeOf(r.err); code {
	case "", perdure.CodeStaleEpoch, perdure.CodeWrongState: // "": too late, and kept
		t.drop()
	case perdure.CodeCancelRequested:
		s.sometimes("a suspend was refused because of a cancel request")
		t.cancel = true
		t.plan.manner = obeys
		t.soon()
	case perdure.CodeThreadBusy:
		t.plan.moody = true
		t.soon()
	default:
		s.violate("commit", "%s refused %s of %s: %v", t.w.id, c.ID, s.short(t.run), r.err)
	}
}

// took goes on after a commit was taken.
func (t *task) took(c *perdure.Commit, a *engine.CommitAnswer) {
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

// holder is a task that thinks it holds a run.
func (s *sim) holder(id perdure.RunID) *task {
	for _, w := range s.workers {
		for _, t := range w.tasks {
			if t.run == id && !t.over {
				return t
			}
		}
	}
	return nil
}

// hurried is what a task has to say this very moment: a heartbeat, or a commit.
func (t *task) hurried(n *node) *flight {
	s := t.w.s
	if t.hung || t.pending != nil || s.fault.chance(0.5) {
		b := t.sign()
		return &flight{s: s, to: n, make: func() engine.Op {
			return &engine.Heartbeat{Tenant: tenant, Worker: t.w.id, Beats: []engine.BeatOf{b}}
		}}
	}
	c := t.next()
	t.pending, t.tries = c, 0
	return &flight{s: s, to: n, make: t.saying(c), then: func(r reply) { t.answered(c, r) }}
}
