package httpd

import (
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/httpd/feed"
	"github.com/perdure/perdure/internal/server/httpd/stream"
	"github.com/perdure/perdure/internal/server/httpd/waiting"
	"github.com/perdure/perdure/ui"
)

// New makes a server over an engine. bell is the doorbell that the engine rings.
func New(e *engine.Engine, bell doorbell.Bell, opt Options) (*Server, error) {
	opt.setDefaults()
	s := &Server{engine: e, bell: bell, opt: opt, log: opt.Logger, mux: http.NewServeMux(), names: http.NewServeMux(),
		closing: make(chan struct{}), reader: stream.NewReader(e), checkEvery: stream.CheckEvery, pageTime: pageTime,
		shares: newShares(&opt)}
	s.waiters = waiting.NewWaiters(e, opt.Node, opt.Logger)
	s.waits = waiting.New(waiting.Options{Engine: e, Runs: e.Runs, Bell: bell, Node: opt.Node, Poll: opt.Poll,
		Closing: s.closing, Go: s.goStream, Turn: s.shares.wakeOne, Waiters: s.waiters})
	s.feed = feed.NewHub(feed.Options{Bell: bell, Fallback: 10 * opt.Poll, Go: s.goStream, Logger: opt.Logger,
		Closing: s.closing})
	s.keyWatcher = keyWatcher{engine: e, every: keyCheckEvery,
		keys: make(map[string]*watchedKey), added: make(chan struct{}, 1)}
	if !e.Shared() {
		s.keyWatcher.every = s.opt.Poll
	}
	s.storeProbe.try = s.tryStore
	s.routes = s.table()
	var err error
	if s.openapi, err = compactOpenAPI(); err != nil {
		return nil, err
	}
	s.register()
	return s, nil
}

// register adds the routes to the mux, and handlers that refuse everything else: 405 for a path
// with another method, 404 for other paths.
func (s *Server) register() {
	methods := make(map[string][]string) // by pattern
	for _, r := range s.routes {
		s.muxOf(r.pattern).HandleFunc(r.method+" "+r.pattern, s.serve(r))
		methods[r.pattern] = append(methods[r.pattern], r.method)
	}
	for pattern, allowed := range methods {
		// The mux would take the last part of /dlq/causes for the {id} of another method's route.
		folder, name := path.Split(pattern)
		if ids, ok := methods[folder+"{id}"]; ok && name != "{id}" {
			for _, m := range ids {
				if !slices.Contains(allowed, m) {
					s.mux.HandleFunc(m+" "+pattern, func(w http.ResponseWriter, _ *http.Request) {
						s.refuseMethod(w, allowed)
					})
				}
			}
			continue
		}
		s.muxOf(pattern).HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) {
			if named, ok := methods[req.URL.Path]; ok {
				s.refuseMethod(w, named)
				return
			}
			s.refuseMethod(w, allowed)
		})
	}
	for _, mux := range []*http.ServeMux{s.mux, s.names} {
		mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
			s.problem(w, perdure.Errorf(perdure.CodeNotFound, "there is nothing at this path"))
		})
	}
}

// byName is the part of a path before a name that a caller chose.
const byName = "/by-name/"

// muxOf gives the mux of a path or pattern. Those with a name have a mux of their own: the standard one
// takes no two patterns such as /threads/by-name/{name} and /threads/{id}/messages.
func (s *Server) muxOf(path string) *http.ServeMux {
	for _, of := range []string{"/runs", "/threads"} {
		if strings.HasPrefix(path, api.Prefix+of+byName) {
			return s.names
		}
	}
	return s.mux
}

func (s *Server) refuseMethod(w http.ResponseWriter, allowed []string) {
	list := strings.Join(allowed, ", ")
	w.Header().Set("Allow", list)
	s.problem(w, perdure.Errorf(api.CodeMethod, "this path takes %s", list))
}

// Values of headers that answers share. Nothing changes them: Header.Set replaces a list.
var (
	noSniff   = []string{"nosniff"}
	noStore   = []string{"no-store"}
	noContent = []string{"default-src 'none'; frame-ancestors 'none'"}
	mediaJSON = []string{"application/json"}
)

// Handler returns the API as a handler. It makes the checks that do not depend on the route.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Clear the deadline of the previous answer on the same connection. A call in process has
		// none.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
		h := w.Header()
		h["X-Content-Type-Options"], h["Cache-Control"], h["Content-Security-Policy"] = noSniff, noStore, noContent
		if !s.allowedHost(r.Host) {
			s.problem(w, perdure.Errorf(api.CodeHost, "add the host to the server's allowed hosts"))
			return
		}
		if len(r.Header.Values("Origin")) > 1 { // only the first one would be checked
			s.problem(w, perdure.Errorf(api.CodeOrigin, "send one Origin header"))
			return
		}
		if s.opt.Door != nil {
			if door, accepts, exposes := s.opt.Door(r.URL.EscapedPath()); door != nil {
				if !s.cors(w, r, accepts, exposes) {
					door.ServeHTTP(w, r)
				}
				return
			}
		}
		if s.cors(w, r, corsHeaders, corsExposed) {
			return
		}
		if ui.Serves(r.URL.Path) {
			s.dashboard(w, r)
			return
		}
		if r.URL.Path != cleanPath(r.URL.Path) && !namesArtifact(r.URL.EscapedPath()) &&
			!hasChosenName(r.URL.EscapedPath()) {
			// The standard mux would redirect to the clean path.
			s.problem(w, perdure.Errorf(perdure.CodeNotFound, "there is nothing at this path"))
			return
		}
		s.muxOf(r.URL.EscapedPath()).ServeHTTP(w, redacted(s.opt.Secrets, r))
	})
}

// Serves tells whether the API or the dashboard has something at a path.
func (s *Server) Serves(path string) bool {
	if ui.Serves(path) {
		return true
	}
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		req := &http.Request{Method: method, URL: &url.URL{Path: path}}
		if _, pattern := s.muxOf(path).Handler(req); pattern != "/" {
			return true
		}
	}
	return false
}

// dashboard serves a file of the dashboard.
func (s *Server) dashboard(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		s.refuseMethod(w, []string{http.MethodGet, http.MethodHead})
		return
	}
	s.setWriteDeadline(w, 0)
	ui.ServeHTTP(w, r)
}

// cleanPath returns a path unchanged, or "" if it is not in its shortest form or has a backslash.
func cleanPath(p string) string {
	for _, bad := range []string{"//", "/./", "/../", "\\"} {
		if strings.Contains(p, bad) {
			return ""
		}
	}
	if !strings.HasPrefix(p, "/") || strings.HasSuffix(p, "/..") || strings.HasSuffix(p, "/.") ||
		len(p) > 1 && strings.HasSuffix(p, "/") {
		return ""
	}
	return p
}

// namesArtifact tells whether an escaped path is that of an artifact, whose name may decode to
// slashes, backslashes or dots. Its handler refuses such a name and says what is wrong with it.
func namesArtifact(escaped string) bool {
	rest, ok := strings.CutPrefix(escaped, api.Prefix+"/runs/")
	parts := strings.Split(rest, "/")
	return ok && len(parts) == 3 && isID.MatchString(parts[0]) && parts[1] == "artifacts" &&
		cleanPath("/"+parts[2]) != "" && parts[2] != ""
}

// hasChosenName tells whether an escaped path ends in a name that a caller chose, which may decode to
// slashes, backslashes or dots.
func hasChosenName(escaped string) bool {
	rest, _ := strings.CutPrefix(escaped, api.Prefix)
	parts := strings.Split(rest, "/")
	last := parts[len(parts)-1]
	if last == "" || cleanPath("/"+last) == "" || len(parts) < 4 || parts[1] != "runs" && parts[1] != "threads" {
		return false
	}
	return len(parts) == 4 && parts[2] == "by-name" ||
		len(parts) == 5 && isID.MatchString(parts[2]) && parts[3] == "names"
}

// allowedHost tells whether a request is addressed to an IP address, to localhost or to a
// configured name. It stops DNS rebinding: a page whose own name resolves to this machine is
// refused.
func (s *Server) allowedHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	return host == "localhost" || host == "perdure" || net.ParseIP(host) != nil ||
		slices.ContainsFunc(s.opt.Hosts, func(h string) bool { return h == "*" || strings.EqualFold(h, host) })
}
