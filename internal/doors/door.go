package doors

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors/answer"
	"github.com/perdure/perdure/internal/doors/body"
	"github.com/perdure/perdure/internal/doors/frame"
)

// Prefix is where doors live, each below its own name.
const Prefix = "/doors/"

// A Door translates another protocol to calls of the API.
type Door struct {
	// Name is the part of the path after Prefix. Names that the door gives to runs and threads begin
	// with it and a colon.
	Name   string
	Routes []Route
	// Refuse turns a refusal into the door's own shape. It may change the headers of the answer. The
	// body is encoded as JSON. A status that the door's clients retry is for refusals that a retry can
	// mend.
	Refuse func(p *api.Problem, h http.Header) (status int, body any)
	// Notify makes the body of a webhook with the format of the door's name: see Notice. It is asked
	// whether or not the door is on.
	Notify func(*frame.Notice) ([]byte, error)
	// Accepts and Exposes are the headers that pages of other origins may send and read, beside those of
	// every door.
	Accepts, Exposes []string
}

// A Route is one row of a door's table.
type Route struct {
	Method string
	// Pattern is the path below the root of the door, such as /threads/{thread}/runs. A part in braces
	// is any one segment. A literal part has precedence over it.
	Pattern string
	// Handle answers the call. If it returns an error before anything was written, the caller gets the
	// refusal; later, the answer is aborted.
	Handle func(*Call) error
}

// Headers of every door for pages of other origins.
const (
	accepts = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Api-Key, Traceparent"
	exposes = "Retry-After, Location, Content-Location"
)

// A Set has the doors that are on.
type Set struct {
	doors     []*mounted
	root      *mounted // served at the root as well, or nil
	transport http.RoundTripper
	log       *slog.Logger

	closing context.Context
	close   context.CancelFunc
	bodies  body.Budget
	known   known
}

// mounted is a door with its routes split into segments.
type mounted struct {
	*Door
	routes           []split
	accepts, exposes string
}

type split struct {
	Route
	segments []string
}

// NewSet makes a set of doors. The door with the name root is served at the root as well; empty means
// none. Connect has to be called before the first request.
func NewSet(list []*Door, root string, log *slog.Logger) (*Set, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Set{log: log}
	s.closing, s.close = context.WithCancel(context.Background())
	for _, d := range list {
		m := &mounted{Door: d, accepts: headers(accepts, d.Accepts), exposes: headers(exposes, d.Exposes)}
		for _, r := range d.Routes {
			m.routes = append(m.routes, split{r, strings.Split(r.Pattern, "/")})
		}
		if err := m.check(); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(s.doors, func(o *mounted) bool { return o.Name == d.Name }) {
			return nil, fmt.Errorf("the door %s is given twice", d.Name)
		}
		s.doors = append(s.doors, m)
		if d.Name == root {
			s.root = m
		}
	}
	if root != "" && s.root == nil {
		return nil, fmt.Errorf("the door %s is not on", root)
	}
	return s, nil
}

func headers(every string, more []string) string {
	return strings.Join(append([]string{every}, more...), ", ")
}

// check refuses two routes with the same method and pattern, whatever their parameters are called.
func (m *mounted) check() error {
	seen := make(map[string]bool)
	for _, r := range m.routes {
		key := r.Method
		for _, part := range r.segments {
			if isParam(part) {
				part = "{}"
			}
			key += "/" + part
		}
		if seen[key] {
			return fmt.Errorf("the door %s has two routes %s %s", m.Name, r.Method, r.Pattern)
		}
		seen[key] = true
	}
	return nil
}

func isParam(part string) bool { return strings.HasPrefix(part, "{") }

// Connect sets the transport that carries the calls of the doors to the API.
func (s *Set) Connect(api http.RoundTripper) { s.transport = api }

// Close ends the answers that stay open. Unfinished ones are aborted.
func (s *Set) Close() { s.close() }

// Samples are paths that the door at the root serves, with a word in place of each parameter.
func (s *Set) Samples() (door string, paths []string) {
	if s.root == nil {
		return "", nil
	}
	for _, r := range s.root.routes {
		parts := slices.Clone(r.segments)
		for i, part := range parts {
			if isParam(part) {
				parts[i] = "x"
			}
		}
		paths = append(paths, strings.Join(parts, "/"))
	}
	return s.root.Name, paths
}

// Find returns what serves an escaped path, and the headers that pages of other origins may send and
// read there. It returns nil for a path of no door.
func (s *Set) Find(path string) (h http.Handler, accepts, exposes string) {
	if rest, ok := strings.CutPrefix(path, Prefix); ok {
		name, below, _ := strings.Cut(rest, "/")
		for _, m := range s.doors {
			if m.Name == name {
				return s.handler(m, Prefix+name, "/"+below), m.accepts, m.exposes
			}
		}
		return nil, "", ""
	}
	if s.root != nil && len(s.root.match(path)) > 0 {
		return s.handler(s.root, "", path), s.root.accepts, s.root.exposes
	}
	return nil, "", ""
}

// match returns the routes of a path, those with literal parts before those with parameters. All of
// them have the same pattern but for the method.
func (m *mounted) match(path string) (found []*split) {
	parts := strings.Split(path, "/")
	for i := range m.routes {
		r := &m.routes[i]
		if !r.matches(parts) {
			continue
		}
		switch {
		case len(found) == 0 || r.Pattern == found[0].Pattern:
			found = append(found, r)
		case r.before(found[0]):
			found = []*split{r}
		}
	}
	return found
}

func (r *split) matches(parts []string) bool {
	if len(parts) != len(r.segments) {
		return false
	}
	for i, part := range r.segments {
		if part != parts[i] && (!isParam(part) || parts[i] == "") {
			return false
		}
	}
	return true
}

// before tells whether a route is more specific: it has a literal part where the other one has a
// parameter.
func (r *split) before(o *split) bool {
	for i := range r.segments {
		if a, b := isParam(r.segments[i]), isParam(o.segments[i]); a != b {
			return b
		}
	}
	return false
}

// handler serves a path below the root of a door.
func (s *Set) handler(m *mounted, root, path string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &Call{Request: r, Root: root, Answer: answer.New(w, s.closing), w: w, set: s, door: m}
		defer c.recover()
		err := c.route(m.match(path), path)
		switch {
		case err == nil:
		case c.Begun():
			s.log.Debug("a door's answer is aborted", "door", m.Name, "path", r.URL.Path, "error", err)
			panic(http.ErrAbortHandler)
		default:
			c.refuse(err)
		}
	})
}

// recover logs a defect of a door. The caller gets 500, or finds the answer aborted.
func (c *Call) recover() {
	p := recover()
	switch {
	case p == nil:
	case p == http.ErrAbortHandler || c.Begun():
		panic(p)
	default:
		c.set.log.Error("a handler panicked", "door", c.door.Name, "path", c.URL.Path, "panic", p, "stack",
			string(debug.Stack()))
		c.refuse(perdure.Errorf(perdure.CodeInternal, "the server has a defect; it is logged"))
	}
}

// route calls the handler of a path.
func (c *Call) route(found []*split, path string) error {
	if len(found) == 0 {
		return perdure.Errorf(perdure.CodeNotFound, "the door %s has nothing at this path", c.door.Name)
	}
	i := slices.IndexFunc(found, func(r *split) bool {
		return r.Method == c.Method || r.Method == http.MethodGet && c.Method == http.MethodHead
	})
	if i < 0 {
		var allowed []string
		for _, r := range found {
			allowed = append(allowed, r.Method)
		}
		list := strings.Join(allowed, ", ")
		c.w.Header().Set("Allow", list)
		return perdure.Errorf(api.CodeMethod, "this path takes %s", list)
	}
	c.params = make(map[string]string, 3)
	for n, part := range strings.Split(path, "/") {
		if name := found[i].segments[n]; isParam(name) {
			value, err := url.PathUnescape(part)
			if err != nil || checkText("", value) != nil {
				return perdure.Errorf(perdure.CodeNotFound, "there is nothing at this path")
			}
			c.params[strings.Trim(name, "{}")] = value
		}
	}
	if err := c.connect(); err != nil {
		return err
	}
	return found[i].Handle(c)
}
