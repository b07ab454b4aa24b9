package httpd

import (
	"context"
	"fmt"
	"hash/crc32"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

const unknown = "01999999-9999-7999-8999-999999999999"

var placeholder = regexp.MustCompile(`\{\w+\}`)

// concrete gives a path of a route's pattern.
func concrete(pattern string) string {
	values := map[string]string{"{id}": unknown, "{jobId}": unknown, "{n}": "1", "{name}": "go", "{token}": "cb_x",
		"{child}": unknown, "{tenant}": "t", "{kind}": "job", "{key}": "a"}
	return placeholder.ReplaceAllStringFunc(pattern, func(p string) string {
		if values[p] == "" {
			panic("no value for " + p)
		}
		return values[p]
	})
}

func TestListOfOpenRoutes(t *testing.T) {
	w := newWorld(t, setup{})
	var open []string
	for _, r := range w.s.routes {
		if r.guard.open {
			open = append(open, r.method+" "+r.pattern)
		} else if !slices.Contains(perdure.Scopes, r.guard.scope) {
			t.Errorf("%s %s asks for no scope", r.method, r.pattern)
		} else if !r.guard.platform && !slices.Contains(perdure.TenantScopes, r.guard.scope) {
			t.Errorf("%s %s asks a key of a tenant for the scope %s", r.method, r.pattern, r.guard.scope)
		}
	}
	slices.Sort(open)
	want := []string{"GET /healthz", "GET /openapi.json", "GET /readyz", "POST /api/v1/callbacks/{token}"}
	if !slices.Equal(open, want) {
		t.Errorf("open are %v", open)
	}
	for _, path := range []string{"/healthz", "/readyz", "/openapi.json"} {
		w.send(ask{method: "GET", path: path}).is(200)
	}
}

// summed gives a secret its checksum, so that nothing but its content is wrong with it.
func summed(body string) string {
	return fmt.Sprintf("%s_%08x", body, crc32.ChecksumIEEE([]byte(body)))
}

func TestEveryRouteRequiresKey(t *testing.T) {
	w := newWorld(t, setup{})
	expiring := w.newKey("a", func(op *access.CreateKey) { op.TTL = perdure.Duration(time.Millisecond) })
	eventually.True(t, "the key expires", func() bool {
		_, err := w.e.Keys.Authenticate(context.Background(), expiring)
		return err != nil
	})
	revoked := w.newKey("a", nil)
	w.do("DELETE", "/api/v1/keys/"+strings.Split(revoked, "_")[1], "").is(200)
	good := strings.Split(w.key, "_")
	bearer := func(keys ...string) http.Header {
		h := http.Header{}
		for _, k := range keys {
			h.Add("Authorization", "Bearer "+k)
		}
		return h
	}
	cases := map[string]http.Header{
		"none":                      {},
		"empty":                     {"Authorization": {""}},
		"scheme alone":              {"Authorization": {"Bearer"}},
		"empty token":               bearer(""),
		"garbage":                   bearer("garbage"),
		"wrong checksum":            bearer(w.key[:len(w.key)-1] + "x"),
		"unknown id":                bearer(summed("prd_000000000000_" + good[2])),
		"another secret":            bearer(summed("prd_" + good[1] + "_" + strings.Repeat("0", 64))),
		"cut off":                   bearer(summed("prd_" + good[1] + "_" + good[2][:60])),
		"a megabyte":                bearer("prd_" + good[1] + "_" + strings.Repeat("0", 1<<20) + "_00000000"),
		"SQL":                       bearer(summed("prd_' OR 1=1 --_x")),
		"NUL":                       bearer(w.key + "\x00"),
		"expired":                   bearer(expiring),
		"revoked":                   bearer(revoked),
		"two of them":               bearer(w.key, w.admin),
		"the same twice":            bearer(w.key, w.key),
		"in both headers":           {"Authorization": {"Bearer " + w.key}, "X-Api-Key": {w.key}},
		"basic":                     {"Authorization": {"Basic " + w.key}},
		"no scheme":                 {"Authorization": {w.key}},
		"expired as x-api-key":      {"X-Api-Key": {expiring}},
		"a cookie":                  {"Cookie": {"key=" + w.key}},
		"a tenant of one's choice":  {"X-Tenant": {"a"}, "X-Perdure-Tenant": {"a"}},
		"forwarded as from nowhere": {"X-Forwarded-For": {"127.0.0.1"}, "X-Real-Ip": {"127.0.0.1"}},
	}
	before := w.fingerprint("")
	for _, r := range w.s.routes {
		if r.guard.open {
			continue
		}
		for name, header := range cases {
			a := w.send(ask{method: r.method, path: concrete(r.pattern), header: header})
			if p := a.problem(); a.status != 401 || p["code"] != "unauthorized" ||
				a.header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s with %s: %d %s", a.what, name, a.status, a.body)
			}
		}
		if a := w.send(ask{method: r.method, path: concrete(r.pattern) + "?key=" + w.key + "&api_key=" +
			w.key}); a.status != 401 {
			t.Errorf("%s with a key in its query: %d", a.what, a.status)
		}
	}
	if w.fingerprint("") != before {
		t.Error("something changed")
	}
	for _, ok := range []http.Header{{"Authorization": {"bearer " + w.key}}, {"X-Api-Key": {w.key}}} {
		w.send(ask{method: "GET", path: "/api/v1/runs", header: ok}).is(200)
	}
}

func TestEveryRouteRequiresItsScope(t *testing.T) {
	w := newWorld(t, setup{})
	before := ""
	for _, r := range w.s.routes {
		key := w.key
		switch {
		case r.guard.open:
			continue
		case !r.guard.platform:
			key = w.newKey("a", func(op *access.CreateKey) {
				op.Scopes = slices.DeleteFunc(slices.Clone(perdure.Scopes), func(s perdure.Scope) bool {
					return s == r.guard.scope
				})
			})
		}
		before = w.fingerprint("")
		a := w.send(ask{method: r.method, path: concrete(r.pattern), key: key})
		if p := a.problem(); a.status != 403 || p["code"] != "forbidden" {
			t.Errorf("%s without its scope: %d %s", a.what, a.status, a.body)
		}
		if w.fingerprint("") != before {
			t.Errorf("%s: something changed", a.what)
		}
	}
}

// A platform key is refused without the route's scope, whatever else it may do.
func TestEveryPlatformRouteRequiresItsScope(t *testing.T) {
	w := newWorld(t, setup{})
	without := make(map[perdure.Scope]string)
	for _, r := range w.s.routes {
		if !r.guard.platform {
			continue
		}
		if without[r.guard.scope] == "" {
			without[r.guard.scope] = w.newKey("default", func(op *access.CreateKey) {
				op.Platform = true
				op.Scopes = slices.DeleteFunc(slices.Clone(perdure.Scopes), func(s perdure.Scope) bool {
					return s == r.guard.scope
				})
			})
		}
		before := w.fingerprint("")
		a := w.send(ask{method: r.method, path: concrete(r.pattern), key: without[r.guard.scope]})
		if p := a.problem(); a.status != 403 || p["code"] != "forbidden" {
			t.Errorf("%s with a platform key without %s: %d %s", a.what, r.guard.scope, a.status, a.body)
		}
		if w.fingerprint("") != before {
			t.Errorf("%s: something changed", a.what)
		}
	}
	if len(without) < 4 {
		t.Errorf("platform routes ask for %d scopes: %v", len(without), without)
	}
}

func TestWrongMethodIs405(t *testing.T) {
	w := newWorld(t, setup{})
	byPattern := map[string][]string{}
	for _, r := range w.s.routes {
		byPattern[r.pattern] = append(byPattern[r.pattern], r.method)
	}
	for pattern, methods := range byPattern {
		for _, m := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"} {
			if slices.Contains(methods, m) || m == "HEAD" && slices.Contains(methods, "GET") {
				continue
			}
			a := w.send(ask{method: m, path: concrete(pattern), key: w.admin,
				header: http.Header{"X-Http-Method-Override": {methods[0]}}})
			if p := a.problem(); a.status != 405 || p["code"] != "method_not_allowed" {
				t.Errorf("%s: %d %s", a.what, a.status, a.body)
			}
			if allow := strings.Split(a.header.Get("Allow"), ", "); !slices.Equal(slices.Sorted(slices.Values(allow)),
				slices.Sorted(slices.Values(methods))) {
				t.Errorf("%s: allowed are %v, not %v", a.what, allow, methods)
			}
		}
	}
}

func TestUncleanPathsAreNotFound(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job"}`)
	for _, path := range []string{
		"/api", "/api/", "/api/v1", "/api/v1/", "/api/v2/runs", "/API/v1/runs", "/api/v1/Runs", "/favicon.ico",
		"/metrics/", "/Metrics", "/debug/pprof/",
		"//api/v1/runs", "/api//v1/runs", "/api/v1//runs", "/api/v1/runs/", "/api/v1/runs//", "/api/v1/./runs",
		"/./api/v1/runs",
		"/api/v1/../v1/runs", "/../api/v1/runs", "/healthz/../api/v1/runs", "/api/v1/runs/..", "/api/v1/runs/.",
		"/api/v1/runs/%2e%2e", "/api/v1/runs/%2e%2e/runs", "/api/v1/%2e/runs", "/%2e%2e/%2e%2e/etc/passwd",
		"/api/v1/runs/%2e%2e%2fruns",
		"/api/v1/runs%2f", "/api/v1%2fruns", "/api%2fv1%2fruns", "/api/v1/runs/" + id + "/",
		"/api/v1/runs/" + id + "%2f", "/api/v1/runs/%2f" + id,
		"/api/v1/runs/" + id + "%2fevents", "/api/v1/runs/" + id + "%2f..%2f" + id, "/api/v1/runs/" + id + "%5c",
		`/api/v1/runs\` + id, "/api/v1/runs/..%5c" + id,
		"/api/v1/runs/" + id + "%00", "/api/v1/runs/%00", "/api/v1/runs/" + id + "%0d%0aX-Evil:1",
		"/api/v1/runs/%ff%fe", "/api/v1/runs/" + id + ";x=1",
		"/api/v1/runs/%20" + id, "/api/v1/runs/" + id + "%20", "/api/v1/runs/" + strings.ToUpper(id),
		"/api/v1/runs/" + strings.Repeat("a", 5000),
		"/api/v1/runs/%25" + id, "/api/v1/runs/%252e%252e", "/api/v1/runs/*", "/api/v1/runs/%27%20OR%201=1--",
		"/healthz/", "/healthz%2f", "//healthz",
		"/api/v1/runs/" + id + "/late-results/x/adopt", "/api/v1/runs/" + id + "/stream/x",
	} {
		for _, key := range []string{"", w.key, w.admin} {
			for _, method := range []string{"GET", "POST"} {
				a := w.send(ask{method: method, path: path, key: key})
				if a.header.Get("Location") != "" || a.status/100 == 3 {
					t.Errorf("%s is redirected to %s", a.what, a.header.Get("Location"))
				}
				// Where an id that is none fits a pattern, the method and the key are asked for first.
				fits := cleanPath(path) != "" && (a.status == 405 || a.status == 401 && key == "")
				if a.status != 404 && !fits {
					t.Errorf("%s: %d %.100s", a.what, a.status, a.body)
				}
			}
		}
	}
	for _, path := range []string{"http://localhost/api/v1/runs", "http://evil.example/api/v1/runs", "*"} {
		if a := w.send(ask{method: "GET", path: path}); a.status != 401 && a.status != 404 && a.status != 421 {
			t.Errorf("%s: %d %s", a.what, a.status, a.body)
		}
	}
}

// The tenant comes from the key alone: no request type may have a field for it.
func TestNoBodyNamesATenant(t *testing.T) {
	w := newWorld(t, setup{})
	for _, r := range w.s.routes {
		if r.in == nil {
			continue
		}
		for name := range fieldsOf(r.in) {
			// a worker of the platform takes runs of all tenants, but for some
			if strings.Contains(name, "tenant") && name != "all_tenants" && name != "except_tenants" {
				t.Errorf("%s %s takes %s", r.method, r.pattern, name)
			}
		}
		for _, q := range r.query {
			// a key of the platform sees all tenants, and may choose among them: TestOnlyPlatformKeysNameATenant
			if strings.Contains(q, "tenant") && !r.guard.platform && !(r.tenanted && q == tenantParam) {
				t.Errorf("%s %s takes ?%s", r.method, r.pattern, q)
			}
		}
	}
}

func TestHosts(t *testing.T) {
	w := newWorld(t, setup{})
	w.s.opt.Hosts = []string{"Perdure.Example"}
	for host, want := range map[string]int{
		"localhost": 200, "localhost:8080": 200, "LOCALHOST": 200, "127.0.0.1": 200, "127.0.0.1:1": 200,
		"[::1]:80": 200, "[::1]": 200, "10.1.2.3": 200,
		"perdure": 200, "perdure.example": 200, "PERDURE.EXAMPLE:443": 200,
		"": 421, "evil.example": 421, "localhost.evil.example": 421, "localhost.evil.com": 421, "evil.com:80": 421,
		"127.0.0.1.evil.com": 421, "localhost:80:80": 421,
		"localhost@evil.com": 421, "perdure.example.evil.com": 421, "xperdure.example": 421, "127.1": 421,
		"0x7f000001": 421, "2130706433": 421,
	} {
		a := w.send(ask{method: "GET", path: "/healthz", header: http.Header{"Host": {host}}})
		if a.status != want {
			t.Errorf("host %q: %d, not %d", host, a.status, want)
		}
	}
}

// A key of the platform shares the tenant "default" with others: they neither see nor revoke it.
func TestTenantKeyCantReachPlatformKeys(t *testing.T) {
	w := newWorld(t, setup{})
	peer := w.as(w.newKey("default", nil))
	id := strings.Split(w.admin, "_")[1]
	if a := peer.get("/api/v1/keys"); contains(a.body, id) {
		t.Errorf("it is listed: %s", a.body)
	}
	peer.do("DELETE", "/api/v1/keys/"+id, "").refuses(404, "not_found")
	a := w.as(w.admin).get("/api/v1/keys")
	if a.is(200); !contains(a.body, id) {
		t.Errorf("the platform does not see its own key: %s", a.body)
	}
	var n int
	if err := w.e.Store().View(context.Background(), func(v *store.View) (err error) {
		n, err = v.Keys.CountPlatform()
		return err
	}); err != nil || n != 1 {
		t.Errorf("%d platform keys, %v", n, err)
	}
}
