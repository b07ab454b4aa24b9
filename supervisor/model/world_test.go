package model

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/mockmodel"
)

// patience is a timeout that no test reaches.
const patience = time.Minute

// A world is a scripted model behind a socket.
type world struct {
	*Client
	*mockmodel.Handler
	url string
}

// serve starts a scripted model with rules. The client does not retry, unless the options say so.
func serve(t *testing.T, opt Options, rules ...mockmodel.Rule) *world {
	t.Helper()
	h, err := mockmodel.New(mockmodel.Script{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	w := serveHTTP(t, opt, h)
	w.Handler = h
	return w
}

// serveHTTP is serve for any server.
func serveHTTP(t *testing.T, opt Options, h http.Handler) *world {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	if len(opt.Models) == 0 {
		opt.Models = []Endpoint{{}}
	}
	for i := range opt.Models {
		e := &opt.Models[i]
		e.BaseURL = srv.URL + "/v1"
		if e.Model == "" {
			e.Model = "m"
		}
		e.FirstToken, e.BetweenTokens = byDefault(e.FirstToken, patience), byDefault(e.BetweenTokens, patience)
	}
	opt.Retries = byDefault(opt.Retries, -1)
	opt.Backoff = byDefault(opt.Backoff, time.Microsecond)
	c, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.http.CloseIdleConnections)
	return &world{Client: c, url: srv.URL}
}

// body is a rule that answers with a body, as a provider has sent it.
func body(text string) mockmodel.Rule { return mockmodel.Rule{Answer: mockmodel.Answer{Body: text}} }

// frames makes the body of a stream.
func frames(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		b.WriteString("data: " + d + "\n\n")
	}
	return b.String()
}

// says is a chunk with a text.
func says(text string) string {
	return `{"choices":[{"index":0,"delta":{"content":"` + text + `"},"finish_reason":null}]}`
}

// calling is a chunk with fragments of calls.
func calling(fragments string) string {
	return `{"choices":[{"index":0,"delta":{"tool_calls":[` + fragments + `]},"finish_reason":null}]}`
}

// stops is a chunk with a finish_reason.
func stops(reason string) string {
	return `{"choices":[{"index":0,"delta":{},"finish_reason":"` + reason + `"}]}`
}

// question is a request with one message.
func question(text string) Request {
	return Request{Messages: []Message{{Role: User, Content: text}}}
}

// ask asks a question.
func (w *world) ask(t *testing.T) (*Response, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return w.Complete(ctx, question("Will it rain in Delft?"))
}

// mustAsk asks a question that is answered.
func (w *world) mustAsk(t *testing.T) *Response {
	t.Helper()
	res, err := w.ask(t)
	if err != nil {
		t.Fatalf("answer: error %v, want none", err)
	}
	return res
}

// mustFail asks a question that is not answered.
func (w *world) mustFail(t *testing.T) *Error {
	t.Helper()
	res, err := w.ask(t)
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("answer = %+v (error %v), want a model.Error", res, err)
	}
	return e
}
