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
)

// Options of a worker. The zero value is usable.
type Options struct {
	// Queues are where runs are leased from, all alike; default: "default".
	Queues []string
	// Slots is how many runs are executed at once of the kinds registered with [Handle]; default 20.
	Slots int
	// AgentSlots is the same for agents; default 5. Each has slots of its own, so that agents which wait for
	// what tasks do can't keep them from being done.
	AgentSlots int
	// ID names this worker in lists and logs; it decides nothing. Default: the host's name and a random part.
	ID string
	// AllTenants leases the runs of every tenant; it takes a key of the platform.
	AllTenants bool
	// DrainTimeout is how long handlers may go on after Run's context has ended; default 30 s, negative: not
	// at all.
	DrainTimeout time.Duration
	// PollWait is how long a poll waits for a run, at most a minute; default 30 s.
	PollWait time.Duration
	// HeartbeatEvery is the time between two heartbeats; default 10 s. A lease that is shorter than four of
	// them is kept by more frequent ones.
	HeartbeatEvery time.Duration
	// SelfFence names kinds that must never be executed twice at the same time, not even by a worker that is cut
	// off: when the server has not been heard for as long as a lease lasts, and may have given the run to another
	// by then, the handler's context ends with ErrLeaseLost. Other kinds work on.
	SelfFence []string
	// Trust is the public keys whose signatures count; see [LoadTrust]. With it, a run that is not signed by one of them is
	// rejected before anything of it is executed. Default: signatures are not looked at.
	Trust *perdure.Trust
	// Logger gets what a worker can't return: handlers that fail, a server that is away, results refused.
	Logger *slog.Logger
}

// The clocks of a worker that nobody needs to set.
const (
	firstBeat = 2 * time.Second        // a grant that nobody is heard from is given away again after 5 s
	soonest   = 250 * time.Millisecond // between two heartbeats, however much there is to say
	letGo     = 2 * time.Second        // from the end of a handler's context to when its run is handed back
	lastWords = 5 * time.Second        // of a draining worker, for what is still to be delivered or released
)

// Worker executes runs. Handlers are registered before Run.
type Worker struct {
	c   *client.Client
	opt Options
	log *slog.Logger

	handlers   map[string]handler
	middleware []Middleware
	born       time.Time

	mu      sync.Mutex
	started bool
	held    map[api.Lease]*run // whatever the server believes this worker has
	tasks   pool
	agents  pool
	changed chan struct{} // something was taken from held: closed, and made anew

	kickBeat    chan struct{} // there is something to beat about
	kickNews    chan struct{} // the server knows that this worker has runs
	kickCommit  chan struct{} // there are lines for a log to commit
	kickOutcome chan struct{} // there is an outcome to commit
	away        awayLog
}

// A handler executes the runs of a kind.
type handler struct {
	call  func(ctx context.Context, r *run) *perdure.Outcome // what came of it
	agent bool                                               // it takes a slot of the agents
}

// A pool is the slots that some kinds share. Each is filled by a poll of its own: where one poll asked for both,
// what is free for the one would wait for the other.
type pool struct {
	kinds []string
	free  int
}

// New makes a worker that talks through a client.
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
		c: c, opt: opt, log: log, born: time.Now(), handlers: make(map[string]handler), held: make(map[api.Lease]*run),
		tasks: pool{free: opt.Slots}, agents: pool{free: opt.AgentSlots}, changed: make(chan struct{}), kickBeat: make(chan struct{}, 1), kickNews: make(chan struct{}, 1), kickCommit: make(chan struct{}, 1), kickOutcome: make(chan struct{}, 1), away: awayLog{log: log},
	}
}

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

// ID is the worker's name.
func (w *Worker) ID() string { return w.opt.ID }

// register adds a handler. What can be wrong here is a mistake in the program, as with http.Handle.
func (w *Worker) register(kind string, h handler) {
	if err := perdure.CheckName("kind", kind); err != nil {
		panic("worker.Handle: " + err.Error())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		panic("worker.Handle: " + kind + ": handlers are registered before Run")
	}
	if _, ok := w.handlers[kind]; ok {
		panic("worker.Handle: " + kind + " has a handler already")
	}
	w.handlers[kind] = h
	p := w.pool(kind)
	p.kinds = append(p.kinds, kind)
}

// pool is where runs of a kind have their slots.
func (w *Worker) pool(kind string) *pool {
	if w.handlers[kind].agent {
		return &w.agents
	}
	return &w.tasks
}

// Run leases and executes runs until its context ends, then drains and returns nil. It returns an error when
// the server refuses this worker as such: a key that is not valid or lacks a scope, a queue that is no name, an address where
// there is no such server; or when its options can't be. A server that is away is waited for. It runs once.
func (w *Worker) Run(ctx context.Context) error {
	w.mu.Lock()
	if w.started {
		w.mu.Unlock()
		return errors.New("worker: Run was called before")
	}
	w.started = true
	w.mu.Unlock()
	if len(w.handlers) == 0 {
		return errors.New("worker: no handler is registered")
	}
	if w.opt.Slots < 0 || w.opt.AgentSlots < 0 {
		return fmt.Errorf("worker: Slots is %d and AgentSlots %d: neither can be negative", w.opt.Slots, w.opt.AgentSlots)
	}
	for _, kind := range w.opt.SelfFence {
		if _, ok := w.handlers[kind]; !ok {
			return fmt.Errorf("worker: SelfFence: %q has no handler", kind)
		}
	}

	// Handlers, heartbeats and commits outlive ctx: it says that the worker is to come down, not that the
	// work is to be dropped.
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	var services sync.WaitGroup
	services.Go(func() { w.beatLoop(life) })
	services.Go(func() { w.newsLoop(life) })
	services.Go(func() { w.commitLoop(life) })

	err := w.poll(ctx, life)
	w.drain(life)
	end(nil)
	services.Wait()
	return err
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

// drain waits for the handlers and their results, and gives back what is not done in time.
func (w *Worker) drain(life context.Context) {
	if w.quiet(w.opt.DrainTimeout) {
		return
	}
	for _, r := range w.holding() {
		r.stop(ErrShutdown)
	}
	if w.quiet(letGo) {
		return
	}
	var leases []api.Lease
	for _, r := range w.holding() {
		if r.abandon() {
			leases = append(leases, r.lease)
		}
	}
	if len(leases) > 0 {
		w.log.Info("unfinished runs are handed back", "runs", len(leases))
		w.release(life, leases)
	}
	if !w.quiet(lastWords) {
		for _, r := range w.holding() {
			w.log.Warn("a result could not be delivered before the worker ended; the run is executed again", "run", r.lease.RunID, "kind", r.grant.Kind)
		}
	}
}

// release hands runs back, as well as can be done now: a lease that can't be handed back ends by itself.
func (w *Worker) release(life context.Context, leases []api.Lease) {
	ctx, cancel := context.WithTimeout(life, lastWords)
	defer cancel()
	for part := range slices.Chunk(leases, perdure.MaxBatch) {
		if _, err := w.c.Release(ctx, w.opt.ID, part...); err != nil {
			w.log.Warn("runs could not be handed back; their leases end by themselves", "runs", len(part), "error", err)
		}
		for _, l := range part {
			w.drop(l)
		}
	}
}

// ---- what is held

func (w *Worker) holding() []*run {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.held))
}

func (w *Worker) holds(r *run) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held[r.lease] == r
}

// hold takes a run on. An earlier lease of the same run is over: the server says so by granting this one.
func (w *Worker) hold(r *run) {
	w.mu.Lock()
	var before []*run
	for l, b := range w.held {
		if l.RunID == r.lease.RunID {
			before = append(before, b)
		}
	}
	w.held[r.lease] = r
	w.pool(r.grant.Kind).free--
	w.mu.Unlock()
	for _, b := range before {
		if !b.ending() { // else it is as it should be: a run that suspends may wake before this worker hears that it does
			b.lost(errRegranted)
		}
	}
	kick(w.kickBeat)
}

// drop forgets a run: its result is delivered, or nobody wants it.
func (w *Worker) drop(l api.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := w.held[l]
	if !ok {
		return
	}
	delete(w.held, l)
	w.pool(r.grant.Kind).free++
	r.unhand(errDone)
	if r.fence != nil {
		r.fence.Stop()
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *Worker) slots(p *pool) (free int, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return p.free, w.changed
}

// quiet waits until nothing is held, at most so long.
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

func kick(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// sleep waits, and tells false when the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// awayLog says that the server is away, now and then while it is, and that it is back, whatever call notices. A single
// call that fails is not worth a word: the next one is made at once.
type awayLog struct {
	log   *slog.Logger
	mu    sync.Mutex
	since time.Time // zero: it is there
	said  time.Time // zero: not yet
}

// remind is how often it is said again.
const remind = time.Minute

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
	case now.Sub(a.said) >= remind:
		a.said = now
		a.log.Warn("the server still does not answer, or refuses to", "after", away, "error", err)
	}
}
