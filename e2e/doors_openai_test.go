package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// openaiVersions are the clients in clients/package.json.
var openaiVersions = []string{"6", "7"}

// OpenAI's own clients get every answer whole and once, and each question is executed once: whatever is
// cut, killed or too slow in between.
func TestOpenAIClients(t *testing.T) {
	for _, store := range []string{"SQLite", "PostgreSQL"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			args := []string{"--doors", "openai", "--webhook-allow", "127.0.0.0/8"}
			if store == "PostgreSQL" {
				args = append(args, "--store", pgtest.New(t))
			}
			w := newDoorWorld(t, newNode(t, args...), "openai", openaiVersions)
			if store == "PostgreSQL" {
				w.moves(newNode(t, args...))
			}
			told := w.told()
			w.cuts()
			w.rest(told()...)
			w.waits("reset", "")
			w.waits("late", "1500")
			w.goesAway(syscall.SIGKILL)
			w.goesAway(syscall.SIGTERM)
			w.countsExecutions()
		})
	}
}

// moves cuts a stream of one node after each frame, and goes on at another one.
func (w *doorWorld) moves(other *node) {
	path := "/doors/openai/v1/responses"
	_, b, err := exchange(w.n.http, w.n.key, "POST", "http://"+w.n.addr+path, "",
		obj{"model": "letters", "input": "moves", "stream": true})
	if err != nil {
		w.t.Fatal(err)
	}
	frames := strings.SplitAfter(string(b), "\n\n")
	read := func(frame string, into any) {
		_, data, _ := strings.Cut(frame, "data: ")
		if err := json.Unmarshal([]byte(data), into); err != nil {
			w.t.Fatalf("frame %q: %v", frame, err)
		}
	}
	var first struct{ Response struct{ ID string } }
	read(frames[0], &first)
	for i, frame := range frames[:len(frames)-1] {
		var e struct {
			Sequence int64 `json:"sequence_number"`
		}
		read(frame, &e)
		at := fmt.Sprintf("http://%s%s/%s?stream=true&starting_after=%d", other.addr, path, first.Response.ID,
			e.Sequence)
		_, rest, err := exchange(other.http, other.key, "GET", at, "", nil)
		if want := strings.Join(frames[i+1:], ""); err != nil || string(rest) != want {
			w.t.Errorf("the other node after %d = %q, %v, want %q", e.Sequence, rest, err, want)
		}
	}
}

// cuts cuts the connection at every frame of an answer of more than 30.
func (w *doorWorld) cuts() {
	for v, facts := range w.each("cuts") {
		f := facts()[0]
		if f["frames"].(float64) < 30 || len(f["differ"].([]any)) > 0 || f["text"] != alphabet ||
			f["status"] != "completed" {
			w.t.Errorf("openai %s with cut streams = %v, want the same events after each cut", v, f)
		}
	}
}

// told registers a webhook. The returned function gives its first message, the headers and the secret.
func (w *doorWorld) told() func() []string {
	got := make(chan []string, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		headers := map[string]string{}
		for name := range r.Header {
			headers[name] = r.Header.Get(name)
		}
		text, _ := json.Marshal(headers)
		select {
		case got <- []string{string(body), string(text)}:
		default: // of another response
		}
	}))
	w.t.Cleanup(receiver.Close)
	_, b, err := exchange(w.n.http, w.n.key, "POST", "http://"+w.n.addr+"/api/v1/webhooks", "",
		obj{"url": receiver.URL, "format": "openai", "events": []string{"run:completed"}})
	var hook struct{ Secret string }
	if err != nil || json.Unmarshal(b, &hook) != nil || hook.Secret == "" {
		w.t.Fatalf("a webhook = %s, %v, want its secret", b, err)
	}
	return func() []string {
		select {
		case m := <-got:
			return append(m, hook.Secret)
		case <-time.After(eventually.Within):
			w.t.Fatal("the webhook was told nothing")
			return nil
		}
	}
}

func (w *doorWorld) rest(told ...string) {
	want := []string{`{"event":"response.completed","forged":"Error","model":"letters","status":"completed"}`,
		`{"action":{"to":"Ada"},"asked":"pay","text":"paid: true"}`,
		`{"output":"it","same":true,"text":"I look. Found it.","tool":"grep"}`,
		`{"chat":"` + alphabet + `","streamed":"` + alphabet + `"}`, `{"cancelled":"cancelled"}`,
		`{"refused":[404,400,404,401]}`, `{"models":["gated","letters","paused","pays","stuck","tools"]}`}
	for v, facts := range w.each("rest", told...) {
		for i, f := range facts() {
			if got, _ := json.Marshal(f); string(got) != want[i] {
				w.t.Errorf("openai %s = %s, want %s", v, got, want[i])
			}
		}
		if n := w.posts["once-"+v]; n != 3 {
			w.t.Errorf("openai %s posted %d times, want each of 3 refused calls once", v, n)
		}
	}
}

// waits asks a question whose first answer is lost, or comes later than the client waits.
func (w *doorWorld) waits(mode, timeout string) {
	facts := w.each("waits", mode, timeout)
	for _, v := range openaiVersions {
		eventually.True(w.t, "a retry of openai "+v, func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.retries[mode+"-"+v] > 0
		})
		close(w.gate("gated " + mode + " " + v))
	}
	w.answered(mode, facts)
}

func (w *doorWorld) answered(mode string, facts map[string]func() []obj) {
	w.t.Helper()
	for v, facts := range facts {
		if f := facts()[0]; f["text"] != "the answer" || f["status"] != "completed" {
			w.t.Errorf("openai %s, %s = %v, want the answer", v, mode, f)
		}
	}
}

// goesAway ends the server while clients wait and follow streams, and starts it again.
func (w *doorWorld) goesAway(sig syscall.Signal) {
	mode := fmt.Sprintf("signal%d", sig)
	waits, streams := w.each("waits", mode), w.each("streams", mode)
	for _, v := range openaiVersions {
		for _, kind := range []string{"gated ", "paused "} {
			eventually.True(w.t, kind+mode+" is executed", func() bool { return w.began(kind + mode + " " + v) })
		}
		eventually.True(w.t, "the stream of openai "+v+" has begun", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.frames[mode+"stream-"+v] > 3
		})
	}
	w.n.kill(sig)
	w.n.start()
	for _, v := range openaiVersions {
		close(w.gate("gated " + mode + " " + v))
		close(w.gate("paused " + mode + " " + v))
	}
	w.answered(mode, waits)
	for v, facts := range streams {
		if f := facts()[0]; f["same"] != true || f["broke"] != true || f["text"] != alphabet {
			w.t.Errorf("openai %s, %s = %v, want an aborted stream that goes on", v, mode, f)
		}
	}
}

// countsExecutions checks that each question was executed once.
func (w *doorWorld) countsExecutions() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, n := range w.executed {
		if n != 1 && name != "letters " {
			w.t.Errorf("%q was executed %d times, want once", name, n)
		}
	}
	if n := w.executed["letters "]; n != 4 {
		w.t.Errorf("four chat completions were executed %d times", n)
	}
}
