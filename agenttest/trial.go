package agenttest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/worker"
)

// A Trial is one execution of a scenario: its server, its workers and its run. The methods that act
// on the run are for the script. They fail the test if the server refuses.
type Trial struct {
	t  *testing.T
	sc *Scenario
	// crash is nil in the trial without one.
	crash *point
	// awake tells that runs stay awake on their waits.
	awake bool
	// dir is the directory of a server that will restart.
	dir      string
	log      *logBuffer
	handlers *runningHandlers

	register func(*worker.Worker)

	tenant    perdure.TenantID
	admin     *client.Client
	c         *client.Client
	workerKey string
	id        perdure.RunID
	ctx       context.Context

	// shared is the server of all trials, or nil if this one has its own.
	shared     *server
	goroutines sync.WaitGroup

	// announced ends when the first worker polls, or has ended: its kinds are announced by then. No poll
	// is sent before begun ends, which is when the run has started.
	announced, begun context.Context
	onPoll, begin    context.CancelFunc

	mu sync.Mutex
	// srv is nil while the server restarts.
	srv     *embedded.Server
	crashed bool
	// closed tells that no more workers may start.
	closed bool
	// conn is the connection of the newest worker.
	conn *workerConn
	// started counts the workers.
	started int
	observed
	notes map[string]int
	// noters has the runs that made each note.
	noters map[string]map[perdure.RunID]bool
	// callbacks has the tokens that the script has not used.
	callbacks chan string
}

// A server is shared by several trials.
type server struct {
	*embedded.Server
	// deadWorkers are workers of ended trials that have not returned yet.
	deadWorkers sync.WaitGroup
}

// newSession prepares a trial. On a shared server it gets a tenant of its own.
func newSession(
	t *testing.T, sc *Scenario, shared *server, dir string, log *logBuffer, handlers *runningHandlers, crash *point,
) *Trial {
	s := &Trial{t: t, sc: sc, crash: crash, dir: dir, shared: shared, tenant: embedded.DefaultTenant, log: log,
		handlers: handlers, observed: newObserved(), notes: make(map[string]int),
		noters:    make(map[string]map[perdure.RunID]bool),
		callbacks: make(chan string, perdure.MaxList)}
	s.announced, s.onPoll = context.WithCancel(context.Background())
	s.begun, s.begin = context.WithCancel(context.Background())
	if shared != nil {
		s.tenant = perdure.TenantID("t" + strings.ToLower(rand.Text()))
	}
	return s
}

// execute makes the trial, until its last run has ended.
func (s *Trial) execute() *End {
	s.t.Helper()
	patience := s.sc.Patience
	if patience <= 0 {
		patience = 25 * time.Hour // longer than an agent's default timeout, so that a run that hangs times out
		if s.shared != nil {
			patience = eventually.Left(s.t)
		}
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	s.ctx = ctx
	defer s.close()
	s.open()
	s.register = s.sc.Setup(s)
	sub := s.sc.Start
	if sub.ThreadID != "" {
		thread, err := s.c.CreateThread(ctx, nil)
		if err != nil {
			s.t.Fatalf("create the thread: %v", err)
		}
		sub.ThreadID = thread.ThreadID
	}
	// The run takes its class and its attempts from the announcement of its kind.
	s.startWorker()
	<-s.announced.Done()
	run, err := s.c.Start(ctx, sub)
	if err != nil {
		s.t.Fatalf("start the run: %v", err)
	}
	s.id = run.RunID
	s.begin()
	if s.sc.Script != nil {
		s.sc.Script(s)
	}
	end := s.gather()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.crash != nil && !s.crashed:
		end.missed = true
	case s.crash != nil:
		end.Crash = s.crash.String()
	}
	return end
}

// open opens the server and creates the keys.
func (s *Trial) open() {
	s.t.Helper()
	var err error
	key := ""
	if s.shared != nil {
		s.srv = s.shared.Server
		wire := client.Options{Transport: front{s}}
		s.admin = client.New(address, s.srv.Key(), wire)
		if key, err = s.newKey("script", perdure.TenantScopes); err != nil {
			s.t.Fatal(err)
		}
		s.c = client.New(address, key, wire)
	} else {
		if s.srv, err = embedded.Open(s.options()); err != nil {
			s.t.Fatal(err)
		}
		s.admin = client.New(address, s.srv.Key(), client.Options{Transport: front{s}})
		s.c = s.admin
	}
	// Workers have a key of their own, which does not allow decisions of people.
	scopes := []perdure.Scope{
		perdure.ScopeCreate, perdure.ScopeRead, perdure.ScopeControl, perdure.ScopePoll, perdure.ScopeReport,
	}
	if s.workerKey, err = s.newKey("worker", scopes); err != nil {
		s.t.Fatal(err)
	}
}

const address = "http://perdure"

// options returns the options of the server.
func (s *Trial) options() embedded.Options {
	opt := s.sc.Server
	opt.Dir, opt.Clock = s.dir, time.Now
	opt.Policy = unhurried(opt.Policy)
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.NewTextHandler(s.log, nil)).With("of", "server")
	}
	return opt
}

// unhurried returns a policy with longer intervals between routine checks, unless the scenario has
// set them. Virtual time passes faster with fewer timers, and the watchdog wakes for every alarm
// anyway.
func unhurried(given *perdure.Policy) *perdure.Policy {
	usual := perdure.DefaultPolicy()
	p := usual
	if given != nil {
		p = *given
	}
	for _, x := range []struct{ of, usually *time.Duration }{
		{&p.WatchdogInterval, &usual.WatchdogInterval},
		{&p.PatrolEvery, &usual.PatrolEvery},
	} {
		if *x.of == *x.usually {
			*x.of = 6 * time.Hour
		}
	}
	if p.GapAfter == usual.GapAfter {
		p.GapAfter = 4 * p.WatchdogInterval
	}
	return &p
}

// newKey creates an API key of the trial's tenant.
func (s *Trial) newKey(name string, scopes []perdure.Scope) (string, error) {
	in := api.CreateKey{Name: name}
	for _, scope := range scopes {
		in.Scopes = append(in.Scopes, string(scope))
	}
	key, err := admin.New(s.admin).CreateTenantKey(s.ctx, s.tenant, in)
	if err != nil {
		return "", fmt.Errorf("create the key of the %s: %w", name, err)
	}
	return key.Secret, nil
}

// close ends the trial. All goroutines of a bubble have to end with it.
func (s *Trial) close() {
	s.mu.Lock()
	s.closed = true
	if s.conn != nil {
		s.conn.stop()
	}
	s.mu.Unlock()
	s.goroutines.Wait()
	if s.shared == nil && s.srv != nil {
		if err := s.srv.Close(); err != nil {
			s.t.Errorf("close the server: %v", err)
		}
		s.handlers.waitForHandlers(s.t)
	}
}

// startWorker starts a worker with a connection of its own.
func (s *Trial) startWorker() {
	ctx, stop := context.WithCancel(context.Background())
	if s.awake {
		ctx = session.StayAwake(ctx, awakeFor)
	}
	l := &workerConn{s: s, stop: stop}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		stop()
		return
	}
	s.started++
	l.id = fmt.Sprintf("worker-%d", s.started)
	s.conn = l
	s.mu.Unlock()
	opt := s.sc.Worker
	opt.ID, opt.DrainTimeout = l.id, -1
	if s.awake { // runs that stay awake occupy a slot each, which those that sleep do not
		opt.Slots, opt.AgentSlots = cmp.Or(opt.Slots, 20)+awakeSlots, cmp.Or(opt.AgentSlots, 5)+awakeSlots
	}
	if opt.PollWait == 0 && s.shared == nil {
		opt.PollWait = 24 * time.Hour // the most that a server with a given clock allows
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.NewTextHandler(s.log, nil))
	}
	w := worker.New(client.New(address, s.workerKey, client.Options{Transport: l}), opt)
	w.Use(s.handlers.middleware)
	s.register(w)
	group := &s.goroutines
	if s.shared != nil {
		group = &s.shared.deadWorkers
	}
	group.Go(func() {
		defer s.onPoll()
		if err := w.Run(ctx); err != nil && !s.isDead(l) {
			s.t.Errorf("the worker ended: %v", err)
		}
	})
}

// Methods for the script.

// Client returns a client of the server, with a key that allows everything.
func (s *Trial) Client() *client.Client { return s.c }

// RunID returns the id of the scenario's run.
func (s *Trial) RunID() perdure.RunID { return s.id }

// Context returns a context that ends with the trial.
func (s *Trial) Context() context.Context { return s.ctx }

// Sleep waits, in virtual time unless the scenario has a Store.
func (s *Trial) Sleep(d time.Duration) { time.Sleep(d) }

// Signal sends a signal to the run.
func (s *Trial) Signal(name string, data any) {
	s.t.Helper()
	if _, err := s.c.Signal(s.ctx, s.id, name, client.JSON(data)); err != nil {
		s.t.Fatalf("signal %s: %v", name, err)
	}
}

// Cancel asks the run to stop.
func (s *Trial) Cancel(reason string) {
	s.t.Helper()
	if _, err := s.c.Cancel(s.ctx, s.id, reason, 0); err != nil {
		s.t.Fatalf("cancel: %v", err)
	}
}

// Callback answers the next callback that a run of the tree opens, or has opened.
func (s *Trial) Callback(result any) {
	s.t.Helper()
	select {
	case token := <-s.callbacks:
		if _, err := s.c.Callback(s.ctx, token, api.UseCallback{Result: client.JSON(result)}); err != nil {
			s.t.Fatalf("callback: %v", err)
		}
	case <-s.ctx.Done():
		s.t.Fatal("no callback was opened")
	}
}

// Decide decides the next approval that a run of the tree asks for.
func (s *Trial) Decide(d perdure.Decision) {
	s.t.Helper()
	for {
		open, err := s.c.Approvals(s.ctx, client.ApprovalFilter{Limit: 1})
		if err == nil && len(open.Approvals) > 0 {
			_, err = s.c.Decide(s.ctx, open.Approvals[0].ID, d)
			if err == nil {
				return
			}
		}
		if err != nil {
			s.t.Fatalf("decide: %v", err)
		}
		time.Sleep(50 * time.Millisecond) // there is no notification of approvals
	}
}

// Await waits until the run's log has a line of a type, such as "wait:opened".
func (s *Trial) Await(line perdure.LineType) {
	s.t.Helper()
	for e, err := range s.c.Events(s.ctx, s.id, 0) {
		if err != nil {
			s.t.Fatalf("wait for a line %s: %v", line, err)
		}
		if e.Type == line {
			return
		}
	}
	s.t.Fatalf("the run has ended without a line %s", line)
}

// Methods for handlers.

// Note records an effect outside of the run, such as a mail sent or a card charged. ctx is the
// context of the handler or the step. All trials have to end with the same set of notes. The counts
// may be higher after a crash, because a step whose result was not recorded is executed again.
// Notes of a dead worker are ignored. A note outside of a step fails the test, because an agent
// repeats it in every execution.
func (s *Trial) Note(ctx context.Context, what string) {
	if _, outside := ctx.(*agent.Context); outside {
		s.t.Errorf("%q is done outside of a step: an agent is executed again after every wait, and so is this", what)
	}
	info, ok := worker.Info(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ok || info.WorkerID == s.conn.id && !s.conn.dead {
		s.notes[what]++
		if s.noters[what] == nil {
			s.noters[what] = make(map[perdure.RunID]bool)
		}
		s.noters[what][info.RunID] = true
	}
}

// A logBuffer keeps the log of server and workers, for a test that fails. It keeps the last
// megabyte.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() > 1<<20 {
		l.b.Next(1 << 19)
	}
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
