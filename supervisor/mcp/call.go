package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// Kind is the kind of runs that call a tool.
const Kind = "mcp.call"

// Codes of calls that fail.
const (
	// CodeOutcomeUnknown means that the call may or may not have had its effect. It was not repeated.
	CodeOutcomeUnknown              = perdure.CodeOutcomeUnknown
	CodeUnavailable    perdure.Code = "mcp_unavailable"  // the server can't be reached; nothing was called
	CodeNoTool         perdure.Code = "mcp_no_such_tool" // there is no such server or tool, or it is not allowed
	CodeArguments      perdure.Code = "mcp_arguments"    // the arguments do not fit the tool's schema
	CodeNotAllowed     perdure.Code = "mcp_not_allowed"  // a person has not allowed the call
	CodeTimeout        perdure.Code = "mcp_timeout"      // the server did not answer in time
	CodeRefused        perdure.Code = "mcp_refused"      // the server has answered with an error of the protocol
)

// A Call is the input of a run.
type Call struct {
	Server    string          `json:"server"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
}

// A Client knows MCP servers.
type Client struct {
	opt     Options
	servers []*server
}

// New returns a client. It starts nothing.
func New(opt Options) (*Client, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	c := &Client{opt: opt.withDefaults()}
	for _, s := range c.opt.Servers {
		c.servers = append(c.servers, newServer(s, c.opt.Logger))
	}
	return c, nil
}

// SetLogger changes the logger. It is called before anything else.
func (c *Client) SetLogger(log *slog.Logger) {
	for _, s := range c.servers {
		s.log = log.With("mcp_server", s.Name)
	}
}

// Servers returns the names of the servers.
func (c *Client) Servers() (names []string) {
	for _, s := range c.servers {
		names = append(names, s.Name)
	}
	return names
}

// Close ends all connections and programs. Calls that are under way fail.
func (c *Client) Close() {
	var all sync.WaitGroup
	for _, s := range c.servers {
		all.Go(s.shut)
	}
	all.Wait()
}

// Register registers the kind with a worker.
func (c *Client) Register(w *worker.Worker) {
	worker.Agent(w, Kind, c.call, worker.Kind{Description: "calls a tool of an MCP server"})
}

// find returns a server.
func (c *Client) find(name string) *server {
	i := slices.IndexFunc(c.servers, func(s *server) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return c.servers[i]
}

// A plan is what a call decides by. It is recorded, as the server may change its mind.
type plan struct {
	Repeatable bool          `json:"repeatable,omitempty"`
	ReadOnly   bool          `json:"read_only,omitempty"`
	Ask        bool          `json:"ask,omitempty"`
	Suspend    time.Duration `json:"suspend,omitempty"`
}

// call is a run. Its result is the text for the model.
func (c *Client) call(ctx *agent.Context, in Call) (string, error) {
	s := c.find(in.Server)
	if s == nil {
		return "", fail(CodeNoTool, "there is no MCP server %q", cut(clean(in.Server), maxName))
	}
	if len(in.Arguments) == 0 {
		in.Arguments = json.RawMessage("{}")
	}
	p, err := agent.Step(ctx, "check", func(ctx context.Context) (plan, error) {
		t, err := s.check(ctx, in)
		if err != nil {
			return plan{}, err
		}
		return plan{t.repeatable, t.readOnly, s.asked(in.Tool), s.SuspendTimeout}, nil
	})
	if err != nil {
		return "", err
	}
	var by perdure.ApprovalID
	if p.Ask {
		if by, err = ask(ctx, in, s.Approvers, p); err != nil {
			return "", err
		}
	}
	var begun int64
	if !p.Repeatable { // see supervisor.Func: an execution with another epoch knows that this one was lost
		if begun, err = agent.Step(ctx, "begin", epoch); err != nil {
			return "", err
		}
	}
	return agent.Step(ctx, "call", func(ctx context.Context) (string, error) {
		if now, _ := epoch(ctx); !p.Repeatable && now != begun {
			return "", fail(CodeOutcomeUnknown, "the program stopped during the call, so it may or may not have had "+
				"its effect")
		}
		if err := s.mayCall(ctx, in, p, by); err != nil {
			return "", err
		}
		return c.execute(ctx, s, in, p.Repeatable)
	})
}

// An action is what a person is asked about. read_only is what the server says of its tool.
type action struct {
	Call
	ReadOnly bool `json:"read_only,omitempty"`
}

// mayCall checks at the place of execution that the platform has approved the call, if it has to. The
// journal, with the plan and the verdict in it, proves nothing: a worker of the tenant may have written
// it, and a retry has that of another run.
func (s *server) mayCall(ctx context.Context, in Call, p plan, by perdure.ApprovalID) error {
	if s.Approvers != perdure.ApproversPlatform || !s.asked(in.Tool) {
		return nil
	}
	asked, err := perdure.Encode(action{in, p.ReadOnly})
	if err != nil {
		return err
	}
	err = worker.CheckApproval(ctx, by, asked)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fail(CodeNotAllowed, "it was not called: %v. A retry from the start asks again", err)
	}
	return nil
}

// ask asks a person whether the call may be made.
func ask(ctx *agent.Context, in Call, approvers perdure.ApprovalApprovers, p plan) (
	by perdure.ApprovalID, err error) {
	limit := p.Suspend
	verdict, err := agent.Approve(ctx, agent.Approval{Name: Kind, Action: action{in, p.ReadOnly}, Timeout: limit,
		Approvers: approvers,
		Title:     perdure.Excerpt("call "+in.Tool+" of "+in.Server, 100)})
	switch {
	case errors.Is(err, agent.ErrCancelled):
		return "", err
	case err != nil:
		return "", fail(CodeNotAllowed, "a person could not be asked: %v", err)
	case verdict.TimedOut:
		return "", fail(CodeNotAllowed, "nobody has allowed this within %s, so it was not called", limit)
	case !verdict.Approved:
		return "", fail(CodeNotAllowed, "a person has forbidden this, so it was not called. %s",
			clean(verdict.Comment))
	}
	return verdict.ApprovalID, nil
}

// epoch returns a number that differs in every execution of the run.
func epoch(ctx context.Context) (int64, error) {
	info, _ := worker.Info(ctx)
	return info.Epoch, nil
}

// fail returns an error that ends the run.
func fail(code perdure.Code, format string, args ...any) error {
	return perdure.Permanent(worker.Fail(code, format, args...))
}

// check returns the tool of a call, if it may be called with these arguments.
func (s *server) check(ctx context.Context, in Call) (*tool, error) {
	agent.Heartbeat(ctx, "connecting to "+s.Name)
	limited, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	tools, err := s.list(limited)
	switch i := slices.IndexFunc(tools, func(t *tool) bool { return t.name == in.Tool }); {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fail(CodeUnavailable, "%s", cut(clean(err.Error()), maxError))
	case i < 0:
		return nil, fail(CodeNoTool, "the server %s has no tool %q", s.Name, cut(clean(in.Tool), maxName))
	default:
		return tools[i], tools[i].fits(in.Arguments)
	}
}

// fits checks arguments.
func (t *tool) fits(args json.RawMessage) error {
	var object map[string]json.RawMessage
	switch {
	case len(args) > maxArguments:
		return fail(CodeArguments, "the arguments have %d bytes, and may have %d", len(args), maxArguments)
	case json.Unmarshal(args, &object) != nil || object == nil:
		return fail(CodeArguments, "the arguments are no JSON object")
	}
	if err := t.in.check(args); err != nil {
		return fail(CodeArguments, "the arguments do not fit this tool: %s", cut(clean(err.Error()), maxError))
	}
	return nil
}

// execute makes the call, within a step. A call that is safe to repeat is made once more if the
// connection breaks.
func (c *Client) execute(ctx context.Context, s *server, in Call, repeatable bool) (string, error) {
	limited, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	for try := 1; ; try++ {
		t, err := s.check(ctx, in) // the list may have changed since
		if err != nil {
			return "", err
		}
		conn, err := s.connect(limited)
		switch {
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case err != nil:
			return "", fail(CodeUnavailable, "%s", cut(clean(err.Error()), maxError))
		}
		agent.Heartbeat(ctx, "tool_executing")
		res, err := conn.call(limited, ctx, in)
		var refused *jsonrpc.Error
		switch {
		case err == nil:
			return c.text(ctx, t, res), nil
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case errors.As(err, &refused):
			return "", fail(CodeRefused, "%s", cut(clean(refused.Message), maxError))
		case limited.Err() != nil:
			return "", s.timedOut(ctx, conn, repeatable)
		}
		conn.close()
		s.drop(conn, err)
		if missing := errors.Is(err, sdk.ErrSessionMissing); try == 1 && (repeatable || missing) {
			continue
		}
		code, note := CodeUnavailable, ""
		if !repeatable {
			code, note = CodeOutcomeUnknown, ", so it may or may not have had its effect. It was not repeated"
		}
		return "", fail(code, "the server ended the connection during the call%s: %s", note,
			cut(clean(conn.explain(err).Error()), maxError))
	}
}

// timedOut ends a connection that gives no sign of life after a timeout.
func (s *server) timedOut(ctx context.Context, conn *connection, repeatable bool) error {
	note := ""
	if !repeatable {
		note = " It may or may not have had its effect."
	}
	if !conn.probe(ctx) {
		s.drop(conn, errors.New("it gives no sign of life"))
		note += " The server gave no sign of life, and was stopped."
	}
	return fail(CodeTimeout, "the server did not answer within %s, and was told to stop.%s", s.Timeout, note)
}

// call calls the tool. Progress that the server reports is that of the run.
func (c *connection) call(limited, run context.Context, in Call) (*sdk.CallToolResult, error) {
	c.refill()
	defer c.refill()
	params := &sdk.CallToolParams{Name: in.Tool, Arguments: in.Arguments}
	token := running.add(run)
	defer running.remove(token)
	params.SetProgressToken(token)
	return inTime(limited, func() (*sdk.CallToolResult, error) { return c.CallTool(limited, params) })
}
