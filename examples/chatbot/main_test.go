package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// A script is a fake model that gives prepared answers, one after the other, as pieces of an event
// stream like a real one.
type script struct {
	mu      sync.Mutex
	answers [][]string // the pieces of each answer; without any the connection breaks
	asked   [][]json.RawMessage
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Model    string
		Stream   bool
		Messages []json.RawMessage
		Tools    []any
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || r.URL.Path != "/v1/chat/completions" ||
		r.Header.Get("Authorization") != "Bearer secret" || !in.Stream || len(in.Tools) != 1 {
		http.Error(w, fmt.Sprintf("that is no request: %v %+v", err, in), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, in.Messages)
	pieces := s.answers[0]
	s.answers = s.answers[1:]
	say(w, pieces...)
	if len(pieces) == 0 {
		panic(http.ErrAbortHandler)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// say sends pieces of an answer, as a model streams them.
func say(w http.ResponseWriter, pieces ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, p := range pieces {
		fmt.Fprintf(w,
			"data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":%s}]}\n\n",
			p)
		w.(http.Flusher).Flush()
	}
}

// serve runs the chatbot on a server of its own, with a model.
func serve(t *testing.T, model http.Handler) *client.Client {
	t.Helper()
	endpoint := httptest.NewServer(model)
	t.Cleanup(endpoint.Close)
	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	w := worker.New(c, worker.Options{})
	Model{BaseURL: endpoint.URL + "/v1", Name: "m", Key: "secret"}.register(w)
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	working.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(working.Wait)
	t.Cleanup(stop)
	return c
}

// ask asks the chatbot a question, and returns its answer and the streamed text.
func ask(t *testing.T, model http.Handler, question string) (run *api.Run, streamed string) {
	t.Helper()
	c, ctx := serve(t, model), t.Context()
	thread, err := c.CreateThread(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	run, err = c.Start(ctx,
		perdure.Submission{Kind: "chat", ThreadID: thread.ThreadID,
			Messages: []perdure.Message{{Role: "user", Content: client.JSON(question)}}})
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range c.Stream(ctx, run.RunID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		var said struct{ Text string }
		if e.Type == perdure.LineDelta && json.Unmarshal(e.Data, &said) == nil {
			streamed += said.Text
		}
	}
	if run, err = c.Get(ctx, run.RunID); err != nil {
		t.Fatal(err)
	}
	return run, streamed
}

func TestModelUsesTool(t *testing.T) {
	s := &script{answers: [][]string{
		{`{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"call_1","type":"function",` +
			`"function":{"name":"weather","arguments":""}}]}`,
			`{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\":"}}]}`,
			`{"tool_calls":[{"index":0,"function":{"arguments":"\"Delft\"}"}}]}`,
			`{"tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"weather",` +
				`"arguments":"{\"city\":5}"}}]}`},
		{}, // the connection breaks once
		{`{"role":"assistant","content":""}`, `{"content":"Take "}`, `{"content":"an umbrella."}`},
	}}
	run, streamed := ask(t, s, "How is the weather in Delft?")
	if answer, err := client.Result[string](run); err != nil || answer != "Take an umbrella." || streamed != answer {
		t.Errorf("answer = %q, streamed %q (error %v); want the same advice, to take an umbrella", answer,
			streamed, err)
	}
	if len(s.asked) != 3 {
		t.Fatalf("the model was called %d times, want 3", len(s.asked))
	}
	want := []string{
		`{"role":"user","content":"How is the weather in Delft?"}`,
		`{"role":"assistant","content":"","tool_calls":[{"index":0,"id":"call_1","type":"function",` +
			`"function":{"name":"weather","arguments":"{\"city\":\"Delft\"}"}},` +
			`{"index":1,"id":"call_2","type":"function","function":{"name":"weather","arguments":"{\"city\":5}"}}]}`,
		`{"role":"tool","content":"rain in Delft","tool_call_id":"call_1"}`,
		`{"role":"tool","content":"error: task `,
	}
	for i, m := range s.asked[2] {
		if i >= len(want) || !strings.HasPrefix(string(m), want[i]) {
			t.Errorf("message %d to the model = %s, want one of %d that begin as in %q", i+1, m, len(want), want)
		}
	}
}

// A model's words are data: a tool call that is malformed in any way is answered with an error, and
// the model has another try.
func TestMalformedToolCallIsAnswered(t *testing.T) {
	call := func(index int, name, arguments string) string {
		return fmt.Sprintf(`{"tool_calls":[{"index":%d,"id":"call_%[1]d","type":"function","function":{"name":%q,`+
			`"arguments":%q}}]}`,
			index, name, arguments)
	}
	s := &script{answers: [][]string{
		{`{"content":"Let me see. "}`, call(0, `get "weather"`, `{"city":"Delft"}`), call(1, "weather", `{"city":`),
			call(2, "", "{}"), call(3, "weather", ""), call(7, "weather", `{"city":"Delft"}`), call(-1, "_own", "{}")},
		{`{"content":"I can't tell."}`},
	}}
	run, streamed := ask(t, s, "How is the weather in Delft?")
	if answer, err := client.Result[string](run); err != nil || answer != "I can't tell." ||
		streamed != "Let me see. I can't tell." {
		t.Errorf("answer = %q, streamed %q (error %v); want the second answer of the model", answer, streamed, err)
	}
	if len(s.asked) != 2 || len(s.asked[1]) != 8 {
		t.Fatalf("the model was asked %d times, want 2 with 8 messages in the second: %s", len(s.asked), s.asked)
	}
	for i, m := range s.asked[1][2:] {
		if failed := strings.Contains(string(m), `"content":"error: `); failed != (i != 4) {
			t.Errorf("answer to call %d = %s, want an error to all but the one that is well formed", i, m)
		}
	}
}

// The server's notice that a run goes on in the background is for people, and not sent to the
// model.
func TestNoticesAreNotSentToModel(t *testing.T) {
	s := &script{answers: [][]string{{`{"content":"Seven."}`}, {`{"content":"Eight."}`}}}
	s.mu.Lock() // the model does not answer until the caller has stopped waiting
	c, ctx := serve(t, s), t.Context()
	thread, err := c.CreateThread(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	turn := func(question string) perdure.Submission {
		return perdure.Submission{Kind: "chat", ThreadID: thread.ThreadID,
			Messages: []perdure.Message{{Role: "user", Content: client.JSON(question)}}}
	}
	run, deferred, err := c.Run(ctx, turn("Three and four?"), time.Millisecond)
	if err != nil || !deferred {
		t.Fatalf("first turn: deferred %v, error %v, want a deferred run", deferred, err)
	}
	s.mu.Unlock()
	if _, _, err := c.Join(ctx, run.RunID, time.Minute); err != nil {
		t.Fatal(err)
	}
	if run, _, err = c.Run(ctx, turn("And one more?"), time.Minute); err != nil || string(run.Result) != `"Eight."` {
		t.Fatalf("second turn: result %s, error %v, want Eight.", run.Result, err)
	}
	got := fmt.Sprintf("%s", s.asked[1])
	want := `[{"role":"user","content":"Three and four?"} {"role":"assistant","content":"Seven."} {"role":"user",` +
		`"content":"And one more?"}]`
	if got != want {
		t.Errorf("messages sent to the model in the second turn = %s, want %s", got, want)
	}
}

func TestRefusalOfModelIsNotRetried(t *testing.T) {
	asked := 0
	run, _ := ask(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		http.NotFound(w, r)
	}), "Are you there?")
	if _, err := client.Result[string](run); err == nil || !strings.Contains(err.Error(), "404") || asked != 1 {
		t.Errorf("the model was called %d times (error %v), want once, with a 404", asked, err)
	}
}

func TestChatbotIsShort(t *testing.T) {
	text, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > 150 {
		t.Errorf("main.go has %d lines, want at most 150", n)
	}
}
