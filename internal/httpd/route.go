package httpd

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
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
	"github.com/perdure/perdure/internal/doorbell"
)

// A route is one row of the table. Handlers are not registered anywhere else, so a route without a
// guard can't exist.
type route struct {
	method  string
	pattern string
	guard   guard
	summary string
	// query has the names of the query parameters. Others are refused.
	query []string
	// repeated has the names of those that may be given more than once.
	repeated []string
	// in and out are the types of the body and of the answer.
	in, out reflect.Type
	// created is set if the usual status is 201 instead of 200.
	created bool
	// keyed is set if the route takes an Idempotency-Key.
	keyed bool
	// tenanted is set if a platform key may name the tenant that the call is about; see chooseTenant.
	tenanted bool
	// everyTenant is set if it may name all of them by "*".
	everyTenant bool
	// audited is set if a call that changes something adds an entry to the audit log.
	audited bool
	// more has further statuses of success.
	more []int
	// large is the number of bytes that are reserved for the answer before it is made.
	large int64
	// handle decodes the body, and returns a status and an answer.
	handle func(*call) (int, any, error)

	// raw replaces handle for a route that writes its answer itself. If it returns an error, it has
	// written nothing.
	raw func(*call) error
	// media is the content type of a raw answer.
	media string
	// streams is set if a caller who accepts server-sent events gets these instead, with 200.
	streams bool
	// bytes is set if the body is not JSON but bytes of any kind.
	bytes bool
}

// A guard decides who may call a route.
type guard struct {
	// open is set if the route takes no key.
	open bool
	// platform is set if the route takes keys of the platform only.
	platform bool
	// scope is the scope that the key needs.
	scope perdure.Scope
	// inQuery is set if the key may be a query parameter.
	inQuery bool
	// remembered is set if a key that was valid before is enough while the store is unavailable.
	remembered bool
	// login is set if the route takes the secret of a login link as well.
	login bool
	// token checks the token in the path of an open route, before the body is read.
	token func(*Server, string) error
}

// scope guards a route that takes a key with a scope.
func scope(s perdure.Scope) guard { return guard{scope: s} }

// platform guards a route that takes a platform key with a scope.
func platform(s perdure.Scope) guard { return guard{platform: true, scope: s} }

// public guards a route that takes no key.
var public = guard{open: true}

// none is the type of a body or an answer that has no fields.
type none struct{}

// A handler answers calls with a body of type In and an answer of type Out. Status 0 means the
// usual status of the route.
type handler[In, Out any] = func(c *call, in *In) (status int, out *Out, err error)

// on makes a route of a typed handler.
func on[In, Out any](method, pattern string, g guard, summary string, f handler[In, Out]) route {
	var in In
	_, bodiless := any(in).(none)
	return route{method: method, pattern: pattern, guard: g, summary: summary,
		in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](),
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

// itemized makes a route of a handler that reads its body itself, because a malformed entry does not
// refuse the others. In describes the body.
func itemized[In, Out any](
	method, pattern string, g guard, summary string, f func(c *call) (status int, out *Out, err error),
) route {
	return route{method: method, pattern: pattern, guard: g, summary: summary,
		in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](),
		handle: func(c *call) (int, any, error) { return f(c) }}
}

// live makes a route of a handler that keeps its answer open: a stream or a socket. Browsers can't
// send headers with these, so the key may be a query parameter.
func live(pattern string, g guard, summary, media string, f func(*call) error) route {
	g.inQuery = true
	return route{method: "GET", pattern: pattern, guard: g, summary: summary, media: media, raw: f,
		in: reflect.TypeFor[none](), out: reflect.TypeFor[none](), query: []string{tokenParam}}
}

// text makes a route of a handler that writes plain text.
func text(pattern string, g guard, summary string, f func(*call) error) route {
	return route{method: "GET", pattern: pattern, guard: g, summary: summary, media: api.MediaText, raw: f,
		in: reflect.TypeFor[none](), out: reflect.TypeFor[none]()}
}

// takes names the query parameters of a route.
func (r route) takes(names ...string) route {
	r.query = append(names, r.query...)
	return r
}

// repeats names the query parameters that may be given more than once.
func (r route) repeats(names ...string) route {
	r.repeated = names
	return r
}

// creates makes 201 the usual status.
func (r route) creates() route {
	r.created = true
	return r
}

// idempotent makes a route take an Idempotency-Key. A route that creates something then answers a
// repeated call with 200.
func (r route) idempotent() route {
	r.keyed = true
	if r.created && !slices.Contains(r.more, http.StatusOK) {
		r.more = append(r.more, http.StatusOK)
	}
	return r
}

// orStream says that callers may have server-sent events instead of the answer.
func (r route) orStream() route {
	r.streams = true
	return r
}

// logged makes calls that change something add an entry to the audit log.
func (r route) logged() route {
	r.audited = true
	return r
}

// upTo reserves so many bytes for the answer, before anything is read for it.
func (r route) upTo(size int64) route {
	r.large = size
	return r
}

// usual returns the usual status.
func (r route) usual() int {
	switch {
	case r.media == api.MediaSocket:
		return http.StatusSwitchingProtocols
	case r.created:
		return http.StatusCreated
	}
	return http.StatusOK
}

// also names further statuses of success.
func (r route) also(statuses ...int) route {
	r.more = statuses
	return r
}

// ofEveryTenant lets a platform key ask about all tenants at once.
func (r route) ofEveryTenant() route {
	r.everyTenant = true
	return r
}

// A call is one request to a route.
type call struct {
	*http.Request
	s   *Server
	w   http.ResponseWriter
	key perdure.Key
	// actsFor is the tenant that a platform key has named in the query. It is empty for all other calls.
	actsFor perdure.TenantID
	// allTenants is set if it has named all of them.
	allTenants bool

	// releaseKey ends the watching of the call's key. It is nil if the key is not watched; see
	// watchKey.
	releaseKey func()

	// leaveCall, leaveBody and leaveAnswer give back the shares of calls, bodies and answers that
	// the call holds, leaveCrowd lets the next one of a crowd go on, and endTurn ends the call's turn.
	// Each is nil if the call holds nothing; see shares.go.
	leaveCall, leaveBody, leaveAnswer func()
	leaveCrowd, endTurn               func()
	// found is the number of bytes that were read for the answer, where the handler sets it.
	found int64
	// heard has the counters of the bell from before the call last read the store; see othersSilent.
	heard doorbell.Stats
	// changed is set when the call may have changed something. It is then answered in any case.
	changed bool
}

// tenant returns the tenant that the call is about.
func (c *call) tenant() perdure.TenantID { return cmp.Or(c.actsFor, c.key.Tenant) }

// payer returns the tenant whose shares the call uses: that of its key.
func (c *call) payer() perdure.TenantID { return c.key.Tenant }

// worker is the id of the calling worker, as its leases have it. Its name was checked by checkPath.
func (c *call) worker() string { return c.s.engine.Keys.WorkerID(c.key.ID, c.PathValue("id")) }

func (c *call) run() perdure.RunID { return perdure.RunID(c.PathValue("id")) }

// maxBody bounds a request's body.
const maxBody = 16 << 20

// maxOpenBody bounds the body of a call without a key. It has room for one value and its envelope.
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

// body reads the body within its limits of size, time and memory, and removes secrets from it.
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
	if err := c.checkByteQuota(); err != nil {
		return nil, err
	}
	if err := c.reserveBody(c.ContentLength); err != nil {
		return nil, err
	}
	b, err := c.readBody(limit)
	if err != nil {
		c.w.Header().Set("Connection", "close") // the rest of the body is not read
		var big *http.MaxBytesError
		var refused *perdure.Error
		switch {
		case errors.As(err, &big):
			return nil, tooLarge
		case errors.As(err, &refused):
			return nil, err
		}
		return nil, c.bodyError(err)
	}
	c.countBytes(len(b))
	if c.key.ID != "" { // the key may have been revoked while the body arrived
		if err := c.checkKey(); err != nil {
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

// readBody reads a body of at most so many bytes. A body of unknown length that is not small
// reserves memory for the largest one.
func (c *call) readBody(limit int64) ([]byte, error) {
	// The deadline ends a body that arrives too slowly. It is cleared afterwards, because net/http
	// reads on while the call blocks, to notice that the client has gone. A call in process has no
	// deadline.
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(time.Now().Add(c.s.opt.BodyTimeout))
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

// drainBytes and drainTime bound what is read and discarded of a body that was refused for its
// size.
const (
	drainBytes = 4 * maxBody
	drainTime  = 5 * time.Second
)

// drain flushes the answer and discards the rest of the body. A client that writes its whole body
// before it reads would otherwise find the connection reset, and never see the answer. A client
// that waits for 100 Continue sends no body, and is not drained.
func (c *call) drain() {
	rc := http.NewResponseController(c.w)
	if c.Header.Get("Expect") != "" || rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(drainTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c.Body, drainBytes) // an error means that the client is gone
}

// bodyError returns the error of a body that could not be read. The original error is not shown: it
// may have the addresses of the connection.
func (c *call) bodyError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return perdure.Errorf(perdure.CodeInvalid, "the body did not arrive within %s", c.s.opt.BodyTimeout)
	}
	return perdure.Errorf(perdure.CodeInvalid, "the body broke off")
}

// noBody refuses a body other than {}.
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

// checkQuery refuses unknown parameters, and repeated ones that may not be. An allowed name that ends
// with * is a prefix.
func (c *call) checkQuery(allowed, repeated []string) error {
	q, err := url.ParseQuery(c.URL.RawQuery)
	if err != nil {
		return perdure.Errorf(perdure.CodeInvalid, "the query is malformed")
	}
	for name, values := range q {
		known := slices.Contains(allowed, name)
		for _, a := range allowed {
			if prefix, ok := strings.CutSuffix(a, "*"); ok && strings.HasPrefix(name, prefix) &&
				len(name) > len(prefix) {
				known = true
			}
		}
		if !known {
			return perdure.Invalid(name, "is no parameter of this call")
		}
		if len(values) > 1 && !slices.Contains(repeated, name) {
			return perdure.Invalid(name, "is given %d times", len(values))
		}
		for _, v := range values {
			if !utf8.ValidString(v) || strings.ContainsRune(v, 0) {
				return perdure.Invalid(name, "is not valid UTF-8, or has a NUL byte")
			}
		}
	}
	return nil
}

// intParam reads a whole number from the query.
func (c *call) intParam(name string, def, low, high int64) (int64, error) {
	text := c.URL.Query().Get(name)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return 0, perdure.Invalid(name, "takes a whole number from %d to %d", low, high)
	}
	return n, nil
}

// isID matches the id of a run.
var isID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// cursorParam reads the cursor of a list of runs: the next_cursor of the previous page.
func (c *call) cursorParam() (perdure.RunID, error) {
	text := c.URL.Query().Get("cursor")
	if text != "" && !isID.MatchString(text) {
		return "", perdure.Invalid("cursor", "takes the next_cursor of the page before")
	}
	return perdure.RunID(text), nil
}

// durationParam reads a duration from the query: "30s", or a bare number of seconds.
func (c *call) durationParam(name string, def, limit time.Duration) (time.Duration, error) {
	text := c.URL.Query().Get(name)
	if text == "" {
		return def, nil
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
