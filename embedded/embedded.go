package embedded

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/server/connlimit"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/httpd"
	"github.com/perdure/perdure/internal/server/metrics"
	"github.com/perdure/perdure/internal/server/sentinel"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/tlscert"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/server/webhook"
	"github.com/perdure/perdure/internal/wire/redact"
)

// DefaultTenant is the tenant of the first key.
const DefaultTenant perdure.TenantID = "default"

// DefaultLiveRuns is the default limit of a tenant's live runs.
const DefaultLiveRuns = 2_000_000

// KeyFile is the file of the first key, in the data folder.
const KeyFile = "admin.key"

// TimelineFile is the file with the newest timeline of PostgreSQL that a node has seen, in its data
// folder. A node without it can't know an old primary that it reaches alone.
const TimelineFile = "timeline.json"

// Server is a running server.
type Server struct {
	store  *store.Store
	engine *engine.Engine
	api    *httpd.Server
	doors  *doors.Set // nil if none is on
	// guardian judges workers by their silence.
	guardian *watchdog.Watchdog
	key      string
	log      *slog.Logger  // may be nil
	cert     *tlscert.Pair // nil without TLS

	instance instance

	stop context.CancelFunc
	wg   sync.WaitGroup
	once sync.Once
	// draining is set by Drain, closed by Close.
	draining, closed atomic.Bool
	// callers run the handlers of calls in process.
	callers callers
}

// Open opens the data and starts the server. The first start of a store makes a platform key and
// writes it to the folder, readable by its owner only. Later starts make none, whatever folder they
// have.
//
// Open waits for a PostgreSQL that is away, also if it goes away in the middle of the start: then the
// start begins again.
func Open(opt Options) (*Server, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	if err := opt.checkKeyFile(); err != nil {
		return nil, err
	}
	secrets, err := opt.secrets()
	if err != nil {
		return nil, err
	}
	opt.Logger = secrets.Logger(opt.Logger)
	first := &firstKey{}
	return opt.await(func() (*Server, error) { return opt.open(secrets, first) })
}

// open is one try of Open.
func (opt Options) open(secrets *redact.Set, first *firstKey) (*Server, error) {
	counts := metrics.New()
	sopt := store.Options{URL: opt.Store, Logger: opt.Logger, Observe: counts.Written, Migrating: opt.Migrating}
	if secrets != nil {
		sopt.Redact = secrets.Text
	}
	if opt.Clock != nil {
		sopt.Hooks.Clock = func() perdure.Instant { return perdure.At(opt.Clock()) }
	}
	switch {
	case opt.Dir != "" && opt.Store == "":
		sopt.Path = filepath.Join(opt.Dir, "perdure.db") // the store makes its folder, and syncs it
		if err := store.Missing(sopt.Path, sopt.Path+"-wal", filepath.Join(opt.Dir, KeyFile)); err != nil {
			return nil, err
		}
	case opt.Dir != "":
		if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the data folder: %w", err)
		}
		sopt.TimelineFile = filepath.Join(opt.Dir, TimelineFile)
	}
	st, err := store.Open(sopt)
	if err != nil {
		return nil, err
	}
	if opt.Logger != nil {
		opt.Logger = st.Logger() // one line for an outage, and not one for each call
	}
	if sopt.Path != "" { // the store has locked the folder
		removePartialBackups(opt.Dir)
	}
	s := &Server{store: st, log: opt.Logger}
	if s.instance, err = opt.openInstance(st); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	opened := false
	defer func() {
		if !opened {
			s.instance.close()
		}
	}()
	if opt.Node == "" {
		opt.Node = nodeName(opt.Store != "", s.instance.id)
	}
	if s.cert, err = opt.certificate(); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if err := s.logAbsence(opt.Policy); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	bell, err := opt.openBell(st)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	signer, err := opt.signer()
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	sealKeys, err := opt.sealKeys()
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	s.engine, err = engine.New(st, engine.Options{Policy: opt.Policy, Bell: bell, Counter: counts, Secrets: secrets,
		Logger: opt.Logger, Signer: signer, SigningRequired: opt.signedTenants(), SealKeys: sealKeys,
		Instance: s.instance.id, Node: opt.Node, MaxLiveRuns: cmp.Or(opt.TenantLimits.MaxLiveRuns, DefaultLiveRuns)})
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if err := checkSigner(s.engine); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	guard := opt.guard()
	sender := webhook.NewHTTP(webhook.HTTPOptions{Guard: guard})
	var poll, maxPoll time.Duration // zero is the default of each service
	if opt.Clock != nil {
		// A test that skips a day would otherwise poll for every second of it.
		poll, maxPoll = time.Hour, 24*time.Hour
	}
	var monitor *sentinel.Monitor
	if opt.Workspace != "" {
		if monitor, err = opt.monitor(s.engine, secrets); err != nil {
			return nil, errors.Join(err, st.Close())
		}
	}
	door, err := s.openDoors(opt)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	s.api, err = httpd.New(s.engine, bell, httpd.Options{Node: opt.Node, Metrics: counts, Rules: watchdog.RuleNames(),
		Door: door, StoredRule: watchdog.StoredName, Hosts: opt.Hosts, Origins: opt.Origins, Streams: opt.MaxStreams,
		StreamsPerTenant: cmp.Or(opt.TenantStreams, int(opt.TenantLimits.MaxStreams)), Tenant: opt.TenantLimits,
		Webhooks: guard, Sender: sender, Poll: poll, MaxPollWait: maxPoll, Processes: monitor, Secrets: secrets,
		Scratch: opt.Dir, Logger: opt.Logger})
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if err := s.connectDoors(); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if s.key, err = s.findKey(opt, first); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	opt.logUses(s, signer, len(sealKeys))
	counts.Look(s.engine, s.api.Attached)
	if s.cert != nil {
		counts.Certificate(s.cert.Expires)
	}
	guardian := watchdog.New(s.engine, opt.Logger)
	s.guardian = guardian
	guardian.OnActions, guardian.OnSetAside = counts.Acted, counts.SetAside
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	deliverer := webhook.New(s.engine, webhook.Options{Sender: sender, Look: poll, Formats: formats(),
		BaseURL: strings.TrimSuffix(opt.PublicURL, "/"), Logger: opt.Logger})
	start := func(f func(context.Context) error) {
		s.wg.Go(func() {
			if err := f(ctx); err != nil && opt.Logger != nil {
				opt.Logger.Error("a service ended", "error", err)
			}
		})
	}
	if monitor != nil {
		counts.Processes(monitor.Counted)
		start(monitor.Run)
		// Results that processes left are adopted before the first sweep, as far as the time allows.
		select {
		case <-monitor.Recovered():
		case <-time.After(recoverWithin):
		}
	}
	watch := guardian.Run
	if began := st.Now(); s.instance.returns {
		watch = func(ctx context.Context) error {
			s.takeBack(ctx, guardian, began)
			return guardian.Run(ctx)
		}
	}
	for _, f := range []func(context.Context) error{watch, s.api.Run, bell.Run, deliverer.Run, s.followPrimary(bell)} {
		start(f)
	}
	opened = true
	return s, nil
}

// takeBack takes the runs that workers inside this server held when it last ended.
func (s *Server) takeBack(ctx context.Context, w *watchdog.Watchdog, began perdure.Instant) {
	n, err := w.TakeFrom(ctx, s.instance.id, began)
	switch {
	case s.log == nil || ctx.Err() != nil:
	case err != nil:
		s.log.Warn("runs of the server's last life wait for the end of their leases", "error", err)
	case n > 0:
		s.log.Info("runs of the server's last life are executed again", "runs", n)
	}
}

// recoverWithin bounds how long the start waits for the recovery of processes. It goes on beside the
// server then.
const recoverWithin = 5 * time.Second

// monitor makes the monitor of the workspace, and the workspace if there is none.
func (opt *Options) monitor(e *engine.Engine, secrets *redact.Set) (*sentinel.Monitor, error) {
	workspace, err := filepath.Abs(opt.Workspace)
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	if err := os.MkdirAll(workspace, 0o700); err != nil {
		return nil, fmt.Errorf("make the workspace: %w", err)
	}
	return sentinel.New(e, sentinel.Options{Workspace: workspace, Scan: opt.SentinelScan,
		ReattachWindow: opt.ReattachWindow, PresumedDeadAfter: opt.PresumedDeadAfter, Retention: opt.WorkspaceRetention,
		Logger: opt.Logger, Secrets: secrets}), nil
}

// logAbsence logs how long the store was not used, and how many deadlines have passed since.
func (s *Server) logAbsence(p *perdure.Policy) error {
	if s.log == nil {
		return nil
	}
	if p == nil {
		d := perdure.DefaultPolicy()
		p = &d
	}
	var a store.Absence
	err := s.store.View(context.Background(), func(v *store.View) (err error) {
		a, err = v.Absence(s.store.StoredClock())
		return err
	})
	if err != nil || a.For <= p.GapAfter {
		return err
	}
	past := strconv.Itoa(a.Past)
	if a.More {
		past += " or more"
	}
	s.log.Info("start after an absence", "away", a.For.Round(time.Second), "last_used", a.Since,
		"runs_past_deadline", past)
	return nil
}

// Handler returns the API, for the caller's own listener.
func (s *Server) Handler() http.Handler { return s.api.Handler() }

// Bound limits the connections of an HTTP server to what the file descriptors of the process allow,
// and returns the listener to serve. plain is set for HTTP without TLS. Bound returns an error if
// the process may open too few files.
func (s *Server) Bound(hs *http.Server, l net.Listener, plain bool) (net.Listener, error) {
	return Bound(hs, l, plain, s.log)
}

// Bound is [Server.Bound] for a listener that is served before the server is open.
func Bound(hs *http.Server, l net.Listener, plain bool, log *slog.Logger) (net.Listener, error) {
	n := connlimit.Descriptors()
	if err := connlimit.Check(n); err != nil {
		return nil, err
	}
	plan := connlimit.PlanFor(n)
	if log != nil && n < fewDescriptors {
		log.Warn("few files and sockets may be open: raise the limit (ulimit -n)", "descriptors", n,
			"connections", plan.Conns, "streams", plan.Streams)
	}
	limiter := connlimit.New(plan.Conns, plain)
	limiter.Attach(hs)
	return limiter.Listen(l), nil
}

// fewDescriptors is the number of descriptors below which the server logs a warning.
const fewDescriptors = 1024

// TLSConfig returns the configuration for a listener that is served before the server is open, or
// nil if there is no certificate.
func (opt Options) TLSConfig() (*tls.Config, error) {
	pair, err := opt.certificate()
	if pair == nil || err != nil {
		return nil, err
	}
	return pair.Config(), nil
}

// TLSConfig returns the configuration for the caller's listener, or nil if Options name no
// certificate. It offers HTTP/1.1 only.
func (s *Server) TLSConfig() *tls.Config {
	if s.cert == nil {
		return nil
	}
	return s.cert.Config()
}

// Key returns a platform key: that of Options.Key, that of the folder, or the one that this start
// has made. It is empty if the store had its first start with another folder.
func (s *Server) Key() string { return s.key }

// OwnKey makes a platform key for a worker inside this process, with some scopes. The name is the one
// that the audit log and decisions show. The key is not stored: it is listed nowhere, and ends with the
// server.
//
// The id of a worker with such a key ends with ~ and the instance of this server, which it keeps in
// its data folder. After a crash, the runs that the worker held are executed again at the next
// start instead of after the end of their leases; each has spent an attempt. A server without a
// folder waits.
func (s *Server) OwnKey(name string, scopes ...perdure.Scope) (string, error) {
	return s.engine.Keys.MakeOwn(DefaultTenant, name, scopes)
}

// Err returns the error after which the server can't go on, or nil. After a failed commit only a
// restart can tell what is in the file.
func (s *Server) Err() error { return s.store.Err() }

// Drain answers all blocked calls, and lets no further call block. A client in process that waits for
// a run gets a deferral at once. Call Close afterwards. A program with an HTTP server and a worker of
// its own ends them in this order: Drain, so that no request waits for a run; the worker, which
// delivers its last results; the HTTP server; Close.
func (s *Server) Drain() {
	s.draining.Store(true)
	if s.guardian != nil { // it failed to open otherwise
		s.guardian.Drain()
	}
	if s.doors != nil {
		s.doors.Close()
	}
	s.api.Shutdown()
}

// Close stops the server. Everything that was acknowledged is on disk. Leased runs stay leased.
func (s *Server) Close() error {
	var err error
	s.once.Do(func() {
		s.Drain()
		s.callers.close()
		s.stop()
		s.wg.Wait()
		s.closed.Store(true)
		err = s.store.Close()
		s.instance.close()
	})
	return err
}

// removePartialBackups removes the unfinished backups of a server that was killed.
func removePartialBackups(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, httpd.BackupFolder+"*")) // the pattern is well-formed
	for _, path := range left {
		_ = os.RemoveAll(path) // a folder that stays costs disk space only
	}
}
