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
	// Slots is how many runs are executed at once; default 20.
	Slots int
	// ID names this worker in lists and logs; it decides nothing. Default: the host's name and a random part.
	ID string
	// AllTenants leases the runs of every tenant; it takes a key of the platform.
	AllTenants bool
	// DrainTimeout is how long handlers may go on after Run's context has ended; default 30 s, negative: not
	// at all.
	DrainTimeout time.Duration
	// PollWait is how long a poll waits for a run; default 30 s.
	PollWait time.Duration
	// HeartbeatEvery is the time between two heartbeats; default 10 s. A lease that is shorter than four of
	// them is kept by more frequent ones.
	HeartbeatEvery time.Duration
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

	handlers map[string]handler
	born     time.Time

	mu      sync.Mutex
	started bool
	held    map[api.Lease]*run // whatever the server believes this worker has
	free    int                // slots
	changed chan struct{}      // something was added to or taken from held: closed, and made anew

	kickBeat    chan struct{} // there is something to beat about
	kickCommit  chan struct{} // there are lines for a log to commit
	kickOutcome chan struct{} // there is an outcome to commit
	away        awayLog
}

// A handler executes a run and says what came of it.
type handler func(ctx context.Context, r *run) *perdure.Outcome

// New makes a worker that talks through a client.
func New(c *client.Client, opt Options) *Worker {
	if len(opt.Queues) == 0 {
		opt.Queues = []string{perdure.DefaultQueue}
	}
	if opt.Slots <= 0 {
		opt.Slots = 20
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
		c: c, opt: opt, log: log, born: time.Now(), handlers: make(map[string]handler), held: make(map[api.Lease]*run), free: opt.Slots,
		changed: make(chan struct{}), kickBeat: make(chan struct{}, 1), kickCommit: make(chan struct{}, 1), kickOutcome: make(chan struct{}, 1), away: awayLog{log: log},
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
}

// Run leases and executes runs until its context ends, then drains and returns nil. It returns an error when
// the server refuses this worker as such: a key that is not valid or lacks a scope, a queue that is no name. It
// runs once.
func (w *Worker) Run(ctx context.Context) error {
	w.mu.Lock()
	if w.started {
		w.mu.Unlock()
		return errors.New("worker: Run was called before")
	}
	w.started = true
	kinds := slices.Sorted(maps.Keys(w.handlers))
	w.mu.Unlock()
	if len(kinds) == 0 {
		return errors.New("worker: no handler is registered")
	}

	// Handlers, heartbeats and commits outlive ctx: it says that the worker is to come down, not that the
	// work is to be dropped.
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	var services sync.WaitGroup
	services.Go(func() { w.beatLoop(life) })
	services.Go(func() { w.commitLoop(life) })

	err := w.pollLoop(ctx, life, kinds)
	if err != nil {
		err = fmt.Errorf("worker: %w", err)
	}
	w.drain(life)
	end(nil)
	services.Wait()
	return err
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
	w.free--
	w.mu.Unlock()
	for _, b := range before {
		b.lost(errRegranted)
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
	w.free++
	r.stop(errDone)
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *Worker) slots() (free int, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.free, w.changed
}

// quiet waits until nothing is held, at most so long.
func (w *Worker) quiet(limit time.Duration) bool {
	end := time.NewTimer(max(limit, 0))
	defer end.Stop()
	for {
		free, changed := w.slots()
		if free == w.opt.Slots {
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

// awayLog says once that the server is away and once that it is back, whatever call notices.
type awayLog struct {
	log   *slog.Logger
	mu    sync.Mutex
	since time.Time
}

func (a *awayLog) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil && a.since.IsZero():
		a.since = time.Now()
		a.log.Warn("the server does not answer, or refuses to; the worker works on", "error", err)
	case err == nil && !a.since.IsZero():
		a.log.Info("the server answers again", "after", time.Since(a.since).Round(time.Millisecond))
		a.since = time.Time{}
	}
}
