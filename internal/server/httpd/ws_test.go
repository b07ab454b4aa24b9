package httpd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A watcher is a socket that a test reads.
type watcher struct {
	t    *testing.T
	conn *websocket.Conn
}

// watch opens a socket and reads its snapshot.
func (w *world) watch(query string) (*watcher, api.Snapshot) {
	w.t.Helper()
	hs := httptest.NewServer(w.s.Handler())
	w.t.Cleanup(hs.Close)
	return w.watchAt(hs.URL, http.DefaultClient, query)
}

func (w *world) watchAt(url string, client *http.Client, query string) (*watcher, api.Snapshot) {
	w.t.Helper()
	conn, res, err := websocket.Dial(context.Background(), url+"/api/v1/ws"+query,
		&websocket.DialOptions{HTTPClient: client, HTTPHeader: http.Header{"Authorization": {"Bearer " + w.key}}})
	if err != nil {
		w.t.Fatalf("%v %v", err, res)
	}
	answered.Store(fmt.Sprint("GET /api/v1/ws ", res.StatusCode), true)
	w.t.Cleanup(func() { conn.CloseNow() })
	conn.SetReadLimit(1 << 20)
	x := &watcher{w.t, conn}
	var first api.Snapshot
	x.read(&first)
	if first.Type != "snapshot" {
		w.t.Fatalf("first message = %+v, want a snapshot", first)
	}
	return x, first
}

func (x *watcher) read(into any) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventually.Left(x.t))
	defer cancel()
	_, b, err := x.conn.Read(ctx)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		x.t.Fatal(err)
	}
}

// until reads changes until one is as wanted, and gives all of them.
func (x *watcher) until(done func(api.Change) bool) (all []api.Change) {
	x.t.Helper()
	for {
		var c api.Change
		x.read(&c)
		if c.Type != "change" || c.RunID != c.Run.RunID || c.Seq != c.Run.LastSeq {
			x.t.Fatalf("message = %+v, want a change that agrees with its run", c)
		}
		if all = append(all, c); done(c) {
			return all
		}
	}
}

func idsOf(runs []api.Run) (out []string) {
	for _, r := range runs {
		out = append(out, string(r.RunID))
	}
	return out
}

func TestSocketSendsSnapshotAndChanges(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	id := g["run_id"].(string)
	x, first := w.watch("")
	if len(first.Runs) != 1 || string(first.Runs[0].RunID) != id || first.Runs[0].LastSeq != 3 || first.Truncated {
		t.Errorf("snapshot = %+v, want one run with 3 lines, not truncated", first)
	}
	// Every line, once, over all messages.
	w.commits(g, `"events":[{"type":"x:a","data":1}]`)
	w.commits(g, `"events":[{"type":"x:b"}]`)
	w.commits(g, complete)
	var lines []string
	for _, c := range x.until(func(c api.Change) bool { return c.Run.State.Terminal() }) {
		for _, e := range c.Events {
			b, _ := json.Marshal(e)
			lines = append(lines, string(b))
		}
	}
	var want []string
	for _, f := range w.logOf(id)[3:] {
		want = append(want, f.data)
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("told\n%v\nlogged\n%v", lines, want)
	}
	// A run that did not exist yet.
	fresh := w.start(`{"kind":"job"}`)
	if c := x.until(func(c api.Change) bool { return string(c.RunID) == fresh }); len(c) != 1 || c[0].Seq != 1 ||
		len(c[0].Events) != 1 || c[0].Events[0].Type != "run:created" {
		t.Errorf("changes = %+v, want one with the line run:created", c)
	}
}

func TestSocketFilters(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.do("POST", "/api/v1/threads", `{}`).is(201)["thread_id"].(string)
	w.start(`{"kind":"other"}`)
	kind, _ := w.watch("?kind=job")
	onThread, _ := w.watch("?thread_id=" + thread)
	failed, first := w.watch("?status=failed")
	if len(first.Runs) != 0 {
		t.Errorf("snapshot = %+v, want no runs", first)
	}
	queued, first := w.watch("?state=queued&limit=1")
	if len(first.Runs) != 1 {
		t.Errorf("snapshot = %+v, want 1 run", first)
	}
	heads, _ := w.watch("?events=false")
	id := w.do("POST", "/api/v1/threads/"+thread+"/runs", `{"kind":"job"}`).is(201)["run_id"].(string)
	root, first := w.watch("?root_run_id=" + id)
	if got := idsOf(first.Runs); len(got) != 1 || got[0] != id {
		t.Errorf("got = %v, want 1 entry, [0] = %v", got, id)
	}
	is := func(c api.Change) bool { return string(c.RunID) == id }
	for name, x := range map[string]*watcher{"kind": kind, "thread": onThread, "state": queued, "heads": heads} {
		if c := x.until(is); len(c) != 1 || c[0].Left || (name == "heads") != (c[0].Events == nil) {
			t.Errorf("%s: %+v", name, c)
		}
	}
	g := w.lease("w", `,"start":true,"kinds":["job"]`)
	if c := queued.until(is); len(c) != 1 || !c[0].Left || c[0].Run.State != "running" {
		t.Errorf("one that stops to match: %+v", c)
	}
	child := w.commits(g, `"children":[{"key":"k","kind":"kid"}]`)["children"].([]any)[0].(obj)["run_id"].(string)
	kid := w.lease("w", `,"start":true,"kinds":["kid"]`)
	w.commits(kid, `"events":[{"type":"x:kid"}]`)
	w.commits(kid, complete)
	told := map[string]bool{}
	for _, c := range root.until(func(c api.Change) bool {
		return string(c.RunID) == child && c.Run.State.Terminal()
	}) {
		for _, e := range c.Events {
			told[string(c.RunID)+string(e.Type)] = true
		}
	}
	for _, want := range []string{child + "run:created", child + "x:kid", child + "run:completed"} {
		if !told[want] {
			t.Errorf("the tree is not told %s: %v", want, told)
		}
	}
	w.commits(g, `"outcome":{"type":"fail","error":{"code":"x","message":"no"},"retryable":false}`)
	if c := failed.until(is); len(c) != 1 || c[0].Run.Status != "failed" || c[0].Left {
		t.Errorf("one that begins to match: %+v", c)
	}
}

// On another node, and without any ring.
func TestSocketWithoutRingsPolls(t *testing.T) {
	w := newWorld(t, setup{deaf: true, poll: 10 * time.Millisecond})
	x, _ := w.watch("")
	g := w.running(`{"kind":"job"}`)
	w.commits(g, complete)
	x.until(func(c api.Change) bool { return c.Run.State.Terminal() })
}

func TestSocketWatchesNewestRuns(t *testing.T) {
	w := newWorld(t, setup{})
	var ids []string
	for range 5 {
		ids = append(ids, w.start(`{"kind":"job"}`))
	}
	x, first := w.watch("?limit=2")
	if got := idsOf(first.Runs); !first.Truncated || len(got) != 2 || got[0] != ids[4] || got[1] != ids[3] {
		t.Errorf("snapshot = %+v, want the two newest runs, truncated", first)
	}
	// A live run that is older than the snapshot is watched too.
	w.do("POST", runs+"/"+ids[0]+"/cancel", "").is(200)
	x.until(func(c api.Change) bool { return string(c.RunID) == ids[0] && c.Run.State.Terminal() })
}

// A client that does not read is sent fewer changes, and is disconnected in the end.
func TestUnreadSocketIsClosed(t *testing.T) {
	w := newWorld(t, setup{options: func(o *Options) { o.StreamWriteTimeout = 200 * time.Millisecond }})
	g := w.running(`{"kind":"job"}`)
	hs, client := w.narrow()
	w.watchAt(hs.URL, client, "")
	lines := `"events":[` + strings.TrimSuffix(strings.Repeat(`{"type":"x:big","data":"`+strings.Repeat("b", 600)+`"},`,
		50), ",") + `]`
	eventually.True(t, "it is dropped", func() bool {
		w.commits(g, lines)
		return w.streams() == 0
	})
}

// narrow is the server behind sockets that hold little, and a client of it: who does not read is noticed early.
func (w *world) narrow() (*httptest.Server, *http.Client) {
	const holds = 4 << 10
	hs := httptest.NewUnstartedServer(w.s.Handler())
	hs.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		c.(*net.TCPConn).SetWriteBuffer(holds)
		return ctx
	}
	hs.Start()
	w.t.Cleanup(hs.Close)
	return hs, &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network,
		address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			c.(*net.TCPConn).SetReadBuffer(holds)
		}
		return c, err
	}}}
}

func TestSocketChecksKeyAndOrigin(t *testing.T) {
	w := newWorld(t, setup{options: func(o *Options) {
		o.Origins = []string{"https://app.example.com"}
		o.Streams = 2
	}})
	hs := httptest.NewServer(w.s.Handler())
	t.Cleanup(hs.Close)
	open := func(query string, h http.Header) (int, string) {
		conn, res, err := websocket.Dial(context.Background(), hs.URL+"/api/v1/ws"+query,
			&websocket.DialOptions{HTTPHeader: h})
		if conn != nil {
			conn.CloseNow()
		}
		if res == nil {
			t.Fatal(err)
		}
		var p api.Problem
		if res.StatusCode != http.StatusSwitchingProtocols {
			json.NewDecoder(res.Body).Decode(&p)
		}
		eventually.True(t, "its seat is free", func() bool { return w.streams() == 0 })
		return res.StatusCode, string(p.Code)
	}
	key := http.Header{"Authorization": {"Bearer " + w.key}}
	from := func(origin string) http.Header {
		h := key.Clone()
		h.Set("Origin", origin)
		return h
	}
	for _, c := range []struct {
		query  string
		header http.Header
		status int
		code   string
	}{
		{"", key, 101, ""},
		{"?access_token=" + w.key, nil, 101, ""},
		{"", nil, 401, "unauthorized"},
		{"?access_token=prd_no", nil, 401, "unauthorized"},
		{"", from("https://app.example.com"), 101, ""},
		{"", from(hs.URL), 101, ""}, // its own page
		{"", from("https://evil.example.com"), 403, "origin_not_allowed"},
		{"", from("http://app.example.com"), 403, "origin_not_allowed"},
		{"", from("null"), 403, "origin_not_allowed"},
		{"?status=odd", key, 400, "invalid"},
		{"?limit=1001", key, 400, "invalid"},
		{"?events=maybe", key, 400, "invalid"},
		{"?cursor=x", key, 400, "invalid"},
		{"?after=1", key, 400, "invalid"},
	} {
		if status, code := open(c.query, c.header); status != c.status || code != c.code {
			t.Errorf("%s %v: %d %s, not %d %s", c.query, c.header, status, code, c.status, c.code)
		}
	}
	w.get("/api/v1/ws").refuses(426, "upgrade_required") // no upgrade, and no connection of its own
	res, err := http.Get(hs.URL + "/api/v1/ws?access_token=" + url.QueryEscape(w.key))
	if err != nil || res.StatusCode != 426 {
		t.Errorf("%v %v", res, err)
	}
	// Another tenant's runs are not there.
	w.start(`{"kind":"job"}`)
	other := w.as(w.newKey("b", nil))
	if _, first := other.watch("?kind=job"); len(first.Runs) != 0 {
		t.Errorf("snapshot = %+v, want no runs of another tenant", first)
	}
	other.watch("")
	w.send(ask{method: "GET", path: "/api/v1/ws", key: w.key, header: http.Header{"Connection": {"Upgrade"},
		"Upgrade": {"websocket"}}}).refuses(426, "upgrade_required")
	if _, res, err := websocket.Dial(context.Background(), hs.URL+"/api/v1/ws",
		&websocket.DialOptions{HTTPHeader: key}); err == nil || res.StatusCode != 503 {
		t.Errorf("one too many: %v %v", res, err)
	}
}

func TestSocketIsClosed(t *testing.T) {
	closed := func(t *testing.T, x *watcher, code websocket.StatusCode) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), eventually.Left(x.t))
		defer cancel()
		_, _, err := x.conn.Read(ctx)
		var ce websocket.CloseError
		if !errors.As(err, &ce) || ce.Code != code {
			t.Errorf("%v, not %d", err, code)
		}
	}
	t.Run("when the server shuts down", func(t *testing.T) {
		w := newWorld(t, setup{})
		x, _ := w.watch("")
		w.s.Shutdown()
		closed(t, x, websocket.StatusServiceRestart)
	})
	t.Run("when its key is revoked", func(t *testing.T) {
		w := newWorld(t, setup{})
		secret := w.newKey("a", nil)
		x, _ := w.as(secret).watch("")
		if err := w.e.Do(context.Background(),
			&access.RevokeKey{Tenant: "a", ID: strings.Split(secret, "_")[1]}); err != nil {
			t.Fatal(err)
		}
		closed(t, x, websocket.StatusPolicyViolation)
	})
	t.Run("when it says too much", func(t *testing.T) {
		w := newWorld(t, setup{})
		x, _ := w.watch("")
		ctx := context.Background()
		if err := x.conn.Write(ctx, websocket.MessageText, []byte(`{"hello":1}`)); err != nil { // is ignored
			t.Fatal(err)
		}
		if err := x.conn.Write(ctx, websocket.MessageText, make([]byte, maxIncoming+1)); err != nil {
			t.Fatal(err)
		}
		closed(t, x, websocket.StatusMessageTooBig)
	})
}

// A run that is accepted rings for those who watch a tenant.
func TestNewRunRings(t *testing.T) {
	w := newWorld(t, setup{})
	rung, stop := w.s.bell.Listen(doorbell.Run("a", kernel.AnyRun))
	defer stop()
	w.start(`{"kind":"job"}`)
	select {
	case <-rung:
	case <-time.After(eventually.Within):
		t.Error("nothing rang")
	}
}
