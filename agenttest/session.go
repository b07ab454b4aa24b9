package agenttest

import (
	"bytes"
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
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// A Session is one telling of a scenario: the world around its run. Its methods that act on the run are for the
// script, and fail the test when the server refuses.
type Session struct {
	t     *testing.T
	sc    *Scenario
	crash *point // nil: none
	dir   string // of a server that is to be opened again
	log   *lines
	at    *working

	register func(*worker.Worker)

	tenant    perdure.TenantID
	admin     *client.Client
	c         *client.Client
	workerKey string
	id        perdure.RunID
	ctx       context.Context

	common *server // of all tellings; nil: this one has its own
	own    sync.WaitGroup

	mu     sync.Mutex
	srv    *embedded.Server // nil: it is away
	struck bool             // the crash has happened
	over   bool             // nobody is born any more
	life   *life            // the worker that lives, or was the last to
	born   int              // workers so far
	chronicle
	notes     map[string]int
	callbacks chan string // tokens that the script has not used
}

// A server is one that several tellings share.
type server struct {
	*embedded.Server
	lingering sync.WaitGroup // workers that are dead and do not quite know it yet
}

func newSession(t *testing.T, sc *Scenario, common *server, dir string, log *lines, at *working, crash *point) *Session {
	s := &Session{t: t, sc: sc, crash: crash, dir: dir, common: common, tenant: embedded.DefaultTenant, log: log, at: at, chronicle: newChronicle(), notes: make(map[string]int),
		callbacks: make(chan string, perdure.MaxBatch)}
	if common != nil {
		s.tenant = perdure.TenantID("t" + strings.ToLower(rand.Text()))
	}
	return s
}

// tell tells the scenario from its beginning to the end of its last run.
func (s *Session) tell() *End {
	s.t.Helper()
	patience := s.sc.Patience
	if patience <= 0 {
		patience = 25 * time.Hour // longer than an agent lives by default: a run that hangs comes to its deadline
		if s.common != nil {
			patience = time.Minute
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
			s.t.Fatalf("make the thread: %v", err)
		}
		sub.ThreadID = thread.ThreadID
	}
	run, err := s.c.Start(ctx, sub)
	if err != nil {
		s.t.Fatalf("start the run: %v", err)
	}
	s.id = run.RunID
	s.bear()
	if s.sc.Script != nil {
		s.sc.Script(s)
	}
	end := s.gather()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.crash != nil && !s.struck:
		return nil
	case s.crash != nil:
		end.Crash = s.crash.String()
	}
	return end
}

// open opens the server, and makes the keys.
func (s *Session) open() {
	s.t.Helper()
	var err error
	key := ""
	if s.common != nil {
		s.srv = s.common.Server
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
	// One of its own: what a person decides, no worker's key may.
	if s.workerKey, err = s.newKey("worker", []perdure.Scope{perdure.ScopeCreate, perdure.ScopeRead, perdure.ScopeControl, perdure.ScopePoll, perdure.ScopeReport}); err != nil {
		s.t.Fatal(err)
	}
}

const address = "http://perdure"

func (s *Session) options() embedded.Options {
	opt := s.sc.Server
	opt.Dir, opt.Clock = s.dir, time.Now
	if opt.Policy == nil {
		p := perdure.DefaultPolicy()
		p.WatchdogInterval, p.PatrolEvery, p.GapAfter = 10*time.Minute, 10*time.Minute, time.Hour // it wakes for every alarm anyway
		opt.Policy = &p
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.NewTextHandler(s.log, nil)).With("of", "server")
	}
	return opt
}

func (s *Session) newKey(name string, scopes []perdure.Scope) (string, error) {
	in := api.CreateKey{Name: name}
	for _, scope := range scopes {
		in.Scopes = append(in.Scopes, string(scope))
	}
	key, err := s.admin.CreateTenantKey(s.ctx, s.tenant, in)
	if err != nil {
		return "", fmt.Errorf("make the key of the %s: %w", name, err)
	}
	return key.Secret, nil
}

// close ends the telling. In a bubble nothing may be left that runs.
func (s *Session) close() {
	s.mu.Lock()
	s.over = true
	if s.life != nil {
		s.life.stop()
	}
	s.mu.Unlock()
	s.own.Wait()
	if s.common == nil && s.srv != nil {
		if err := s.srv.Close(); err != nil {
			s.t.Errorf("close the server: %v", err)
		}
		s.at.outlast(s.t)
	}
}

// bear has a worker come to life.
func (s *Session) bear() {
	ctx, stop := context.WithCancel(context.Background())
	l := &life{s: s, stop: stop}
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		stop()
		return
	}
	s.born++
	l.id = fmt.Sprintf("worker-%d", s.born)
	s.life = l
	s.mu.Unlock()
	opt := s.sc.Worker
	opt.ID, opt.DrainTimeout = l.id, -1
	if opt.PollWait == 0 && s.common == nil {
		opt.PollWait = time.Minute // the longest there is
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.NewTextHandler(s.log, nil))
	}
	w := worker.New(client.New(address, s.workerKey, client.Options{Transport: l}), opt)
	w.Use(s.at.around)
	s.register(w)
	lives := &s.own
	if s.common != nil {
		lives = &s.common.lingering
	}
	lives.Go(func() {
		if err := w.Run(ctx); err != nil && !s.isDead(l) {
			s.t.Errorf("the worker ended: %v", err)
		}
	})
}

// ---- for the script

// Client is a client of the server, with a key that may do everything.
func (s *Session) Client() *client.Client { return s.c }

// RunID is the run.
func (s *Session) RunID() perdure.RunID { return s.id }

// Context ends with the telling.
func (s *Session) Context() context.Context { return s.ctx }

// Sleep lets time pass: virtual time, unless the scenario runs on a store of its own.
func (s *Session) Sleep(d time.Duration) { time.Sleep(d) }

// Signal sends a signal to the run.
func (s *Session) Signal(name string, data any) {
	s.t.Helper()
	if _, err := s.c.Signal(s.ctx, s.id, name, client.JSON(data)); err != nil {
		s.t.Fatalf("signal %s: %v", name, err)
	}
}

// Cancel asks the run to stop.
func (s *Session) Cancel(reason string) {
	s.t.Helper()
	if _, err := s.c.Cancel(s.ctx, s.id, reason, 0); err != nil {
		s.t.Fatalf("cancel: %v", err)
	}
}

// Callback answers the next callback that a run of the tree opens, or has opened.
func (s *Session) Callback(result any) {
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
func (s *Session) Decide(d perdure.Decision) {
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
		time.Sleep(50 * time.Millisecond) // nobody tells of it
	}
}

// Await waits until the run's log has a line of a type, such as "wait:opened".
func (s *Session) Await(line string) {
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

// ---- for handlers

// Note notes that something was done to the world outside: a mail sent, a card charged. ctx is the handler's, or the
// step's. The ends of all tellings have to agree on what was noted; how often is more after a crash, where a step whose
// result was not recorded is done again. What a dead worker still does counts for nothing. An agent that does something
// outside of its steps does it again in every execution: that fails the test.
func (s *Session) Note(ctx context.Context, what string) {
	if _, outside := ctx.(*agent.Context); outside {
		s.t.Errorf("%q is done outside of a step: an agent is executed again after every wait, and so is this", what)
	}
	info, ok := worker.Info(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ok || info.WorkerID == s.life.id && !s.life.dead {
		s.notes[what]++
	}
}

// lines is what server and workers log, kept for a test that fails.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() > 1<<20 { // the end is what matters, and the beginning of it
		l.b.Next(1 << 19)
	}
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
