package start

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/body"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/langgraph/assistants"
	"github.com/perdure/perdure/internal/doors/langgraph/frames"
	"github.com/perdure/perdure/internal/doors/langgraph/runs"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
	"github.com/perdure/perdure/internal/doors/langgraph/threads"
)

// runCreate is the body of a call that starts a run.
type runCreate struct {
	AssistantID  string          `json:"assistant_id"`
	Input        json.RawMessage `json:"input"`
	Command      *command        `json:"command"`
	Metadata     json.RawMessage `json:"metadata"`
	StreamMode   json.RawMessage `json:"stream_mode"`
	Multitask    string          `json:"multitask_strategy"`
	IfNotExists  string          `json:"if_not_exists"`
	AfterSeconds float64         `json:"after_seconds"`
	StrictResume bool            `json:"strict_resume"`
	OnDisconnect string          `json:"on_disconnect"`
	Webhook      string          `json:"webhook"`

	ignored []string
	// foreground is set if disconnects count, and cancels if that of this call does.
	foreground, cancels bool
}

// notHonoured are fields that the door knows and can't honour.
var notHonoured = []string{"checkpoint", "checkpoint_during", "checkpoint_id", "config", "context", "durability",
	"feedback_keys", "interrupt_after", "interrupt_before", "langsmith_tracer", "on_completion", "on_disconnect",
	"stream_resumable", "stream_subgraphs"}

// read fills in what the fields alone don't say.
func (in *runCreate) read(raw []byte) error {
	var fields map[string]json.RawMessage
	if err := body.Decode(raw, &fields); err != nil {
		return err
	}
	for _, name := range notHonoured {
		if name == "on_disconnect" && in.cancels {
			continue
		}
		switch string(fields[name]) {
		case "", "null", "[]", "{}", `""`, "false", `"continue"`:
		case "true":
			if name != "stream_resumable" { // every stream is
				in.ignored = append(in.ignored, name)
			}
		default:
			in.ignored = append(in.ignored, name)
		}
	}
	if string(in.Input) == "null" {
		in.Input = nil
	}
	return nil
}

// modes are the modes of the stream.
func (in *runCreate) modes() (map[string]bool, error) {
	var list []string
	var word string
	switch {
	case len(in.StreamMode) == 0 || string(in.StreamMode) == "null":
	case json.Unmarshal(in.StreamMode, &word) == nil:
		list = []string{word}
	case json.Unmarshal(in.StreamMode, &list) != nil:
		return nil, perdure.Invalid("stream_mode", "is a word or a list of words")
	}
	return frames.ModesOf(list), nil
}

// strategies are the multitask strategies as ours.
var strategies = map[string]perdure.MultitaskStrategy{"": perdure.MultitaskReject, "reject": perdure.MultitaskReject,
	"interrupt": perdure.MultitaskInterrupt, "rollback": perdure.MultitaskInterrupt,
	"enqueue": perdure.MultitaskEnqueue}

// submission makes ours of the body.
func (in *runCreate) submission(kind string, thread perdure.ThreadID) (s perdure.Submission, err error) {
	s = perdure.Submission{Kind: kind, ThreadID: thread, Input: in.Input, Metadata: make(map[string]string)}
	strategy, ok := strategies[in.Multitask]
	if !ok {
		return s, perdure.Invalid("multitask_strategy", "is none of reject, interrupt, rollback, enqueue")
	}
	modes, err := in.modes()
	if err != nil {
		return s, err
	}
	if list := frames.ListOf(modes); thread != "" && list != "values" {
		s.Metadata[frames.ModesKey] = list
	}
	if s.Foreground = in.foreground; in.cancels {
		s.Metadata[frames.OnDisconnectKey] = "cancel"
	}
	if thread != "" {
		s.MultitaskStrategy = strategy
		s.Metadata[frames.StrategyKey] = shape.OrElse(in.Multitask, "reject")
	}
	if in.AfterSeconds < 0 || in.AfterSeconds > 365*24*3600 {
		return s, perdure.Invalid("after_seconds", "lies between 0 and a year")
	}
	if in.Webhook != "" {
		s.Webhook, s.WebhookFormat = in.Webhook, perdure.FormatLangGraph
	}
	s.Delay = perdure.Duration(in.AfterSeconds * float64(time.Second))
	if len(in.Metadata) > 0 && string(in.Metadata) != "null" {
		var fields map[string]any
		if json.Unmarshal(in.Metadata, &fields) != nil {
			return s, perdure.Invalid("metadata", "is an object")
		}
		s.Metadata[frames.WholeMetadata] = string(in.Metadata)
		frames.AddScalars(s.Metadata, fields)
	}
	if len(in.ignored) > 0 {
		s.Metadata[frame.Ignored] = frame.IgnoredFields(in.ignored)
	}
	var input struct {
		Messages json.RawMessage `json:"messages"`
	}
	if thread != "" && json.Unmarshal(in.Input, &input) == nil && len(input.Messages) > 0 {
		s.Messages, err = frames.TakeMessages("input.messages", input.Messages)
	}
	return s, err
}

// A Starter starts runs.
type Starter struct {
	Leaving *runs.Disconnects
}

// begin starts a run, or resumes one.
func (d *Starter) begin(c *doors.Call, in *runCreate) (*runs.Part, error) {
	raw, err := c.Decode(in)
	if err != nil {
		return nil, err
	}
	if err := d.read(c, in, raw); err != nil {
		return nil, err
	}
	return in.begin(c, c.Options())
}

// read fills in what the fields alone don't say.
func (d *Starter) read(c *doors.Call, in *runCreate, raw []byte) (err error) {
	in.foreground = d.Leaving.Honoured()
	if in.cancels, err = d.Leaving.Asks(c, in.OnDisconnect); err != nil {
		return err
	}
	return in.read(raw)
}

// begin starts the run of a body, or resumes one.
func (in *runCreate) begin(c *doors.Call, opts []client.CallOptions) (*runs.Part, error) {
	sub, th, err := in.prepare(c)
	if err != nil {
		return nil, err
	}
	if in.resumes(c) {
		return resume(c, in, th)
	}
	return in.start(c, sub, th, opts)
}

// resumes tells whether a body answers what the active run of its thread asks.
func (in *runCreate) resumes(c *doors.Call) bool {
	return c.Param("thread") != "" && in.Command != nil && len(in.Command.Resume) > 0 &&
		string(in.Command.Resume) != "null"
}

// prepare makes the submission of a body, and finds its thread. It refuses what it can before anything is changed. The
// thread is nil if there is none, or none yet.
func (in *runCreate) prepare(c *doors.Call) (s perdure.Submission, th *api.Thread, err error) {
	kind, err := c.KindOf(in.AssistantID, func() (string, error) {
		k, err := assistants.Find(c, in.AssistantID)
		if err != nil {
			return "", err
		}
		return k.Kind, nil
	})
	if err != nil {
		return s, nil, err
	}
	thread := c.Param("thread")
	if thread != "" {
		th, err = threads.Find(c, thread)
		creates := doors.Missing(err) && in.IfNotExists == "create"
		switch {
		case creates && in.resumes(c):
			return s, nil, shape.Unprocessable(CodeUnknownInterrupt, "command.resume", noRun)
		case err != nil && !creates:
			return s, nil, err
		case in.resumes(c):
			return s, th, nil
		}
	}
	if s, err = in.submission(kind, perdure.ThreadID(thread)); err != nil {
		return s, nil, err
	}
	checked := s
	return s, th, checked.Validate()
}

// start starts the run of a submission, on a thread that is made if the caller asks for that.
func (in *runCreate) start(
	c *doors.Call, sub perdure.Submission, th *api.Thread, opts []client.CallOptions,
) (p *runs.Part, err error) {
	thread := c.Param("thread")
	if thread != "" {
		if th == nil {
			if th, err = c.API.CreateNamedThread(c.Context(), shape.Prefix+thread, nil); err != nil {
				return nil, err
			}
		}
		sub.ThreadID = th.ThreadID
	}
	r, err := c.API.Start(c.Context(), sub, opts...)
	if err != nil {
		return nil, err
	}
	if r, err = c.API.Get(c.Context(), r.RunID); err != nil {
		return nil, err
	}
	return &runs.Part{Run: r, ID: string(r.RunID), Thread: thread}, nil
}

// Create starts a run and does not wait for it.
func (d *Starter) Create(c *doors.Call) error {
	var in runCreate
	p, err := d.begin(c, &in)
	if err != nil {
		return err
	}
	p.Locate(c, "")
	return p.Show(c)
}

// Wait starts a run and answers with the values at its end.
func (d *Starter) Wait(c *doors.Call) error {
	var in runCreate
	p, err := d.begin(c, &in)
	if err != nil {
		return err
	}
	return d.Leaving.During(c, p, in.cancels, func() error { return p.Wait(c, true) })
}

// Stream starts a run and answers with its frames.
func (d *Starter) Stream(c *doors.Call) error {
	var in runCreate
	p, err := d.begin(c, &in)
	if err != nil {
		return err
	}
	modes, err := in.modes()
	if err != nil {
		return err
	}
	return d.Leaving.During(c, p, in.cancels, func() error { return p.Stream(c, modes, true) })
}

// Batch starts several runs, or none if one of the bodies is refused.
func (d *Starter) Batch(c *doors.Call) error {
	var list []json.RawMessage
	if _, err := c.Decode(&list); err != nil {
		return err
	}
	if len(list) > shape.MaxBatch {
		return shape.Unprocessable(perdure.CodeTooLarge, "", "a batch has at most 100 runs")
	}
	ins := make([]runCreate, len(list))
	for i := range list {
		if err := body.Decode(list[i], &ins[i]); err != nil {
			return err
		}
		if err := d.read(c, &ins[i], list[i]); err != nil {
			return err
		}
	}
	subs := make([]perdure.Submission, len(ins))
	for i := range ins {
		var err error
		if subs[i], _, err = ins[i].prepare(c); err != nil {
			return err
		}
	}
	out := make([]shape.Object, len(ins))
	for i := range ins {
		p, err := ins[i].start(c, subs[i], nil, c.OptionsOf(i))
		if err != nil {
			return err
		}
		if out[i], err = p.Shown(c); err != nil {
			return err
		}
	}
	return c.JSON(http.StatusOK, out)
}
