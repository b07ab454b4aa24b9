package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/session"
)

// Options of a worker. The zero value is usable.
type Options struct {
	// Queues lists the queues to lease from, without an order. The default is "default".
	Queues []string
	// Slots limits the concurrent runs of the kinds registered with [Handle]. The default is 20.
	Slots int
	// AgentSlots is the same for agents; the default is 5. Tasks and agents have separate slots, so
	// that agents that wait for tasks cannot block them.
	AgentSlots int
	// ID names this worker in lists and logs. The default is the host's name with a random part.
	ID string
	// Build identifies the worker's program, for example a version. A run that a defect of the code
	// holds is granted at once to a build that has not held it. The default is a hash of the
	// executable.
	Build string
	// AllTenants leases runs of all tenants. It needs a platform key.
	AllTenants bool
	// TenantSlots limits the concurrent runs of one tenant, with AllTenants: those of tasks and those of
	// agents. It leaves slots to the others if one tenant has many runs that take long. The default
	// is no limit.
	TenantSlots int
	// Full, with AllTenants, returns the tenants for whose agents the program has no room at present, and
	// whether it has none for those of any tenant. The worker leases no such agents meanwhile. It asks
	// again when a run has ended, or after a second.
	Full func() (tenants []perdure.TenantID, all bool)
	// DrainTimeout is how long handlers may continue after Run's context has ended. The default is
	// 30 s; a negative value means not at all.
	DrainTimeout time.Duration
	// PollWait is how long a poll waits for a run, up to a minute. The default is 30 s.
	PollWait time.Duration
	// HeartbeatEvery is the time between two heartbeats, 10 s by default. It is shortened to a
	// quarter of the lease if that is less.
	HeartbeatEvery time.Duration
	// SelfFence lists kinds that must never be executed twice at the same time. If the server does
	// not answer for the length of a lease, it may grant the run to another worker. The handler's
	// context then ends with ErrLeaseLost. Handlers of other kinds continue.
	SelfFence []string
	// Trust is the set of trusted public keys; see [LoadTrust]. With it, a run that is not signed
	// by one of them is rejected and not executed. By default signatures are not checked.
	Trust *perdure.Trust
	// Logger gets events that Run cannot return: failed handlers, a server that is away, refused
	// results.
	Logger *slog.Logger
}

// Durations of a worker that are not options.
const (
	// firstHeartbeat is early, because the server grants a run again if it hears nothing for 5 s.
	firstHeartbeat = 2 * time.Second
	// minHeartbeat is the least time between two heartbeats.
	minHeartbeat = 250 * time.Millisecond
	// stopTimeout is the time from the end of a handler's context until its run is handed back.
	stopTimeout = 2 * time.Second
	// finalTimeout limits the last deliveries and releases of a draining worker.
	finalTimeout = 5 * time.Second
)

// Worker executes runs. Handlers are registered before Run, which returns the mistakes in them.
type Worker struct {
	c *client.Client
	// calls makes those of the worker protocol, with the connections of c.
	calls session.Protocol
	opt   Options
	log   *slog.Logger

	handlers   map[string]handler
	middleware []Middleware
	born       time.Time

	mu      sync.Mutex
	started bool
	// misuse has the mistakes of the registration, which Run returns. end ends a Run that has started.
	misuse  []error
	end     context.CancelFunc
	held    map[api.Lease]*run     // the runs that the server has granted to this worker
	newest  map[perdure.RunID]*run // of those with the same id, the one that was granted last
	tasks   pool
	agents  pool
	changed chan struct{} // closed and replaced when a run is removed from held

	kickBeat    chan struct{} // wakes beatLoop: a heartbeat may be due
	kickNews    chan struct{} // wakes newsLoop: the worker has runs
	kickCommit  chan struct{} // wakes commitLoop: there are log lines
	kickOutcome chan struct{} // wakes commitLoop: there is an outcome
	away        awayLog
}

// A handler executes the runs of a kind.
type handler struct {
	call func(ctx context.Context, r *run) *perdure.Outcome
	// replay executes an agent in a session, such as that of a check. It is nil for tasks.
	replay func(ctx context.Context, s session.Session) *perdure.Outcome
	agent  bool // it takes a slot of the agents
	def    perdure.KindDef
}

// A pool is the set of slots that the tasks or the agents share. Each pool has its own poll,
// because a single poll could not ask for free slots of only one of them.
type pool struct {
	kinds []string
	free  int
}

// New makes a worker that uses a client.
func New(c *client.Client, opt Options) *Worker {
	if len(opt.Queues) == 0 {
		opt.Queues = []string{perdure.DefaultQueue}
	}
	if opt.Slots == 0 {
		opt.Slots = 20
	}
	if opt.AgentSlots == 0 {
		opt.AgentSlots = 5
	}
	if opt.ID == "" {
		opt.ID = defaultID()
	}
	if opt.Build == "" {
		opt.Build = executableHash()
	}
	if opt.DrainTimeout == 0 {
		opt.DrainTimeout = 30 * time.Second
	}
	if opt.PollWait <= 0 {
		opt.PollWait = 30 * time.Second
	}
	if opt.HeartbeatEvery <= 0 {
		opt.HeartbeatEvery = 10 * time.Second
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	log := opt.Logger.With("worker", opt.ID)
	return &Worker{
		c: c, calls: session.Of(c), opt: opt, log: log, born: time.Now(),
		handlers: make(map[string]handler), held: make(map[api.Lease]*run),
		newest: make(map[perdure.RunID]*run),
		tasks:  pool{free: opt.Slots}, agents: pool{free: opt.AgentSlots}, changed: make(chan struct{}),
		kickBeat: make(chan struct{}, 1), kickNews: make(chan struct{}, 1),
		kickCommit: make(chan struct{}, 1), kickOutcome: make(chan struct{}, 1),
		away: awayLog{log: log},
	}
}

// defaultID returns the host's name, without special characters, and a random part.
func defaultID() string {
	host, _ := os.Hostname()
	host = strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return -1
	}, host)
	if host = strings.Trim(host, "-."); host == "" {
		host = "worker"
	}
	return host[:min(len(host), 100)] + "-" + strings.ToLower(rand.Text()[:8])
}

// ID returns the worker's id.
func (w *Worker) ID() string { return w.opt.ID }

// register adds a handler. A mistake is an error of Run: missing tells that the function is nil, and
// described is the error of the kind's description.
func (w *Worker) register(kind string, h handler, missing bool, described error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := perdure.CheckName("kind", kind)
	_, twice := w.handlers[kind]
	switch {
	case err != nil:
	case w.started:
		err = errors.New("handlers are registered before Run")
	case twice:
		err = errors.New("the kind has a handler already")
	case missing:
		err = errors.New("the function is nil")
	default:
		err = described
	}
	if err != nil {
		w.misused(fmt.Errorf("worker: handler of %q: %w", kind, err))
		return
	}
	w.handlers[kind] = h
	p := w.pool(kind)
	p.kinds = append(p.kinds, kind)
}

// misused keeps a mistake of the program for Run. A Run that has started ends with it. The caller
// holds w.mu.
func (w *Worker) misused(err error) {
	w.misuse = append(w.misuse, err)
	if w.started {
		w.log.Error("the worker is misused; it ends", "error", err)
	}
	if w.end != nil {
		w.end()
	}
}

// pool returns the pool of a kind.
func (w *Worker) pool(kind string) *pool {
	if w.handlers[kind].agent {
		return &w.agents
	}
	return &w.tasks
}

// Run leases and executes runs until its context ends, then drains and returns nil. It returns an
// error for invalid options and handlers, and when the server refuses this worker: an invalid key, a
// missing scope, a queue that is not a name, or a wrong address. While the server is away, Run
// retries. In a program that perdure builds check has started it only replays live runs, as [Check] does.
// Run can be called once. A handler or a middleware that is added later ends it with an
// error.
func (w *Worker) Run(ctx context.Context) error {
	ctx, stopPolls := context.WithCancel(ctx)
	defer stopPolls()
	w.mu.Lock()
	if w.started {
		w.mu.Unlock()
		return errors.New("worker: Run was called before")
	}
	w.started, w.end = true, stopPolls
	misuse := errors.Join(w.misuse...)
	w.mu.Unlock()
	if misuse != nil {
		return misuse
	}
	if Checking() {
		return w.runCheck(ctx)
	}
	if w.c == nil {
		return errors.New("worker: the client is nil")
	}
	if len(w.handlers) == 0 {
		return errors.New("worker: no handler is registered")
	}
	if w.opt.Slots < 0 || w.opt.AgentSlots < 0 {
		return fmt.Errorf("worker: Slots is %d and AgentSlots %d: neither can be negative", w.opt.Slots,
			w.opt.AgentSlots)
	}
	if n := w.opt.TenantSlots; n < 0 || n > 0 && max(w.opt.Slots, w.opt.AgentSlots)/n > maxFull {
		return fmt.Errorf("worker: TenantSlots is %d, and has to be a %dth of the slots at least", n, maxFull)
	}
	for _, kind := range w.opt.SelfFence {
		if _, ok := w.handlers[kind]; !ok {
			return fmt.Errorf("worker: SelfFence: %q has no handler", kind)
		}
	}

	// The end of ctx starts the drain. Handlers, heartbeats and commits continue until the drain is
	// over.
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	var services sync.WaitGroup
	services.Go(func() { w.beatLoop(life) })
	services.Go(func() { w.newsLoop(life) })
	services.Go(func() { w.commitLoop(life) })
	announcing, stop := context.WithCancel(ctx)
	told, tell := context.WithTimeout(ctx, announceWait)
	services.Go(func() { w.announce(announcing, tell) })
	<-told.Done()

	err := w.poll(ctx, life)
	stop()
	w.drain(life)
	end(nil)
	services.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.misuse) == 0 {
		return err
	}
	return errors.Join(append(w.misuse, err)...)
}

// poll fills the slots until ctx ends or the server refuses this worker.
func (w *Worker) poll(ctx, life context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var loops sync.WaitGroup
	refused := make(chan error, 2)
	for _, p := range []*pool{&w.tasks, &w.agents} {
		if len(p.kinds) == 0 {
			continue
		}
		loops.Go(func() {
			if err := w.pollLoop(ctx, life, p); err != nil {
				refused <- fmt.Errorf("worker: %w", err)
				stop()
			}
		})
	}
	loops.Wait()
	close(refused)
	return <-refused
}

// drain waits for the handlers and the delivery of their results. It hands back runs that are not
// finished in time.
func (w *Worker) drain(life context.Context) {
	if w.quiet(w.opt.DrainTimeout) {
		return
	}
	for _, r := range w.holding() {
		r.stop(ErrShutdown)
	}
	if w.quiet(stopTimeout) {
		return
	}
	var leases []api.ReleasedLease
	for _, r := range w.holding() {
		if r.abandon() {
			leases = append(leases, api.ReleasedLease{Lease: r.lease})
		}
	}
	if len(leases) > 0 {
		w.log.Info("unfinished runs are handed back", "runs", len(leases))
		w.release(life, leases)
	}
	if !w.quiet(finalTimeout) {
		for _, r := range w.holding() {
			w.log.Warn("a result could not be delivered before the worker ended; the run is executed again",
				"run", r.lease.RunID, "kind", r.grant.Kind)
		}
	}
}

// release hands runs back. If that fails, their leases expire.
func (w *Worker) release(life context.Context, leases []api.ReleasedLease) {
	ctx, cancel := context.WithTimeout(life, finalTimeout)
	defer cancel()
	for part := range slices.Chunk(leases, perdure.MaxList) {
		if _, err := w.calls.Release(ctx, w.opt.ID, part...); err != nil {
			w.log.Warn("runs could not be handed back; their leases end by themselves", "runs", len(part), "error", err)
		}
		for _, l := range part {
			w.drop(l.Lease)
		}
	}
}

// ---- held runs

func (w *Worker) holding() []*run {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.AppendSeq(make([]*run, 0, len(w.held)), maps.Values(w.held))
}

func (w *Worker) holds(r *run) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held[r.lease] == r
}

// hold adds a granted run. An earlier lease of the same run is lost, because the server has granted
// it again.
func (w *Worker) hold(r *run) {
	w.mu.Lock()
	var before []*run
	for b := w.newest[r.lease.RunID]; b != nil; b = b.earlier {
		before = append(before, b)
	}
	if same := w.held[r.lease]; same != nil {
		w.unlink(same)
	}
	w.held[r.lease], r.earlier, w.newest[r.lease.RunID] = r, w.newest[r.lease.RunID], r
	w.pool(r.grant.Kind).free--
	w.mu.Unlock()
	for _, b := range before {
		// A run whose outcome is sent may have suspended and been resumed before the answer
		// arrived.
		if !b.ending() {
			b.lost(errRegranted)
		}
	}
	kick(w.kickBeat)
}

// unlink takes a run out of the held ones with its id. The caller holds w.mu.
func (w *Worker) unlink(r *run) {
	id := r.lease.RunID
	if w.newest[id] == r {
		if r.earlier == nil {
			delete(w.newest, id)
		} else {
			w.newest[id] = r.earlier
		}
		return
	}
	for b := w.newest[id]; b != nil; b = b.earlier {
		if b.earlier == r {
			b.earlier = r.earlier
			return
		}
	}
}

// drop removes a run whose outcome is delivered or not wanted, and frees its slot.
func (w *Worker) drop(l api.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := w.held[l]
	if !ok {
		return
	}
	delete(w.held, l)
	w.unlink(r)
	w.pool(r.grant.Kind).free++
	r.endLease(errDone)
	if r.fence != nil {
		r.fence.Stop()
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// maxFull is how many tenants a poll can leave out.
const maxFull = 100

// slots returns the free slots of a pool, and a channel that is closed when that may change. With
// TenantSlots, full are the tenants that have as many runs as they may. The free slots are then so few
// that no other tenant gets more than it may, whosever runs they are filled with.
func (w *Worker) slots(p *pool) (free int, full []perdure.TenantID, changed <-chan struct{}) {
	none := false
	if w.opt.Full != nil && w.opt.AllTenants && p == &w.agents {
		full, none = w.opt.Full()
		full = full[:min(len(full), maxFull)]
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	most := w.opt.TenantSlots
	switch {
	case none && len(w.held) > 0:
		return 0, nil, w.changed
	case most <= 0 || !w.opt.AllTenants:
		return p.free, full, w.changed
	}
	free = min(p.free, most)
	has := make(map[perdure.TenantID]int)
	for _, r := range w.held {
		if w.pool(r.grant.Kind) == p {
			has[r.grant.Tenant]++
		}
	}
	for t, n := range has {
		if n >= most {
			if len(full) < maxFull && !slices.Contains(full, t) {
				full = append(full, t)
			}
		} else {
			free = min(free, most-n)
		}
	}
	return free, full, w.changed
}

// quiet waits until no run is held, up to the given time, and tells whether that is so.
func (w *Worker) quiet(limit time.Duration) bool {
	end := time.NewTimer(max(limit, 0))
	defer end.Stop()
	for {
		w.mu.Lock()
		held, changed := len(w.held), w.changed
		w.mu.Unlock()
		if held == 0 {
			return true
		}
		select {
		case <-changed:
		case <-end.C:
			return false
		}
	}
}

// kick wakes the reader of a channel with a buffer of one.
func kick(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// awayLog logs that the server is away, again each minute, and that it is back. All calls report to
// it. A single failed call is not logged, because it is retried at once.
type awayLog struct {
	log   *slog.Logger
	mu    sync.Mutex
	since time.Time // the first failure; zero while the server answers
	said  time.Time // the last log line; zero if there was none
}

// repeatEvery is the time between two log lines while the server is away.
const repeatEvery = time.Minute

// note records the result of a call.
func (a *awayLog) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	away := now.Sub(a.since).Round(time.Millisecond)
	switch {
	case err == nil:
		if !a.said.IsZero() {
			a.log.Info("the server answers again", "after", away)
		}
		a.since, a.said = time.Time{}, time.Time{}
	case a.since.IsZero():
		a.since = now
	case a.said.IsZero():
		a.said = now
		a.log.Warn("the server does not answer, or refuses to; the worker works on", "error", err)
	case now.Sub(a.said) >= repeatEvery:
		a.said = now
		a.log.Warn("the server still does not answer, or refuses to", "after", away, "error", err)
	}
}
