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
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/connlimit"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/httpd"
	"github.com/perdure/perdure/internal/metrics"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/tlscert"
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
	WebhookPorts  []int                // ports that webhooks may go to on other networks; default: 80, 443, 8080, 8443

	// Secrets name what must not be written, logged or sent: env:NAME or file:PATH, never a value itself; equal on all nodes. See docs/redaction.md.
	Secrets []string

	// Key is a platform key of the store, for a node without a folder on a store that has had its first start. Key gives it back.
	Key string

	// InsecureKeyFile permits an admin.key that others than its owner can read.
	InsecureKeyFile bool

	// SigningKeys are files of private keys that accepted runs are signed with: the first signs, all verify. See docs/signing.md.
	SigningKeys []string

	// SigningRequired are tenants of which nothing is handed over unsigned, whatever the store says; "*" is all of them. Equal on all nodes.
	SigningRequired []string

	// SealKeys name the keys that seal the store's root secret: env:NAME or file:PATH, each 32 bytes in hexadecimal digits or base64.
	// The first seals, all open. Equal on all nodes.
	SealKeys []string

	// TLSCert and TLSKey are files of PEM: the certificate with its chain, and its private key. Server.TLSConfig is made of them;
	// they are read again when they change. Both or neither.
	TLSCert, TLSKey string
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
	log    *slog.Logger  // may be nil
	cert   *tlscert.Pair // nil: no TLS

	stop    context.CancelFunc
	wg      sync.WaitGroup
	once    sync.Once
	callers callers // who carry calls without a socket
}

// Open opens the data and starts to work. The first start of a store makes a key of the platform and writes it to the folder,
// readable by its owner alone. Later starts make none, whatever folder they have.
func Open(opt Options) (*Server, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	if opt.Node == "" {
		opt.Node = nodeName(opt.Store != "")
	}
	if err := opt.checkKeyFile(); err != nil {
		return nil, err
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
	if s.cert, err = opt.certificate(); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if err := s.tellAbsence(opt.Policy); err != nil {
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
	if s.engine, err = engine.New(st, engine.Options{Policy: opt.Policy, Bell: bell, Counter: counts, Secrets: secrets, Logger: opt.Logger, Signer: signer, SigningRequired: opt.demanded(), SealKeys: sealKeys,
		MaxLiveRuns: cmp.Or(opt.TenantLimits.MaxLiveRuns, DefaultLiveRuns)}); err != nil {
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
	if s.api, err = httpd.New(s.engine, bell, httpd.Options{Node: opt.Node, Metrics: counts, Rules: watchdog.RuleNames(), StoredRule: watchdog.StoredName, Hosts: opt.Hosts, Origins: opt.Origins, Streams: opt.MaxStreams, StreamsPerTenant: cmp.Or(opt.TenantStreams, int(opt.TenantLimits.MaxStreams)), Tenant: opt.TenantLimits, Webhooks: guard, Sender: sender,
		Poll: look, Secrets: secrets, Scratch: opt.Dir, Logger: opt.Logger}); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if s.key, err = s.findKey(opt); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	counts.Look(s.engine, s.api.Attached)
	if s.cert != nil {
		counts.Certificate(s.cert.Expires)
	}
	guardian := watchdog.New(s.engine, opt.Logger)
	guardian.OnActions, guardian.OnSetAside = counts.Acted, counts.SetAside
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

// tellAbsence logs how long nobody has used the store, and how many deadlines have passed meanwhile.
func (s *Server) tellAbsence(p *perdure.Policy) error {
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
	s.log.Info("start after an absence", "away", a.For.Round(time.Second), "last_used", a.Since, "runs_past_deadline", past)
	return nil
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

// TLSConfig is for the caller's listener; nil where Options name no certificate. It offers HTTP/1.1 alone.
func (s *Server) TLSConfig() *tls.Config {
	if s.cert == nil {
		return nil
	}
	return s.cert.Config()
}

// Key is a key of the platform: that of Options.Key, or of the folder, or the one that this start made. It is empty if the store
// has had its first start with another folder.
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
