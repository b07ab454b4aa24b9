package httpd

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
)

const session = "/api/v1/session"

// login opens a session with a key, and returns its cookie.
func (w *world) login(body string) string {
	w.t.Helper()
	a := w.do("POST", session, body)
	a.is(201)
	cookies := (&http.Response{Header: a.header}).Cookies()
	if len(cookies) != 1 || cookies[0].Name != sessionCookie || !cookies[0].HttpOnly ||
		cookies[0].SameSite != http.SameSiteStrictMode || cookies[0].Path != "/api/" || cookies[0].MaxAge < 11*3600 {
		w.t.Fatalf("cookies of a login = %v, want one that no script and no other site sees, for 12 hours", cookies)
	}
	if strings.Contains(string(a.body), cookies[0].Value) {
		w.t.Errorf("the answer of a login has the secret of the session: %s", a.body)
	}
	return cookies[0].Value
}

// page is a call as the dashboard's pages make it.
func (w *world) page(cookie, method, path, body string, header ...string) *answer {
	w.t.Helper()
	h := http.Header{"Cookie": {sessionCookie + "=" + cookie}, "Origin": {"http://localhost"}, pageHeader: {"ui"},
		"Sec-Fetch-Site": {"same-origin"}}
	for i := 0; i+1 < len(header); i += 2 {
		if h[header[i]] = []string{header[i+1]}; header[i+1] == "" {
			delete(h, header[i])
		}
	}
	return w.send(ask{method: method, path: path, body: body, header: h})
}

func TestSession(t *testing.T) {
	w := newWorld(t, setup{})
	cookie := w.login(`{}`)
	who := w.page(cookie, "GET", session, "").is(200)
	id := w.get(session).is(200)["key_id"]
	if who["key_id"] != id || who["tenant"] != "a" || who["read_only"] != nil || who["expires_at"] == nil {
		t.Errorf("the session = %v, want that of the key %v of tenant a, with an end", who, id)
	}
	run := w.page(cookie, "POST", runs, `{"kind":"job"}`).is(201)["run_id"]
	w.page(cookie, "GET", fmt.Sprint(runs, "/", run), "").is(200)

	// The list of keys has no sessions, and what a session does is told of its key.
	for _, k := range w.get("/api/v1/keys").is(200)["keys"].([]any) {
		if k.(obj)["parent_key_id"] != nil {
			t.Errorf("the list of keys has the session %v", k)
		}
	}
	w.page(cookie, "POST", fmt.Sprint(runs, "/", run, "/cancel"), "").is(200)
	entry := w.get("/api/v1/audit?action=run.cancel").is(200)["entries"].([]any)[0].(obj)
	if entry["key_id"] != id {
		t.Errorf("the audit log says that %v cancelled the run, want the key %v", entry["key_id"], id)
	}
	// A key that a session makes lasts longer than the session.
	w.page(cookie, "POST", "/api/v1/keys", `{"name":"k","scopes":["runs:read"]}`).is(201)

	if c := w.page(cookie, "DELETE", session, ""); !strings.Contains(c.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("Set-Cookie of a logout = %q, want the cookie gone", c.header.Get("Set-Cookie"))
	}
	w.page(cookie, "GET", session, "").refuses(401, "unauthorized")
	w.get(session).is(200) // the key itself is still there
	w.do("DELETE", session, "").refuses(409, "wrong_state")
}

func TestReadOnlySession(t *testing.T) {
	w := newWorld(t, setup{})
	cookie := w.login(`{"read_only":true}`)
	if who := w.page(cookie, "GET", session, "").is(200); who["read_only"] != true {
		t.Errorf("the session = %v, want read_only", who)
	}
	w.page(cookie, "GET", runs, "").is(200)
	w.page(cookie, "POST", runs, `{"kind":"job"}`).refuses(403, "forbidden")
	// Another login with it has no more rights.
	link := w.page(cookie, "POST", session+"/links", `{}`).is(201)["path"].(string)
	_, secret, _ := strings.Cut(link, "#login=")
	again := w.as(secret).login(`{}`)
	w.page(again, "POST", runs, `{"kind":"job"}`).refuses(403, "forbidden")
}

func TestSessionEndsWithItsKey(t *testing.T) {
	w := newWorld(t, setup{})
	secret := w.newKey("a", func(op *access.CreateKey) {})
	holder := w.as(secret)
	cookie := holder.login(`{}`)
	id := holder.get(session).is(200)["key_id"]
	w.do("DELETE", fmt.Sprint("/api/v1/keys/", id), "").is(200)
	holder.page(cookie, "GET", session, "").refuses(401, "unauthorized")

	short := w.as(w.newKey("a", func(op *access.CreateKey) { op.TTL = perdure.Duration(60e9) }))
	a := short.do("POST", session, `{}`)
	a.is(201)
	if c := (&http.Response{Header: a.header}).Cookies()[0]; c.MaxAge > 60 {
		t.Errorf("a session of a key with a minute left has %d s, want no more than that", c.MaxAge)
	}
}

// A login link works once.
func TestLoginLink(t *testing.T) {
	w := newWorld(t, setup{})
	link := w.do("POST", session+"/links", `{}`).is(201)["path"].(string)
	path, secret, _ := strings.Cut(link, "#login=")
	if path != "/ui/" {
		t.Errorf("the link is %s, want one to the dashboard with the login behind #", link)
	}
	// It is good for nothing but one login: as a key, as a cookie, for more links and for keys that last.
	link1 := w.as(secret)
	link1.get(session).refuses(401, "unauthorized")
	link1.get(runs).refuses(401, "unauthorized")
	link1.get("/api/v1/keys").refuses(401, "unauthorized")
	link1.do("POST", "/api/v1/keys", `{"name":"k","scopes":["runs:read"]}`).refuses(401, "unauthorized")
	link1.do("POST", session+"/links", `{}`).refuses(401, "unauthorized")
	link1.do("DELETE", session, "").refuses(401, "unauthorized")
	w.page(secret, "GET", runs, "").refuses(401, "unauthorized")
	w.send(ask{method: "GET", path: runs + "?access_token=" + secret}).refuses(401, "unauthorized")
	// Its secret with the beginning of a key's is not a key.
	w.as("prd"+strings.TrimPrefix(secret, "prl")).get(session).refuses(401, "unauthorized")

	cookie := link1.login(`{}`)
	link1.do("POST", session, `{}`).refuses(401, "unauthorized")
	w.page(cookie, "GET", session, "").is(200)
}

// Of many requests with one link at once, one logs in.
func TestLoginLinkOpensOneSession(t *testing.T) {
	w := newWorld(t, setup{})
	link := w.do("POST", session+"/links", `{}`).is(201)["path"].(string)
	_, secret, _ := strings.Cut(link, "#login=")
	var all sync.WaitGroup
	var got [8]int
	for i := range got {
		all.Go(func() { got[i] = w.as(secret).do("POST", session, `{}`).status })
	}
	all.Wait()
	slices.Sort(got[:])
	if got != [8]int{201, 401, 401, 401, 401, 401, 401, 401} {
		t.Errorf("answers of eight logins with one link = %v, want one 201", got)
	}
}

// Over TLS a browser takes the cookie for this very host alone. Without it the servers on other ports of the machine
// have cookies with other names.
func TestNameOfTheCookie(t *testing.T) {
	w := newWorld(t, setup{})
	port := func(n int) context.Context {
		return context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{Port: n}))
	}
	for name, x := range map[string]struct {
		ctx    context.Context
		header http.Header
		want   string
	}{
		"plain": {port(7777), nil, "perdure_session_7777; Path=/api/; HttpOnly; SameSite=Strict"},
		"behind a proxy": {port(7777), http.Header{"X-Forwarded-Proto": {"https"}},
			"__Host-perdure_session; Path=/; HttpOnly; Secure; SameSite=Strict"},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			a := w.send(ask{method: "POST", path: session, body: `{}`, key: w.key, ctx: x.ctx, header: x.header})
			a.is(201)
			c := (&http.Response{Header: a.header}).Cookies()[0]
			secret := c.Value
			c.Value, c.MaxAge = "", 0
			if got := strings.Replace(c.String(), "=;", ";", 1); got != x.want {
				t.Errorf("the cookie is %q, want %q", got, x.want)
			}
			header := http.Header{"Cookie": {c.Name + "=" + secret}}
			for k, v := range x.header {
				header[k] = v
			}
			w.send(ask{method: "GET", path: session, ctx: x.ctx, header: header}).is(200)
			w.send(ask{method: "GET", path: session, ctx: port(8888)}).refuses(401, "unauthorized")
			if x.header == nil {
				w.send(ask{method: "GET", path: session, ctx: port(8888), header: header}).refuses(401, "unauthorized")
			}
		})
	}
}

// A page of another site can make a browser send the cookie, and gets nothing for it.
func TestCookieOfAnotherSite(t *testing.T) {
	w := newWorld(t, setup{options: func(o *Options) { o.Origins = []string{"https://app.example.com"} }})
	cookie := w.login(`{}`)
	for name, header := range map[string][]string{
		"another origin":                      {"Origin", "http://evil.example.com"},
		"another port of this machine":        {"Origin", "http://localhost:3000"},
		"an origin that is configured":        {"Origin", "https://app.example.com"},
		"a sandboxed frame":                   {"Origin", "null"},
		"a browser that says so":              {"Sec-Fetch-Site", "cross-site"},
		"another port, as a browser tells it": {"Sec-Fetch-Site", "same-site"},
		"a form, which has no header of ours": {pageHeader, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			w.page(cookie, "POST", runs, `{"kind":"job"}`, header...).refuses(403, "cross_site")
			if header[0] != pageHeader {
				w.page(cookie, "GET", runs, "", header...).refuses(403, "cross_site")
			}
		})
	}
	if n := len(w.get(runs).is(200)["runs"].([]any)); n != 0 {
		t.Errorf("%d runs were started, want 0", n)
	}
	// The cookie does not get into the way of a key.
	w.send(ask{method: "GET", path: runs, key: w.key, header: http.Header{"Cookie": {sessionCookie + "=x"},
		"Origin": {"https://app.example.com"}}}).is(200)
	w.page("x", "GET", runs, "").refuses(401, "unauthorized")
}

func TestSessionsOfAKeyAreBounded(t *testing.T) {
	w := newWorld(t, setup{})
	first := w.login(`{}`)
	for range 100 {
		w.login(`{}`)
	}
	w.page(first, "GET", session, "").refuses(401, "unauthorized")
}
