package httpd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A route is one row of the table: who may call it, what it takes, what it gives. Handlers are not
// registered anywhere else, so that a route without a guard can't exist.
type route struct {
	method  string
	pattern string
	guard   guard
	summary string
	query   []string // the query parameters that it takes; others are refused
	in, out reflect.Type
	created bool  // 201 instead of 200
	keyed   bool  // it counts once per Idempotency-Key
	audited bool  // a call that changes something leaves an entry in the audit log
	more    []int // other statuses that are no problem
	large   int64 // bytes that are reserved for its answer before it is made
	handle  func(*call) (int, any, error)

	raw   func(*call) error // instead of handle: it writes its answer itself, unless it gives an error
	media string            // what kind of answer that is
	bytes bool              // its body is no JSON but bytes of any kind
}

// A guard says who may call a route.
type guard struct {
	open     bool          // nobody is asked for a key
	platform bool          // only keys of the platform
	scope    perdure.Scope // the scope that the key needs
	inQuery  bool          // the key may come as a parameter

	remembered bool // while the store is away, a key does that was valid before

	// token checks the token in the path of an open route, before any of the body is read.
	token func(*Server, string) error
}

func scope(s perdure.Scope) guard { return guard{scope: s} }

// platform guards a route that takes a platform key with a scope.
func platform(s perdure.Scope) guard { return guard{platform: true, scope: s} }

var public = guard{open: true}

// none is the body of a route that takes none.
type none struct{}

// on makes a route out of a typed handler. A handler that gives status 0 means 200, or 201 for one that
// creates.
func on[In, Out any](method, pattern string, g guard, summary string, f func(c *call, in *In) (int, *Out, error)) route {
	var in In
	_, bodiless := any(in).(none)
	return route{method: method, pattern: pattern, guard: g, summary: summary, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](),
		handle: func(c *call) (int, any, error) {
			var in In
			if bodiless {
				if err := c.noBody(); err != nil {
					return 0, nil, err
				}
			} else if err := c.decode(&in); err != nil {
				return 0, nil, err
			}
			status, out, err := f(c, &in)
			return status, out, err
		}}
}

// live makes a route out of a handler that keeps its answer open: a stream, or a socket. A browser opens these, and
// can't send a header with them, so that the key may come as a parameter.
func live(pattern string, g guard, summary, media string, f func(*call) error) route {
	g.inQuery = true
	return route{method: "GET", pattern: pattern, guard: g, summary: summary, media: media, raw: f,
		in: reflect.TypeFor[none](), out: reflect.TypeFor[none](), query: []string{tokenParam}}
}

// text makes a route out of a handler that writes a text.
func text(pattern string, g guard, summary string, f func(*call) error) route {
	return route{method: "GET", pattern: pattern, guard: g, summary: summary, media: api.MediaText, raw: f, in: reflect.TypeFor[none](), out: reflect.TypeFor[none]()}
}

// takes names the query parameters of a route.
func (r route) takes(names ...string) route {
	r.query = append(names, r.query...)
	return r
}

// creates says that the usual answer is 201.
func (r route) creates() route {
	r.created = true
	return r
}

// once says that an Idempotency-Key has the call count once. Where it stands on a call that makes something, the
// answer is 200 when it was made before.
func (r route) once() route {
	r.keyed = true
	if r.created && !slices.Contains(r.more, http.StatusOK) {
		r.more = append(r.more, http.StatusOK)
	}
	return r
}

// logged says that the call leaves an entry in the audit log, if it changes something.
func (r route) logged() route {
	r.audited = true
	return r
}

// upTo says that the answer may have so many bytes. They are reserved before anything is read for it.
func (r route) upTo(size int64) route {
	r.large = size
	return r
}

// usual is the status of the usual answer.
func (r route) usual() int {
	switch {
	case r.media == api.MediaSocket:
		return http.StatusSwitchingProtocols
	case r.created:
		return http.StatusCreated
	}
	return http.StatusOK
}

// also names other statuses that are no problem.
func (r route) also(statuses ...int) route {
	r.more = statuses
	return r
}

// A call is one request of a route.
type call struct {
	*http.Request
	s   *Server
	w   http.ResponseWriter
	key perdure.Key

	release func() // its key, which it holds; nil: it does not

	leaveCall, leaveBody, leaveRoom func() // give back its share of calls, bodies and answers; nil: it has none
	endTurn                         func() // ends its turn; nil: it has none
	found                           int64  // bytes that were found for its answer, if it says so
	changed                         bool   // it may have changed something
}

func (c *call) tenant() perdure.TenantID { return c.key.Tenant }

func (c *call) run() perdure.RunID { return perdure.RunID(c.PathValue("id")) }

// maxBody bounds a request's body.
const maxBody = 16 << 20

// maxOpenBody bounds the body of a call without a key: one value, and a little around it.
const maxOpenBody = perdure.MaxValue + 64<<10

// decode reads a JSON body strictly.
func (c *call) decode(into any) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	if len(b) == 0 {
		b = []byte("{}")
	}
	end, err := c.turn(int64(len(b)))
	if err != nil {
		return err
	}
	defer end()
	return decodeStrict(b, into)
}

func (c *call) body() ([]byte, error) {
	limit := int64(maxBody)
	if c.key.ID == "" {
		limit = maxOpenBody
	}
	tooLarge := perdure.Errorf(perdure.CodeTooLarge, "this request has at most %d bytes", limit)
	if c.ContentLength > limit {
		c.w.Header().Set("Connection", "close")
		return nil, tooLarge
	}
	if err := c.mayUpload(); err != nil {
		return nil, err
	}
	if err := c.reserveBody(c.ContentLength); err != nil {
		return nil, err
	}
	b, err := c.readBody(limit)
	if err != nil {
		c.w.Header().Set("Connection", "close") // what is left of the body is not waited for
		var big *http.MaxBytesError
		var refused *perdure.Error
		switch {
		case errors.As(err, &big):
			return nil, tooLarge
		case errors.As(err, &refused):
			return nil, err
		}
		return nil, c.brokenOff(err)
	}
	c.uploaded(len(b))
	if c.key.ID != "" { // which may have died while the body came
		if err := c.valid(); err != nil {
			return nil, err
		}
	}
	if len(b) == 0 {
		return nil, nil
	}
	if t, _, err := mime.ParseMediaType(c.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return nil, perdure.Errorf(api.CodeMediaType, "send Content-Type: application/json")
	}
	end, err := c.turn(int64(len(b)))
	if err != nil {
		return nil, err
	}
	defer end()
	return c.s.opt.Secrets.JSON(b), nil
}

// readBody reads a body of at most so many bytes. One of unknown length is taken for the largest as soon as it is
// no small one.
func (c *call) readBody(limit int64) ([]byte, error) {
	// A body that drips in must not hold a connection for ever. The deadline is taken back afterwards: a call
	// may block for long, and the connection is read on meanwhile, to see whether the caller is still there.
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(time.Now().Add(c.s.opt.BodyTimeout)) // in process there is none to set
	from := io.Reader(http.MaxBytesReader(c.w, c.Body, limit))
	var b bytes.Buffer
	if c.ContentLength > 0 {
		b.Grow(int(c.ContentLength) + bytes.MinRead)
	} else if _, err := b.ReadFrom(io.LimitReader(from, smallBody+1)); err != nil {
		return nil, err
	} else if b.Len() > smallBody {
		if err := c.reserveBody(limit); err != nil {
			return nil, err
		}
	}
	if _, err := b.ReadFrom(from); err != nil {
		return nil, err
	}
	_ = rc.SetReadDeadline(time.Time{})
	return b.Bytes(), nil
}

// How much is read, and dropped, of a body that was refused for its size.
const (
	drainBytes = 4 * maxBody
	drainTime  = 5 * time.Second
)

// drain sends the answer and reads what is left of the body. A client that writes all of it before it reads would
// otherwise find its connection closed, and never see the answer. One that waits for 100 Continue sends no more.
func (c *call) drain() {
	rc := http.NewResponseController(c.w)
	if c.Header.Get("Expect") != "" || rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(drainTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c.Body, drainBytes) // a client that is gone needs no answer
}

// brokenOff says why a body could not be read, and nothing of who is connected to whom.
func (c *call) brokenOff(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return perdure.Errorf(perdure.CodeInvalid, "the body did not arrive within %s", c.s.opt.BodyTimeout)
	}
	return perdure.Errorf(perdure.CodeInvalid, "the body broke off")
}

func (c *call) noBody() error {
	b, err := c.body()
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(b)) > 0 && string(bytes.TrimSpace(b)) != "{}" {
		return perdure.Errorf(perdure.CodeInvalid, "this call takes no body")
	}
	return nil
}

// ---- query parameters

func (c *call) checkQuery(allowed []string) error {
	q, err := parseQuery(c.URL.RawQuery)
	if err != nil {
		return perdure.Errorf(perdure.CodeInvalid, "the query is malformed")
	}
	for name, values := range q {
		known := slices.Contains(allowed, name)
		for _, a := range allowed {
			if prefix, ok := strings.CutSuffix(a, "*"); ok && strings.HasPrefix(name, prefix) && len(name) > len(prefix) {
				known = true
			}
		}
		if !known {
			return perdure.Invalid(name, "is no parameter of this call")
		}
		if len(values) > 1 {
			return perdure.Invalid(name, "is given %d times", len(values))
		}
		if !utf8.ValidString(values[0]) || strings.ContainsRune(values[0], 0) {
			return perdure.Invalid(name, "is not valid UTF-8, or has a NUL byte")
		}
	}
	return nil
}

// whole reads a whole number from the query.
func (c *call) whole(name string, otherwise, low, high int64) (int64, error) {
	text := c.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return 0, perdure.Invalid(name, "takes a whole number from %d to %d", low, high)
	}
	return n, nil
}

var isID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// cursor reads where a page begins: a next_cursor of the page before.
func (c *call) cursor() (perdure.RunID, error) {
	text := c.URL.Query().Get("cursor")
	if text != "" && !isID.MatchString(text) {
		return "", perdure.Invalid("cursor", "takes the next_cursor of the page before")
	}
	return perdure.RunID(text), nil
}

// span reads a duration from the query: "30s", or a bare number of seconds.
func (c *call) span(name string, otherwise, limit time.Duration) (time.Duration, error) {
	text := c.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	if n, err := strconv.ParseInt(text, 10, 32); err == nil {
		text = fmt.Sprint(n, "s")
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > limit {
		return 0, perdure.Invalid(name, "takes a duration from 0s to %s, such as 30s", limit)
	}
	return d, nil
}
