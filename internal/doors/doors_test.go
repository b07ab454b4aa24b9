package doors_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/body"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/worker"
)

// A world is a server with a door of the test's own before it.
type world struct {
	*servertest.Server
	set *doors.Set
	url string
}

func newWorld(t *testing.T, routes ...doors.Route) *world {
	t.Helper()
	w := &world{Server: servertest.Open(t, embedded.Options{})}
	door := &doors.Door{Name: "test", Routes: routes, Refuse: func(p *api.Problem, _ http.Header) (int, any) {
		return p.Status, map[string]string{"oops": string(p.Code), "why": p.Detail, "field": p.Field}
	}}
	var err error
	if w.set, err = doors.NewSet([]*doors.Door{door}, "", nil); err != nil {
		t.Fatal(err)
	}
	w.set.Connect(w.Transport())
	front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		h, _, _ := w.set.Find(r.URL.EscapedPath())
		if h == nil {
			h = w.Handler()
		}
		h.ServeHTTP(rw, r)
	}))
	t.Cleanup(func() {
		w.set.Close()
		front.CloseClientConnections()
		front.Close()
	})
	w.url = front.URL
	return w
}

// do makes a call with a body and headers, given as name and value in turn.
func (w *world) do(method, path, body string, headers ...string) (status int, text string, h http.Header) {
	w.T.Helper()
	req, err := http.NewRequestWithContext(w.Ctx, method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.T.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.Key())
	for i := 0; i < len(headers); i += 2 {
		req.Header.Del(headers[i])
		if headers[i+1] != "" {
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.T.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.T.Fatalf("%s %s: the answer broke off: %v", method, path, err)
	}
	return res.StatusCode, string(b), res.Header
}

// Paths are matched by segments, literal ones first, and parameters are decoded.
func TestRoutesOfDoor(t *testing.T) {
	say := func(word string) func(*doors.Call) error {
		return func(c *doors.Call) error { return c.JSON(200, word+":"+c.Param("a")+":"+c.Param("b")) }
	}
	w := newWorld(t, doors.Route{Method: "GET", Pattern: "/x/{a}", Handle: say("one")},
		doors.Route{Method: "POST", Pattern: "/x/search", Handle: say("search")},
		doors.Route{Method: "GET", Pattern: "/x/{a}/y/{b}", Handle: say("two")},
		doors.Route{Method: "POST", Pattern: "/x/{a}", Handle: say("post")},
		doors.Route{Method: "GET", Pattern: "/panic", Handle: func(*doors.Call) error { panic("defect") }})
	for _, x := range []struct {
		method, path string
		status       int
		want         string
	}{
		{"GET", "/doors/test/x/1", 200, "one:1:"},
		{"POST", "/doors/test/x/1", 200, "post:1:"},
		{"POST", "/doors/test/x/search", 200, "search::"},
		{"GET", "/doors/test/x/search", 405, "method_not_allowed"},
		{"GET", "/doors/test/x/a%2Fb%20c/y/%2E%2E", 200, "two:a/b c:.."},
		{"GET", "/doors/test/x/a%00b", 404, "not_found"},
		{"GET", "/doors/test/x/a%FFb", 404, "not_found"},
		{"GET", "/doors/test/x/", 404, "not_found"},
		{"DELETE", "/doors/test/x/1", 405, "method_not_allowed"},
		{"GET", "/doors/test", 404, "not_found"},
		{"GET", "/doors/other/x/1", 404, "not_found"},
		{"GET", "/panic", 404, "not_found"},
		{"GET", "/doors/test/panic", 500, "internal"},
	} {
		status, text, _ := w.do(x.method, x.path, "")
		if status != x.status || !strings.Contains(text, x.want) {
			t.Errorf("%s %s = %d %s, want %d with %s", x.method, x.path, status, text, x.status, x.want)
		}
	}
}

// A call has the key of Authorization: Bearer, or else of X-Api-Key. A cookie is no key.
func TestCredentialsOfDoor(t *testing.T) {
	w := newWorld(t, doors.Route{Method: "GET", Pattern: "/who", Handle: func(c *doors.Call) error {
		s, err := c.API.Session(c.Context())
		if err != nil {
			return err
		}
		return c.JSON(200, s)
	}})
	key := w.Key()
	for _, x := range []struct {
		name    string
		headers []string
		status  int
	}{
		{"bearer", nil, 200},
		{"x-api-key", []string{"Authorization", "", "X-Api-Key", key}, 200},
		{"both", []string{"X-Api-Key", "lsv2_other"}, 200},
		{"both, the bearer is wrong", []string{"Authorization", "Bearer wrong", "X-Api-Key", key}, 401},
		{"another scheme beside a key", []string{"Authorization", "Basic abc", "X-Api-Key", key}, 200},
		{"none", []string{"Authorization", ""}, 401},
		{"cookie", []string{"Authorization", "", "Cookie",
			"perdure_session=" + key + "; __Host-perdure_session=" + key}, 401},
	} {
		if status, text, _ := w.do("GET", "/doors/test/who", "", x.headers...); status != x.status {
			t.Errorf("%s: %d %s, want %d", x.name, status, text, x.status)
		}
	}
}

// Unknown fields and any content type are taken. Wrong types, NUL, broken UTF-8 and large bodies are
// refused.
func TestBodiesOfDoor(t *testing.T) {
	w := newWorld(t, doors.Route{Method: "POST", Pattern: "/b", Handle: func(c *doors.Call) error {
		var in struct {
			Name  string          `json:"name"`
			Count int             `json:"count"`
			Any   json.RawMessage `json:"any"`
			Modes []string        `json:"modes"`
		}
		if _, err := c.Decode(&in); err != nil {
			return err
		}
		return c.JSON(200, fmt.Sprint(in.Name, in.Count, len(in.Any), c.QueryList("m")))
	}})
	for _, x := range []struct {
		body   string
		status int
		want   string
	}{
		{`{"name":"n","more":{"x":[1]},"count":2}`, 200, "n2 0 []"},
		{"", 200, "0 0 []"},
		{`{"name":1}`, 400, `"field":"name"`},
		{`{"modes":["a",2]}`, 400, `"field":"modes.1"`},
		{`[1]`, 400, "invalid"},
		{`{"name":`, 400, "invalid"},
		{"{\"name\":\"\xff\"}", 400, "invalid"},
		{`{"any":"` + strings.Repeat("x", 100_000) + `"}`, 200, "100002"},
		{`{"any":"` + strings.Repeat("x", body.Max) + `"}`, 413, "too_large"},
	} {
		for _, media := range []string{"", "text/plain", "application/json"} {
			status, text, _ := w.do("POST", "/doors/test/b", x.body, "Content-Type", media)
			if status != x.status || !strings.Contains(text, x.want) {
				t.Errorf("%.40s as %q = %d %s, want %d with %s", x.body, media, status, text, x.status, x.want)
			}
		}
	}
	for query, want := range map[string]string{"?m=a&m=b": "[a b]", `?m=["a","b"]`: "[a b]", "?m=[a": "[[a]"} {
		if _, text, _ := w.do("POST", "/doors/test/b"+query, ""); !strings.Contains(text, want) {
			t.Errorf("query %s = %s, want %s", query, text, want)
		}
	}
}

// two translates each line to two frames, and ends after the run's last line.
func two(e *api.Event) ([]frame.Frame, bool, error) {
	a := fmt.Appendf(nil, `"%s"`, e.Type)
	return []frame.Frame{{Event: "a", Data: a}, {Event: "b", Data: a}}, e.Type != perdure.LineCompleted, nil
}

func follow(c *doors.Call) error {
	from, err := frame.ParseCursor(c.Header.Get("Last-Event-ID"))
	if err != nil {
		return err
	}
	run, err := c.API.Get(c.Context(), perdure.RunID(c.Param("run")))
	if err != nil {
		return err
	}
	return c.Streaming(func(ctx context.Context, s *doors.Stream) error {
		return s.Follow(ctx, run.RunID, run.LastSeq, from, two)
	})
}

// A stream that is cut after any frame and resumed has every frame once.
func TestStreamResumesAtEveryFrame(t *testing.T) {
	w := newWorld(t, doors.Route{Method: "GET", Pattern: "/runs/{run}", Handle: follow})
	wk := worker.New(w.C, worker.Options{})
	worker.Handle(wk, "job", func(ctx context.Context, in any) (string, error) {
		for range 5 {
			if err := worker.Emit(ctx, "x:step", 1); err != nil {
				return "", err
			}
		}
		return "done", nil
	})
	w.Work(wk)
	run := w.End(w.Start(perdure.Submission{Kind: "job"}))
	at := "/doors/test/runs/" + string(run.RunID)
	_, whole, _ := w.do("GET", at, "")
	frames := strings.SplitAfter(whole, "\n\n")
	if len(frames) < 15 {
		t.Fatalf("the stream has %d frames, want more: %s", len(frames), whole)
	}
	for i, frame := range frames[:len(frames)-1] {
		id, _, _ := strings.Cut(strings.TrimPrefix(frame, "id: "), "\n")
		_, rest, _ := w.do("GET", at, "", "Last-Event-ID", id)
		if want := strings.Join(frames[i+1:], ""); rest != want {
			t.Errorf("after %s came %q, want %q", id, rest, want)
		}
	}
	for _, bad := range []string{"x", "1.x", "-2", "1.2.3"} {
		if status, text, _ := w.do("GET", at, "", "Last-Event-ID", bad); status != 400 {
			t.Errorf("cursor %s = %d %s, want 400", bad, status, text)
		}
	}
	if status, text, _ := w.do("GET", at, "", "Last-Event-ID", "-1"); status != 200 || text != whole {
		t.Errorf("cursor -1 = %d %s, want the whole stream", status, text)
	}
}

// A recorder is an answer that tells how many bytes were written before its first flush.
type recorder struct {
	header http.Header
	wrote  int
	first  chan int
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(int)     {}

func (r *recorder) Write(b []byte) (int, error) {
	r.wrote += len(b)
	return len(b), nil
}

func (r *recorder) Flush() {
	select {
	case r.first <- r.wrote:
	default:
	}
}

// An answer that stays open has its headers before anything is written.
func TestHeadersComeFirst(t *testing.T) {
	w := newWorld(t, doors.Route{Method: "GET", Pattern: "/wait", Handle: func(c *doors.Call) error {
		return c.Waiting(func(ctx context.Context, begin func() error) (any, error) {
			err := begin()
			<-ctx.Done()
			return nil, errors.Join(err, ctx.Err())
		})
	}}, doors.Route{Method: "GET", Pattern: "/stream", Handle: func(c *doors.Call) error {
		return c.Streaming(func(ctx context.Context, s *doors.Stream) error {
			err := s.Begin()
			<-ctx.Done()
			return errors.Join(err, ctx.Err())
		})
	}})
	for _, path := range []string{"wait", "stream"} {
		h, _, _ := w.set.Find("/doors/test/" + path)
		ctx, cancel := context.WithCancel(w.Ctx)
		rec := &recorder{header: http.Header{}, first: make(chan int, 1)}
		done := make(chan any)
		go func() {
			defer func() { done <- recover() }()
			req := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
			req.Header.Set("X-Api-Key", "any")
			h.ServeHTTP(rec, req)
		}()
		if n := <-rec.first; n != 0 {
			t.Errorf("%s: %d bytes were written before the headers were flushed", path, n)
		}
		cancel()
		if p := <-done; p != http.ErrAbortHandler {
			t.Errorf("%s: the answer of a caller who hung up ended with %v, want it aborted", path, p)
		}
	}
}

// busy is an API that refuses every second call because the tenant has too many at the moment.
type busy struct {
	http.RoundTripper
	calls atomic.Int64
}

func (b *busy) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.calls.Add(1)%2 == 0 {
		return b.RoundTripper.RoundTrip(r)
	}
	rec := httptest.NewRecorder()
	rec.Header().Set("Content-Type", "application/problem+json")
	rec.WriteHeader(http.StatusTooManyRequests)
	rec.WriteString(`{"status":429,"code":"too_many_requests"}`)
	return rec.Result(), nil
}

// A call of the API that is refused for the moment is a refusal as long as the answer has not begun. An answer
// that has begun does not break off for it.
func TestBegunAnswerOutlastsRefusals(t *testing.T) {
	look := func(c *doors.Call, ctx context.Context) (any, error) {
		r, err := c.API.Get(ctx, perdure.RunID(c.Param("run")))
		if err != nil {
			return nil, err
		}
		return r.RunID, nil
	}
	w := newWorld(t, doors.Route{Method: "GET", Pattern: "/begun/{run}", Handle: func(c *doors.Call) error {
		return c.Waiting(func(ctx context.Context, begin func() error) (any, error) {
			if err := begin(); err != nil {
				return nil, err
			}
			return look(c, ctx)
		})
	}}, doors.Route{Method: "GET", Pattern: "/before/{run}", Handle: func(c *doors.Call) error {
		return c.Waiting(func(ctx context.Context, _ func() error) (any, error) { return look(c, ctx) })
	}})
	w.set.Connect(&busy{RoundTripper: w.Transport()})
	id := string(w.Start(perdure.Submission{Kind: "nobody"}))
	if status, text, _ := w.do("GET", "/doors/test/before/"+id, ""); status != 429 {
		t.Errorf("an answer that has not begun, refused for the moment = %d %s, want 429", status, text)
	}
	w.set.Connect(&busy{RoundTripper: w.Transport()})
	status, text, _ := w.do("GET", "/doors/test/begun/"+id, "")
	if status != 200 || strings.TrimSpace(text) != `"`+id+`"` {
		t.Errorf("an answer that has begun, refused for the moment = %d %q, want 200 and the run's id", status, text)
	}
}

// An answer that waits has its headers at once. The server's end aborts it, and the caller's hanging up
// ends the call of the API.
func TestOpenAnswerFlushesAndEnds(t *testing.T) {
	ended := make(chan error, 2)
	w := newWorld(t, doors.Route{Method: "GET", Pattern: "/runs/{run}", Handle: follow},
		doors.Route{Method: "GET", Pattern: "/wait/{run}", Handle: func(c *doors.Call) error {
			return c.Waiting(func(ctx context.Context, begin func() error) (any, error) {
				for _, err := range c.Lines(ctx, perdure.RunID(c.Param("run")), 0) {
					if err == nil {
						err = begin()
					}
					if err != nil {
						ended <- err
						return nil, err
					}
				}
				return "over", nil
			})
		}})
	id := w.Start(perdure.Submission{Kind: "nobody"})
	get := func(path string, cancel context.Context) (*http.Response, error) {
		req, err := http.NewRequestWithContext(cancel, "GET", w.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+w.Key())
		return http.DefaultClient.Do(req)
	}
	hangup, cancel := context.WithCancel(w.Ctx)
	if res, err := get("/doors/test/wait/"+string(id), hangup); err != nil || res.StatusCode != 200 {
		t.Fatalf("the wait = %v, %v, want its headers while the run is queued", res, err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the wait of a caller who hung up ended with %v, want cancelled", err)
	}
	var open []*http.Response
	for _, path := range []string{"wait", "runs"} {
		res, err := get("/doors/test/"+path+"/"+string(id), w.Ctx)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("%s = %v, %v, want its headers", path, res, err)
		}
		open = append(open, res)
	}
	w.set.Close()
	for _, res := range open {
		r := bufio.NewReader(res.Body)
		if _, err := io.ReadAll(r); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("an unfinished answer ended with %v at shutdown, want it aborted", err)
		}
	}
}
