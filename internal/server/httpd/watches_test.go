package httpd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/httpd/feed"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A viewer is a socket with watches, as a page has it. It keeps what it was told.
type viewer struct {
	t    *testing.T
	conn *websocket.Conn
	// rows has the runs of each watch, by id.
	rows map[string]map[string]obj
	// gone has why runs have gone, and lines the lines of each run.
	gone  map[string]string
	lines map[string][]int64
	// last has the last message of each watch, by id.
	last map[string]obj
	n    int
}

// view opens a socket without a watch.
func (w *world) view(compressed bool) *viewer {
	w.t.Helper()
	hs := httptest.NewServer(w.s.Handler())
	w.t.Cleanup(hs.Close)
	return w.viewAt(hs.URL, compressed)
}

func (w *world) viewAt(url string, compressed bool) *viewer {
	w.t.Helper()
	opt := &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + w.key}}}
	if compressed {
		opt.CompressionMode = websocket.CompressionNoContextTakeover
	}
	conn, res, err := websocket.Dial(context.Background(), url+"/api/v1/ws?watch=none", opt)
	if err != nil {
		w.t.Fatalf("%v %v", err, res)
	}
	w.t.Cleanup(func() { conn.CloseNow() })
	conn.SetReadLimit(8 << 20)
	return &viewer{t: w.t, conn: conn, rows: map[string]map[string]obj{}, gone: map[string]string{},
		lines: map[string][]int64{}, last: map[string]obj{}}
}

// say sends a message.
func (v *viewer) say(format string, args ...any) {
	v.t.Helper()
	if err := v.conn.Write(context.Background(), websocket.MessageText, fmt.Appendf(nil, format, args...)); err != nil {
		v.t.Fatal(err)
	}
}

// read reads one message and gives it.
func (v *viewer) read() obj {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventually.Left(v.t))
	defer cancel()
	_, b, err := v.conn.Read(ctx)
	if err != nil {
		v.t.Fatalf("reading: %v; known: %v", err, v.last)
	}
	var m obj
	if err := json.Unmarshal(b, &m); err != nil {
		v.t.Fatal(err)
	}
	id, _ := m["id"].(string)
	v.last[id] = m
	v.n++
	switch m["type"] {
	case "snapshot":
		v.rows[id] = map[string]obj{}
		for _, r := range m["runs"].([]any) {
			v.rows[id][r.(obj)["run_id"].(string)] = r.(obj)
		}
	case "changes":
		for _, c := range m["changes"].([]any) {
			v.apply(id, c.(obj))
		}
	case "change", "gone":
		v.apply(id, m)
	}
	return m
}

func (v *viewer) apply(id string, c obj) {
	run := c["run_id"].(string)
	if c["type"] == "gone" {
		delete(v.rows[id], run)
		v.gone[run] = c["why"].(string)
		return
	}
	v.rows[id][run] = c["run"].(obj)
	lines, _ := c["events"].([]any)
	for _, l := range lines {
		seq := int64(l.(obj)["seq"].(float64))
		if !slices.Contains(v.lines[run], seq) {
			v.lines[run] = append(v.lines[run], seq)
		}
	}
}

// until reads until a condition holds.
func (v *viewer) until(done func() bool) {
	v.t.Helper()
	for !done() {
		v.read()
	}
}

// ids gives the runs of a watch, newest first.
func (v *viewer) ids(id string) (out []string) {
	for run := range v.rows[id] {
		out = append(out, run)
	}
	slices.Sort(out)
	slices.Reverse(out)
	return out
}

// statusOf gives the status of a run in a watch.
func (v *viewer) status(id, run string) string {
	s, _ := v.rows[id][run]["status"].(string)
	return s
}

// submitMany starts runs of tenant a in batches.
func (w *world) submitMany(n int, sub perdure.Submission) {
	w.t.Helper()
	ops := make([]kernel.Op, n)
	for i := range ops {
		ops[i] = &life.Submit{Tenant: "a", Submission: sub}
	}
	for part := range slices.Chunk(ops, 200) {
		if err := errors.Join(w.e.Step(w.e.Store().Now(), part...)...); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestWatchShowsAPageAndFollowsIt(t *testing.T) {
	for _, compressed := range []bool{false, true} {
		w := newWorld(t, setup{})
		var ids []string
		for range 5 {
			ids = append(ids, w.start(`{"kind":"job"}`))
		}
		v := w.view(compressed)
		v.say(`{"type":"watch","id":"list","of":"runs","limit":3}`)
		m := v.read()
		want := []string{ids[4], ids[3], ids[2]}
		if got := v.ids("list"); m["type"] != "snapshot" || m["id"] != "list" || !slices.Equal(got, want) ||
			m["next_cursor"] != ids[2] {
			t.Fatalf("compressed %t: first message = %v, want the snapshot of %v", compressed, m, want)
		}
		// A new run displaces the oldest of the page, and the client is told.
		fresh := w.start(`{"kind":"job"}`)
		v.until(func() bool { return v.rows["list"][fresh] != nil })
		if v.gone[ids[2]] != "no_longer_watched" {
			t.Errorf("run %s: gone = %q, want no_longer_watched", ids[2], v.gone[ids[2]])
		}
		// Without events, no lines.
		if len(v.lines) != 0 {
			t.Errorf("lines = %v, want none", v.lines)
		}
		// Filters change without a reconnect, and the next page is a page too.
		v.say(`{"type":"watch","id":"list","of":"runs","limit":3,"cursor":"%s"}`, ids[2])
		v.until(func() bool { return slices.Equal(v.ids("list"), []string{ids[1], ids[0]}) })
		w.do("POST", runs+"/"+ids[0]+"/cancel", "").is(200)
		v.until(func() bool { return v.status("list", ids[0]) == "cancelled" })
		// Nothing is sent after unwatch.
		v.say(`{"type":"unwatch","id":"list"}`)
		v.say(`{"type":"unwatch","id":"list"}`)
		v.until(func() bool { return v.last["list"]["type"] == "error" })
		if e := v.last["list"]["error"].(obj); e["code"] != "not_found" {
			t.Errorf("a second unwatch = %v, want not_found", e)
		}
	}
}

// The faults of the socket before: runs that begin to match behind a long queue are told, and so are
// rows that leave.
func TestWatchOfRunningFindsRunsBehindLongQueue(t *testing.T) {
	w := newWorld(t, setup{})
	w.submitMany(2000, perdure.Submission{Kind: "job"})
	v := w.view(true)
	v.say(`{"type":"watch","id":"r","of":"runs","filter":{"status":["running","dispatched"]},"limit":200}`)
	v.say(`{"type":"watch","id":"n","of":"counts"}`)
	x, first := w.watch("?status=running&limit=1000")
	if len(first.Runs) != 0 {
		t.Fatalf("%d runs are running, want none", len(first.Runs))
	}
	v.until(func() bool { return v.last["r"] != nil && v.last["n"] != nil })
	granted := map[string]bool{}
	for len(granted) < 300 {
		for _, g := range w.do("POST", "/api/v1/workers/w/poll", `{"slots":100,"start":true}`).is(200)["runs"].([]any) {
			granted[g.(obj)["run_id"].(string)] = true
		}
	}
	told := map[string]bool{}
	for len(told) < len(granted) {
		c := x.until(anyChange)[0]
		if !granted[string(c.RunID)] || c.Run.State != perdure.Running {
			t.Fatalf("told of %s in state %s, which was not granted", c.RunID, c.Run.State)
		}
		told[string(c.RunID)] = true
	}
	v.until(func() bool {
		n, _ := v.last["n"]["status"].(obj)
		return len(v.ids("r")) == 200 && n["running"] == float64(len(granted)) && n["queued"] == float64(1700)
	})
	for _, id := range v.ids("r") {
		if !granted[id] || v.status("r", id) != "running" {
			t.Errorf("run %s: status %q, want running", id, v.status("r", id))
		}
	}
	if kinds := v.last["n"]["kind"].(obj)["job"].(obj); kinds["queued"] != float64(1700) {
		t.Errorf("counts of the kind job = %v, want 1700 queued", kinds)
	}
}

func TestWatchTellsWhyRunsAreGone(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	id := g["run_id"].(string)
	v := w.view(false)
	v.say(`{"type":"watch","id":"live","of":"runs","filter":{"status":["queued","running"]},"events":true}`)
	v.say(`{"type":"watch","id":"one","of":"runs","ids":["%s"],"events":true,"after":{"%s":1}}`, id, id)
	v.until(func() bool { return len(v.lines[id]) == 2 && v.rows["live"][id] != nil })
	if !slices.Equal(v.lines[id], []int64{2, 3}) {
		t.Errorf("lines after 1 = %v, want 2 and 3", v.lines[id])
	}
	w.commits(g, complete)
	v.until(func() bool { return v.gone[id] != "" && v.status("one", id) == "completed" })
	if v.gone[id] != "no_longer_matches" {
		t.Errorf("run %s: gone = %q, want no_longer_matches", id, v.gone[id])
	}
	delete(v.gone, id)
	w.do("DELETE", runs+"/"+id, "").is(200)
	v.until(func() bool { return v.gone[id] != "" })
	if v.gone[id] != "deleted" {
		t.Errorf("run %s: gone = %q, want deleted", id, v.gone[id])
	}
}

// A watch of a tree goes on after the lines that the client has, and tells nothing of other trees.
func TestWatchOfTreeSendsMissedLines(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	id, other := g["run_id"].(string), w.start(`{"kind":"other"}`)
	v := w.view(false)
	v.say(`{"type":"watch","id":"tree","of":"runs","filter":{"root_run_id":"%s"},"limit":1000,"events":true,`+
		`"after":{"%s":1,"%s":0}}`, id, id, other)
	v.until(func() bool { return len(v.lines[id]) == 2 })
	w.commits(g, `"events":[{"type":"x:a"}],"children":[{"key":"k","kind":"kid"}]`)
	v.until(func() bool { return len(v.rows["tree"]) == 2 && len(v.lines[id]) == 4 })
	if !slices.Equal(v.lines[id], []int64{2, 3, 4, 5}) || v.lines[other] != nil {
		t.Errorf("lines of the tree = %v, of another run = %v, want 2 to 5 and none", v.lines[id], v.lines[other])
	}
}

// Lines that are written while a run does not match come when it matches again.
func TestLinesMissedWhileNotMatchingAreSent(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job"}`)
	v := w.view(false)
	v.say(`{"type":"watch","id":"q","of":"runs","filter":{"status":["queued"]},"events":true}`)
	v.until(func() bool { return v.rows["q"][id] != nil })
	g := w.lease("w", `,"start":true`)
	v.until(func() bool { return v.gone[id] == "no_longer_matches" })
	w.commits(g, `"events":[{"type":"x:a"},{"type":"x:b"}]`)
	w.do("POST", "/api/v1/workers/w/release", fmt.Sprintf(`{"runs":[{"run_id":"%s","epoch":%v}]}`, id,
		g["epoch"])).is(200)
	v.until(func() bool { return v.rows["q"][id] != nil })
	var want []int64
	for i := range w.logOf(id)[1:] {
		want = append(want, int64(i)+2)
	}
	if !slices.Equal(v.lines[id], want) {
		t.Errorf("lines of run %s = %v, want %v", id, v.lines[id], want)
	}
}

// Equal questions are looked up once, however many sockets ask.
func TestEqualQuestionsAreLookedAtOnce(t *testing.T) {
	const sockets = 100
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job"}`)
	hs := httptest.NewServer(w.s.Handler())
	t.Cleanup(hs.Close)
	var views []*viewer
	for i := range sockets {
		v := w.viewAt(hs.URL, i%2 == 0)
		v.say(`{"type":"watch","id":"list","of":"runs","filter":{"kind":"job","status":["queued","cancelled"]}}`)
		views = append(views, v)
	}
	for _, v := range views {
		v.until(func() bool { return v.rows["list"][id] != nil })
	}
	before := w.s.feed.Looks()
	hold := w.holdLooks()
	w.do("POST", runs+"/"+id+"/cancel", "").is(200)
	hold()
	for _, v := range views {
		v.until(func() bool { return v.status("list", id) == "cancelled" })
	}
	// A cancel rings more than once, so that a second look may follow.
	if looks := w.s.feed.Looks() - before; looks > 3 {
		t.Errorf("%d sockets with one question made %d looks at one change, want one or two", sockets, looks)
	}
}

func TestBadMessagesChangeNothing(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job"}`)
	v := w.view(false)
	v.say(`{"type":"watch","id":"ok","of":"runs"}`)
	v.read()
	many := `"` + strings.Repeat(id+`","`, 200) + id + `"`
	for _, c := range []struct{ message, code, field string }{
		{`{`, "invalid", ""},
		{`[]`, "invalid", ""},
		{`{"id":"ok"}`, "invalid", "type"},
		{`{"type":"hello","id":"ok"}`, "invalid", "type"},
		{`{"type":"watch","id":"ok","of":"secrets"}`, "invalid", "of"},
		{`{"type":"watch","id":"ok"}`, "invalid", "of"},
		{`{"type":"watch","id":"ok","of":"runs","extra":1}`, "invalid", "extra"},
		{`{"type":"watch","id":"ok","of":"runs","limit":201}`, "invalid", "limit"},
		{`{"type":"watch","id":"ok","of":"runs","limit":-1}`, "invalid", "limit"},
		{`{"type":"watch","id":"ok","of":"runs","cursor":"x"}`, "invalid", "cursor"},
		{`{"type":"watch","id":"ok","of":"runs","filter":{"status":["odd"]}}`, "invalid", "filter.status"},
		{`{"type":"watch","id":"ok","of":"runs","filter":{"state":["deferred"]}}`, "invalid", "filter.state"},
		{`{"type":"watch","id":"ok","of":"runs","filter":{"cause":"x"}}`, "invalid", "filter.cause"},
		{`{"type":"watch","id":"ok","of":"runs","filter":{"created_after":"now"}}`, "invalid", "filter.created_after"},
		{`{"type":"watch","id":"ok","of":"runs","ids":[]}`, "invalid", "ids"},
		{`{"type":"watch","id":"ok","of":"runs","ids":["x"]}`, "invalid", "ids[0]"},
		{`{"type":"watch","id":"ok","of":"runs","ids":[` + many + `]}`, "invalid", "ids"},
		{`{"type":"watch","id":"ok","of":"runs","ids":["` + id + `"],"limit":1}`, "invalid", "ids"},
		{`{"type":"watch","id":"ok","of":"runs","ids":["` + id + `"],"after":{"` + id + `":1}}`, "invalid", "after"},
		{`{"type":"watch","id":"ok","of":"runs","events":true,"after":{"` + id + `":1}}`, "invalid", "after"},
		{`{"type":"watch","id":"ok","of":"runs","filter":{"root_run_id":"` + id + `"},"after":{"` + id + `":1}}`,
			"invalid", "after"},
		{`{"type":"watch","id":"ok","of":"runs","filter":{"root_run_id":"` + id + `"},"events":true,"after":{"x":1}}`,
			"invalid", "after"},
		{`{"type":"watch","id":"ok","of":"runs","filter":{"root_run_id":"` + id + `"},"limit":1001}`, "invalid",
			"limit"},
		{`{"type":"watch","id":"ok","of":"counts","limit":1}`, "invalid", "limit"},
		{`{"type":"watch","id":"ok","of":"counts","events":true}`, "invalid", "events"},
		{`{"type":"watch","id":"ok","of":"runs","tenant":"b"}`, "forbidden", ""},
		{`{"type":"watch","id":"ok","of":"runs","tenant":"*"}`, "forbidden", ""},
		{`{"type":"watch","id":"` + strings.Repeat("x", 300) + `","of":"runs"}`, "invalid", "id"},
	} {
		v.say("%s", c.message)
		m := v.read()
		e, _ := m["error"].(obj)
		field, _ := e["field"].(string)
		if m["type"] != "error" || e["code"] != c.code || field != c.field || e["detail"] == "" {
			t.Errorf("%s: answer = %v, want code %s and field %q", c.message, m, c.code, c.field)
		}
	}
	// The watch goes on.
	w.do("POST", runs+"/"+id+"/cancel", "").is(200)
	v.until(func() bool { return v.status("ok", id) == "cancelled" })
	// A socket has a bounded number of watches.
	for i := range feed.MaxWatches - 1 {
		v.say(`{"type":"watch","id":"w%d","of":"counts"}`, i)
	}
	v.until(func() bool { return len(v.last) >= feed.MaxWatches })
	v.say(`{"type":"watch","id":"more","of":"counts"}`)
	v.until(func() bool { return v.last["more"] != nil })
	if e, _ := v.last["more"]["error"].(obj); e["code"] != "too_many_requests" && e["code"] != "too_many" {
		t.Errorf("one watch too many = %v, want an error", v.last["more"])
	}
	// A watch with an id that exists replaces it.
	v.say(`{"type":"watch","id":"w1","of":"runs"}`)
	v.until(func() bool { return v.last["w1"]["type"] == "snapshot" })
}

// A reader that falls behind gets the newest state in a snapshot, and nothing stale.
func TestSlowReaderSkipsToNewestState(t *testing.T) {
	w := newWorld(t, setup{})
	var grants []obj
	for range 15 {
		grants = append(grants, w.running(`{"kind":"job"}`))
	}
	c := w.s.feed.Open()
	defer c.Close()
	q, err := w.s.watchRuns("a", watchMessage(t, `{"type":"watch","of":"runs","events":true}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Watch("x", false, q); err != nil {
		t.Fatal(err)
	}
	big := `"events":[{"type":"x:big","data":"` + strings.Repeat("b", 50<<10) + `"}]`
	// The client reads nothing. What waits for it stays bounded, and it falls behind.
	for range 10 {
		if c.Behind() {
			break
		}
		hold := w.holdLooks()
		looks := w.s.feed.Looks()
		for _, g := range grants {
			w.commits(g, big)
		}
		hold()
		eventually.True(t, "the feed looks", func() bool { return w.s.feed.Looks() > looks })
	}
	if !c.Behind() {
		t.Fatal("a client that reads nothing has all messages in its queue, want it to fall behind")
	}
	w.commits(grants[0], complete)
	for {
		d, ok := c.Next()
		if !ok {
			<-c.Ready()
			continue
		}
		text := string(d.Message.Frames("x", false, false))
		if strings.Contains(text, `"snapshot"`) && strings.Contains(text, `"completed"`) {
			break
		}
	}
}

// watchMessage decodes a message of a client.
func watchMessage(t *testing.T, text string) *api.Watch {
	t.Helper()
	var m api.Watch
	if err := decodeStrict([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return &m
}

// A page whose search ends early tells of no run that it has gone, and of changes nevertheless.
func TestPageCutShortKeepsItsRuns(t *testing.T) {
	w := newWorld(t, setup{})
	var ids []string
	for range 5 {
		ids = append(ids, w.start(`{"kind":"job"}`))
	}
	l := &feed.Runs{Engine: w.e, Show: w.s.showRow, Tenant: "a", First: 50,
		Page: reads.RunFilter{Kind: "job", Limit: 50}}
	look := func() string {
		t.Helper()
		news, _, _, err := l.Look(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		if news == nil {
			return ""
		}
		return string(news.Frames("x", false, false))
	}
	look()
	l.Page.Rows = 2
	if got := look(); got != "" {
		t.Errorf("look at fewer rows = %s, want nothing", got)
	}
	w.do("POST", runs+"/"+ids[0]+"/cancel", "").is(200)
	if got := look(); !strings.Contains(got, ids[0]) || !strings.Contains(got, `"cancelled"`) ||
		strings.Contains(got, "gone") {
		t.Errorf("look after a change of the oldest run = %s, want the change", got)
	}
	l.Page.Rows = 0
	if got := look(); got != "" {
		t.Errorf("look at all rows = %s, want nothing", got)
	}
}
