package httpd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// An sseReader is a stream that a test reads.
type sseReader struct {
	t    *testing.T
	res  *http.Response
	text *bufio.Reader
	stop context.CancelFunc
}

// A frameRead is a frame that came.
type frameRead struct{ id, event, data string }

// attach opens a stream over a socket.
func (w *world) attach(id, query string, header ...string) *sseReader {
	w.t.Helper()
	hs := httptest.NewServer(w.s.Handler())
	w.t.Cleanup(hs.Close)
	return w.attachAt(hs.URL, id, query, header...)
}

func (w *world) attachAt(url, id, query string, header ...string) *sseReader {
	w.t.Helper()
	return w.attachBy(http.DefaultTransport, url, id, query, header...)
}

func (w *world) attachBy(client http.RoundTripper, url, id, query string, header ...string) *sseReader {
	w.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	w.t.Cleanup(stop)
	req, err := http.NewRequestWithContext(ctx, "GET", url+runs+"/"+id+"/stream"+query, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.key)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := client.RoundTrip(req)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { res.Body.Close() })
	return &sseReader{w.t, res, bufio.NewReader(res.Body), stop}
}

// frame reads the next frame; comments and hints are passed over.
func (s *sseReader) frame() (f frameRead, err error) {
	for {
		line, err := s.text.ReadString('\n')
		if err != nil {
			return f, err
		}
		line = strings.TrimSuffix(line, "\n")
		name, value, _ := strings.Cut(line, ": ")
		switch {
		case line == "" && f.event != "":
			return f, nil
		case name == "id":
			f.id = value
		case name == "event":
			f.event = value
		case name == "data":
			f.data += value
		}
	}
}

// next reads a frame that has to come.
func (s *sseReader) next(event string) frameRead {
	s.t.Helper()
	f, err := s.frame()
	if err != nil || f.event != event {
		s.t.Fatalf("%+v %v, not %s", f, err, event)
	}
	return f
}

// rest reads to the end, and tells how that came.
func (s *sseReader) rest() (frames []frameRead, err error) {
	for {
		f, err := s.frame()
		if err != nil {
			return frames, err
		}
		frames = append(frames, f)
	}
}

// logOf gives a run's log as polling gives it, each line as it stands in the answer.
func (w *world) logOf(id string) (out []frameRead) {
	w.t.Helper()
	for after := int64(0); ; {
		var page struct{ Events []json.RawMessage }
		a := w.get(fmt.Sprintf("%s/%s/events?after=%d&limit=100", runs, id, after))
		if err := json.Unmarshal(a.body, &page); err != nil || a.status != 200 {
			w.t.Fatalf("%d %s: %v", a.status, a.body, err)
		}
		if len(page.Events) == 0 {
			return out
		}
		for _, raw := range page.Events {
			var e api.Event
			if err := json.Unmarshal(raw, &e); err != nil {
				w.t.Fatal(err)
			}
			out = append(out, frameRead{fmt.Sprint(e.Seq), string(e.Type), string(raw)})
			after = e.Seq
		}
	}
}

func TestStreamHasTheWholeLog(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job"}`)
	s := w.attach(id, "")
	if h := s.res.Header; s.res.StatusCode != 200 || h.Get("Content-Type") != "text/event-stream" ||
		h.Get("Cache-Control") != "no-store" || h.Get("X-Accel-Buffering") != "no" {
		t.Fatalf("response = %v, want 200 text/event-stream, no-store, unbuffered", s.res)
	}
	line, _ := s.text.ReadString('\n')
	first := s.next("stream:attached")
	if line != "retry: 1000\n" || first.id != "0" ||
		!strings.Contains(first.data, `"after":0,"last_seq":1,"status":"queued"`) {
		t.Errorf("%q %+v", line, first)
	}
	got := []frameRead{s.next("run:created")}
	g := w.lease("w", `,"start":true`)
	got = append(got, s.next("run:dispatched"), s.next("run:started"))
	w.commits(g, `"events":[{"type":"x:said","data":{"a": "<b>",
		"c": "line\nbreak"}},{"type":"llm:delta","data":"…"}]`)
	got = append(got, s.next("x:said"), s.next("llm:delta"))
	w.commits(g, complete)
	more, err := s.rest()
	if err != io.EOF {
		t.Errorf("a whole stream ended with %v", err)
	}
	got = append(got, more...)
	last := got[len(got)-1]
	if got = got[:len(got)-1]; last.event != "stream:end" || last.id != got[len(got)-1].id ||
		!strings.Contains(last.data, `"state":"completed"`) {
		t.Errorf("last frame = %+v, want stream:end with the last id and state completed", last)
	}
	if log := w.logOf(id); !slices.Equal(got, log) {
		t.Errorf("streamed\n%v\nlogged\n%v", got, log)
	}
	// Again, after the end, from every cursor.
	for n := range got {
		s := w.attach(id, "", "Last-Event-ID", fmt.Sprint(n))
		if f := s.next("stream:attached"); f.id != fmt.Sprint(n) {
			t.Errorf("attached frame = %+v, want the cursor as its id", f)
		}
		again, err := s.rest()
		if err != io.EOF || !slices.Equal(again[:len(again)-1], got[n:]) || again[len(again)-1] != last {
			t.Errorf("after %d: %v %v", n, again, err)
		}
	}
}

func TestStreamCursor(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	id := g["run_id"].(string)
	w.commits(g, complete)
	end := len(w.events(id))
	path := runs + "/" + id + "/stream"
	header := func(v string) http.Header { return http.Header{"Last-Event-ID": {v}} }
	for _, c := range []struct {
		query  string
		header http.Header
		status int
		first  string // the id of the first frame
	}{
		{"", nil, 200, "0"},
		{"?after=2", nil, 200, "2"},
		{"?last_event_id=2", nil, 200, "2"},
		{"?after=2&last_event_id=1", nil, 200, "1"},
		{"?after=2", header("1"), 200, "1"}, // a browser that reconnects to the address it was given
		{"?after=2", header(""), 200, "2"},
		{fmt.Sprint("?after=", end), nil, 204, ""},
		{"", header(fmt.Sprint(end)), 204, ""},
		{fmt.Sprint("?after=", end+1), nil, 400, ""},
		{"", header(fmt.Sprint(end + 1)), 400, ""},
		{"?after=-1", nil, 400, ""},
		{"?after=1.5", nil, 400, ""},
		{"?after=99999999999999999999", nil, 400, ""},
		{"", header("abc"), 400, ""},
		{"", header("1\x00"), 400, ""},
		{"?before=1", nil, 400, ""},
	} {
		a := w.send(ask{method: "GET", path: path + c.query, key: w.key, header: c.header})
		if a.status != c.status {
			t.Errorf("%s %v: %d %s", c.query, c.header, a.status, a.body)
		}
		if want := "retry: 1000\nid: " + c.first + "\n"; c.first != "" && !strings.HasPrefix(string(a.body), want) {
			t.Errorf("%s %v: %.100s", c.query, c.header, a.body)
		}
	}
	if a := w.send(ask{method: "HEAD", path: path, key: w.key}); a.status != 200 || len(a.body) > 0 {
		t.Errorf("%d %s", a.status, a.body)
	}
	// A live run has an end of its log too, and what lies beyond it is a mistake.
	live := w.start(`{"kind":"other"}`)
	w.get(runs+"/"+live+"/stream?after=2").refuses(400, "invalid")
	w.get(runs+"/no-such-run/stream").refuses(404, "not_found")
}

func TestStreamTakesKeyInQuery(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	w.commits(g, complete)
	path := fmt.Sprintf("%s/%v/stream?access_token=", runs, g["run_id"])
	if a := w.send(ask{method: "GET", path: path + w.key}); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	w.send(ask{method: "GET", path: path + "prd_wrong"}).refuses(401, "unauthorized")
	w.send(ask{method: "GET", path: path}).refuses(401, "unauthorized")
	w.send(ask{method: "GET", path: path + w.key, key: w.key}).refuses(401, "unauthorized")
	w.send(ask{method: "GET", path: path + w.key + "&access_token=" + w.key}).refuses(401, "unauthorized")
	w.send(ask{method: "GET", path: fmt.Sprintf("%s/%v?access_token=%s", runs, g["run_id"], w.key)}).refuses(401,
		"unauthorized")
	poor := w.newKey("a", func(op *access.CreateKey) { op.Scopes = []perdure.Scope{perdure.ScopePoll} })
	w.send(ask{method: "GET", path: path + poor}).refuses(403, "forbidden")
}

// A stream that is cut off can be told from one that has ended.
func TestStreamIsAborted(t *testing.T) {
	cut := func(t *testing.T, s *sseReader) {
		t.Helper()
		if frames, err := s.rest(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%v %v", frames, err)
		}
	}
	t.Run("when the server shuts down", func(t *testing.T) {
		w := newWorld(t, setup{})
		s := w.attach(w.start(`{"kind":"job"}`), "")
		s.next("stream:attached")
		w.s.Shutdown()
		cut(t, s)
	})
	t.Run("when its key is revoked", func(t *testing.T) {
		w := newWorld(t, setup{})
		id := w.start(`{"kind":"job"}`)
		secret := w.newKey("a", nil)
		other := w.as(secret)
		s, stays := other.attach(id, ""), w.attach(id, "")
		s.next("stream:attached")
		stays.next("stream:attached")
		if err := w.e.Do(context.Background(),
			&access.RevokeKey{Tenant: "a", ID: strings.Split(secret, "_")[1]}); err != nil {
			t.Fatal(err)
		}
		cut(t, s)
		if keyCheckEvery > time.Second {
			t.Errorf("after up to %s", keyCheckEvery)
		}
		stays.next("run:created")
		w.do("POST", runs+"/"+id+"/cancel", "").is(200)
		stays.next("run:cancel_requested")
	})
	// The same holds in the middle of a long log, and for a slow reader.
	for why, end := range map[string]func(w *world, key string){
		"when its key is revoked while it replays": func(w *world, key string) {
			if err := w.e.Do(context.Background(), &access.RevokeKey{Tenant: "a", ID: key}); err != nil {
				t.Fatal(err)
			}
		},
		"when the server shuts down while it replays": func(w *world, _ string) { w.s.Shutdown() },
	} {
		t.Run(why, func(t *testing.T) {
			w := newWorld(t, setup{options: func(o *Options) { o.StreamWriteTimeout = long }})
			g := w.running(`{"kind":"job"}`)
			for range 2 {
				w.commits(g, `"events":[`+
					strings.TrimSuffix(strings.Repeat(`{"type":"x:big","data":"`+strings.Repeat("b", 60<<10)+`"},`, 50),
						",")+`]`)
			}
			secret := w.newKey("a", nil)
			hs, client := w.narrow()
			s := w.as(secret).attachBy(client.Transport, hs.URL, g["run_id"].(string), "")
			s.next("stream:attached") // and no more, until what sockets hold is full
			last, same := -1, 0
			eventually.True(t, "it is stuck", func() bool {
				at := w.s.reader.CacheIndex()
				if same++; at != last {
					last, same = at, 0
				}
				return same > 50
			})
			end(w, strings.Split(secret, "_")[1])
			eventually.True(t, "it is over", func() bool { return w.streams() == 0 })
		})
	}
	t.Run("when nobody reads for it any more", func(t *testing.T) {
		w := newWorld(t, setup{})
		id := w.start(`{"kind":"job"}`)
		s := w.attach(id, "")
		s.next("stream:attached")
		w.stop()
		cut(t, s)
		if a := w.get(runs + "/" + id + "/stream"); a.status == 200 {
			t.Errorf("status = %d, want the stream refused", a.status)
		}
	})
	t.Run("when its reader is too slow", func(t *testing.T) {
		w := newWorld(t, setup{options: func(o *Options) { o.StreamWriteTimeout = 100 * time.Millisecond }})
		g := w.running(`{"kind":"job"}`)
		id := g["run_id"].(string)
		hs, client := w.narrow()
		s := w.attachBy(client.Transport, hs.URL, id, "")
		lines := `"events":[` + strings.TrimSuffix(strings.Repeat(`{"type":"x:big","data":"`+strings.Repeat("b",
			60<<10)+`"},`, 50), ",") + `]`
		w.commits(g, lines) // more than sockets hold
		w.commits(g, complete)
		eventually.True(t, "the reader is dropped", func() bool { return w.streams() == 0 })
		frames, err := s.rest()
		if !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(fmt.Sprint(err), "reset") {
			t.Errorf("%d frames, then %v", len(frames), err)
		}
		// It comes back with its cursor, and has everything. That a machine is busy does not make it slow.
		w.s.opt.StreamWriteTimeout = long
		again := w.attach(id, "", "Last-Event-ID", frames[len(frames)-1].id)
		again.next("stream:attached")
		more, err := again.rest()
		if got := append(frames[1:], more[:len(more)-1]...); err != io.EOF || !slices.Equal(got, w.logOf(id)) {
			t.Errorf("%d lines, %v", len(got), err)
		}
	})
}

func TestStreamSendsHeartbeats(t *testing.T) {
	w := newWorld(t, setup{options: func(o *Options) { o.Heartbeat = 20 * time.Millisecond }})
	s := w.attach(w.start(`{"kind":"job"}`), "")
	s.next("stream:attached")
	s.next("run:created")
	for range 3 { // no blank line between them
		if line, err := s.text.ReadString('\n'); line != ": hb\n" {
			t.Fatalf("%q %v", line, err)
		}
	}
}

// Without any ring, what happens is found with the next beat.
func TestStreamWithoutRingsPolls(t *testing.T) {
	w := newWorld(t, setup{deaf: true, options: func(o *Options) { o.Heartbeat = 20 * time.Millisecond }})
	g := w.running(`{"kind":"job"}`)
	s := w.attach(g["run_id"].(string), "?after=3")
	s.next("stream:attached")
	w.commits(g, complete)
	s.next("run:completed")
	s.next("stream:end")
}

func TestStreamsAreLimited(t *testing.T) {
	w := newWorld(t, setup{options: func(o *Options) { o.Streams = 2 }})
	g := w.running(`{"kind":"job"}`)
	id := g["run_id"].(string)
	one, two := w.attach(id, ""), w.attach(id, "")
	one.next("stream:attached")
	two.next("stream:attached")
	if a := w.get(runs + "/" + id + "/stream"); a.refuses(503, "too_many_streams")["status"] == nil ||
		a.header.Get("Retry-After") == "" {
		t.Errorf("headers = %v, want Retry-After", a.header)
	}
	// Everything else is answered; who would have waited is answered at once, and that leaves no trace.
	w.get("/healthz").is(200)
	w.get(runs + "/" + id + "/events?after=3&wait=60s").is(200)
	late := w.do("POST", runs, `{"kind":"other","wait":"60s"}`)
	if late.is(202); late.header.Get("Retry-After") == "" {
		t.Errorf("headers = %v, want Retry-After", late.header)
	}
	fresh := late.json()["run_id"].(string)
	for range 3 {
		w.get(runs + "/" + fresh + "/join?timeout=1h").is(202)
	}
	if got := w.types(fresh); !slices.Equal(got, []string{"run:created", "run:deferred"}) {
		t.Errorf("got = %v, want %v", got, []string{"run:created", "run:deferred"})
	}
	// A cancel that waits really does.
	cancel := w.later("POST", runs+"/"+id+"/cancel?wait=60s", "")
	eventually.True(t, "it is asked to stop", func() bool {
		return slices.Contains(w.types(id), "run:cancel_requested")
	})
	w.commits(g, `"outcome":{"type":"cancelled"},"cancel_ack":true`)
	if got := soon(t, cancel).is(200); got["state"] != "cancelled" {
		t.Errorf("got = %v, want state = cancelled", got)
	}
	one.stop()
	two.stop()
	eventually.True(t, "seats are free", func() bool { return w.streams() == 0 })
	w.attach(id, "").next("stream:attached")
}

func TestPrunedLogIsGap(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	id := g["run_id"].(string)
	w.commits(g, `"events":[{"type":"x:a"},{"type":"x:b"}]`)
	w.prune(id, 3)
	s := w.attach(id, "?after=1")
	s.next("stream:attached")
	if f := s.next("stream:gap"); f.id != "3" || !strings.Contains(f.data, `"from":2,"to":3`) {
		t.Errorf("gap frame = %+v, want id 3, lines 2 to 3", f)
	}
	if f := s.next("x:a"); f.id != "4" {
		t.Errorf("frame = %+v, want id 4", f)
	}
	w.commits(g, complete)
	w.prune(id, 99)
	s = w.attach(id, "?after=1")
	s.next("stream:attached")
	if f := s.next("stream:gap"); f.id != "6" || !strings.Contains(f.data, `"from":2,"to":6`) {
		t.Errorf("gap frame = %+v, want id 6, lines 2 to 6", f)
	}
	if f := s.next("stream:end"); f.id != "6" {
		t.Errorf("end frame = %+v, want id 6", f)
	}
	if a := w.get(runs + "/" + id + "/stream?after=6"); a.status != 204 {
		t.Errorf("a.status = %d, want %d", a.status, 204)
	}
	// By polling too.
	page := w.get(runs + "/" + id + "/events?after=1&wait=60s").is(200)
	if gap := page["gap"].(obj); gap["from"] != 2.0 || gap["to"] != 6.0 || page["next_after"] != 6.0 ||
		page["ended"] != true {
		t.Errorf("page = %v, want a gap from 2 to 6 and the end of the log", page)
	}
}

// prune removes the beginning of a log.
func (w *world) prune(id string, upto int64) {
	w.t.Helper()
	if err := w.e.Do(context.Background(), pruneOp{id, upto}); err != nil {
		w.t.Fatal(err)
	}
}

type pruneOp struct {
	id   string
	upto int64
}

func (pruneOp) Needs() []store.Ref { return nil }
func (op pruneOp) Do(tx *kernel.Tx) error {
	tx.DB.Stage("DELETE FROM events WHERE run_id=? AND seq<=?", op.id, op.upto)
	return nil
}

// A stream of a foreground run is one of its waiters.
func TestStreamCountsAsWaiter(t *testing.T) {
	w := newWorld(t, setup{watchdog: true, policy: func(p *perdure.Policy) { p.DetachGrace = 50 * time.Millisecond }})
	late := w.do("POST", runs, `{"kind":"job","wait":"1ms"}`).is(202)
	id := late["run_id"].(string)
	one := w.attach(id, "")
	if f := one.next("stream:attached"); !strings.Contains(f.data, `"status":"queued"`) {
		t.Errorf("attached frame = %+v, want status queued", f)
	}
	eventually.True(t, "the deferral is over", func() bool {
		return w.get(runs + "/" + id).is(200)["deferred_at"] == nil
	})
	two := w.attach(id, "")
	two.next("stream:attached")
	one.stop()
	eventually.True(t, "one of two has gone", func() bool { return w.streams() == 1 })
	if got := w.get(runs + "/" + id).is(200); got["status"] != "queued" {
		t.Errorf("deferred although somebody waits: %v", got)
	}
	two.stop()
	eventually.True(t, "it is deferred", func() bool { return w.get(runs + "/" + id).is(200)["status"] == "deferred" })
	if got := w.types(id); !slices.Equal(got, []string{"run:created", "run:deferred", "run:reattached",
		"run:deferred"}) {
		t.Errorf("got = %v, want %v", got, []string{"run:created", "run:deferred", "run:reattached", "run:deferred"})
	}
	// A submission may announce a waiter, which then has a grace period to attach.
	follow := w.start(`{"kind":"job","foreground":true}`)
	three := w.attach(follow, "")
	three.next("stream:attached")
	three.next("run:created")
	three.stop()
	never := w.start(`{"kind":"job","foreground":true}`)
	for _, id := range []string{follow, never} {
		eventually.True(t, "it is deferred", func() bool {
			return w.get(runs + "/" + id).is(200)["status"] == "deferred"
		})
	}
	// A background run expects no waiter.
	background := w.start(`{"kind":"job"}`)
	s := w.attach(background, "")
	s.next("stream:attached")
	s.stop()
	eventually.True(t, "it has gone", func() bool { return w.streams() == 0 })
	if got := w.types(background); !slices.Equal(got, []string{"run:created"}) {
		t.Errorf("got = %v, want %v", got, []string{"run:created"})
	}
}

// Many streams of many runs, some of which come while it happens: each has its whole log, once and in order.
func TestManyStreams(t *testing.T) {
	w := newWorld(t, setup{})
	hs := httptest.NewServer(w.s.Handler())
	t.Cleanup(hs.Close)
	const numRuns, perRun, commits = 4, 10, 30
	grants := make([]obj, numRuns)
	for i := range grants {
		grants[i] = w.running(`{"kind":"job"}`)
	}
	got := make([][]frameRead, numRuns*perRun)
	var wg sync.WaitGroup
	watch := func(i int) {
		s := w.attachAt(hs.URL, grants[i/perRun]["run_id"].(string), "")
		wg.Go(func() {
			frames, err := s.rest()
			if err != io.EOF {
				t.Error(err)
			}
			got[i] = frames[1 : len(frames)-1]
		})
	}
	for i := range got {
		if i%2 == 0 {
			watch(i)
		}
	}
	for n := range commits {
		for r, g := range grants {
			w.commits(g, fmt.Sprintf(`"events":[{"type":"x:n","data":%d},{"type":"x:n","data":%d}]`, n, r))
			if i := r*perRun + n; n < perRun && i%2 == 1 {
				watch(i)
			}
		}
	}
	for _, g := range grants {
		w.commits(g, complete)
	}
	wg.Wait()
	for r, g := range grants {
		log := w.logOf(g["run_id"].(string))
		for i := range perRun {
			if frames := got[r*perRun+i]; !slices.Equal(frames, log) {
				t.Errorf("stream %d of run %d has %d lines, not the %d of the log", i, r, len(frames), len(log))
			}
		}
	}
}

func TestCORS(t *testing.T) {
	w := newWorld(t, setup{options: func(o *Options) { o.Origins = []string{"https://app.example.com"} }})
	for _, c := range []struct {
		origin string
		named  bool
	}{{"https://app.example.com", true}, {"https://APP.example.com", true}, {"http://app.example.com", false},
		{"https://app.example.com.evil.com", false},
		{"https://evil.com", false}, {"null", false}, {"", false}} {
		h := http.Header{}
		if c.origin != "" {
			h.Set("Origin", c.origin)
		}
		a := w.send(ask{method: "GET", path: "/healthz", header: h})
		if got := a.header.Get("Access-Control-Allow-Origin"); (got == c.origin && got != "") != c.named {
			t.Errorf("%q: allowed %q", c.origin, got)
		}
		if a.header.Get("Access-Control-Allow-Credentials") != "" || a.header.Get("Vary") != "Origin" {
			t.Errorf("headers = %v, want Vary: Origin and no credentials", a.header)
		}
		req := httptest.NewRequest("OPTIONS", runs, nil)
		req.Host, req.Header = "localhost", h
		req.Header.Set("Access-Control-Request-Method", "POST")
		rec := httptest.NewRecorder()
		w.s.Handler().ServeHTTP(rec, req)
		if (rec.Code == 204) != c.named || (rec.Header().Get("Access-Control-Allow-Headers") != "") != c.named {
			t.Errorf("%q: %d %v", c.origin, rec.Code, rec.Header())
		}
	}
	plain := newWorld(t, setup{})
	if a := plain.send(ask{method: "GET", path: "/healthz",
		header: http.Header{"Origin": {"https://app.example.com"}}},
	); a.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("headers = %v, want no Access-Control-Allow-Origin", a.header)
	}
}

// A join that may not block is no waiter, and its end removes no other waiter.
func TestRefusedJoinIsNoWaiter(t *testing.T) {
	w := newWorld(t, setup{options: func(o *Options) { o.Streams = 1 }})
	id := w.start(`{"kind":"job","foreground":true}`)
	s := w.attach(id, "")
	s.next("stream:attached")
	for range 3 {
		w.get(runs + "/" + id + "/join?timeout=1h").is(202)
	}
	if ref := (store.Ref{Tenant: "a", Run: perdure.RunID(id)}); w.s.waiters.Count(ref) == 0 {
		t.Error("the one who waits was counted as gone")
	}
	if got := w.types(id); !slices.Equal(got, []string{"run:created"}) {
		t.Errorf("got = %v, want %v", got, []string{"run:created"})
	}
}
