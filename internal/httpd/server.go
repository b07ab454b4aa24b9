// Package httpd is the HTTP API: a table of routes, each with its guard, over the engine. It decides nothing
// about runs; it reads requests strictly, asks the engine, and writes answers.
//
// The way in: routes.go is the table, route.go how a row becomes a handler, auth.go who may pass. Whatever is
// not in the table is refused.
package httpd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/connlimit"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/fair"
	"github.com/perdure/perdure/internal/httpd/stream"
	"github.com/perdure/perdure/internal/redact"
	"github.com/perdure/perdure/internal/webhook"
)

// Options of a server. The zero value is usable.
type Options struct {
	Node             string        // this node's name, unique in a fleet
	Hosts            []string      // host names that requests may be addressed to, beside IP addresses and localhost
	Origins          []string      // origins of pages that may call the API, such as https://app.example.com
	Streams          int           // how many streams may be open; default, and at most, three quarters of the file descriptors
	StreamsPerTenant int           // how many of these one tenant may have; default three quarters of them as soon as others call, too
	Ready            func() error  // whether the node should get traffic; nil: it should
	Poll             time.Duration // how often is looked at things without a ring; default 1 s
	Logger           *slog.Logger
	Secrets          *redact.Set  // what is taken out of everything that comes in
	Scratch          string       // a folder where a backup is put together; empty: where the system has such things
	Metrics          http.Handler // what is counted; nil: nothing is
	Rules            []string     // numbers and names of the watchdog's rules, as its log stores them

	// StoredRule maps a rule's full name to the name in the watchdog's log, and any other text to
	// itself. Nil means that rules have no full names.
	StoredRule func(name string) string

	Webhooks *webhook.Guard // where webhooks may go; nil: to public addresses only
	Sender   webhook.Sender // of test messages; nil: HTTP, to where webhooks may go

	Tenant      perdure.TenantLimits // defaults of what one tenant may take; zero: see shares.go and stream/limit.go
	Descriptors int64                // how many files and sockets the process may open; default: what the system says
	ShareWait   time.Duration        // how long a call waits for its tenant's share before it is refused; default 1 s

	BodyTimeout time.Duration // how long a request's body may take to arrive; default 30 s
	AnswerTime  time.Duration // how long an ordinary answer may take to be read, beside the time that AnswerRate gives; default 10 s
	AnswerRate  int64         // the slowest that an answer may be read, in bytes a second; default 64 KiB
	Beat        time.Duration // how often a stream says that it is there, so that clients notice a dead connection; default 5 s
	Patience    time.Duration // how long a write to a stream may take: a slower reader is dropped, and comes back with its cursor; default 10 s
}

// Server answers.
type Server struct {
	engine  *engine.Engine
	bell    doorbell.Bell
	opt     Options
	log     *slog.Logger
	mux     *http.ServeMux
	routes  []route
	openapi []byte

	closing chan struct{}     // closed when the server shuts down: whoever is blocked is answered
	ready   engine.ReadyRound // of Run

	mu      sync.Mutex
	closed  bool
	waiting map[engine.Ref]int // waiters of this node, by run
	turns   [64]sync.Mutex     // of those who come and leave

	logs    *stream.Reader
	streams sync.WaitGroup // streams that go on without a request
	glance  time.Duration  // of these; for tests
	seats   *stream.Limiter
	shares  *shares
	keyring keyring
	looking chan struct{} // sockets that look at the store
	storing *fair.Gate    // uploads that store a chunk

	addresses addresses
	owners    owners

	tried   probe      // whether the store can be used
	backing sync.Mutex // held while a backup is made

	looks atomic.Int64 // how often polls have looked into their queues, or for news
}

// New makes a server over an engine. bell is what the engine rings.
func New(e *engine.Engine, bell doorbell.Bell, opt Options) (*Server, error) {
	s := &Server{engine: e, bell: bell, opt: opt, log: opt.Logger, mux: http.NewServeMux(), closing: make(chan struct{}), waiting: make(map[engine.Ref]int)}
	s.logs, s.shares, s.glance = stream.NewReader(e), newShares(&opt), stream.Glance
	s.seats = stream.NewLimiter(stream.Limits{Descriptors: opt.Descriptors, Streams: opt.Streams,
		StreamsPerTenant: opt.StreamsPerTenant, PollsPerTenant: int(opt.Tenant.MaxPolls)})
	s.looking = make(chan struct{}, socketsAtOnce)
	s.storing = fair.NewGate(fair.Limits{Size: storingAtOnce, Share: storingAtOnce / 2, Strict: true})
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.opt.Node == "" {
		s.opt.Node = "node"
	}
	if s.opt.Poll == 0 {
		s.opt.Poll = time.Second
	}
	s.keyring = keyring{engine: e, every: keysEvery, keys: make(map[string]*held), some: make(chan struct{}, 1)}
	s.tried.try = s.tryStore
	if !e.Shared() {
		s.keyring.every = s.opt.Poll
	}
	if s.opt.Webhooks == nil {
		s.opt.Webhooks = &webhook.Guard{}
	}
	if s.opt.Sender == nil {
		s.opt.Sender = webhook.NewHTTP(webhook.HTTPOptions{Guard: s.opt.Webhooks})
	}
	if s.opt.BodyTimeout == 0 {
		s.opt.BodyTimeout = 30 * time.Second
	}
	if s.opt.AnswerTime == 0 {
		s.opt.AnswerTime = defaultAnswerTime
	}
	if s.opt.AnswerRate == 0 {
		s.opt.AnswerRate = defaultAnswerRate
	}
	if s.opt.Beat == 0 {
		s.opt.Beat = 5 * time.Second
	}
	if s.opt.Patience == 0 {
		s.opt.Patience = 10 * time.Second
	}
	s.routes = s.table()
	patterns := make(map[string][]string)
	for _, r := range s.routes {
		s.mux.HandleFunc(r.method+" "+r.pattern, s.serve(r))
		patterns[r.pattern] = append(patterns[r.pattern], r.method)
	}
	doc, err := describe(s.routes)
	if err != nil {
		return nil, err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, doc); err != nil {
		return nil, err
	}
	s.openapi = append(compact.Bytes(), '\n')
	refuse := func(w http.ResponseWriter, methods []string) {
		w.Header().Set("Allow", strings.Join(methods, ", "))
		s.problem(w, perdure.Errorf(api.CodeMethod, "this path takes %s", strings.Join(methods, ", ")))
	}
	for pattern, methods := range patterns {
		folder, name := path.Split(pattern)
		if ids, ok := patterns[folder+"{id}"]; ok && name != "{id}" {
			for _, m := range ids { // which would take the name for an id
				if !slices.Contains(methods, m) {
					s.mux.HandleFunc(m+" "+pattern, func(w http.ResponseWriter, _ *http.Request) { refuse(w, methods) })
				}
			}
			continue
		}
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) {
			if named, ok := patterns[req.URL.Path]; ok {
				refuse(w, named)
				return
			}
			refuse(w, methods)
		})
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		s.problem(w, perdure.Errorf(perdure.CodeNotFound, "there is nothing at this path"))
	})
	return s, nil
}

// Handler is the API as a handler.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The answer before this one on the same connection has left its deadline.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // in process there is none to set
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		if !s.allowedHost(r.Host) {
			s.problem(w, perdure.Errorf(api.CodeHost, "add the host to the server's allowed hosts"))
			return
		}
		if len(r.Header.Values("Origin")) > 1 { // a check of the first would let the others pass
			s.problem(w, perdure.Errorf(api.CodeOrigin, "send one Origin header"))
			return
		}
		if s.cors(w, r) {
			return
		}
		if r.URL.Path != cleanPath(r.URL.Path) && !namesArtifact(r.URL.EscapedPath()) {
			// Not redirected as the standard mux would: a path with tricks names nothing.
			s.problem(w, perdure.Errorf(perdure.CodeNotFound, "there is nothing at this path"))
			return
		}
		s.mux.ServeHTTP(w, redacted(s.opt.Secrets, r))
	})
}

// cleanPath is the path as the table would have to be asked for it.
func cleanPath(p string) string {
	for _, bad := range []string{"//", "/./", "/../", "\\"} {
		if strings.Contains(p, bad) {
			return ""
		}
	}
	if !strings.HasPrefix(p, "/") || strings.HasSuffix(p, "/..") || strings.HasSuffix(p, "/.") || (len(p) > 1 && strings.HasSuffix(p, "/")) {
		return ""
	}
	return p
}

// namesArtifact tells whether a path, as it was sent, is that of an artifact. Its handler says what is wrong with a name of
// slashes, backslashes or dots.
func namesArtifact(escaped string) bool {
	rest, ok := strings.CutPrefix(escaped, api.Prefix+"/runs/")
	parts := strings.Split(rest, "/")
	return ok && len(parts) == 3 && isID.MatchString(parts[0]) && parts[1] == "artifacts" && cleanPath("/"+parts[2]) != "" && parts[2] != ""
}

// allowedHost holds off pages that had their name resolved to this machine: a request has to be addressed to
// an IP address, to localhost, or to a name that was configured.
func (s *Server) allowedHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	return host == "localhost" || host == "perdure" || net.ParseIP(host) != nil ||
		slices.ContainsFunc(s.opt.Hosts, func(h string) bool { return h == "*" || strings.EqualFold(h, host) })
}

// serve makes the handler of a route: recover, key, scope, query, body, answer.
func (s *Server) serve(r route) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler {
					panic(p)
				}
				s.log.Error("a handler panicked", "route", r.method+" "+r.pattern, "panic", p, "stack", string(debug.Stack()))
				s.problem(w, perdure.Errorf(perdure.CodeInternal, "the server has a defect; it is logged"))
			}
		}()
		c := &call{Request: req, s: s, w: w}
		if err := s.admit(c, r.guard); err != nil {
			s.problem(w, err)
			return
		}
		if err := c.checkQuery(r.query); err != nil {
			s.problem(w, err)
			return
		}
		if err := c.checkPath(r.pattern); err != nil {
			s.problem(w, err)
			return
		}
		if r.audited {
			c.Request = c.WithContext(engine.WithActor(c.Context(), c.actor()))
		}
		defer func() {
			if c.release != nil {
				c.release()
			}
		}()
		if !r.guard.open {
			defer connlimit.Busy(req.Context())()
			var err error
			if c.leaveCall, err = s.shares.enterCall(c.Context(), c.tenant()); err != nil {
				s.problem(w, err)
				return
			}
			defer c.letGo()
		}
		if err := c.room(r.large); err != nil {
			s.problem(w, err)
			return
		}
		if r.raw != nil {
			if err := r.raw(c); err != nil {
				s.problem(w, cmp.Or(c.dead(), err))
			}
			return
		}
		if r.large >= largePage {
			end, err := c.turn(r.large)
			if err != nil {
				s.problem(w, err)
				return
			}
			c.endTurn = end
		}
		status, out, err := r.handle(c)
		if c.release != nil { // it took its time
			err = cmp.Or(c.valid(), err)
		}
		if err != nil {
			s.problem(w, err)
			if perdure.CodeOf(err) == perdure.CodeTooLarge {
				c.letGo()
				c.drain()
			}
			return
		}
		if status == 0 {
			status = r.usual()
		}
		s.answer(c, status, out)
	}
}

// checkPath holds off ids that can't be any, and workers without a proper name.
func (c *call) checkPath(pattern string) error {
	if strings.HasPrefix(pattern, api.Prefix+"/workers/{id}/") {
		return perdure.CheckName("worker_id", c.PathValue("id"))
	}
	if t := c.PathValue("tenant"); t != "" {
		if err := perdure.CheckName("tenant", t); err != nil {
			return err
		}
	}
	for _, name := range []string{"id", "n", "token", "child"} {
		if v := c.PathValue(name); v != "" && !cleanID(v) {
			return perdure.Errorf(perdure.CodeNotFound, "there is nothing at this path")
		}
	}
	return nil
}

// cleanID holds off ids that can't be any.
func cleanID(v string) bool {
	if len(v) > 4096 {
		return false
	}
	for _, r := range v {
		if r < 0x20 || r == 0x7f || r == 0xfffd {
			return false
		}
	}
	return true
}

// answer writes an answer. What is large has to have room in memory until it is written.
func (s *Server) answer(c *call, status int, body any) {
	w := c.w
	if doc, ok := body.(*json.RawMessage); ok { // it is shared, and has its line break
		s.allow(w, len(*doc))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.Write(*doc)
		return
	}
	b, err := s.encode(c, body)
	if err != nil {
		s.log.Error("an answer can't be written", "error", err)
		s.problem(w, perdure.Errorf(perdure.CodeInternal, "the server has a defect; it is logged"))
		return
	}
	if len(b) <= smallAnswer {
		c.leaveAnswer()
	}
	c.changed = c.changed || !c.reads()
	if err := c.room(int64(len(b))); err != nil {
		s.problem(w, err)
		return
	}
	s.allow(w, len(b))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}

// encode makes the text of an answer. One that may be large is made in a turn. A call that has its turn already ends it here.
func (s *Server) encode(c *call, body any) ([]byte, error) {
	if c.endTurn == nil {
		c.endTurn, _ = c.turn(c.found) // what was found for it is in memory already: it is answered in any case
	}
	defer func() {
		c.endTurn()
		c.endTurn = nil
	}()
	return stream.Encode(body)
}

// problem writes an error as problem+json. What is no refusal is logged, and not told.
func (s *Server) problem(w http.ResponseWriter, err error) {
	e := s.refused(err)
	p := api.NewProblem(e.Code, e.Message, e.Field)
	switch p.Status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusInsufficientStorage:
		if w.Header().Get("Retry-After") == "" {
			w.Header().Set("Retry-After", "1")
		}
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	b, _ := json.Marshal(p)
	s.allow(w, len(b))
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	w.Write(append(b, '\n'))
}

// refused is what a caller is told of an error: its code, and no more of what was sent than helps.
func (s *Server) refused(err error) *perdure.Error {
	var e *perdure.Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e = perdure.Errorf(perdure.CodeUnavailable, "the request was given up")
	default:
		s.log.Error("a request failed", "error", err)
		e = perdure.Errorf(perdure.CodeUnavailable, "the store could not be read")
	}
	return &perdure.Error{Code: e.Code, Message: shortened(e.Message, 1000), Field: shortened(e.Field, perdure.MaxName)}
}

func shortened(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}

func parseQuery(raw string) (url.Values, error) { return url.ParseQuery(raw) }

// ---- background

// Run keeps the node's word for those who wait here, reads for the streams, and looks at the queues from time to
// time, so that a lost ring costs latency and nothing else. One look serves all polls.
func (s *Server) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.letStreamsGo()
	wg.Go(func() { s.logs.Run(ctx) })
	rung, stop := s.bell.Listen(doorbell.Keys())
	defer stop()
	wg.Go(func() { s.keyring.run(ctx, rung) })
	known := s.lookAtLimits(ctx) == nil
	look := time.NewTicker(s.opt.Poll)
	defer look.Stop()
	renew := time.NewTicker(s.engine.Policy().WaiterTTL / 3)
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
			s.lookAtQueues(ctx)
			if known && !s.engine.Shared() {
				continue // limits change only through this server
			}
			known = s.lookAtLimits(ctx) == nil
		case <-renew.C:
			s.renewWaiters(ctx)
		}
	}
}

func (s *Server) lookAtQueues(ctx context.Context) {
	ready, err := s.engine.Ready(ctx, &s.ready)
	if err != nil && ctx.Err() == nil {
		s.log.Error("the queues could not be looked at", "error", err)
	}
	for _, r := range ready {
		s.bell.Ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	}
}

func (s *Server) renewWaiters(ctx context.Context) {
	s.mu.Lock()
	byTenant := make(map[perdure.TenantID][]perdure.RunID)
	for ref := range s.waiting {
		byTenant[ref.Tenant] = append(byTenant[ref.Tenant], ref.Run)
	}
	s.mu.Unlock()
	for t, ids := range byTenant {
		for part := range slices.Chunk(ids, renewAtOnce) {
			if err := s.renew(ctx, t, part); err != nil && ctx.Err() == nil {
				s.log.Warn("waiters could not be renewed", "error", err)
			}
		}
	}
}

// renew repeats this node's word for some runs. Who has left meanwhile stays gone.
func (s *Server) renew(ctx context.Context, t perdure.TenantID, ids []perdure.RunID) error {
	op := &engine.Renew{Tenant: t, Node: s.opt.Node, RunIDs: ids}
	if err := s.engine.Do(ctx, op); err != nil {
		return err
	}
	for _, id := range ids {
		ref := engine.Ref{Tenant: t, Run: id}
		turn := s.turn(ref)
		turn.Lock()
		switch waits, lost := s.waits(ref), slices.Contains(op.Lost, id); {
		case waits && lost:
			if err := s.attach(ctx, ref); err != nil {
				turn.Unlock()
				return err
			}
		case !waits && !lost:
			s.deferRun(ctx, ref, "disconnect")
		}
		turn.Unlock()
	}
	return nil
}

// renewAtOnce is how many waiters are renewed in one write.
const renewAtOnce = 256

// Shutdown answers whoever is blocked: waits and joins with 202, polls with nothing. Streams are cut off.
func (s *Server) Shutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
}

// detach runs a stream that goes on when its request has been served, unless the server shuts down.
func (s *Server) detach(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.streams.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					s.log.Error("a stream panicked", "panic", p, "stack", string(debug.Stack()))
				}
			}()
			f()
		})
	}
	return !s.closed
}

// letStreamsGo waits for streams to say what they leave behind. One that is stuck in a write is not waited for: its
// waiter expires by itself.
func (s *Server) letStreamsGo() {
	s.Shutdown()
	done := make(chan struct{})
	go func() {
		s.streams.Wait()
		close(done)
	}()
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}
