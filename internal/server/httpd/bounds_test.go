package httpd

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/fair"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A connection that pipelines requests and reads no answer is closed when the deadline of an answer passes.
func TestReaderThatDoesNotReadIsCutOff(t *testing.T) {
	w := newWorld(t, setup{options: func(o *Options) { o.AnswerTime, o.AnswerRate = 50*time.Millisecond, 64<<20 }})
	var mu sync.Mutex
	open := make(map[net.Conn]bool)
	hs := httptest.NewUnstartedServer(w.s.Handler())
	hs.Config.ConnState = func(c net.Conn, s http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if open[c] = true; s == http.StateClosed {
			delete(open, c)
		}
	}
	hs.Start()
	t.Cleanup(hs.Close)
	ask := strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n", 200)
	for range 4 {
		c, err := net.Dial("tcp", hs.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprint(c, ask)
	}
	eventually.True(t, "all connections are closed by the server", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(open) == 0
	})
}

// The deadline of an answer is over with it: a call that blocks for longer, on the same connection, is answered.
func TestWriteDeadlineEndsWithAnswer(t *testing.T) {
	w := newWorld(t, setup{options: func(o *Options) { o.AnswerTime = 100 * time.Millisecond }})
	hs := httptest.NewServer(w.s.Handler())
	t.Cleanup(hs.Close)
	for _, wait := range []string{"0s", "300ms"} {
		req, err := http.NewRequest("POST", hs.URL+"/api/v1/workers/w/poll",
			strings.NewReader(`{"slots":1,"wait":"`+wait+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Authorization": {"Bearer " + w.key}, "Content-Type": {"application/json"}}
		res, err := hs.Client().Do(req)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("a poll of %s: %v %v, want 200", wait, res, err)
		}
		res.Body.Close()
	}
}

func TestDownloadHasAMinimumRate(t *testing.T) {
	p := pace{}
	if got := p.left(30*time.Second, 32<<10); got != 30*time.Second {
		t.Errorf("time for the first write = %s, want 30s", got)
	}
	p = pace{sent: 160 << 10, spent: 35 * time.Second} // the grace and 10 s for 160 KiB
	if got := p.left(30*time.Second, 0); got != 5*time.Second {
		t.Errorf("time for a write of a slow reader = %s, want 5s", got)
	}
}

func TestTwoOriginsAreRefused(t *testing.T) {
	w := newWorld(t, setup{options: func(o *Options) { o.Origins = []string{"https://good.example"} }})
	for _, path := range []string{"/healthz", "/api/v1/runs", "/api/v1/ws"} {
		a := w.send(ask{method: "GET", path: path, key: w.key,
			header: http.Header{"Origin": {"https://good.example", "https://evil.example"}}})
		a.refuses(403, string(api.CodeOrigin))
	}
}

// A token that the store has not signed is refused without a byte of the body being read.
func TestForgedCallbackIsRefusedUnread(t *testing.T) {
	w := newWorld(t, setup{})
	body := &counting{}
	req := httptest.NewRequest("POST", "/api/v1/callbacks/cb_"+strings.Repeat("A", 80), body)
	req.Host = "localhost"
	req.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	w.s.Handler().ServeHTTP(rec, req)
	if rec.Code != 404 || body.read != 0 {
		t.Errorf("status = %d after %d bytes of the body, want 404 after none", rec.Code, body.read)
	}
}

// counting is a body without end.
type counting struct{ read int }

func (b *counting) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	b.read += len(p)
	return len(p), nil
}

// A poll that would wait takes a seat. Without one it looks once: it leases what is there, or is told to come back.
func TestPollsAreLimited(t *testing.T) {
	w := newWorld(t, setup{options: func(o *Options) { o.Descriptors, o.Tenant.MaxPolls = 64, 2 }})
	const poll = `{"slots":1,"wait":"30s"}`
	first := w.later("POST", "/api/v1/workers/w1/poll", poll)
	w.later("POST", "/api/v1/workers/w2/poll", `{"slots":0,"news":true,"wait":"30s"}`)
	eventually.True(t, "two polls wait", func() bool { return w.attached("poll") == 2 })
	if by, _ := w.s.Attached(); by["poll"] != 2 {
		t.Errorf("polls in the metrics = %d, want 2", by["poll"])
	}
	refused := w.do("POST", "/api/v1/workers/w3/poll", poll)
	refused.refuses(429, "too_many_requests")
	if refused.header.Get("Retry-After") == "" || refused.header.Get("Connection") != "close" {
		t.Errorf("headers of the refusal: %v, want Retry-After and Connection: close", refused.header)
	}
	w.do("POST", "/api/v1/workers/w3/poll", `{"slots":1,"wait":"0s"}`).is(200)
	w.as(w.newKey("b", nil)).start(`{"kind":"job"}`) // others are served
	w.start(`{"kind":"job"}`)
	soon(t, first).is(200)
	w.start(`{"kind":"job"}`)
	if runs := w.do("POST", "/api/v1/workers/w3/poll", poll).is(200)["runs"].([]any); len(runs) != 1 {
		t.Errorf("a poll with something to lease got %d runs, want 1", len(runs))
	}
}

func TestCancelThatWaitsIsLimited(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.running(`{"kind":"job"}`)["run_id"].(string)
	w.later("POST", runs+"/"+id+"/cancel?wait=30s", "")
	eventually.True(t, "the cancel has a seat", func() bool { return w.attached("cancel") == 1 })
}

// A tenant that holds its whole share of a gate is refused, and others are not.
func TestBytesInMemoryAreShared(t *testing.T) {
	w := newWorld(t, setup{options: func(o *Options) {
		o.ShareWait, o.AnswerTime = 10*time.Millisecond, 10*time.Millisecond
	}})
	b := w.as(w.newKey("b", nil))
	big := `{"kind":"job","input":"` + strings.Repeat("i", 100<<10) + `"}`
	id := w.start(big)

	leave, _ := w.s.shares.bodies.TryEnter("a", maxBodies/2)
	keep, _ := w.s.shares.bodies.TryEnter("b", smallBody) // somebody else wants some
	stored := w.fingerprint("a")
	a := w.do("POST", runs, big)
	if a.refuses(429, "too_many_requests"); a.header.Get("Retry-After") == "" || w.fingerprint("a") != stored {
		t.Errorf("a refused submit: headers %v, changed %t", a.header, w.fingerprint("a") != stored)
	}
	w.start(`{"kind":"job"}`) // a small one needs nothing
	b.start(big)
	leave()
	keep()
	w.start(big)

	leave, _ = w.s.shares.answers.TryEnter("a", maxAnswers/2)
	keep, _ = w.s.shares.answers.TryEnter("b", smallAnswer)
	w.get(runs+"/"+id).refuses(429, "too_many_requests")
	w.get(runs).refuses(429, "too_many_requests")
	b.get(runs).is(200)
	leave()
	keep()
	w.get(runs + "/" + id).is(200)
	for name, g := range map[string]int64{"calls": w.s.shares.calls.Used(), "bodies": w.s.shares.bodies.Used(),
		"answers": w.s.shares.answers.Used()} {
		if g != 0 {
			t.Errorf("%s: %d units are held after all calls were answered, want none", name, g)
		}
	}
}

// A callback has no key, and gives back the memory of its body as every call does.
func TestCallbackGivesBackItsMemory(t *testing.T) {
	w := newWorld(t, setup{})
	_, done := w.sleeping(`{"kind":"job"}`, `{"id":"pay","type":"callback"}`)
	token := done["callbacks"].([]any)[0].(obj)["token"].(string)
	w.send(ask{method: "POST", path: "/api/v1/callbacks/" + token,
		body: `{"result":"` + strings.Repeat("r", 2*smallBody) + `"}`}).is(200)
	if n := w.s.shares.bodies.Used(); n != 0 {
		t.Errorf("%d bytes of bodies are held after the call was answered, want none", n)
	}
}

// Limits are set, shown and listed by the API, and bind at once.
func TestLimitsOfATenant(t *testing.T) {
	w := newWorld(t, setup{options: func(o *Options) { o.ShareWait = 10 * time.Millisecond }})
	admin := w.as(w.admin)
	set := func(limits string) {
		t.Helper()
		admin.do("PUT", "/api/admin/tenants/a", `{"limits":{`+limits+`}}`).is(200)
	}
	admin.do("PUT", "/api/admin/tenants/a", `{"limits":{"max_calls":-1}}`).refuses(400, "invalid")
	w.do("PUT", "/api/admin/tenants/a", `{"limits":{"max_calls":1}}`).refuses(403, "forbidden")

	set(`"max_live_runs":2,"max_streams":1`)
	set(`"max_calls":1`) // the others stay
	got := admin.get("/api/admin/tenants/a").is(200)
	if l := got["limits"].(obj); l["max_live_runs"] != 2.0 || l["max_streams"] != 1.0 || l["max_calls"] != 1.0 ||
		l["max_polls"] != 0.0 || got["live_runs"] != 0.0 {
		t.Errorf("tenant a = %v, want the limits that were set", got)
	}

	id := w.start(`{"kind":"job"}`)
	w.start(`{"kind":"job"}`)
	w.do("POST", runs, `{"kind":"job"}`).refuses(429, "quota_exceeded")
	w.do("POST", runs+"/"+id+"/cancel", "").is(200)
	id = w.start(`{"kind":"job"}`) // an ended one makes room

	call := w.s.shares.share("a")
	if err := call.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.get(runs).refuses(429, "too_many_requests")
	admin.get(runs).is(200)
	call.release()

	w.attach(id, "").next("stream:attached")
	w.get(runs+"/"+id+"/stream").refuses(429, "too_many_requests")

	set(`"max_bytes_per_hour":100`)
	w.do("POST", runs+"/"+id+"/signals/x", `{"data":"%s"}`, strings.Repeat("p", 200)).is(200)
	over := w.do("POST", runs+"/"+id+"/signals/x", `{"data":1}`)
	if over.refuses(429, "too_many_requests"); over.header.Get("Retry-After") == "1" {
		t.Errorf("Retry-After = 1, want the time until the tenant may send again")
	}
	set(`"max_bytes_per_hour":0`)
	w.do("POST", runs+"/"+id+"/signals/x", `{"data":1}`).is(200)

	page := admin.get("/api/admin/tenants?limit=1").is(200)
	if next := page["next_cursor"]; next != "a" {
		t.Errorf("next_cursor = %v, want a", next)
	}
	rest := admin.get("/api/admin/tenants?cursor=a").is(200)["tenants"].([]any)
	if len(rest) != 1 || rest[0].(obj)["tenant"] != "default" {
		t.Errorf("tenants after a = %v, want default", rest)
	}
}

// Limits that another node has set are read from the store.
func TestLimitsAreFoundInTheStore(t *testing.T) {
	w := newWorld(t, setup{})
	n := int64(7)
	if err := w.e.Do(t.Context(), &rules.ChangeTenant{Tenant: "a",
		Limits: perdure.TenantLimitChanges{MaxPolls: &n}}); err != nil {
		t.Fatal(err)
	}
	if err := w.s.loadLimits(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l := w.s.shares.of("a"); l == nil || l.MaxPolls != 7 {
		t.Errorf("limits of a = %+v, want 7 polls", l)
	}
	if l := w.s.shares.of("b"); l != nil {
		t.Errorf("limits of b = %+v, want none", l)
	}
}

// The default of bytes an hour binds only while another tenant calls.
func TestDefaultBytesBindWhileOthersAsk(t *testing.T) {
	opt := &Options{Tenant: perdure.TenantLimits{MaxBytesPerHour: 3600}}
	s, now := newShares(opt), time.Now()
	s.called("a", now)
	s.spendBytes("a", 3600+10, now)
	if wait := s.byteWait("a", now); wait != 0 {
		t.Errorf("a alone has to wait %s, want not at all", wait)
	}
	s.called("b", now)
	if wait := s.byteWait("a", now); wait.Round(time.Second) != 11*time.Second {
		t.Errorf("a beside b has to wait %s, want 11s", wait)
	}
	if wait := s.byteWait("b", now); wait != 0 {
		t.Errorf("b has to wait %s, want not at all", wait)
	}
	if wait := s.byteWait("a", now.Add(12*time.Second)); wait != 0 {
		t.Errorf("a has to wait %s when its bucket has refilled, want not at all", wait)
	}
}

// A tenant that does not read its answers, or sends its bodies slowly, holds its share for long. The tenant gets no
// more than its share even while no other asks, so that one that comes later finds its own share free.
func TestTenantAtItsShareLeavesRestToOthers(t *testing.T) {
	s := newShares(&Options{})
	processors := max(2, int64(runtime.GOMAXPROCS(0)))
	for _, x := range []struct {
		name        string
		gate        *fair.Gate
		unit, share int64
	}{
		{"bodies", s.bodies, maxBodies / 8, 4},
		{"answers", s.answers, maxAnswers / 8, 4},
		{"turns", s.turns, 1, processors / 2},
		{"calls", s.calls, 1, maxCalls * 3 / 4},
	} {
		got := int64(0)
		for {
			if _, ok := x.gate.TryEnter("a", x.unit); !ok {
				break
			}
			got++
		}
		if got != x.share {
			t.Errorf("%s: a tenant alone gets %d units, want %d", x.name, got, x.share)
		}
		if _, ok := x.gate.TryEnter("b", x.unit); !ok {
			t.Errorf("%s: another tenant gets none", x.name)
		}
	}
}

// Beside others a tenant rests after it has worked on a large body. Alone it does not, and has no turns either.
func TestTenantRestsAfterLargeBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShares(&Options{AnswerTime: time.Second})
		// work has the turns of so many calls at once, works for 50 ms, and says how long it waited for them.
		work := func(turns int) (waited time.Duration) {
			t.Helper()
			begin := time.Now()
			for range turns {
				call := s.share("a")
				end, err := call.turn(t.Context(), smallBody+1)
				if err != nil {
					t.Fatalf("the tenant has no turn: %v", err)
				}
				defer end()
			}
			defer time.Sleep(50 * time.Millisecond)
			return time.Since(begin)
		}
		all := max(2, runtime.GOMAXPROCS(0)) / 2
		s.called("a", time.Now())
		for i := range 3 {
			if waited := work(2 * all); waited != 0 {
				t.Errorf("alone, call %d waits %s, want not at all", i, waited)
			}
		}
		s.called("b", time.Now())
		if waited := work(all); waited != 0 {
			t.Errorf("the first turns beside another tenant wait %s, want not at all", waited)
		}
		if waited, want := work(1), turnRest*50*time.Millisecond; waited != want {
			t.Errorf("after them the next one waits %s, want %s", waited, want)
		}
		small := s.share("a")
		if end, _ := small.turn(t.Context(), smallBody); end == nil {
			t.Error("a small body has no function that ends its turn")
		}
		time.Sleep(maxTurnRest)
	})
}

// Limits that were read before a change do not replace it.
func TestOldLimitsReplaceNoNewOnes(t *testing.T) {
	s := newShares(&Options{})
	before := s.changes()
	s.set("a", perdure.TenantLimits{MaxCalls: 1})
	s.setAll(nil, before)
	if l := s.of("a"); l == nil || l.MaxCalls != 1 {
		t.Errorf("limits of a = %+v, want one call", l)
	}
	if s.setAll(nil, s.changes()); s.of("a") != nil {
		t.Errorf("limits of a = %+v, want none after a later read", s.of("a"))
	}
}
