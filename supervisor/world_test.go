package supervisor_test

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/supervisor"
	"github.com/perdure/perdure/supervisor/mcp"
	"github.com/perdure/perdure/supervisor/model"
	"github.com/perdure/perdure/worker"
)

// A world is a supervisor with a scripted model.
type world struct {
	rules   []mockmodel.Rule
	context int
	opt     supervisor.Options
	model   model.Options
	// tools makes the tools of a trial, for which the session notes effects.
	tools func(s *agenttest.Trial) []supervisor.Tool
	// workerTools are those of workers. Without it they have tools.
	workerTools func(s *agenttest.Trial) []supervisor.Tool
	register    func(s *agenttest.Trial, w *worker.Worker)
	// mcp makes the MCP servers of a trial.
	mcp func(s *agenttest.Trial) *mcp.Client
	// handler is the model of the last trial, and sup its supervisor.
	handler *mockmodel.Handler
	sup     *supervisor.Supervisor
}

// scenario returns one in which a user asks a question.
func (w *world) scenario(question string) agenttest.Scenario {
	return agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			sup, err := supervisor.New(w.options(s))
			if err != nil {
				panic(err)
			}
			w.sup = sup
			return func(to *worker.Worker) {
				sup.Register(to)
				if w.register != nil {
					w.register(s, to)
				}
			}
		},
		Start: perdure.Submission{Kind: supervisor.Kind, ThreadID: "a new one",
			Messages: []perdure.Message{{Role: perdure.RoleUser, Content: client.JSON(question)}}},
	}
}

// options starts the model of a trial.
func (w *world) options(s *agenttest.Trial) supervisor.Options {
	h, err := mockmodel.New(mockmodel.Script{Rules: w.rules, Context: w.context})
	if err != nil {
		panic(err)
	}
	w.handler = h
	m := w.model
	m.Models = []model.Endpoint{{BaseURL: "http://model/v1", Model: "m", Key: "sk-secret-key"}}
	m.Transport = serve(s.Context(), h)
	opt := w.opt
	if opt.Model, err = model.New(m); err != nil {
		panic(err)
	}
	if w.tools != nil {
		opt.Tools = w.tools(s)
		opt.WorkerTools = opt.Tools
	}
	if w.mcp != nil {
		opt.MCP = w.mcp(s)
	}
	if w.workerTools != nil {
		opt.WorkerTools = w.workerTools(s)
	}
	return opt
}

// serve serves HTTP on pipes, as sockets stop the clock of a test. The server ends with the context.
func serve(ctx context.Context, h http.Handler) http.RoundTripper {
	pipes := &pipeListener{make(chan net.Conn), make(chan struct{})}
	srv := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	go srv.Serve(pipes)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		here, there := net.Pipe()
		select {
		case pipes.conns <- there:
			return here, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-pipes.closed:
			return nil, net.ErrClosed
		}
	}}
	context.AfterFunc(ctx, func() {
		srv.Close()
		transport.CloseIdleConnections()
	})
	return transport
}

type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { close(l.closed); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// says is a rule for a message of a role that has a text.
func says(role, last, text string) mockmodel.Rule {
	return mockmodel.Rule{Match: mockmodel.Match{Role: role, Last: last}, Answer: mockmodel.Answer{Text: text}}
}

// calls is a rule that calls tools after a user's message.
func calls(last string, calls ...mockmodel.Call) mockmodel.Rule {
	return mockmodel.Rule{Match: mockmodel.Match{Role: "user", Last: last}, Answer: mockmodel.Answer{ToolCalls: calls}}
}

func call(name string, args any) mockmodel.Call { return mockmodel.Call{Name: name, Arguments: args} }

type args = map[string]any

// texts returns the messages of the thread, as "role: text".
func texts(end *agenttest.End) (out []string) {
	for _, m := range end.Messages {
		var text string
		if json.Unmarshal(m.Content, &text) != nil {
			text = string(m.Content)
		}
		out = append(out, string(m.Role)+": "+text)
	}
	return out
}

// checkThread compares the messages of the thread with texts that they have to contain.
func checkThread(t *testing.T, end *agenttest.End, want ...string) {
	t.Helper()
	got := texts(end)
	for i, text := range want {
		if len(got) != len(want) || !strings.Contains(got[i], text) {
			t.Fatalf("messages of the thread = %q, want %q (%s)", got, want, end.Crash)
		}
	}
}

// result returns the result of the run.
func result(t *testing.T, end *agenttest.End) supervisor.Result {
	t.Helper()
	out, err := client.Result[supervisor.Result](&end.Run)
	if err != nil {
		t.Fatalf("run is %s (%v), want a result: %v", end.Run.State, end.Run.Error, err)
	}
	return out
}

// sent returns the bodies of the requests to the model that contain a text.
func (w *world) sent(text string) (n int) {
	for _, r := range w.handler.Requests() {
		if strings.Contains(string(r.Body), text) {
			n++
		}
	}
	return n
}

// counter is a tool that notes each call.
func counter(s *agenttest.Trial, repeatable bool) supervisor.Tool {
	return supervisor.Func(supervisor.Spec{Name: "count", Description: "counts", Repeatable: repeatable,
		Parameters: json.RawMessage(`{"type":"object","properties":{"to":{"type":"integer"}}}`)},
		func(ctx context.Context, in struct{ To int }) (string, error) {
			s.Note(ctx, "counted")
			return strings.Repeat("1 ", in.To), nil
		})
}

// sleeper is a tool that takes a while.
func sleeper(d time.Duration) supervisor.Tool {
	return supervisor.Func(supervisor.Spec{Name: "sleep", Repeatable: true, Timeout: 2 * d},
		func(ctx context.Context, _ struct{}) (string, error) {
			select {
			case <-time.After(d):
				return "slept", nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		})
}
