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
)

// unmet are the routes that no method calls, and why.
var unmet = map[string]string{
	"GET /api/v1/ws":                 "it is for pages; Stream follows a run, and List finds them",
	"GET /api/v1/jobs/{id}/status":   "Get says more",
	"POST /api/v1/threads/{id}/runs": "Start takes a thread_id",
	"GET /metrics":                   "it is for Prometheus",
	"GET /openapi.json":              "it is for other languages",
}

// TestEveryRouteHasAMethod calls every method of a client, and compares what they ask for with what the server offers.
func TestEveryRouteHasAMethod(t *testing.T) {
	w := open(t, false, nil)
	asked := make(map[string]string) // a call, and the method that made it
	var name string
	refusing := tripper(func(r *http.Request) (*http.Response, error) {
		asked[r.Method+" "+r.URL.EscapedPath()] = name
		return &http.Response{StatusCode: 404, Header: http.Header{"Content-Type": {"application/problem+json"}}, Request: r,
			Body: io.NopCloser(strings.NewReader(`{"code":"not_found"}`))}, nil
	})
	c := reflect.ValueOf(client.New(w.url, "k", client.Options{Transport: refusing}))
	for m, f := range c.Methods() {
		name = m.Name
		out := f.Call(arguments(t, f.Type()))
		if len(out) == 1 && out[0].Type().CanSeq2() {
			for range out[0].Seq2() {
			}
		}
	}

	res, err := w.wire.RoundTrip(must(t, w.url+"/openapi.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.NewDecoder(res.Body).Decode(&doc); err != nil || len(doc.Paths) == 0 {
		t.Fatal(doc, err)
	}
	// A path without names in it goes before one that it would fit too.
	paths := slices.SortedFunc(maps.Keys(doc.Paths), func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, "{"), strings.Count(b, "{")), cmp.Compare(a, b))
	})
	for _, path := range paths {
		methods := doc.Paths[path]
		pattern := regexp.MustCompile("^" + regexp.MustCompile(`\\\{\w+\\\}`).ReplaceAllString(regexp.QuoteMeta(path), "[^/]+") + "$")
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
				t.Errorf("%s: a method calls it: %t; it is said to have none: %q", route, met, unmet[route])
			}
		}
	}
	for call, name := range asked {
		t.Errorf("Client.%s calls %s, which there is not", name, call)
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

// arguments makes arguments of a method: something for each of its parameters, and one for those that take many.
func arguments(t *testing.T, f reflect.Type) (args []reflect.Value) {
	for i := range f.NumIn() {
		p := f.In(i)
		if f.IsVariadic() && i == f.NumIn()-1 {
			if p = p.Elem(); p == reflect.TypeFor[client.CallOption]() {
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
