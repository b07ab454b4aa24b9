package langgraph

import (
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
)

// A translator turns the lines of one run's log into frames. A frame also has data that
// never changes: messages of the thread, by their numbers, and the action of an approval.
type translator struct {
	run, thread, kind string // ids as the caller knows them
	from              int64  // the first line of the part of the run
	head              int64  // the last line that was there when the caller came
	modes             map[string]bool
	through           bool // the frames go on after an interrupt

	// values gives the values of the thread after its message of a number.
	values func(upTo int64) (object, error)
	// message gives a message of the thread.
	message func(seq int64) (object, error)
	// question gives what a person is asked by an approval.
	question func(id perdure.ApprovalID) any

	began     bool
	upTo      int64 // number of the last message that the log tells of
	suspended bool
	open      []interrupt
	more      int // questions that the log only counts
	text      strings.Builder
	textID    string
	told      bool // the metadata of the text was sent

	state  perdure.State // of the end
	result json.RawMessage
	error  *perdure.Failure
}

// An interrupt is something that a person is asked.
type interrupt struct {
	id       string // of the approval, or of the wait
	wait     string
	run      perdure.RunID // below; empty for the run itself
	kind     perdure.WaitType
	name     string
	approval perdure.ApprovalID
	title    string
}

// asksPeople are the types of waits that a person ends.
var asksPeople = []perdure.WaitType{perdure.WaitApproval, perdure.WaitSignal, perdure.WaitCallback, perdure.WaitMessage}

// lineData are the fields of lines that frames are made from.
type lineData struct {
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

// line translates a line. more is false once the run has ended, or waits for a person at the end of its
// log.
func (t *translator) line(e *api.Event) (frames []doors.Frame, more bool, err error) {
	var d lineData
	_ = json.Unmarshal(e.Data, &d) // deltas may be texts
	was := t.interrupted()
	n := len(t.open)
	t.follow(e, &d)
	if e.Seq < t.from {
		return nil, true, nil
	}
	add := func(event string, data any) {
		if b, fails := perdure.Marshal(data); fails == nil {
			frames = append(frames, doors.Frame{Event: event, Data: b})
		} else {
			err = fails
		}
	}
	if !t.began {
		t.began = true
		add("metadata", object{"run_id": t.run, "thread_id": t.thread, "attempt": 1})
	}
	switch {
	case e.Type == perdure.LineDelta:
		t.delta(e, add)
	case e.Type == perdure.LineMessage:
		err = t.appended(&d, add)
	case strings.HasPrefix(string(e.Type), "x:") && t.modes["custom"]:
		add("custom", e.Data)
	case t.state != "":
		return frames, false, t.end(add)
	case t.interrupted() && (!was || len(t.open) > n):
		err = t.interrupt(add)
	}
	return frames, t.through || !t.interrupted() || e.Seq < t.head, err
}

// interrupted tells whether the run is suspended on a person.
func (t *translator) interrupted() bool {
	return t.suspended && len(t.open)+t.more > 0 && t.state == ""
}

// follow keeps what is known of the run.
func (t *translator) follow(e *api.Event, d *lineData) {
	switch e.Type {
	case perdure.LineSuspended:
		t.suspended = true
	case perdure.LineResumed, perdure.LineStarted, perdure.LineDispatched:
		t.suspended = false
	case perdure.LineWaitOpened:
		if slices.Contains(asksPeople, d.Type) {
			t.open = append(t.open, interrupt{id: orElse(string(d.ApprovalID), d.WaitID), wait: d.WaitID, kind: d.Type,
				name: d.Name, approval: d.ApprovalID, title: d.Title})
		}
	case perdure.LineWorkerAsks:
		if t.more += d.Count; d.Count == 0 {
			t.open = append(t.open, interrupt{id: string(d.ApprovalID), wait: d.WaitID, run: d.RunID,
				kind: perdure.WaitApproval, approval: d.ApprovalID, title: d.Title})
		}
	case perdure.LineWaitSatisfied, perdure.LineWaitTimedOut, perdure.LineWaitClosed:
		t.open = slices.DeleteFunc(t.open, func(i interrupt) bool { return i.run == "" && i.wait == d.WaitID })
	case perdure.LineWorkerAnswered:
		n := len(t.open)
		t.open = slices.DeleteFunc(t.open, func(i interrupt) bool { return i.run != "" && i.approval == d.ApprovalID })
		t.more = max(0, t.more-d.Count)
		if d.Count == 0 && n == len(t.open) {
			t.more = max(0, t.more-1) // it was only counted
		}
	case perdure.LineMessage:
		t.upTo = max(t.upTo, d.MessageSeq)
	case perdure.LineCompleted:
		t.state, t.result = perdure.Completed, d.Result
	case perdure.LineFailed, perdure.LineTimedOut, perdure.LineCancelled:
		t.state, t.error = endOf[e.Type], d.Error
	}
}

var endOf = map[perdure.LineType]perdure.State{perdure.LineFailed: perdure.Failed,
	perdure.LineTimedOut: perdure.TimedOut, perdure.LineCancelled: perdure.Cancelled}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// delta translates a piece of text. A text that is told again has an id of its own.
func (t *translator) delta(e *api.Event, add func(string, any)) {
	var d struct {
		Text    string `json:"text"`
		Channel string `json:"channel"`
		Step    string `json:"step"`
		Try     int    `json:"try"`
	}
	if json.Unmarshal(e.Data, &d.Text) != nil && json.Unmarshal(e.Data, &d) != nil {
		return
	}
	id := t.run + "-" + orElse(d.Step, "text") + "-" + itoa(e.Attempt) + "-" + itoa(d.Try)
	if id != t.textID {
		t.textID, t.told = id, false
		t.text.Reset()
	}
	extra := object{}
	text := d.Text
	if d.Channel == "reasoning" {
		extra["reasoning_content"], text = text, ""
	}
	about := object{"langgraph_node": t.kind, "run_id": t.run, "thread_id": t.thread}
	chunk := func(text string) object {
		return object{"id": id, "type": "AIMessageChunk", "content": text, "additional_kwargs": extra,
			"response_metadata": object{}, "tool_calls": []any{}, "tool_call_chunks": []any{}}
	}
	if t.modes["messages-tuple"] {
		add("messages", []any{chunk(text), about})
	}
	if !t.modes["messages"] {
		return
	}
	if !t.told {
		t.told = true
		add("messages/metadata", object{id: object{"metadata": about}})
	}
	t.text.WriteString(text)
	whole := chunk(t.text.String())
	whole["type"] = "ai"
	add("messages/partial", []any{whole})
}

// appended translates a message of the run in its thread.
func (t *translator) appended(d *lineData, add func(string, any)) error {
	if d.Role == perdure.RoleUser || d.Role == perdure.RoleSystem || t.message == nil ||
		!t.modes["updates"] && !t.modes["messages"] && !t.modes["messages-tuple"] {
		return nil
	}
	m, err := t.message(d.MessageSeq)
	if err != nil || m == nil {
		return err
	}
	if t.modes["updates"] {
		add("updates", object{t.kind: object{"messages": []any{m}}})
	}
	if t.modes["messages"] {
		add("messages/complete", []any{m})
	}
	return nil
}

// interrupts gives what people are asked, in the shape of the protocol.
func (t *translator) interrupts() []object {
	out := make([]object, 0, len(t.open))
	for _, i := range t.open {
		var value any = object{"type": i.kind, "name": i.name}
		if i.approval != "" && t.question != nil {
			value = t.question(i.approval)
		}
		out = append(out, object{"id": i.id, "value": value})
	}
	return out
}

// interrupt tells that the run waits for a person.
func (t *translator) interrupt(add func(string, any)) error {
	asked := t.interrupts()
	if t.modes["updates"] || !t.modes["values"] {
		add("updates", object{"__interrupt__": asked})
	}
	if !t.modes["values"] {
		return nil
	}
	values, err := t.values(t.upTo)
	if err == nil {
		values["__interrupt__"] = asked
		add("values", values)
	}
	return err
}

// end tells the end of the run.
func (t *translator) end(add func(string, any)) error {
	if t.error != nil && t.state != perdure.Cancelled {
		add("error", object{"error": string(t.error.Code), "message": t.error.Message})
		return nil
	}
	if t.modes["updates"] && len(t.result) > 0 && t.result[0] == '{' {
		add("updates", object{t.kind: t.result})
	}
	if !t.modes["values"] {
		return nil
	}
	values, err := t.values(t.upTo)
	if err == nil {
		addResult(values, t.result)
		add("values", values)
	}
	return err
}

// answer gives what a caller gets that waits for the run: its values, its error, or what it asks.
func (t *translator) answer() (object, error) {
	if t.error != nil && t.state != perdure.Cancelled {
		return object{"__error__": object{"error": string(t.error.Code), "message": t.error.Message}}, nil
	}
	values, err := t.values(t.upTo)
	if err != nil {
		return nil, err
	}
	addResult(values, t.result)
	if t.interrupted() {
		values["__interrupt__"] = t.interrupts()
	}
	return values, nil
}

// modesOf reads stream_mode: a word, or a list. The default is values.
func modesOf(words []string) map[string]bool {
	out := make(map[string]bool)
	for _, w := range words {
		out[w] = true
	}
	if len(out) == 0 {
		out["values"] = true
	}
	return maps.Clone(out)
}

// honoured are the modes that have frames of their own.
var honoured = []string{"custom", "messages", "messages-tuple", "updates", "values"}

// listOf lists the modes that have frames, with commas. Without any it is error, which every stream has.
func listOf(modes map[string]bool) string {
	var list []string
	for _, word := range honoured {
		if modes[word] {
			list = append(list, word)
		}
	}
	if len(list) == 0 { // the others are silent
		list = []string{"error"}
	}
	return strings.Join(list, ",")
}

// modeQuery is the query of a stream's Location. A client that starts a run says the modes in the body, and
// attaches again with nothing but the Location and the id of its last frame, which counts frames of these modes.
func modeQuery(modes map[string]bool) string {
	list := listOf(modes)
	if list == "values" {
		return ""
	}
	return "?" + url.Values{"stream_mode": strings.Split(list, ",")}.Encode()
}
