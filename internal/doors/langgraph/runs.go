package langgraph

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/doors"
)

// prefix begins the names that the door gives.
const prefix = "langgraph:"

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
	if err := doors.DecodeJSON(raw, &fields); err != nil {
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
	return modesOf(list), nil
}

// strategies are the multitask strategies as ours.
var strategies = map[string]perdure.MultitaskStrategy{"": perdure.MultitaskReject, "reject": perdure.MultitaskReject,
	"interrupt": perdure.MultitaskInterrupt, "rollback": perdure.MultitaskInterrupt,
	"enqueue": perdure.MultitaskEnqueue}

// Keys in the metadata of a run.
const (
	wholeMetadata = "langgraph.metadata"
	strategyKey   = "langgraph.multitask_strategy"
	modesKey      = "langgraph.stream_mode" // of the call that started it, if they are not just values
	maxScalars    = 10
)

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
	if list := listOf(modes); thread != "" && list != "values" {
		s.Metadata[modesKey] = list
	}
	if s.Foreground = in.foreground; in.cancels {
		s.Metadata[onDisconnectKey] = "cancel"
	}
	if thread != "" {
		s.MultitaskStrategy = strategy
		s.Metadata[strategyKey] = orElse(in.Multitask, "reject")
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
		s.Metadata[wholeMetadata] = string(in.Metadata)
		addScalars(s.Metadata, fields)
	}
	if len(in.ignored) > 0 {
		s.Metadata[doors.Ignored] = doors.IgnoredFields(in.ignored)
	}
	var input struct {
		Messages json.RawMessage `json:"messages"`
	}
	if thread != "" && json.Unmarshal(in.Input, &input) == nil && len(input.Messages) > 0 {
		s.Messages, err = takeMessages("input.messages", input.Messages)
	}
	return s, err
}

// addScalars adds up to ten scalars of the caller's metadata as keys to search by.
func addScalars(to map[string]string, fields map[string]any) {
	n := 0
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		_, taken := to[name]
		if n == maxScalars || taken || name == "" || strings.HasPrefix(name, "door.") ||
			strings.HasPrefix(name, "langgraph.") {
			continue
		}
		switch v := fields[name].(type) {
		case string:
			to[name] = v
		case bool, float64:
			b, _ := json.Marshal(v)
			to[name] = string(b)
		default:
			continue
		}
		n++
	}
}

// A part is a run, or the part of a run that began with an answer to it.
type part struct {
	*api.Run
	id     string // as the caller knows it
	thread string // as the caller knows it; empty for a run without a thread
	from   int64
}

// begin starts a run, or resumes one.
func (d *door) begin(c *doors.Call, in *runCreate) (*part, error) {
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
func (d *door) read(c *doors.Call, in *runCreate, raw []byte) (err error) {
	in.foreground = d.after > 0
	if in.cancels, err = d.asks(c, in.OnDisconnect); err != nil {
		return err
	}
	return in.read(raw)
}

func (in *runCreate) begin(c *doors.Call, opts []client.CallOptions) (*part, error) {
	k, err := findKind(c, in.AssistantID)
	if err != nil {
		return nil, err
	}
	thread := c.Param("thread")
	var id perdure.ThreadID
	if thread != "" {
		th, err := findThread(c, thread)
		if missing(err) && in.IfNotExists == "create" {
			th, err = c.API.CreateNamedThread(c.Context(), prefix+thread, nil)
		}
		if err != nil {
			return nil, err
		}
		id = th.ThreadID
		if in.Command != nil && len(in.Command.Resume) > 0 && string(in.Command.Resume) != "null" {
			return resume(c, in, th)
		}
	}
	sub, err := in.submission(k.Kind, id)
	if err != nil {
		return nil, err
	}
	r, err := c.API.Start(c.Context(), sub, opts...)
	if err != nil {
		return nil, err
	}
	if r, err = c.API.Get(c.Context(), r.RunID); err != nil {
		return nil, err
	}
	return &part{Run: r, id: string(r.RunID), thread: thread}, nil
}

func missing(err error) bool { return err != nil && doors.ProblemOf(err).Code == perdure.CodeNotFound }

// findRun finds the run of a path.
func findRun(c *doors.Call) (*part, error) {
	return runOf(c, c.Param("run"), c.Param("thread"))
}

// runOf finds a run, or a part of one, by its id. A run of another thread is not found.
func runOf(c *doors.Call, id, thread string) (*part, error) {
	r, err := c.API.Get(c.Context(), perdure.RunID(id))
	if missing(err) || err != nil && doors.ProblemOf(err).Code == perdure.CodeInvalid {
		if r, err = c.API.RunByName(c.Context(), prefix+id); missing(err) {
			err = perdure.Errorf(perdure.CodeNotFound, "no such run")
		}
	}
	if err != nil {
		return nil, err
	}
	p := &part{Run: r, id: id, thread: thread, from: r.FromSeq}
	if thread == "" {
		return p, nil
	}
	th, err := findThread(c, thread)
	if err != nil {
		return nil, err
	}
	if th.ThreadID != r.ThreadID {
		return nil, perdure.Errorf(perdure.CodeNotFound, "no such run")
	}
	return p, nil
}

// translator makes the translation of the run's log.
func (p *part) translator(c *doors.Call, modes map[string]bool) *translator {
	t := &translator{run: p.id, thread: p.thread, kind: p.Kind, from: p.from, head: p.LastSeq, modes: modes}
	t.values = func(upTo int64) (object, error) {
		if p.ThreadID == "" {
			return object{}, nil
		}
		list, err := readMessages(c, p.ThreadID, upTo)
		return object{"messages": showMessages(p.thread, list)}, err
	}
	t.message = func(seq int64) (object, error) {
		page, err := c.API.Messages(c.Context(), p.ThreadID, seq-1)
		if err != nil || len(page.Messages) == 0 || page.Messages[0].Seq != seq || page.Messages[0].Notice() {
			return nil, err
		}
		return showMessage(p.thread, &page.Messages[0]), nil
	}
	t.question = func(id perdure.ApprovalID) any {
		a, err := c.API.Approval(c.Context(), id)
		if err != nil {
			return nil
		}
		return showQuestion(a)
	}
	return t
}

// showQuestion is what a person sees of an approval.
func showQuestion(a *perdure.Approval) object {
	return object{"title": a.Title, "action": a.Action, "form": a.Form, "approvers": a.Approvers}
}

// path is the path of the run below the door.
func (p *part) path() string {
	if p.thread == "" {
		return "/runs/" + p.id
	}
	return "/threads/" + escape(p.thread) + "/runs/" + p.id
}

// locate names the run in the headers. Clients attach again at Location.
func (p *part) locate(c *doors.Call, how string) {
	c.AnswerHeader().Set("Content-Location", p.path())
	if how != "" {
		c.AnswerHeader().Set("Location", p.path()+how)
	}
}

// stream answers with the frames of a run. The answer of a call that has started the run begins at once:
// if it were refused, the caller would start another run.
func (p *part) stream(c *doors.Call, modes map[string]bool, started bool) error {
	from, err := doors.ParseCursor(c.Header.Get("Last-Event-ID"))
	if err != nil {
		return err
	}
	p.locate(c, "/stream"+modeQuery(modes))
	t := p.translator(c, modes)
	return c.Streaming(func(ctx context.Context, s *doors.Stream) error {
		if started {
			if err := s.Begin(); err != nil {
				return err
			}
		}
		return s.Follow(ctx, p.RunID, t.head, from, t.line)
	})
}

// wait answers with the values at the end of a run. Started is as for stream.
func (p *part) wait(c *doors.Call, started bool) error {
	p.locate(c, "/join")
	t := p.translator(c, nil)
	return c.Waiting(func(ctx context.Context, begin func() error) (any, error) {
		begun := false
		if started {
			if err := begin(); err != nil {
				return nil, err
			}
			begun = true
		}
		for e, err := range c.Lines(ctx, p.RunID, 0) {
			if err == nil && !begun {
				begun, err = true, begin()
			}
			if err != nil {
				return nil, err
			}
			if t.follow(e, dataOf(e)); t.state != "" || t.interrupted() && e.Seq >= max(t.head, t.from) {
				break
			}
		}
		return t.answer()
	})
}

func dataOf(e *api.Event) *lineData {
	var d lineData
	_ = json.Unmarshal(e.Data, &d)
	return &d
}

func (d *door) createRun(c *doors.Call) error {
	var in runCreate
	p, err := d.begin(c, &in)
	if err != nil {
		return err
	}
	p.locate(c, "")
	return p.show(c)
}

func (d *door) waitForNewRun(c *doors.Call) error {
	var in runCreate
	p, err := d.begin(c, &in)
	if err != nil {
		return err
	}
	return d.during(c, p, in.cancels, func() error { return p.wait(c, true) })
}

func (d *door) streamNewRun(c *doors.Call) error {
	var in runCreate
	p, err := d.begin(c, &in)
	if err != nil {
		return err
	}
	modes, err := in.modes()
	if err != nil {
		return err
	}
	return d.during(c, p, in.cancels, func() error { return p.stream(c, modes, true) })
}

func (d *door) joinRun(c *doors.Call) error {
	p, err := findRun(c)
	if err != nil {
		return err
	}
	return d.during(c, p, d.joining(c, p), func() error { return p.wait(c, false) })
}

func (d *door) streamRun(c *doors.Call) error {
	p, err := findRun(c)
	if err != nil {
		return err
	}
	return d.during(c, p, d.joining(c, p), func() error {
		return p.stream(c, modesOf(c.QueryList("stream_mode")), false)
	})
}

func getRun(c *doors.Call) error {
	p, err := findRun(c)
	if err != nil {
		return err
	}
	return p.show(c)
}

func deleteRun(c *doors.Call) error {
	p, err := findRun(c)
	if err != nil {
		return err
	}
	if err := c.API.Delete(c.Context(), p.RunID); err != nil {
		return err
	}
	return c.Status(http.StatusNoContent)
}

// maxBatch bounds the runs of one call.
const maxBatch = 100

func (d *door) createBatch(c *doors.Call) error {
	var list []json.RawMessage
	if _, err := c.Decode(&list); err != nil {
		return err
	}
	if len(list) > maxBatch {
		return unprocessable(perdure.CodeTooLarge, "", "a batch has at most 100 runs")
	}
	ins := make([]runCreate, len(list))
	for i := range list {
		if err := doors.DecodeJSON(list[i], &ins[i]); err != nil {
			return err
		}
		if err := d.read(c, &ins[i], list[i]); err != nil {
			return err
		}
	}
	out := make([]object, len(ins))
	for i := range ins {
		p, err := ins[i].begin(c, c.OptionsOf(i))
		if err != nil {
			return err
		}
		if out[i], err = p.shown(c); err != nil {
			return err
		}
	}
	return c.JSON(http.StatusOK, out)
}
