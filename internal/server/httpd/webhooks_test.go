package httpd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/webhook"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

var loopback = &webhook.Guard{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}

// brief is the timeout of receivers that are meant to time out; their addresses end in late. The others
// have the usual timeout, so that a busy machine does not make them fail.
const (
	brief = 300 * time.Millisecond
	late  = "?late"
)

type hurrying struct{ usual, brief *webhook.HTTP }

func (p hurrying) Send(ctx context.Context, m webhook.Message) webhook.Result {
	if strings.HasSuffix(m.URL, late) {
		return p.brief.Send(ctx, m)
	}
	return p.usual.Send(ctx, m)
}

// delivering is a world that sends webhooks, to loopback too.
func delivering(t *testing.T, opt setup) *world {
	t.Helper()
	sender := hurrying{webhook.NewHTTP(webhook.HTTPOptions{Guard: loopback}),
		webhook.NewHTTP(webhook.HTTPOptions{Guard: loopback, Timeout: brief})}
	opt.options = func(o *Options) { o.Webhooks, o.Sender = loopback, sender }
	w := newWorld(t, opt)
	d := webhook.New(w.e, webhook.Options{Sender: sender, Logger: w.s.log})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		sender.usual.Close()
		sender.brief.Close()
	})
	return w
}

// A letter is a message as it arrived.
type letter struct {
	header http.Header
	body   []byte
}

func (l *letter) id() string { return l.header.Get("webhook-id") }

func (l *letter) json(t *testing.T) (out struct {
	Type string
	Data struct {
		RunID     string          `json:"run_id"`
		ThreadID  string          `json:"thread_id"`
		StatusURL string          `json:"status_url"`
		Event     json.RawMessage `json:"event"`
	}
}) {
	t.Helper()
	if err := json.Unmarshal(l.body, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func (l *letter) verifies(t *testing.T, secret any) bool {
	t.Helper()
	wh, err := standard.NewWebhook(secret.(string))
	if err != nil {
		t.Fatal(err)
	}
	return wh.Verify(l.body, l.header) == nil
}

// A sink is a receiver. answer may be nil: it takes everything.
type sink struct {
	t  *testing.T
	at string
	mu sync.Mutex

	letters []letter
	answer  http.HandlerFunc
}

func newSink(t *testing.T, answer http.HandlerFunc) *sink {
	t.Helper()
	s := &sink{t: t, answer: answer}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.letters = append(s.letters, letter{r.Header.Clone(), body})
		answer := s.answer
		s.mu.Unlock()
		if answer != nil {
			answer(w, r)
		}
	}))
	t.Cleanup(server.Close)
	s.at = server.URL + "/hook"
	return s
}

// gives adds something to the address.
func (s *sink) gives(more string) *sink {
	s.at += more
	return s
}

func (s *sink) answers(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
}

func (s *sink) got() []letter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.letters)
}

// waits gives the letters as soon as there are so many.
func (s *sink) waits(n int) []letter {
	s.t.Helper()
	eventually.True(s.t, fmt.Sprintf("%d letters", n), func() bool { return len(s.got()) >= n })
	return s.got()
}

// hook registers a webhook and gives it with its secret.
func (w *world) hook(rest string) obj {
	w.t.Helper()
	return w.do("POST", "/api/v1/webhooks", `{%s}`, rest).is(201)
}

// deliveries gives what an endpoint was told.
func (w *world) deliveries(hook any, query string) (out []obj) {
	w.t.Helper()
	for _, d := range w.get(fmt.Sprintf("/api/v1/webhooks/%s/deliveries%s", hook,
		query)).is(200)["deliveries"].([]any) {
		out = append(out, d.(obj))
	}
	return out
}

// settled waits until an endpoint has one delivery that satisfies, and gives it with its history.
func (w *world) settled(hook any, what string, ok func(obj) bool) obj {
	w.t.Helper()
	var out obj
	eventually.True(w.t, what, func() bool {
		list := w.deliveries(hook, "")
		if len(list) == 1 && ok(list[0]) {
			out = list[0]
		}
		return out != nil
	})
	return w.get(fmt.Sprintf("/api/v1/deliveries/%s", out["delivery_id"])).is(200)
}

func delivered(d obj) bool { return d["state"] == "delivered" }
func tried(d obj) bool     { return d["attempts"] == float64(1) && d["last_error"] != nil }

func TestWebhooksOfRunThreadAndTenantAreSigned(t *testing.T) {
	w := delivering(t, setup{})
	ofTenant, ofThread, ofRun, ofEvents := newSink(t, nil), newSink(t, nil), newSink(t, nil), newSink(t, nil)
	thread := w.do("POST", "/api/v1/threads", `{}`).is(201)["thread_id"].(string)
	tenantHook := w.hook(fmt.Sprintf(`"url":%q`, ofTenant.at))
	threadHook := w.hook(fmt.Sprintf(`"url":%q,"thread_id":%q`, ofThread.at, thread))
	eventsHook := w.hook(fmt.Sprintf(`"url":%q,"events":["run:created","x:*"]`, ofEvents.at))

	run := w.do("POST", "/api/v1/runs", `{"kind":"job","thread_id":"%s","webhook":"%s","metadata":{"who":"me"}}`,
		thread, ofRun.at).is(201)
	w.commits(w.lease("w", `,"start":true`), `"events":[{"type":"x:step","data":1}],`+complete)
	apart := w.running(`{"kind":"apart"}`)
	w.commits(apart, complete)

	for _, x := range []struct {
		name   string
		s      *sink
		hook   any
		secret any
		types  []string
	}{
		{"tenant", ofTenant, tenantHook["webhook_id"], tenantHook["secret"],
			[]string{"run:completed", "run:completed"}},
		{"thread", ofThread, threadHook["webhook_id"], threadHook["secret"], []string{"run:completed"}},
		{"run", ofRun, run["webhook_id"], run["webhook_secret"], []string{"run:completed"}},
		{"events", ofEvents, eventsHook["webhook_id"], eventsHook["secret"],
			[]string{"run:created", "run:created", "x:step"}},
	} {
		var types []string
		for _, l := range x.s.waits(len(x.types)) {
			m := l.json(t)
			types = append(types, m.Type)
			if !l.verifies(t, x.secret) {
				t.Errorf("%s: a signature is not valid", x.name)
			}
			if x.name != "events" && m.Type != "run:completed" || x.name == "thread" && m.Data.ThreadID != thread {
				t.Errorf("%s: %s", x.name, l.body)
			}
			if m.Data.RunID != run["run_id"] && m.Data.RunID != apart["run_id"] ||
				!strings.HasSuffix(m.Data.StatusURL, "/api/v1/runs/"+m.Data.RunID) {
				t.Errorf("%s: %s", x.name, l.body)
			}
			var told, logged any // the event is the same as everywhere
			if err := json.Unmarshal(m.Data.Event, &told); err != nil {
				t.Error(err)
			}
			for _, e := range w.events(m.Data.RunID) {
				if e["seq"] == told.(obj)["seq"] {
					logged = e
				}
			}
			if fmt.Sprint(told) != fmt.Sprint(logged) {
				t.Errorf("%s: told %v, logged %v", x.name, told, logged)
			}
			d := w.get("/api/v1/deliveries/" + l.id()).is(200)
			if d["webhook_id"] != x.hook || d["run_id"] != m.Data.RunID || d["type"] != m.Type {
				t.Errorf("%s: %v", x.name, d)
			}
		}
		slices.Sort(types)
		if !slices.Equal(types, x.types) {
			t.Errorf("%s was told of %v", x.name, types)
		}
		eventually.True(t, "all is delivered", func() bool {
			return len(w.deliveries(x.hook, "?state=delivered")) == len(x.types)
		})
		for _, d := range w.deliveries(x.hook, "") {
			h := w.get(fmt.Sprintf("/api/v1/deliveries/%s", d["delivery_id"])).is(200)["history"].([]any)
			if len(h) != 1 || h[0].(obj)["status"] != float64(200) {
				t.Errorf("%s: %v", x.name, h)
			}
		}
	}
	// Page by page it is the same.
	var all, paged []any
	for _, d := range w.deliveries(eventsHook["webhook_id"], "") {
		all = append(all, d)
	}
	for cursor := ""; ; {
		page := w.get(fmt.Sprintf("/api/v1/webhooks/%s/deliveries?limit=1&cursor=%s", eventsHook["webhook_id"],
			cursor)).is(200)
		paged = append(paged, page["deliveries"].([]any)...)
		if page["next_cursor"] == nil {
			break
		}
		cursor = page["next_cursor"].(string)
	}
	if len(paged) != 3 || fmt.Sprint(paged) != fmt.Sprint(all) {
		t.Errorf("all %v\npaged %v", all, paged)
	}
}

func TestMisbehavingReceiversDoNotDelayOthers(t *testing.T) {
	at := storetest.Options(t)
	at.Hooks.Clock = func() perdure.Instant { return 1_800_000_000_000_000 } // time stands still: nobody is tried again
	w := delivering(t, setup{store: &at})
	inside := newSink(t, nil)
	status := func(n int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(n) }
	}
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	drip := func(before, piece string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			for _, err := io.WriteString(conn, before); err == nil; _, err = io.WriteString(conn, piece) {
				time.Sleep(5 * time.Millisecond) // that is what a drip is
			}
		}
	}
	sinks := []struct {
		name  string
		s     *sink
		state string
		check func(d, hook obj) bool
	}{
		{"takes it", newSink(t, nil), "delivered", func(d, _ obj) bool { return d["last_status"] == float64(200) }},
		{"answers 500", newSink(t, status(500)), "pending", func(d, _ obj) bool {
			return d["last_status"] == float64(500) && wait(t, d) <= 6*time.Second
		}},
		{"hangs", newSink(t, hang).gives(late), "pending", func(d, _ obj) bool {
			return d["last_error"] == "no answer within 300ms"
		}},
		{"drips its headers", newSink(t, drip("HTTP/1.1 200 OK\r\nX: ", "x")).gives(late), "pending",
			func(d, _ obj) bool { return d["last_error"] == "no answer within 300ms" }},
		{"drips a body without end", newSink(t, drip("HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n",
			strings.Repeat("x", 1000))), "delivered", func(d, _ obj) bool { return d["last_status"] == float64(200) }},
		{"redirects inside", newSink(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, inside.at, http.StatusTemporaryRedirect)
		}), "pending",
			func(d, _ obj) bool { return d["last_status"] == float64(307) }},
		{"is gone", newSink(t, status(410)), "dead", func(d, hook obj) bool {
			return d["last_status"] == float64(410) && hook["disabled"] == true
		}},
		{"has enough", newSink(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(429)
		}), "pending", func(d, _ obj) bool { return d["last_status"] == float64(429) && wait(t, d) > 59*time.Minute }},
	}
	hooks := make([]any, len(sinks))
	for i, x := range sinks {
		// not over HTTP: on a shared store every one would take a second
		op := &outbox.CreateWebhook{Tenant: "a", URL: x.s.at}
		if err := w.e.Do(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		hooks[i] = string(op.Webhook.ID)
	}
	run := w.running(`{"kind":"job"}`)
	w.commits(run, complete)
	if r := w.get("/api/v1/runs/" + run["run_id"].(string)).is(200); r["state"] != "completed" {
		t.Errorf("the run waits for somebody: %v", r)
	}
	for i, x := range sinks {
		x.s.waits(1)
		d := w.settled(hooks[i], "one that "+x.name+" has been tried", func(d obj) bool {
			return tried(d) || d["state"] != "pending"
		})
		hook := w.get(fmt.Sprintf("/api/v1/webhooks/%s", hooks[i])).is(200)
		if d["state"] != x.state || !x.check(d, hook) || len(d["history"].([]any)) != 1 {
			t.Errorf("one that %s: %v\n%v", x.name, d, hook)
		}
	}
	if n := len(inside.got()); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
	if log := w.types(run["run_id"].(string)); log[len(log)-1] != "run:completed" || len(log) > 4 {
		t.Errorf("the run's log tells of it: %v", log)
	}
}

// wait is the time from a delivery's last attempt to its next.
func wait(t *testing.T, d obj) time.Duration {
	t.Helper()
	h := d["history"].([]any)
	var at [2]time.Time
	for i, text := range []any{h[len(h)-1].(obj)["at"], d["next_attempt_at"]} {
		var err error
		if at[i], err = time.Parse(time.RFC3339Nano, text.(string)); err != nil {
			t.Fatal(err)
		}
	}
	return at[1].Sub(at[0])
}

func TestDeadDeliveryIsRedelivered(t *testing.T) {
	w := delivering(t, setup{})
	s := newSink(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(410)
		io.WriteString(w, "no longer here")
	})
	hook := w.hook(fmt.Sprintf(`"url":%q`, s.at))
	id := hook["webhook_id"].(string)
	w.commits(w.running(`{"kind":"job"}`), complete)
	dead := w.settled(id, "it is given up", func(d obj) bool { return d["state"] == "dead" })
	path := "/api/v1/deliveries/" + dead["delivery_id"].(string)
	w.do("POST", path+"/redeliver", "").refuses(409, "wrong_state") // its webhook is disabled
	s.answers(204)
	if on := w.do("PATCH", "/api/v1/webhooks/"+id, `{"disabled":false}`).is(200); on["disabled"] != false ||
		on["disabled_reason"] != nil {
		t.Errorf("on = %v, want disabled = false, no disabled_reason", on)
	}
	if again := w.do("POST", path+"/redeliver", "").is(200); again["state"] != "pending" ||
		again["delivery_id"] != dead["delivery_id"] {
		t.Errorf("again = %v, want state = pending, delivery_id = %v", again, dead["delivery_id"])
	}
	d := w.settled(id, "it is delivered", delivered)
	h := d["history"].([]any)
	if len(h) != 2 || h[0].(obj)["status"] != float64(410) || h[0].(obj)["response"] != "no longer here" ||
		h[1].(obj)["status"] != float64(204) {
		t.Errorf("h = %v, want 2 entries, [0].status = %v, [0].response = no longer here, [1].status = %v",
			h, float64(410), float64(204))
	}
	letters := s.got()
	if len(letters) != 2 || letters[0].id() != letters[1].id() || !bytes.Equal(letters[0].body, letters[1].body) ||
		letters[0].id() != dead["delivery_id"] {
		t.Errorf("%d letters, %s and %s", len(letters), letters[0].body, letters[1].body)
	}
}

func TestOldSecretSignsForADayAfterRotation(t *testing.T) {
	w := delivering(t, setup{})
	s := newSink(t, nil)
	hook := w.hook(fmt.Sprintf(`"url":%q`, s.at))
	rotated := w.do("POST", "/api/v1/webhooks/"+hook["webhook_id"].(string)+"/rotate", "").is(200)
	if rotated["secret"] == hook["secret"] || rotated["rotated_at"] == nil {
		t.Errorf("rotated = %v, want another secret than %v, rotated_at set", rotated, hook["secret"])
	}
	w.commits(w.running(`{"kind":"job"}`), complete)
	l := s.waits(1)[0]
	if !l.verifies(t, hook["secret"]) || !l.verifies(t, rotated["secret"]) {
		t.Errorf("signed %s", l.header.Get("webhook-signature"))
	}
}

func TestWebhookSecretIsShownOnce(t *testing.T) {
	w := delivering(t, setup{})
	hook := w.hook(`"url":"https://1.1.1.1/hook","description":"mine","events":["run:*"]`)
	secret, path := hook["secret"].(string), "/api/v1/webhooks/"+hook["webhook_id"].(string)
	if !strings.HasPrefix(secret, "whsec_") {
		t.Errorf("webhook = %v, want a secret with whsec_", hook)
	}
	changed := w.do("PATCH", path, `{"url":"https://1.1.1.1/other","events":[],"description":""}`)
	if c := changed.is(200); c["url"] != "https://1.1.1.1/other" ||
		len(c["events"].([]any)) != len(perdure.NotifiedLines) || c["description"] != nil {
		t.Errorf("webhook = %s, want the new url, all events and no description", changed.body)
	}
	if c := w.do("PATCH", path, `{"disabled":true}`).is(200); c["disabled"] != true ||
		c["url"] != "https://1.1.1.1/other" || c["disabled_reason"] == nil {
		t.Errorf("c = %v, want disabled = true, url = https://1.1.1.1/other, disabled_reason set", c)
	}
	for _, a := range []*answer{changed, w.get(path), w.get("/api/v1/webhooks"), w.do("PATCH", path, `{}`)} {
		a.is(200)
		if contains(a.body, secret) || contains(a.body, "whsec_") {
			t.Errorf("%s shows the secret: %s", a.what, a.body)
		}
	}
	w.do("POST", "/api/v1/keys", `{"name":"reader","scopes":["runs:read"]}`).is(201) // which stored looks for
	if w.stored(secret) || w.stored(strings.TrimPrefix(secret, "whsec_")) {
		t.Error("the secret is stored")
	}

	run := w.do("POST", "/api/v1/runs", `{"kind":"job","webhook":"https://1.1.1.1/run",`+
		`"webhook_events":["run:created"]}`).is(201)
	if s, _ := run["webhook_secret"].(string); !strings.HasPrefix(s, "whsec_") {
		t.Errorf("run = %v, want a webhook_secret with whsec_", run)
	}
	header := http.Header{"Idempotency-Key": {"k"}}
	for _, body := range []string{`{"kind":"job","webhook":"https://1.1.1.1/run"}`,
		`{"kind":"job","webhook":"https://1.1.1.1/run"}`} {
		a := w.send(ask{method: "POST", path: "/api/v1/runs", key: w.key, body: body, header: header})
		if contains(a.body, "webhook_secret") || a.json()["webhook_id"] != run["webhook_id"] {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if first := w.do("POST", "/api/v1/runs",
		`{"kind":"waited","queue":"nobody","wait":"10ms",
"webhook":"https://1.1.1.1/waited"}`).is(202); first["webhook_secret"] == nil {
		t.Errorf("first = %v, want webhook_secret set", first)
	}
	if got := w.get("/api/v1/runs/" + run["run_id"].(string)).is(200); got["webhook_secret"] != nil ||
		got["webhook_id"] != run["webhook_id"] {
		t.Errorf("got = %v, want no webhook_secret, webhook_id = %v", got, run["webhook_id"])
	}
	// The webhook of a run is not in the list, and can be read by its id.
	if list := w.get("/api/v1/webhooks").is(200)["webhooks"].([]any); len(list) != 1 {
		t.Errorf("list = %v, want 1 entry", list)
	}
	ofRun := "/api/v1/webhooks/" + run["webhook_id"].(string)
	if h := w.get(ofRun).is(200); h["scope"] != "run" || h["url"] != "https://1.1.1.1/run" || h["events"] != nil {
		t.Errorf("h = %v, want scope = run, url = https://1.1.1.1/run, no events", h)
	}
	w.do("PATCH", ofRun, `{"url":"https://1.1.1.1/elsewhere"}`).refuses(409, "wrong_state")

	w.do("DELETE", path, "").is(200)
	for _, method := range []string{"GET", "DELETE"} {
		w.do(method, path, "").refuses(404, "not_found")
	}
	w.do("PATCH", path, `{}`).refuses(404, "not_found")
	w.get(path + "/deliveries").is(200) // its history stays
}

func TestTestMessageShowsOutcome(t *testing.T) {
	w := delivering(t, setup{})
	s := newSink(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
	hook := w.hook(fmt.Sprintf(`"url":%q`, s.at))
	path := "/api/v1/webhooks/" + hook["webhook_id"].(string)
	before := w.fingerprint("")
	if r := w.do("POST", path+"/test", "").is(200); r["delivered"] != true || r["status"] != float64(200) ||
		r["response"] != "hello" {
		t.Errorf("r = %v, want delivered = true, status = %v, response = hello", r, float64(200))
	}
	if l := s.waits(1)[0]; !l.verifies(t, hook["secret"]) || l.json(t).Type != "webhook:test" {
		t.Errorf("message = %s, want a signed webhook:test", l.body)
	}
	s.answers(404)
	if r := w.do("POST", path+"/test", "").is(200); r["delivered"] != false || r["status"] != float64(404) {
		t.Errorf("r = %v, want delivered = false, status = %v", r, float64(404))
	}
	if w.fingerprint("") != before {
		t.Error("something is stored of it")
	}
}

func TestWebhooksAreLimited(t *testing.T) {
	w := newWorld(t, setup{})
	for i := range perdure.MaxWebhooks {
		if err := w.e.Do(t.Context(), &outbox.CreateWebhook{Tenant: "a",
			URL: fmt.Sprintf("https://1.1.1.1/%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	w.do("POST", "/api/v1/webhooks", `{"url":"https://1.1.1.1/more"}`).refuses(429, "quota_exceeded")
	w.as(w.newKey("b", nil)).do("POST", "/api/v1/webhooks", `{"url":"https://1.1.1.1/more"}`).is(201)
	w.do("POST", "/api/v1/runs", `{"kind":"job","webhook":"https://1.1.1.1/more"}`).is(201)
}

// A platform key has only the scopes that it was made with.
func TestPlatformKeyIsLimitedToItsScopes(t *testing.T) {
	w := newWorld(t, setup{})
	limited := w.as(w.newKey("default", func(op *access.CreateKey) {
		op.Platform, op.Scopes = true, []perdure.Scope{perdure.ScopePoll, perdure.ScopeReport}
	}))
	limited.do("POST", "/api/v1/workers/w/poll", `{"slots":1,"all_tenants":true,"wait":"1ms"}`).is(200)
	limited.get("/api/v1/webhooks").refuses(403, "forbidden")
	limited.get("/api/v1/keys").refuses(403, "forbidden")
	limited.do("POST", "/api/v1/keys", `{"name":"more","scopes":["keys:admin"]}`).refuses(403, "forbidden")
	limited.do("POST", "/api/admin/tenants/a/keys", `{"name":"more","scopes":["keys:admin"]}`).refuses(403, "forbidden")
	w.as(w.admin).get("/api/v1/webhooks").is(200)
	w.as(w.admin).do("POST", "/api/admin/tenants/a/keys", `{"name":"more","scopes":["keys:admin"]}`).is(201)
}

// An answer may be lost, and the secret of a run's webhook is in one.
func TestRepeatedSubmissionShowsWebhookSecret(t *testing.T) {
	w := newWorld(t, setup{})
	for _, wait := range []string{"", `,"wait":"1ms"`} {
		start := func(key string) any {
			return w.send(ask{method: "POST", path: "/api/v1/runs", key: w.key,
				body:   `{"kind":"job","webhook":"https://1.1.1.1/` + fmt.Sprint(len(wait)) + `"` + wait + `}`,
				header: http.Header{"Idempotency-Key": {key + fmt.Sprint(len(wait))}}}).json()["webhook_secret"]
		}
		secret, again, other := start("a"), start("a"), start("b")
		if secret == nil || again != secret || other != nil {
			t.Errorf("%v, again %v, for another run %v", secret, again, other)
		}
	}
}
