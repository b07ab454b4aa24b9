package httpd

import (
	"net/http"
	"reflect"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
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
