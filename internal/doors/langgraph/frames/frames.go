package frames

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
)

// A Translator turns the lines of one run's log into frames. A frame also has data that
// never changes: messages of the thread, by their numbers, and the action of an approval.
type Translator struct {
	Run, Thread, Kind string // ids as the caller knows them
	From              int64  // the first line of the part of the run
	Head              int64  // the last line that was there when the caller came
	Modes             map[string]bool
	Through           bool // the frames go on after an interrupt

	// Values gives the values of the thread after its message of a number.
	Values func(upTo int64) (shape.Object, error)
	// Message gives a message of the thread.
	Message func(seq int64) (shape.Object, error)
	// Question gives what a person is asked by an approval.
	Question func(id perdure.ApprovalID) any

	began     bool
	upTo      int64 // number of the last message that the log tells of
	suspended bool
	open      []Interrupt
	more      int // questions that the log only counts
	text      strings.Builder
	thoughts  strings.Builder // what is told on the channel of reasoning
	textID    string
	told      bool // the metadata of the text was sent

	State  perdure.State // of the end
	result json.RawMessage
	error  *perdure.Failure
}

// An Interrupt is something that a person is asked.
type Interrupt struct {
	ID       string // of the approval, or of the wait
	Wait     string
	Run      perdure.RunID // below; empty for the run itself
	Kind     perdure.WaitType
	Name     string
	Approval perdure.ApprovalID
	Title    string
}

// AsksPeople are the types of waits that a person ends.
var AsksPeople = []perdure.WaitType{perdure.WaitApproval, perdure.WaitSignal, perdure.WaitCallback, perdure.WaitMessage}

// LineData are the fields of lines that frames are made from.
type LineData struct {
	RunID      perdure.RunID      `json:"run_id"`
	WaitID     string             `json:"wait_id"`
	Type       perdure.WaitType   `json:"type"`
	Name       string             `json:"name"`
	Title      string             `json:"title"`
	ApprovalID perdure.ApprovalID `json:"approval_id"`
	Count      int                `json:"count"`
	MessageSeq int64              `json:"message_seq"`
	Role       perdure.Role       `json:"role"`
	Result     json.RawMessage    `json:"result"`
	Error      *perdure.Failure   `json:"error"`
}

// Line translates a line. more is false once the run has ended, or waits for a person at the end of its
// log.
func (t *Translator) Line(e *api.Event) (frames []frame.Frame, more bool, err error) {
	var d LineData
	_ = json.Unmarshal(e.Data, &d) // deltas may be texts
	was := t.Interrupted()
	n := len(t.open)
	t.Follow(e, &d)
	if e.Seq < t.From {
		return nil, true, nil
	}
	add := func(event string, data any) {
		if b, fails := perdure.Marshal(data); fails == nil {
			frames = append(frames, frame.Frame{Event: event, Data: b})
		} else {
			err = fails
		}
	}
	if !t.began {
		t.began = true
		add("metadata", shape.Object{"run_id": t.Run, "thread_id": t.Thread, "attempt": 1})
	}
	switch {
	case e.Type == perdure.LineDelta:
		t.delta(e, add)
	case e.Type == perdure.LineMessage:
		err = t.appended(&d, add)
	case strings.HasPrefix(string(e.Type), "x:") && t.Modes["custom"]:
		add("custom", e.Data)
	case t.State != "":
		return frames, false, t.end(add)
	case t.Interrupted() && (!was || len(t.open) > n):
		err = t.interrupt(add)
	}
	return frames, t.Through || !t.Interrupted() || e.Seq < t.Head, err
}

// Interrupted tells whether the run is suspended on a person.
func (t *Translator) Interrupted() bool {
	return t.suspended && len(t.open)+t.more > 0 && t.State == ""
}

// Follow keeps what is known of the run.
func (t *Translator) Follow(e *api.Event, d *LineData) {
	switch e.Type {
	case perdure.LineSuspended:
		t.suspended = true
	case perdure.LineResumed, perdure.LineStarted, perdure.LineDispatched:
		t.suspended = false
	case perdure.LineWaitOpened:
		if slices.Contains(AsksPeople, d.Type) {
			t.open = append(t.open, Interrupt{ID: shape.OrElse(string(d.ApprovalID), d.WaitID), Wait: d.WaitID,
				Kind: d.Type, Name: d.Name, Approval: d.ApprovalID, Title: d.Title})
		}
	case perdure.LineWorkerAsks:
		if t.more += d.Count; d.Count == 0 {
			t.open = append(t.open, Interrupt{ID: string(d.ApprovalID), Wait: d.WaitID, Run: d.RunID,
				Kind: perdure.WaitApproval, Approval: d.ApprovalID, Title: d.Title})
		}
	case perdure.LineWaitSatisfied, perdure.LineWaitTimedOut, perdure.LineWaitClosed:
		t.open = slices.DeleteFunc(t.open, func(i Interrupt) bool { return i.Run == "" && i.Wait == d.WaitID })
	case perdure.LineWorkerAnswered:
		n := len(t.open)
		t.open = slices.DeleteFunc(t.open, func(i Interrupt) bool { return i.Run != "" && i.Approval == d.ApprovalID })
		t.more = max(0, t.more-d.Count)
		if d.Count == 0 && n == len(t.open) {
			t.more = max(0, t.more-1) // it was only counted
		}
	case perdure.LineMessage:
		t.upTo = max(t.upTo, d.MessageSeq)
	case perdure.LineCompleted:
		t.State, t.result = perdure.Completed, d.Result
	case perdure.LineFailed, perdure.LineTimedOut, perdure.LineCancelled:
		t.State, t.error = endOf[e.Type], d.Error
	}
}

var endOf = map[perdure.LineType]perdure.State{perdure.LineFailed: perdure.Failed,
	perdure.LineTimedOut: perdure.TimedOut, perdure.LineCancelled: perdure.Cancelled}

// delta translates a piece of text. A text that is told again has an id of its own.
func (t *Translator) delta(e *api.Event, add func(string, any)) {
	var d struct {
		Text    string `json:"text"`
		Channel string `json:"channel"`
		Step    string `json:"step"`
		Try     int    `json:"try"`
	}
	if json.Unmarshal(e.Data, &d.Text) != nil && json.Unmarshal(e.Data, &d) != nil {
		return
	}
	id := t.Run + "-" + shape.OrElse(d.Step, "text") + "-" + shape.Itoa(e.Attempt) + "-" + shape.Itoa(d.Try)
	if id != t.textID {
		t.textID, t.told = id, false
		t.text.Reset()
		t.thoughts.Reset()
	}
	text, thought := d.Text, ""
	if d.Channel == perdure.ChannelReasoning {
		text, thought = "", d.Text
	}
	about := shape.Object{"langgraph_node": t.Kind, "run_id": t.Run, "thread_id": t.Thread}
	chunk := func(text, thought string) shape.Object {
		extra := shape.Object{}
		if thought != "" {
			extra["reasoning_content"] = thought
		}
		return shape.Object{"id": id, "type": "AIMessageChunk", "content": text, "additional_kwargs": extra,
			"response_metadata": shape.Object{}, "tool_calls": []any{}, "tool_call_chunks": []any{}}
	}
	if t.Modes["messages-tuple"] {
		add("messages", []any{chunk(text, thought), about})
	}
	if !t.Modes["messages"] {
		return
	}
	if !t.told {
		t.told = true
		add("messages/metadata", shape.Object{id: shape.Object{"metadata": about}})
	}
	t.text.WriteString(text)
	t.thoughts.WriteString(thought)
	whole := chunk(t.text.String(), t.thoughts.String())
	whole["type"] = "ai"
	add("messages/partial", []any{whole})
}

// appended translates a message of the run in its thread.
func (t *Translator) appended(d *LineData, add func(string, any)) error {
	if d.Role == perdure.RoleUser || d.Role == perdure.RoleSystem || t.Message == nil ||
		!t.Modes["updates"] && !t.Modes["messages"] && !t.Modes["messages-tuple"] {
		return nil
	}
	m, err := t.Message(d.MessageSeq)
	if err != nil || m == nil {
		return err
	}
	if t.Modes["updates"] {
		add("updates", shape.Object{t.Kind: shape.Object{"messages": []any{m}}})
	}
	if t.Modes["messages"] {
		add("messages/complete", []any{m})
	}
	return nil
}

// interrupts gives what people are asked, in the shape of the protocol.
func (t *Translator) interrupts() []shape.Object { return ShowInterrupts(t.open, t.Question) }

// ShowInterrupts gives interrupts in the shape of the protocol. Without question, approvals are shown by their names.
func ShowInterrupts(open []Interrupt, question func(perdure.ApprovalID) any) []shape.Object {
	out := make([]shape.Object, 0, len(open))
	for _, i := range open {
		var value any = shape.Object{"type": i.Kind, "name": i.Name}
		if i.Approval != "" && question != nil {
			value = question(i.Approval)
		}
		out = append(out, shape.Object{"id": i.ID, "value": value})
	}
	return out
}

// interrupt tells that the run waits for a person.
func (t *Translator) interrupt(add func(string, any)) error {
	asked := t.interrupts()
	if t.Modes["updates"] || !t.Modes["values"] {
		add("updates", shape.Object{"__interrupt__": asked})
	}
	if !t.Modes["values"] {
		return nil
	}
	values, err := t.Values(t.upTo)
	if err == nil {
		values["__interrupt__"] = asked
		add("values", values)
	}
	return err
}

// end tells the end of the run.
func (t *Translator) end(add func(string, any)) error {
	if t.error != nil && t.State != perdure.Cancelled {
		add("error", shape.Object{"error": string(t.error.Code), "message": t.error.Message})
		return nil
	}
	if t.Modes["updates"] && len(t.result) > 0 && t.result[0] == '{' {
		add("updates", shape.Object{t.Kind: t.result})
	}
	if !t.Modes["values"] {
		return nil
	}
	values, err := t.Values(t.upTo)
	if err == nil {
		AddResult(values, t.result)
		add("values", values)
	}
	return err
}

// Answer gives what a caller gets that waits for the run: its values, its error, or what it asks.
func (t *Translator) Answer() (shape.Object, error) {
	if t.error != nil && t.State != perdure.Cancelled {
		return shape.Object{"__error__": shape.Object{"error": string(t.error.Code), "message": t.error.Message}}, nil
	}
	values, err := t.Values(t.upTo)
	if err != nil {
		return nil, err
	}
	AddResult(values, t.result)
	if t.Interrupted() {
		values["__interrupt__"] = t.interrupts()
	}
	return values, nil
}

// ShowQuestion is what a person sees of an approval.
func ShowQuestion(a *perdure.Approval) shape.Object {
	return shape.Object{"title": a.Title, "action": a.Action, "form": a.Form, "approvers": a.Approvers}
}

// DataOf reads the data of a line. Lines of other types may have any.
func DataOf(e *api.Event) *LineData {
	var d LineData
	_ = json.Unmarshal(e.Data, &d)
	return &d
}
