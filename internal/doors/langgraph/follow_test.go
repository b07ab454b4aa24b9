package langgraph_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

// A frameReader reads the frames of an answer, one by one.
type frameReader struct {
	w    *world
	res  *http.Response
	from *bufio.Reader
}

// follow opens a stream at a node.
func (w *world) follow(path string, headers ...string) *frameReader {
	w.T.Helper()
	res := w.open("GET", path, "", headers...)
	if res.StatusCode != 200 {
		w.T.Fatalf("GET %s %v = %d %s, want a stream", path, headers, res.StatusCode, w.read(res))
	}
	w.T.Cleanup(func() { res.Body.Close() })
	return &frameReader{w, res, bufio.NewReader(res.Body)}
}

// next reads a frame as it was sent, without comments.
func (r *frameReader) next() string {
	r.w.T.Helper()
	frame := ""
	for {
		line, err := r.from.ReadString('\n')
		switch {
		case err != nil:
			r.w.T.Fatalf("the stream ended with %v after %q, want a frame", err, frame)
		case strings.HasPrefix(line, ":"):
		case line == "\n":
			return frame + line
		default:
			frame += line
		}
	}
}

// until reads frames up to one with a text.
func (r *frameReader) until(text string) (frames []string) {
	r.w.T.Helper()
	for {
		frame := r.next()
		if frames = append(frames, frame); strings.Contains(frame, text) {
			return frames
		}
	}
}

func idOfFrame(frame string) string {
	id, _, _ := strings.Cut(strings.TrimPrefix(frame, "id: "), "\n")
	return id
}

// at is the world as seen from another node.
func (w *world) at(s *servertest.Server) *world {
	w.T.Helper()
	front := httptest.NewServer(s.Live().Handler())
	w.T.Cleanup(front.Close)
	w.T.Cleanup(front.CloseClientConnections)
	return &world{Server: s, url: front.URL, key: w.key, http: w.http}
}

// A stream that was cut goes on at another node with the same bytes, after each of its frames: that of a run, of
// a part of a run that began with an answer, and of a thread, which tells of one run after another.
func TestStreamGoesOnAtAnotherNode(t *testing.T) {
	w := newWorldOn(t, embedded.Options{Store: pgtest.New(t), Node: "a"})
	w.kinds()
	other := w.at(servertest.Open(t, embedded.Options{Doors: []string{"langgraph"}, Store: w.Options.Store, Node: "b",
		Key: w.Live().Key()}))
	th := w.thread()
	all := object{"stream_mode": []string{"values", "updates", "messages", "messages-tuple", "custom"}}
	live := other.follow("/threads/" + th + "/stream") // before the first run
	runs := "/threads/" + th + "/runs"
	start := func(body object) {
		t.Helper()
		_, text, h := w.do("POST", runs+"/stream", body)
		frames := strings.SplitAfter(text, "\n\n")
		frames = frames[:len(frames)-1]
		for i, frame := range frames {
			want := strings.Join(frames[i+1:], "")
			if _, got, _ := other.do("GET", h.Get("Location"), nil, "Last-Event-ID", idOfFrame(frame)); got != want {
				t.Errorf("%v at another node after frame %d = %q, want %q", body, i, got, want)
			}
		}
		if len(frames) < 2 {
			t.Errorf("the stream of %v = %q, want more frames", body, text)
		}
	}
	start(hello("echo", all))
	start(hello("asker", all))
	whole := live.until("__interrupt__")
	start(object{"assistant_id": "asker", "command": object{"resume": true}, "stream_mode": all["stream_mode"]})
	start(hello("broken"))

	whole = append(whole, live.until("it broke")...)
	told := strings.Join(whole, "")
	for _, want := range []string{`event: messages`, `event: custom`, `"answer":42`, `__interrupt__`, `approved: true`,
		`event: error`} {
		if !strings.Contains(told, want) {
			t.Errorf("the stream of the thread has no %s: %s", want, told)
		}
	}
	for _, node := range []*world{w, other} {
		if again := strings.Join(node.follow("/threads/"+th+"/stream", "Last-Event-ID", "-1").until("it broke"),
			""); again != told {
			t.Errorf("the stream of the thread from its beginning = %q, want %q", again, told)
		}
	}
	for i, frame := range whole[:len(whole)-1] {
		node := []*world{w, other}[i%2]
		rest := node.follow("/threads/"+th+"/stream", "Last-Event-ID", idOfFrame(frame))
		if got, want := strings.Join(rest.until("it broke"), ""), strings.Join(whole[i+1:], ""); got != want {
			t.Errorf("the stream of the thread after frame %d = %q, want %q", i, got, want)
		}
		rest.res.Body.Close()
	}
	end := w.follow("/threads/"+th+"/stream", "Last-Event-ID", idOfFrame(whole[len(whole)-1]))
	w.get("POST", runs+"/wait", hello("echo"))
	if frames := end.until(`"answer":42`); !strings.HasPrefix(frames[0], "id: ") || len(frames) != 2 ||
		!strings.Contains(frames[0], "event: metadata") {
		t.Errorf("the next run on the stream of the thread = %q, want its beginning and values", frames)
	}
}

// The stream of a thread takes the ids of its own frames alone, and modes of its own.
func TestStreamOfThreadHasItsModesAndPlaces(t *testing.T) {
	w := newWorld(t)
	w.kinds()
	th, th2 := w.thread(), w.thread()
	w.get("POST", "/threads/"+th+"/runs/wait", hello("echo", object{"stream_mode": []string{"updates"}}))
	w.get("POST", "/threads/"+th2+"/runs/wait", hello("echo"))
	w.get("POST", "/threads/"+th+"/runs/wait", hello("broken"))
	for query, want := range map[string]string{
		"": "metadata updates updates metadata error", "?stream_mode=lifecycle": "metadata metadata error",
		"?stream_mode=state_update":                          "metadata values metadata error",
		"?stream_mode=run_modes&stream_mode=state_update":    "metadata updates updates values metadata error",
		"?stream_mode=%5B%22updates%22%2C%22lifecycle%22%5D": "metadata updates updates metadata error",
	} {
		s := w.follow("/threads/"+th+"/stream"+query, "Last-Event-ID", "-1")
		var names []string
		for _, e := range events(strings.Join(s.until("it broke"), "")) {
			names = append(names, e.event)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("stream of a thread with %q = %s, want %s", query, got, want)
		}
		if got := s.res.Header.Get("Location"); !strings.HasPrefix(got, "/threads/"+th+"/stream") ||
			strings.Contains(got, "=") != (query != "") {
			t.Errorf("Location of the stream with %q = %s", query, got)
		}
	}
	foreign := idOfFrame(w.follow("/threads/"+th2+"/stream", "Last-Event-ID", "-1").next())
	for id, want := range map[string]int{foreign: 404, "x": 400, "x:1.1": 404, foreign + ".9": 400,
		fmt.Sprintf("%036d:1.1", 7): 404, ":": 400} {
		if status, text, _ := w.do("GET", "/threads/"+th+"/stream", nil, "Last-Event-ID", id); status != want {
			t.Errorf("stream of a thread after %q = %d %s, want %d", id, status, text, want)
		}
	}
	if status, _, _ := w.do("GET", "/threads/none/stream", nil); status != 404 {
		t.Errorf("stream of an unknown thread = %d, want 404", status)
	}
}

// A run that was cancelled in the queue of its thread has no checkpoint: the state is that of the run which ended
// last, whenever it was created.
func TestRunCancelledInQueueIsNoCheckpoint(t *testing.T) {
	w := newWorld(t)
	w.kinds()
	th := w.thread()
	runs := "/threads/" + th + "/runs"
	first := w.get("POST", runs+"/wait", hello("signals"))["__interrupt__"].([]any)
	queued := w.get("POST", runs, hello("echo", object{"multitask_strategy": "enqueue"}))["run_id"].(string)
	if status, text, _ := w.do("POST", runs+"/"+queued+"/cancel?wait=1", nil); status != 204 {
		t.Fatalf("cancel = %d %s, want 204", status, text)
	}
	resume := object{}
	for _, i := range first {
		resume[i.(object)["id"].(string)] = "x"
	}
	w.get("POST", runs+"/wait", object{"assistant_id": "signals", "command": object{"resume": resume}})
	state := w.get("GET", "/threads/"+th+"/state", nil)
	_, history, _ := w.do("POST", "/threads/"+th+"/history", object{})
	var list []object
	if err := json.Unmarshal([]byte(history), &list); err != nil {
		t.Fatal(err)
	}
	if a := state["values"].(object)["a"]; a != "x" || len(list) != 1 ||
		list[0]["values"].(object)["a"] != "x" {
		t.Errorf("the state after a run was cancelled in the queue = %v, the history %s, want those of the first run",
			state, history)
	}
	before := list[0]["checkpoint"].(object)["checkpoint_id"]
	_, older, _ := w.do("POST", "/threads/"+th+"/history", object{"before": before})
	if strings.TrimSpace(older) != "[]" {
		t.Errorf("the history before the first run = %s, want none", older)
	}
}

// A tenant has a bounded number of streams of threads, however many keys it has, and leaves room to others.
func TestStreamsOfThreadsAreSharedByTenants(t *testing.T) {
	w := newWorld(t)
	open := func(key, thread string) (status int, res *http.Response) {
		t.Helper()
		w.key = key
		res = w.open("GET", "/threads/"+thread+"/stream", "")
		t.Cleanup(func() { res.Body.Close() })
		return res.StatusCode, res
	}
	root := w.key
	th := w.thread()
	scopes := []perdure.Scope{perdure.ScopeCreate, perdure.ScopeRead}
	keys := []string{w.tenantKey(scopes...), w.tenantKey(scopes...)}
	var first *http.Response
	for i := range 100 {
		status, res := open(keys[i%2], th)
		if status != 200 {
			t.Fatalf("stream %d of a thread = %d %s", i, status, w.read(res))
		}
		if first == nil {
			first = res
		}
	}
	for _, key := range keys {
		if status, res := open(key, th); status != 429 || res.Header.Get("Retry-After") == "" {
			t.Errorf("stream 101 of a tenant = %d, want 429 with Retry-After", status)
		}
	}
	other, err := admin.New(w.Client()).CreateTenantKey(w.Ctx, "other", api.CreateKey{Name: "k",
		Scopes: []string{"runs:create", "runs:read"}})
	if err != nil {
		t.Fatal(err)
	}
	w.key = other.Secret
	if status, _ := open(other.Secret, w.thread()); status != 200 {
		t.Errorf("the first stream of another tenant = %d, want 200", status)
	}
	first.Body.Close()
	eventually.True(t, "a stream that was closed leaves room", func() bool {
		status, _ := open(root, th)
		return status == 200
	})
}
