package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/supervisor/mcp"
	"github.com/perdure/perdure/supervisor/model"
	"github.com/perdure/perdure/worker"
)

// A Tool is something that the model may call. [Func] makes one of a Go function, and [Run] one of a
// kind of runs. A tool of your own may do whatever an agent can: it starts steps, children and
// questions to people.
type Tool interface {
	Spec() Spec
	// Start begins a call. It returns the result, or a Pending that waits for it. It executes between
	// steps, so everything that has an effect is in a step. An error ends the run; errors for the
	// model are results.
	Start(ctx *agent.Context, call Call) (Pending, error)
}

// A Spec describes a tool.
type Spec struct {
	// Name is 1 to 64 letters, digits, - and _.
	Name        string
	Description string
	// Parameters is a JSON Schema of the arguments. Empty means an object without properties.
	Parameters json.RawMessage
	// Repeatable says that a call may be repeated if a crash has lost its result. A call that is not
	// repeatable is made at most once, and the model is told if its outcome is unknown.
	Repeatable bool
	// Timeout limits a call, and SuspendTimeout a question to a person in it. The larger one of this and
	// the supervisor's default counts.
	Timeout, SuspendTimeout time.Duration
}

// A Call is a call of a tool.
type Call struct {
	// Arguments is a JSON object. The model has written it.
	Arguments json.RawMessage
	// Timeout and SuspendTimeout are those of the Spec, or the supervisor's.
	Timeout, SuspendTimeout time.Duration
	// MaxResult limits the result, in bytes. A longer one is cut.
	MaxResult int

	loop *loop
}

// A Pending is a call that has begun.
type Pending struct {
	text   string
	future agent.Awaitable
	read   func() string
	// wait is how long the run waits for a child. Zero means until it ends.
	wait  time.Duration
	child *child
	// question is set for a question that a chat message answers. withdraw closes it, unless it was
	// answered before.
	question bool
	withdraw func() (bool, error)
	// spoken returns what a person has answered elsewhere than in the chat.
	spoken func() string
}

// Done is a call that has ended, with a text for the model.
func Done(text string) Pending { return Pending{text: text} }

// Await is a call that waits for an approval, a callback or a signal. read makes a text of its result.
func Await[T any](f *agent.Future[T], read func(result T, err error) string) Pending {
	return Pending{future: f, read: func() string { return read(f.Result()) }}
}

// Child is a call that waits for a child, for a while: then the child goes on in the background, and
// its result continues the conversation. Spawn the child with Options.OnStall.
func Child(call Call, what string, f *agent.Future[json.RawMessage]) Pending {
	return call.loop.adopt(what, f).await(call.loop.limits.WorkerWait)
}

// Func returns a tool that calls a function in a step. Arguments that do not fit the type In are
// refused, and the model is told. The function's text is the result. An error is shown to the model.
func Func[In any](spec Spec, f func(ctx context.Context, in In) (string, error)) Tool {
	return &funcTool{spec, func(ctx context.Context, args json.RawMessage) (string, error) {
		var in In
		if err := decode(args, &in); err != nil {
			return "", err
		}
		return f(ctx, in)
	}}
}

type funcTool struct {
	spec Spec
	call func(ctx context.Context, args json.RawMessage) (string, error)
}

func (t *funcTool) Spec() Spec { return t.spec }

func (t *funcTool) Start(ctx *agent.Context, call Call) (Pending, error) {
	text, err := t.step(ctx, call)
	return Done(text), err
}

// step calls the function in a step.
//
// A call that is not repeatable has two steps. The first one records the epoch of the execution that
// is about to make the call. If a crash loses the result, the next execution has another epoch. It
// does not make the call, and records that the outcome is unknown.
func (t *funcTool) step(ctx *agent.Context, call Call) (string, error) {
	var begun int64
	if !t.spec.Repeatable {
		var err error
		if begun, err = agent.Step(ctx, "begin "+t.spec.Name, epoch); err != nil {
			return "", err
		}
	}
	return agent.Step(ctx, "tool "+t.spec.Name, func(ctx context.Context) (string, error) {
		if now, _ := epoch(ctx); !t.spec.Repeatable && begun != now {
			return outcomeUnknown, nil
		}
		agent.Heartbeat(ctx, "tool_executing")
		inner, cancel := context.WithTimeout(ctx, call.Timeout)
		defer cancel()
		text, err := t.guarded(inner, call.Arguments)
		switch {
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case err != nil && inner.Err() != nil:
			text = fmt.Sprintf("error: the tool did not end within %s, and was stopped. %s", call.Timeout, text)
		case err != nil:
			text = "error: " + err.Error()
		}
		return shorten(ctx, "tool-"+t.spec.Name, clean(text), call.MaxResult), nil
	})
}

// outcomeUnknown tells the model that a crash has lost the result of a call.
const outcomeUnknown = "outcome unknown: the program stopped while this call was being made, so it may or may not " +
	"have had its effect. It was not repeated. Find out before you call it again."

// epoch returns a number that differs in every execution of the run.
func epoch(ctx context.Context) (int64, error) {
	info, _ := worker.Info(ctx)
	return info.Epoch, nil
}

// guarded calls the function. A panic is an error, so that one tool does not end the conversation.
func (t *funcTool) guarded(ctx context.Context, args json.RawMessage) (text string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the tool panicked: %v", p)
			_ = worker.Emit(ctx, "x:tool_panic",
				map[string]string{"tool": t.spec.Name, "stack": clean(string(debug.Stack()))})
		}
	}()
	return t.call(ctx, args)
}

// Run returns a tool that starts a run of a kind, with the arguments as its input. Any worker of that
// kind executes it, also one of another program.
func Run(spec Spec, kind string, opts agent.Options) Tool { return &runTool{spec, kind, opts} }

type runTool struct {
	spec Spec
	kind string
	opts agent.Options
}

func (t *runTool) Spec() Spec { return t.spec }

func (t *runTool) Start(ctx *agent.Context, call Call) (Pending, error) {
	opts := t.opts
	opts.OnStall = true
	if opts.Timeout == 0 {
		opts.Timeout = max(call.Timeout, call.loop.limits.WorkerWait)
	}
	if !t.spec.Repeatable {
		opts.MaxAttempts = 1
	}
	return Child(call, t.spec.Name, agent.Spawn[json.RawMessage](ctx, t.kind, call.Arguments, opts)), nil
}

// A restricted tool exists for conversations of some tenants only.
type restricted interface{ offeredTo(perdure.TenantID) bool }

// offered returns the tools that there are for the tenant of a run. A call of another one is refused as
// that of a tool that does not exist.
func offered(ctx context.Context, tools []Tool) (out []Tool) {
	info, _ := worker.Info(ctx)
	for _, t := range tools {
		if r, ok := t.(restricted); !ok || r.offeredTo(info.Tenant) {
			out = append(out, t)
		}
	}
	return out
}

// describe returns the tools as the model gets them.
func describe(tools []Tool) (out []model.Tool) {
	for _, t := range tools {
		spec := t.Spec()
		out = append(out, model.Tool{Name: spec.Name, Description: spec.Description, Parameters: spec.Parameters})
	}
	return out
}

// call executes the tool calls of a message, and adds their results. Functions are called one after
// the other. Children and questions to people wait at the same time.
func (l *loop) call(calls []model.ToolCall) error {
	pending := make([]*Pending, len(calls))
	for i, c := range calls {
		p, err := l.start(c)
		if err != nil {
			return err
		}
		pending[i] = &p
	}
	if err := l.wait(pending); err != nil {
		return err
	}
	for i, c := range calls {
		text := orElse(cut(pending[i].text, l.limits.MaxResult), "(no output)")
		l.add(model.Message{Role: model.ToolRole, ToolCallID: c.ID, Content: text})
		line, field := perdure.LineToolCompleted, "output"
		if strings.HasPrefix(text, "error: ") {
			line, field = perdure.LineToolFailed, "error"
		}
		if err := l.tell(line, c, field, text); err != nil {
			return err
		}
	}
	return nil
}

// start begins a call. A malformed call of the model is answered like any other.
func (l *loop) start(c model.ToolCall) (Pending, error) {
	if c.Invalid != "" {
		return Done("error: this call is malformed and was not made: " + c.Invalid), nil
	}
	for _, t := range l.tools {
		if spec := t.Spec(); spec.Name == c.Name {
			if err := l.tell(perdure.LineToolStarted, c, "input", c.Arguments); err != nil {
				return Pending{}, err
			}
			return t.Start(l.ctx, Call{Arguments: json.RawMessage(c.Arguments), loop: l, MaxResult: l.limits.MaxResult,
				Timeout:        max(spec.Timeout, l.limits.ToolTimeout),
				SuspendTimeout: max(spec.SuspendTimeout, l.limits.Suspend)})
		}
	}
	return Done(fmt.Sprintf("error: there is no tool %q", c.Name)), nil
}

// maxShown limits a text in an error, in bytes.
const maxShown = 500

// maxTold limits the arguments and the result in a line about a call, in bytes. A longer one is cut, and
// the line says how long it is.
const maxTold = 64 << 10

// tell writes a line about a call to the run's log. Programs that follow the run parse the arguments, so
// that they stand there whole.
func (l *loop) tell(line perdure.LineType, c model.ToolCall, field, text string) error {
	data := map[string]any{"id": clean(c.ID), "name": c.Name, field: text}
	if len(text) > maxTold {
		data[field], data[field+"_bytes"] = cut(text, maxTold), len(text)
	}
	return agent.Emit(l.ctx, line, data)
}

// decode reads arguments. The error is for the model.
func decode(args json.RawMessage, in any) error {
	d := json.NewDecoder(strings.NewReader(string(args)))
	d.DisallowUnknownFields()
	if err := d.Decode(in); err != nil {
		return fmt.Errorf("the arguments do not fit this tool: %w", err)
	}
	return nil
}

// clean removes what the stores can't keep: NUL characters, and bytes that are no UTF-8.
func clean(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "\ufffd")
}

// cut shortens a text to a number of bytes, and says so.
func cut(text string, most int) string {
	return cutWith(text, most, fmt.Sprintf("\n… (cut: %d bytes in all)", len(text)))
}

// cutWith shortens a text that has more than a number of bytes, and adds a note.
func cutWith(text string, most int, note string) string {
	if len(text) <= most {
		return text
	}
	n := max(most-len(note), 0)
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + note
}

// shorten cuts a text that is too long, and keeps the whole as an artifact of the run. It takes the
// context of a step, whose number is in the name of the artifact.
func shorten(ctx context.Context, name, text string, most int) string {
	if len(text) <= most {
		return text
	}
	key := agent.IdempotencyKey(ctx)
	name = fmt.Sprintf("%s-%s.txt", name, key[strings.LastIndexByte(key, '#')+1:])
	_, err := worker.PutArtifact(ctx, name, "text/plain; charset=utf-8", strings.NewReader(text))
	if err != nil { // the run has too many artifacts, or the text is too large for one
		return cut(text, most)
	}
	return cutWith(text, most, fmt.Sprintf("\n… (cut: %d bytes in all; the artifact %s has the whole)",
		len(text), name))
}

func orElse(text, otherwise string) string {
	if strings.TrimSpace(text) == "" {
		return otherwise
	}
	return text
}

// errorText returns the error of a child for the model.
func errorText(err error) string {
	var failed agent.ErrTaskFailed
	switch {
	case errors.Is(err, agent.ErrTaskTimedOut{}):
		return "error: it did not end in time, and was stopped"
	case errors.Is(err, agent.ErrCancelled):
		return "error: it was cancelled"
	case errors.As(err, &failed):
		return failureText(&failed.Failure)
	}
	return "error: " + err.Error()
}

// failureText returns the failure of a child for the model. If its worker was lost, it may or may not
// have had its effect.
func failureText(f *perdure.Failure) string {
	switch f.Code {
	case perdure.CodeAttemptsExhausted, perdure.CodeHeartbeatLost, mcp.CodeOutcomeUnknown:
		return outcomeUnknown
	}
	return fmt.Sprintf("error: %s: %s", f.Code, f.Message)
}
