package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/worker"
)

// openaiVersions are the clients in clients/package.json.
var openaiVersions = []string{"6", "7"}

// OpenAI's own clients get every answer whole and once, and each question is executed once: whatever is
// cut, killed or too slow in between.
func TestOpenAIClients(t *testing.T) {
	for _, store := range []string{"SQLite", "PostgreSQL"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			args := []string{"--doors", "openai"}
			if store == "PostgreSQL" {
				args = append(args, "--store", pgtest.New(t))
			}
			w := newDoorWorld(t, newNode(t, args...))
			if store == "PostgreSQL" {
				w.moves(newNode(t, args...))
			}
			w.cuts()
			w.rest()
			w.waits("reset", "")
			w.waits("late", "1500")
			w.goesAway(syscall.SIGKILL)
			w.goesAway(syscall.SIGTERM)
			w.countsExecutions()
		})
	}
}

// A doorWorld is a server with a door, a relay before it that cuts connections, and a worker.
type doorWorld struct {
	t     *testing.T
	n     *node
	relay *httptest.Server

	mu sync.Mutex
	// executed counts executions by kind and input. posts counts the calls of a path that started something.
	executed, posts map[string]int
	retries         map[string]int // the highest count of retries of a path
	frames          map[string]int // frames that went to the client of a path
	gates           map[string]chan struct{}
	cut             map[string]bool
}

func newDoorWorld(t *testing.T, n *node) *doorWorld {
	w := &doorWorld{t: t, n: n, executed: map[string]int{}, posts: map[string]int{}, retries: map[string]int{},
		frames: map[string]int{},
		gates:  map[string]chan struct{}{}, cut: map[string]bool{}}
	w.relay = httptest.NewServer(w)
	t.Cleanup(func() {
		w.relay.CloseClientConnections()
		w.relay.Close()
	})
	c := client.New("http://"+n.addr, n.key, client.Options{})
	t.Cleanup(c.Close)
	wk := worker.New(c, worker.Options{Slots: 8})
	w.handles(wk)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- wk.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the worker ended with %v", err)
		}
	})
	for _, kind := range []string{"letters", "gated", "paused", "pays", "tools", "stuck"} {
		eventually.True(t, "kind "+kind+" is announced", func() bool {
			_, err := c.Kind(ctx, kind)
			return err == nil
		})
	}
	return w
}

type question struct {
	Input    json.RawMessage `json:"input"`
	Messages json.RawMessage `json:"messages"`
}

// handles adds the kinds to a worker.
func (w *doorWorld) handles(wk *worker.Worker) {
	letters := func(ctx context.Context, text string) error {
		for _, r := range text {
			if err := errors.Join(worker.Delta(ctx, string(r)), worker.Emit(ctx, "x:letter", 1)); err != nil {
				return err
			}
		}
		return nil
	}
	worker.Handle(wk, "letters", func(ctx context.Context, in question) (string, error) {
		w.count("letters", in)
		return alphabet, letters(ctx, alphabet)
	})
	worker.Handle(wk, "gated", func(ctx context.Context, in question) (string, error) {
		w.count("gated", in)
		return "the answer", w.wait(ctx, "gated", in)
	})
	worker.Handle(wk, "paused", func(ctx context.Context, in question) (string, error) {
		w.count("paused", in)
		return alphabet, errors.Join(letters(ctx, alphabet[:13]), w.wait(ctx, "paused", in), letters(ctx,
			alphabet[13:]))
	})
	worker.Handle(wk, "stuck", func(ctx context.Context, in question) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	})
	worker.Handle(wk, "tools", func(ctx context.Context, in question) (string, error) {
		return "Found it.", errors.Join(worker.Delta(ctx, "I look. "),
			worker.Emit(ctx, perdure.LineToolStarted, obj{"id": "c1", "name": "grep", "input": `{"for":"it"}`}),
			worker.Emit(ctx, perdure.LineToolCompleted, obj{"id": "c1", "name": "grep", "output": "it"}),
			worker.Delta(ctx, "Found it."))
	})
	worker.Agent(wk, "pays", func(ctx *agent.Context, in question) (string, error) {
		v, err := agent.Approve(ctx, agent.Approval{Name: "pay", Title: "Pay?", Action: obj{"to": "Ada"}})
		return fmt.Sprintf("paid: %v", v.Approved), err
	})
}

const alphabet = "abcdefghijklmnopqrstuvwxyz"

// inputOf is the text of a question.
func inputOf(in question) string {
	text := ""
	_ = json.Unmarshal(in.Input, &text) // that of a chat completion has none
	return text
}

func (w *doorWorld) count(kind string, in question) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.executed[kind+" "+inputOf(in)]++
}

// gate is closed when handlers of a kind may go on with an input.
func (w *doorWorld) gate(name string) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gates[name] == nil {
		w.gates[name] = make(chan struct{})
	}
	return w.gates[name]
}

func (w *doorWorld) wait(ctx context.Context, kind string, in question) error {
	select {
	case <-w.gate(kind + " " + inputOf(in)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *doorWorld) began(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.executed[name] > 0
}

// ServeHTTP passes a call on to the server. The first part of the path says what is done to it:
// cut12-6 cuts the first stream after 12 frames, and reset-6 resets the first one once its run
// is executed.
func (w *doorWorld) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	mode, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	w.mu.Lock()
	first := !w.cut[mode]
	w.cut[mode] = true
	if r.Method == http.MethodPost {
		w.posts[mode]++
		n, _ := strconv.Atoi(r.Header.Get("X-Stainless-Retry-Count"))
		w.retries[mode] = max(w.retries[mode], n)
	}
	w.mu.Unlock()
	req, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+w.n.addr+"/doors/openai/"+rest+"?"+
		r.URL.RawQuery, r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	req.Header, req.ContentLength = r.Header.Clone(), r.ContentLength
	if text, ok := strings.CutPrefix(mode, "reset-"); ok && first {
		go func() {
			if res, err := w.n.http.Do(req); err == nil {
				res.Body.Close()
			}
		}()
		eventually.True(w.t, "the question is executed", func() bool { return w.began("gated reset " + text) })
		panic(http.ErrAbortHandler)
	}
	res, err := w.n.http.Do(req)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer res.Body.Close()
	for k, v := range res.Header {
		rw.Header()[k] = v
	}
	rw.WriteHeader(res.StatusCode)
	after := 0
	if text, ok := strings.CutPrefix(mode, "cut"); ok && first {
		text, _, _ = strings.Cut(text, "-")
		after, _ = strconv.Atoi(text)
	}
	w.pass(rw, res.Body, mode, after)
}

// pass copies an answer as it comes. It cuts the connection after a number of frames, or at the end of an
// answer that broke off.
func (w *doorWorld) pass(rw http.ResponseWriter, body io.Reader, mode string, after int) {
	from := bufio.NewReader(body)
	for frames := 0; ; {
		line, err := from.ReadSlice('\n')
		rw.Write(line)
		if from.Buffered() == 0 || string(line) == "\n" {
			rw.(http.Flusher).Flush()
		}
		if string(line) == "\n" {
			w.mu.Lock()
			w.frames[mode]++
			w.mu.Unlock()
			if frames++; frames == after {
				panic(http.ErrAbortHandler)
			}
		}
		switch {
		case err == io.EOF:
			return
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			panic(http.ErrAbortHandler)
		}
	}
}

// program starts a scenario of the client. The returned function waits for its end and gives its facts.
func (w *doorWorld) program(version, scenario string, more ...string) (facts func() []obj) {
	w.t.Helper()
	folder, err := filepath.Abs("clients")
	if err != nil {
		w.t.Fatal(err)
	}
	node := filepath.Join(folder, "node_modules", ".bin", "node")
	if _, err := os.Stat(node); err != nil {
		w.t.Fatal("this test needs the clients; type: make clients: ", err)
	}
	cmd := exec.Command(node, append([]string{"openai.mjs", version, w.relay.URL, scenario}, more...)...)
	cmd.Dir, cmd.Env = folder, append(os.Environ(), "PERDURE_KEY="+w.n.key)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	w.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return func() (list []obj) {
		w.t.Helper()
		if err := <-ended; err != nil {
			w.t.Fatalf("openai %s, %s: %v\n%s%s", version, scenario, err, out.String(), errs.String())
		}
		for line := range strings.Lines(out.String()) {
			fact := obj{}
			if err := json.Unmarshal([]byte(line), &fact); err != nil {
				w.t.Fatalf("openai %s, %s printed %q", version, scenario, line)
			}
			list = append(list, fact)
		}
		return list
	}
}

// each runs a scenario with all versions at once.
func (w *doorWorld) each(scenario string, more ...string) (facts map[string]func() []obj) {
	facts = map[string]func() []obj{}
	for _, v := range openaiVersions {
		facts[v] = w.program(v, scenario, more...)
	}
	return facts
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

func (w *doorWorld) rest() {
	want := []string{`{"action":{"to":"Ada"},"asked":"pay","text":"paid: true"}`,
		`{"output":"it","same":true,"text":"I look. Found it.","tool":"grep"}`,
		`{"chat":"` + alphabet + `","streamed":"` + alphabet + `"}`, `{"cancelled":"cancelled"}`,
		`{"refused":[404,400,404,401]}`, `{"models":["gated","letters","paused","pays","stuck","tools"]}`}
	for v, facts := range w.each("rest") {
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
