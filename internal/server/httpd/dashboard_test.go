package httpd

import (
	"net/http/httptest"
	"strings"
	"testing"
)

func TestDashboardIsServedToAllowedHostsOnly(t *testing.T) {
	w := newWorld(t, setup{})
	for _, c := range []struct {
		method, path, host string
		status             int
		want               string // of the body, or of the Location
	}{
		{"GET", "/", "127.0.0.1", 302, "/ui/"},
		{"GET", "/ui", "127.0.0.1", 302, "/ui/"},
		{"GET", "/ui/", "127.0.0.1", 200, "<title>Perdure"},
		{"GET", "/ui/style.css", "127.0.0.1", 200, "body"},
		{"GET", "/ui/none.js", "127.0.0.1", 404, ""},
		{"POST", "/ui/", "127.0.0.1", 405, "method_not_allowed"},
		{"POST", "/", "127.0.0.1", 405, "method_not_allowed"},
		{"GET", "/ui/", "evil.example", 0, "host"},
		{"GET", "/", "evil.example", 0, "host"},
	} {
		r := httptest.NewRequest(c.method, "http://"+c.host+c.path, nil)
		rec := httptest.NewRecorder()
		w.s.Handler().ServeHTTP(rec, r)
		if c.status == 0 && rec.Code < 400 || c.status != 0 && rec.Code != c.status {
			t.Errorf("%s %s of %s: status = %d, want %d", c.method, c.path, c.host, rec.Code, c.status)
		}
		if got := rec.Header().Get("Location") + rec.Body.String(); !strings.Contains(got, c.want) {
			t.Errorf("%s %s of %s: answer = %.200q, want %q in it", c.method, c.path, c.host, got, c.want)
		}
		if csp := rec.Header().Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") {
			t.Errorf("%s %s of %s: Content-Security-Policy = %q, want nothing allowed by default",
				c.method, c.path, c.host, csp)
		}
	}
}
