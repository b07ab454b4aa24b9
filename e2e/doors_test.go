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
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// A doorWorld is a server with a door, a relay before it that cuts connections, and a worker.
type doorWorld struct {
	t        *testing.T
	n        *node
	door     string   // its name, and that of the program in clients
	versions []string // of the client, as clients/package.json has them
	relay    *httptest.Server

	mu sync.Mutex
	// executed counts executions by kind and input. calls counts those of a path, posts those that start something,
	// and answers those whose headers the client has.
	executed, calls, posts, answers map[string]int
	retries                         map[string]int // the highest count of retries of a path
	frames                          map[string]int // frames that went to the client of a path
	gates                           map[string]chan struct{}
	// back is closed once the server is there again. The relay holds calls until then. It is nil in tests whose
	// clients find the server gone.
	back chan struct{}
}

func newDoorWorld(t *testing.T, n *node, door string, versions []string) *doorWorld {
	w := &doorWorld{t: t, n: n, door: door, versions: versions, executed: map[string]int{}, calls: map[string]int{},
		posts: map[string]int{}, answers: map[string]int{}, retries: map[string]int{}, frames: map[string]int{},
		gates: map[string]chan struct{}{}}
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
	kinds := []string{"letters", "gated", "paused", "pays", "tools", "stuck"}
	if door == "langgraph" {
		kinds = append(kinds, "researches")
	}
	for _, kind := range kinds {
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
	worker.Handle(wk, "letters", func(ctx context.Context, in question) (any, error) {
		w.count("letters", in)
		return w.result(alphabet), letters(ctx, alphabet)
	})
	worker.Handle(wk, "gated", func(ctx context.Context, in question) (any, error) {
		w.count("gated", in)
		return w.result("the answer"), w.wait(ctx, "gated", in)
	})
	worker.Handle(wk, "paused", func(ctx context.Context, in question) (any, error) {
		w.count("paused", in)
		return w.result(alphabet), errors.Join(letters(ctx, alphabet[:13]), w.wait(ctx, "paused", in), letters(ctx,
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
	if w.door == "langgraph" {
		worker.Agent(wk, "researches", researches)
	}
	worker.Agent(wk, "pays", func(ctx *agent.Context, in question) (any, error) {
		v, err := agent.Approve(ctx, agent.Approval{Name: "pay", Title: "Pay?", Action: obj{"to": "Ada"}})
		return w.result(fmt.Sprintf("paid: %v", v.Approved)), err
	})
}

// researches is an agent that deepagents sends work to. It answers in its thread, and with "stay" it stays.
func researches(ctx *agent.Context, in question) (any, error) {
	var list []struct {
		Content string `json:"content"`
	}
	if err := json.Unmarshal(in.Messages, &list); err != nil || len(list) != 1 {
		return nil, perdure.Permanent(fmt.Errorf("%s is not one message (%w)", in.Messages, err))
	}
	if list[0].Content == "stay" {
		return nil, agent.Sleep(ctx, time.Hour)
	}
	return nil, agent.Message(ctx, perdure.RoleAssistant, "found: "+list[0].Content)
}

// result is the result of a run with a text: what the door's clients see of it.
func (w *doorWorld) result(text string) any {
	if w.door == "langgraph" {
		return obj{"answer": text}
	}
	return text
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
	w.calls[mode]++
	first, back := w.calls[mode] == 1, w.back
	if r.Method == http.MethodPost {
		w.posts[mode]++
		n, _ := strconv.Atoi(r.Header.Get("X-Stainless-Retry-Count"))
		w.retries[mode] = max(w.retries[mode], n)
	}
	w.mu.Unlock()
	if back != nil {
		select {
		case <-back:
		case <-r.Context().Done():
		}
	}
	req, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+w.n.addr+"/doors/"+w.door+"/"+rest+"?"+
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
	rw.(http.Flusher).Flush()
	w.mu.Lock()
	w.answers[mode]++
	w.mu.Unlock()
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
	cmd := exec.Command(node, append([]string{w.door + ".mjs", version, w.relay.URL, scenario}, more...)...)
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
			w.t.Fatalf("%s %s, %s: %v\n%s%s", w.door, version, scenario, err, out.String(), errs.String())
		}
		for line := range strings.Lines(out.String()) {
			fact := obj{}
			if err := json.Unmarshal([]byte(line), &fact); err != nil {
				w.t.Fatalf("%s %s, %s printed %q", w.door, version, scenario, line)
			}
			list = append(list, fact)
		}
		return list
	}
}

// each runs a scenario with all versions at once.
func (w *doorWorld) each(scenario string, more ...string) (facts map[string]func() []obj) {
	facts = map[string]func() []obj{}
	for _, v := range w.versions {
		facts[v] = w.program(v, scenario, more...)
	}
	return facts
}
