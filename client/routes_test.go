package client_test

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/wire/session"
)

// unmet lists the routes that no method calls, with the reason.
var unmet = map[string]string{
	"GET /api/v1/ws":                 "for web pages; Stream follows a run, and List finds runs",
	"GET /api/v1/jobs/{id}/status":   "Get returns more",
	"POST /api/v1/threads/{id}/runs": "Start takes a thread_id",
	"POST /api/v1/session":           "for browsers; LoginLink makes a link for one",
	"DELETE /api/v1/session":         "for browsers",
	"GET /metrics":                   "for Prometheus",
	"GET /openapi.json":              "for other languages",
}

// The test calls every method for programs, operators and workers, and compares the requests with the server's routes.
func TestEveryRouteHasAMethod(t *testing.T) {
	w := open(t, false, nil)
	asked := make(map[string]string) // request → the method that made it
	var name string
	refusing := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
		asked[r.Method+" "+r.URL.EscapedPath()] = name
		return &http.Response{StatusCode: 404, Header: http.Header{"Content-Type": {"application/problem+json"}},
			Request: r,
			Body:    io.NopCloser(strings.NewReader(`{"code":"not_found"}`))}, nil
	})
	c := client.New(w.URL, "k", client.Options{Transport: refusing})
	callAll(t, c, func(method string) { name = method })

	res, err := w.Wire.RoundTrip(must(t, w.URL+"/openapi.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.NewDecoder(res.Body).Decode(&doc); err != nil || len(doc.Paths) == 0 {
		t.Fatalf("openapi.json: %d paths, %v, want some", len(doc.Paths), err)
	}
	// Paths with fewer parameters come first, because a path with more of them may match too.
	paths := slices.SortedFunc(maps.Keys(doc.Paths), func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, "{"), strings.Count(b, "{")), cmp.Compare(a, b))
	})
	for _, path := range paths {
		methods := doc.Paths[path]
		anyID := regexp.MustCompile(`\\\{\w+\\\}`).ReplaceAllString(regexp.QuoteMeta(path), "[^/]+")
		pattern := regexp.MustCompile("^" + anyID + "$")
		for method := range methods {
			route := strings.ToUpper(method) + " " + path
			met := false
			for call := range asked {
				if verb, at, _ := strings.Cut(call, " "); strings.EqualFold(verb, method) && pattern.MatchString(at) {
					met = true
					delete(asked, call)
				}
			}
			if met == (unmet[route] != "") {
				t.Errorf("route %s: called by a method: %t; reason for no method: %q; want one of the two", route, met,
					unmet[route])
			}
		}
	}
	for call, name := range asked {
		t.Errorf("%s calls %s, which is not a route of the server", name, call)
	}
}

// callAll calls every method for programs, operators and workers, after it has told its name.
func callAll(t *testing.T, c *client.Client, calling func(method string)) {
	t.Helper()
	ops, protocol := reflect.ValueOf(admin.New(c)), reflect.ValueOf(new(session.Of(c))).Elem()
	for _, of := range []reflect.Value{reflect.ValueOf(c), ops, protocol} {
		for m, f := range of.Methods() {
			calling(of.Type().String() + "." + m.Name)
			out := f.Call(arguments(t, f.Type()))
			if len(out) == 1 && out[0].Type().CanSeq2() {
				for range out[0].Seq2() {
				}
			}
		}
	}
}

func must(t *testing.T, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// arguments returns arguments for a method: one for each parameter, and one for a variadic
// parameter.
func arguments(t *testing.T, f reflect.Type) (args []reflect.Value) {
	for i := range f.NumIn() {
		p := f.In(i)
		if f.IsVariadic() && i == f.NumIn()-1 {
			if p = p.Elem(); p == reflect.TypeFor[client.CallOptions]() {
				continue
			}
		}
		v := reflect.New(p).Elem()
		switch {
		case p == reflect.TypeFor[io.Reader]():
			v.Set(reflect.ValueOf(strings.NewReader("x")))
		case p == reflect.TypeFor[io.Writer]():
			v.Set(reflect.ValueOf(io.Discard))
		case p.Kind() == reflect.Interface: // a context
			v.Set(reflect.ValueOf(within(t)))
		case p == reflect.TypeFor[api.Lease]():
			v.Set(reflect.ValueOf(api.Lease{RunID: "x", Epoch: 1}))
		case p == reflect.TypeFor[[]api.BatchRun]():
			v.Set(reflect.ValueOf([]api.BatchRun{{}}))
		case p.Kind() == reflect.String:
			v.SetString("x")
		case p == reflect.TypeFor[time.Duration]():
			v.SetInt(int64(time.Millisecond))
		case slices.Contains([]reflect.Kind{reflect.Int, reflect.Int64}, p.Kind()):
			v.SetInt(1)
		}
		args = append(args, v)
	}
	return args
}
