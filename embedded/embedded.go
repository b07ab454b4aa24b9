// Package embedded is a whole Perdure server inside of the caller's process: the store, the engine, the
// watchdog and the API, without a socket. The command "perdure serve" is this package behind a listener; a
// program that imports it has durable runs in one file of its own, and talks to them with the same client
// and the same workers as to a server elsewhere:
//
//	srv, err := embedded.Open(embedded.Options{Dir: "data"})
//	…
//	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/connlimit"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/httpd"
	"github.com/perdure/perdure/internal/metrics"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/watchdog"
	"github.com/perdure/perdure/internal/webhook"
)

// Options of a server. The zero value keeps everything in memory.
type Options struct {
	Dir      string          // where the data is: perdure.db and admin.key; empty: in memory
	Store    string          // a PostgreSQL database that nodes share, postgres://…; then Dir holds the key alone; empty: SQLite in Dir
	Doorbell string          // what wakes other nodes, nats://…; empty: PostgreSQL, if that is the store; none: they look by themselves
	Policy   *perdure.Policy // default: perdure.DefaultPolicy
	Node     string          // this node's name, which no other has; default: the host's, and something random on a shared store
	Hosts    []string        // host names that requests may be addressed to, beside IP addresses and localhost
	Logger   *slog.Logger

	// Clock is for tests: instead of the machine's clock, on a store that is not shared. It never goes back. Package
	// agenttest has the server live by the clock of a synctest bubble this way.
	Clock func() time.Time

	Origins       []string             // origins of pages in browsers that may call the API, such as https://app.example.com
	MaxStreams    int                  // how many streams may be open; default, and at most, three quarters of the file descriptors
	TenantStreams int                  // how many of these one tenant may have; default three quarters of them as soon as others call, too
	TenantLimits  perdure.TenantLimits // what a tenant without limits of its own may take; zero: see docs/tenants.md
	PublicURL     string               // where clients reach the API, such as https://perdure.example.com: links in webhooks begin with it; equal on all nodes
	WebhookAllow  []string             // private networks that webhooks may go to, such as 10.1.0.0/16; default: none

	// Secrets name what must not be written, logged or sent: env:NAME or file:PATH, never a value itself; equal on all nodes. See docs/redaction.md.
	Secrets []string

	// SigningKeys are files of private keys that accepted runs are signed with: the first signs, all verify. See docs/signing.md.
	SigningKeys []string

	// SigningRequired are tenants of which nothing is handed over unsigned, whatever the store says; "*" is all of them. Equal on all nodes.
	SigningRequired []string
}

// DefaultTenant is the tenant of the first key.
const DefaultTenant perdure.TenantID = "default"

// DefaultLiveRuns is how many live runs a tenant may have unless something else is said.
const DefaultLiveRuns = 2_000_000

// KeyFile is the file of the first key, in the data folder.
const KeyFile = "admin.key"

// Server is a running server.
type Server struct {
	store  *store.Store
	engine *engine.Engine
	api    *httpd.Server
	key    string
	log    *slog.Logger // may be nil

	stop    context.CancelFunc
	wg      sync.WaitGroup
	once    sync.Once
	callers callers // who carry calls without a socket
}

// Open opens the data and starts to work. The first time, it makes a key of the platform and writes it to
// the folder, readable by its owner alone.
func Open(opt Options) (*Server, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	if opt.Node == "" {
		opt.Node = nodeName(opt.Store != "")
	}
	secrets, err := opt.secrets()
	if err != nil {
		return nil, err
	}
	opt.Logger = secrets.Logger(opt.Logger)
	counts := metrics.New()
	sopt := store.Options{URL: opt.Store, Logger: opt.Logger, Observe: counts.Written}
	if secrets != nil {
		sopt.Redact = secrets.Text
	}
	if opt.Clock != nil {
		sopt.Hooks.Clock = func() perdure.Instant { return perdure.At(opt.Clock()) }
	}
	switch {
	case opt.Dir != "" && opt.Store == "":
		sopt.Path = filepath.Join(opt.Dir, "perdure.db") // the store makes its folder, and has it on disk
		if err := store.Missing(sopt.Path, sopt.Path+"-wal", filepath.Join(opt.Dir, KeyFile)); err != nil {
			return nil, err
		}
	case opt.Dir != "":
		if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the data folder: %w", err)
		}
	}
	st, err := store.Open(sopt)
	if err != nil {
		return nil, err
	}
	if sopt.Path != "" { // nobody else has the folder
		dropLeftovers(opt.Dir)
	}
	s := &Server{store: st, log: opt.Logger}
	bell, err := opt.openBell(st)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	signer, err := opt.signer()
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if s.engine, err = engine.New(st, engine.Options{Policy: opt.Policy, Bell: bell, Counter: counts, Secrets: secrets, Logger: opt.Logger, Signer: signer, SigningRequired: opt.demanded(), MaxLiveRuns: cmp.Or(opt.TenantLimits.MaxLiveRuns, DefaultLiveRuns)}); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if err := checkSigner(s.engine); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	guard := opt.guard()
	sender := webhook.NewHTTP(webhook.HTTPOptions{Guard: guard})
	var look time.Duration // as they like
	if opt.Clock != nil {
		look = 10 * time.Minute // a test would wait for a day of looking every second
	}
	if s.api, err = httpd.New(s.engine, bell, httpd.Options{Node: opt.Node, Metrics: counts, Rules: watchdog.RuleNames(), Hosts: opt.Hosts, Origins: opt.Origins, Streams: opt.MaxStreams, StreamsPerTenant: cmp.Or(opt.TenantStreams, int(opt.TenantLimits.MaxStreams)), Tenant: opt.TenantLimits, Webhooks: guard, Sender: sender,
		Poll: look, Secrets: secrets, Scratch: opt.Dir, Logger: opt.Logger}); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if s.key, err = s.firstKey(opt.Dir); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	counts.Look(s.engine, s.api.Attached)
	guardian := watchdog.New(s.engine, opt.Logger)
	guardian.Told = counts.Acted
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	for _, f := range []func(context.Context) error{guardian.Run, s.api.Run, bell.Run,
		webhook.New(s.engine, webhook.Options{Sender: sender, Look: look, BaseURL: strings.TrimSuffix(opt.PublicURL, "/"), Logger: opt.Logger}).Run} {
		s.wg.Add(1)
		go func() {
			defer s.wg.Done()
			if err := f(ctx); err != nil && opt.Logger != nil {
				opt.Logger.Error("a service ended", "error", err)
			}
		}()
	}
	return s, nil
}

// firstKey finds the key of the data folder, or makes one.
func (s *Server) firstKey(dir string) (string, error) {
	ctx := context.Background()
	path := filepath.Join(dir, KeyFile)
	if dir != "" {
		b, err := os.ReadFile(path)
		if err == nil {
			key := strings.TrimSpace(string(b))
			_, err := s.engine.Authenticate(ctx, key)
			if code := perdure.CodeOf(err); err == nil || code == perdure.CodeUnavailable || code == perdure.CodeUnknown || code == perdure.CodeInternal {
				return key, err // that the store is away says nothing about the key
			}
			return "", fmt.Errorf("the key in %s is not valid (revoked, or of other data). If this is the right store, move the file away to have a new one made", path)
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
	}
	op := &engine.CreateKey{Tenant: DefaultTenant, Name: "admin", Scopes: perdure.Scopes, Platform: true}
	if err := s.engine.Do(ctx, op); err != nil {
		return "", err
	}
	if dir == "" {
		return op.Secret, nil
	}
	return op.Secret, writeKey(path, op.Secret)
}

// writeKey writes a secret so that it is there whole or not at all, for its owner alone.
func writeKey(path, secret string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".key-*") // 0600
	if err != nil {
		return err
	}
	_, err = f.WriteString(secret + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		os.Remove(f.Name())
		return err
	}
	return os.Rename(f.Name(), path)
}

// Handler is the API, for a listener of the caller's own.
func (s *Server) Handler() http.Handler { return s.api.Handler() }

// Bound caps the connections of an HTTP server to what the descriptors of the process allow, and gives the listener
// to serve. plain says that they speak HTTP without TLS. It refuses a process that may open too few.
func (s *Server) Bound(hs *http.Server, l net.Listener, plain bool) (net.Listener, error) {
	n := connlimit.Descriptors()
	if err := connlimit.Check(n); err != nil {
		return nil, err
	}
	plan := connlimit.PlanFor(n)
	if s.log != nil && n < fewDescriptors {
		s.log.Warn("few files and sockets may be open: raise the limit (ulimit -n)", "descriptors", n, "connections", plan.Conns, "streams", plan.Streams)
	}
	limiter := connlimit.New(plan.Conns, plain)
	limiter.Attach(hs)
	return limiter.Listen(l), nil
}

// fewDescriptors is the limit below which a server says that it is low.
const fewDescriptors = 1024

// Key is a key of the platform; it may do everything.
func (s *Server) Key() string { return s.key }

// Err tells why the server can't go on, or nil: after an error at a commit only a restart finds out what is
// in the file.
func (s *Server) Err() error { return s.store.Err() }

// Drain answers whoever is blocked and has no more calls wait. Close follows.
func (s *Server) Drain() { s.api.Shutdown() }

// Close stops the server. What was acknowledged is on disk; leased runs stay leased.
func (s *Server) Close() error {
	var err error
	s.once.Do(func() {
		s.api.Shutdown()
		s.callers.close()
		s.stop()
		s.wg.Wait()
		err = s.store.Close()
	})
	return err
}

// dropLeftovers removes what a server that was killed had half made of a backup.
func dropLeftovers(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, httpd.BackupFolder+"*")) // the pattern is well-formed
	for _, path := range left {
		_ = os.RemoveAll(path) // it costs space, and nothing else
	}
}
