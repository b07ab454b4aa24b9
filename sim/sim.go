package sim

import (
	"container/heap"
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/pairs"
)

const tenant perdure.TenantID = "acme"

// dawn is the instant at which every simulation begins.
const dawn perdure.Instant = 1_577_836_800_000_000

// Options of a simulation.
type Options struct {
	// Trace gets every line of the trace. If it is nil, only the end is kept.
	Trace io.Writer
	// URL is of an empty PostgreSQL database, to use instead of SQLite in memory.
	URL string
	// Even leaves out faults that depend on the number of statements, or after which a server
	// distrusts its file. Then a seed gives the same trace on every store. The simulation is also
	// shorter.
	Even bool
	// Anew has agents go on anew: see anew.go. Without it the history of a seed is as it was before there
	// were such runs.
	Anew bool
	// Flow adds limits, unique and debounced runs, and schedules: see flow.go. Without it the history of a
	// seed is as it was before there were any.
	Flow bool
	// End reads the store at the end.
	End func(*store.View) error
}

// A Violation is a promise that was broken.
type Violation struct {
	ID   string // of the invariant, or the name of the check
	What string
}

func (v *Violation) Error() string { return v.ID + ": " + v.What }

// A Report is the result of a simulation.
type Report struct {
	Seed      uint64
	Hash      uint64        // of the trace
	Steps     int           // batches that were decided
	Runs      int           // number of runs
	Simulated time.Duration // time that passed in the simulation
	Counts    Counts
	// Pairs counts the features that were in force on one run together, by the order in which they came.
	Pairs     map[pairs.Pair]int
	Violation *Violation // nil if every promise was kept
	Tail      []string   // the end of the trace
}

// Run simulates one seed, until every run has ended or a promise is broken.
func Run(seed uint64, opt Options) (*Report, error) {
	s := &sim{
		seed: seed, now: dawn, model: newModel(), count: make(Counts), pairs: make(map[pairs.Pair]int),
		work: newStream(seed, "work"), fault: newStream(seed, "fault"), net: newStream(seed, "net"),
		order: newStream(seed, "order"), ids: newStream(seed, "ids"), dice: newStream(seed, "dice"),
		defect: newStream(seed, "defect"), selects: newStream(seed, "selects"), many: newStream(seed, "many"),
		promises: newStream(seed, "promises"), executions: make(executions),
		trace: trace{out: opt.Trace, epoch: dawn},
	}
	s.cfg = draw(newStream(seed, "swarm"))
	bounds := newStream(seed, "bounds")
	s.cfg.drawHolds(newStream(seed, "holds"))
	s.cfg.opRows, s.cfg.hostile = 30<<bounds.IntN(7), bounds.chance(0.3)
	if opt.Even {
		s.cfg.makeEven()
	}
	s.addBeside(opt.URL, opt.Even)
	s.addAnew(opt.Anew)
	s.addFlow(opt.Flow)
	s.pace = s.cfg.tempo
	if err := s.cfg.policy.Validate(); err != nil {
		return nil, fmt.Errorf("seed %d draws an invalid policy: %w", seed, err)
	}
	if err := s.open(opt.URL); err != nil {
		return nil, err
	}
	defer s.close()
	s.loop()
	if opt.End != nil {
		s.view(opt.End)
	}
	return &Report{Seed: seed, Hash: s.trace.hash, Steps: s.steps, Runs: len(s.model.order),
		Simulated: s.now.Sub(dawn), Counts: s.count, Pairs: s.pairs,
		Violation: s.broken, Tail: s.trace.tail()}, nil
}

// sim is one simulation.
type sim struct {
	seed uint64
	cfg  config

	work, fault, net, order, ids, dice, defect, selects, many, promises stream
	executions                                                          executions // of runs with one attempt

	now    perdure.Instant // the true time
	offset time.Duration   // error of the store's clock
	queue  events
	nth    int

	where       store.Options // the shared database
	reader      *store.Store  // reads committed data, without faults
	nodes       []*node
	workers     []*worker
	clients     []*client
	flights     []*flight
	processes   *processes // nil: the seed has none
	pauses      *pauses    // nil: the seed has none
	beside      *beside
	anews       *anews // nil: no run goes on anew
	flow        *flow  // nil: no limits and schedules
	workerCount int
	pace        time.Duration // how long a step of work takes at present
	names       int           // counts the names of keys, commits and jobs

	model         *model
	trace         trace
	count         Counts
	pairs         map[pairs.Pair]int
	revoked       int // keys that were revoked
	steps         int
	nested        int             // batches of the other node inside of this one
	faultsStopped bool            // no more faults are injected
	stoppedAt     perdure.Instant // when they stopped
	done          bool
	broken        *Violation
}

func (s *sim) open(url string) (err error) {
	s.where = store.Options{URL: url, Hooks: store.Hooks{Clock: s.clock, OpRows: s.cfg.opRows, Spent: s.spent}}
	if url == "" {
		if s.where.Memory, err = store.NewMemory(); err != nil {
			return err
		}
	}
	if s.reader, err = store.Open(s.where); err != nil {
		return err
	}
	for _, name := range []string{"A", "B"} {
		n := &node{s: s, name: name}
		s.nodes = append(s.nodes, n)
		n.open()
	}
	for range s.cfg.workers {
		s.addWorker()
	}
	for i := range s.cfg.clients {
		c := &client{s: s, name: fmt.Sprintf("c%d", i+1)}
		s.clients = append(s.clients, c)
		s.after(s.work.between(0, s.cfg.tempo), c.act)
	}
	if s.cfg.hostile {
		m := &mallory{s: s, dice: newStream(s.seed, "mallory")}
		s.after(m.dice.between(0, s.cfg.tempo), m.act)
	}
	s.addProcesses()
	s.addPauses()
	s.beside.begin()
	s.anews.begin()
	s.flow.begin()
	s.startFaults()
	s.at(s.now.Add(s.cfg.horizon), s.stopFaults)
	return nil
}

func (s *sim) close() {
	for _, n := range s.nodes {
		if n.st != nil {
			n.st.Close()
		}
	}
	s.reader.Close()
	if s.where.Memory != nil {
		s.where.Memory.Close()
	}
}

// clock returns the time of the store's clock.
func (s *sim) clock() perdure.Instant { return s.now.Add(s.offset) }

// loop executes one event after the other.
func (s *sim) loop() {
	for s.broken == nil && !s.done && len(s.queue) > 0 {
		e := heap.Pop(&s.queue).(*event)
		s.now = max(s.now, e.at)
		e.do()
		if !s.faultsStopped && s.steps >= s.cfg.budget {
			s.stopFaults()
		}
	}
	if s.broken == nil && !s.done {
		s.violate("L1", "nothing happens any more and %d runs are live", s.model.live())
	}
	if s.broken == nil {
		s.checkEnd()
	}
}

// violate records the first broken promise. The simulation ends there.
func (s *sim) violate(id, format string, args ...any) {
	if s.broken == nil {
		s.broken = &Violation{id, fmt.Sprintf(format, args...)}
		s.say("VIOLATION %s: %s", id, s.broken.What)
	}
}

// say adds a line to the trace.
func (s *sim) say(format string, args ...any) { s.trace.add(s.now, format, args...) }

// sometimes counts a situation.
func (s *sim) sometimes(what string) { s.count[what]++ }

// injected counts a fault.
func (s *sim) injected(what string) { s.count["fault: "+what]++ }

// name returns a unique name.
func (s *sim) name(prefix string) string {
	s.names++
	return fmt.Sprintf("%s%d", prefix, s.names)
}

// view reads committed data.
func (s *sim) view(f func(v *store.View) error) {
	if err := s.reader.View(context.Background(), f); err != nil {
		s.violate("read", "what is committed can't be read: %v", err)
	}
}

// An event is something that will happen at an instant. The order of events of the same instant is
// random.
type event struct {
	at  perdure.Instant
	tie uint64
	nth int
	do  func()
}

type events []*event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	a, b := q[i], q[j]
	if a.at != b.at {
		return a.at < b.at
	}
	if a.tie != b.tie {
		return a.tie < b.tie
	}
	return a.nth < b.nth
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(*event)) }
func (q *events) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// at schedules a function at an instant.
func (s *sim) at(at perdure.Instant, do func()) {
	s.nth++
	heap.Push(&s.queue, &event{max(at, s.now), s.order.Uint64(), s.nth, do})
}

// after schedules a function after a duration.
func (s *sim) after(d time.Duration, do func()) { s.at(s.now.Add(d), do) }

// alarms is a log handler. An error in the log that no fault explains is a violation.
type alarms struct {
	s *sim
	n *node
}

func (alarms) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelError }

func (a alarms) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(at slog.Attr) bool { text += fmt.Sprintf(" %s=%v", at.Key, at.Value); return true })
	if a.n.sess == nil || a.n.sess.hurt == 0 || r.Message == "an operation panicked" {
		a.s.violate("log", "node %s: %s", a.n.name, text)
	}
	return nil
}
func (a alarms) WithAttrs([]slog.Attr) slog.Handler { return a }
func (a alarms) WithGroup(string) slog.Handler      { return a }
