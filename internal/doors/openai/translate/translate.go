package translate

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/openai/shape"
)

// responseOf is the response of a run before its first line. It has only what never changes.
func responseOf(run *api.Run, r shape.Ref) *shape.Response {
	var e shape.Echo
	_ = json.Unmarshal([]byte(run.Metadata[shape.EchoKey]), &e) // a run that did not come through the door has none
	var in shape.RunInput
	if json.Unmarshal(run.Input, &in) != nil || len(in.Instructions) == 0 {
		in.Instructions = json.RawMessage("null")
	}
	out := &shape.Response{ID: r.String(), Object: "response", CreatedAt: int64(run.CreatedAt) / 1_000_000,
		Status: "queued", Background: e.Background, Instruct: in.Instructions, Metadata: e.Metadata, Model: run.Kind,
		Output: []*shape.Item{}, Parallel: true, ToolChoice: "auto", Tools: []string{}, Store: true}
	if out.Metadata == nil {
		out.Metadata = map[string]string{}
	}
	if e.Previous != "" {
		out.Previous = &e.Previous
	}
	if run.ThreadID != "" {
		out.Talk = &shape.Conversation{ID: shape.ConversationPrefix + shape.Bare(string(run.ThreadID))}
	}
	return out
}

// A Translator turns the lines of a run's log into the events of one response. Its fields are what
// the lines so far have said; nothing else counts. Lines of earlier parts of the run are read, and have
// no events.
type Translator struct {
	Ref      shape.Ref
	Response *shape.Response
	Look     Lookup

	Seq    int64
	events []shape.Event
	Ended  bool
	begun  bool  // the response has its first event
	Part   int64 // the line after which the current part of the run began

	next      int // output_index of the next item
	text      *telling
	told      []*telling // texts that are closed
	tools     map[string]*call
	asked     []*question
	suspended bool
	size      int // bytes of text in the output
}

// A Lookup finds what a line only names. It never changes once the line is written.
type Lookup interface {
	Approval(id perdure.ApprovalID) (*perdure.Approval, error)
	Result() (json.RawMessage, error)
}

// A telling is a message, or reasoning, that is being told by deltas.
type telling struct {
	item    *shape.Item
	index   int
	text    strings.Builder
	step    string
	try     int64
	attempt int
	// thinks is set if it is reasoning, which is no part of the answer.
	thinks bool
}

// A piece is the data of a delta.
type piece struct {
	Text    string `json:"text"`
	Step    string `json:"step"`
	Try     int64  `json:"try"`
	Channel string `json:"channel"`
}

// pieceOf reads a delta: a text, or an object. Workers may write anything into its other members.
func pieceOf(data json.RawMessage) (p piece) {
	if len(data) > 0 && data[0] == '"' {
		_ = json.Unmarshal(data, &p.Text)
	} else {
		_ = json.Unmarshal(data, &p)
	}
	return p
}

// A call is a call of a tool.
type call struct {
	item  *shape.Item
	index int
	done  bool
}

// A question is an approval that the run waits for. It is shown once.
type question struct {
	wait     string
	approval perdure.ApprovalID
	name     string
	shown    bool
}

// New makes a translator of a response of a run.
func New(run *api.Run, r shape.Ref, look Lookup) *Translator {
	return &Translator{Ref: r, Response: responseOf(run, r), Look: look, tools: make(map[string]*call)}
}

// muted tells whether the current line belongs to an earlier part of the run.
func (t *Translator) muted() bool { return t.Seq <= t.Ref.After }

// maxShown bounds the approvals of a response, so that a line has fewer events than FramesPerLine.
const maxShown = 300

// lineData is what the door reads of a line's data.
type lineData struct {
	WaitID   string             `json:"wait_id"`
	RunID    string             `json:"run_id"`
	Type     string             `json:"type"`
	Name     string             `json:"name"`
	Title    string             `json:"title"`
	Approval perdure.ApprovalID `json:"approval_id"`
	Error    json.RawMessage    `json:"error"`

	ID     string          `json:"id"`
	Input  json.RawMessage `json:"input"`
	Output json.RawMessage `json:"output"`
}

// Line returns the events of a line. more is false after the last one.
func (t *Translator) Line(e *api.Event) (events []shape.Event, more bool, err error) {
	t.Seq, t.events = e.Seq, t.events[:0]
	if !t.muted() && !t.begun {
		if t.begun = true; t.Part != t.Ref.After {
			return nil, false, perdure.Errorf(perdure.CodeNotFound, "there is no such response")
		}
		t.lifecycle("response.created")
		if t.Response.Status == "queued" {
			t.lifecycle("response.queued")
		}
	}
	var d lineData
	if e.Type != perdure.LineDelta {
		_ = json.Unmarshal(e.Data, &d) // lines of other types may have any data
	}
	switch e.Type {
	case perdure.LineStarted:
		if t.Response.Status == "queued" {
			t.Response.Status = "in_progress"
			t.lifecycle("response.in_progress")
		}
	case perdure.LineDelta:
		t.delta(e)
	case perdure.LineToolStarted, perdure.LineToolCompleted, perdure.LineToolFailed:
		t.tool(e.Type, &d)
	case perdure.LineSuspended:
		t.suspended = true
	case perdure.LineResumed:
		t.suspended = false
	case perdure.LineWaitOpened:
		if d.Type == string(perdure.WaitApproval) {
			t.asked = append(t.asked, &question{wait: d.WaitID, approval: d.Approval, name: d.Name})
		}
	case perdure.LineWaitSatisfied, perdure.LineWaitTimedOut, perdure.LineWaitClosed:
		t.answered(d.WaitID)
	case perdure.LineWorkerAsks:
		if d.Approval != "" {
			t.asked = append(t.asked, &question{wait: d.RunID + "/" + d.WaitID, approval: d.Approval, name: d.Title})
		}
	case perdure.LineWorkerAnswered:
		t.answered(d.RunID + "/" + d.WaitID)
	case perdure.LineCompleted, perdure.LineFailed, perdure.LineTimedOut, perdure.LineCancelled:
		err = t.end(e.Type, &d)
	}
	if err == nil && !t.Ended && t.suspended {
		err = t.ask()
	}
	return t.events, !t.Ended, err
}

func (t *Translator) answered(wait string) {
	t.asked = slices.DeleteFunc(t.asked, func(q *question) bool { return q.wait == wait })
}

// emit adds an event of the current line.
func (t *Translator) emit(e shape.Event) {
	if t.muted() {
		return
	}
	e.Sequence = t.Seq*shape.FramesPerLine + int64(len(t.events)) + 1
	t.events = append(t.events, e)
}

// lifecycle adds an event with the whole response as it is now.
func (t *Translator) lifecycle(typ string) {
	now := *t.Response
	now.Output = slices.Clone(t.Response.Output)
	t.emit(shape.Event{Type: typ, Response: &now})
}

// add begins an item of the output.
func (t *Translator) add(x *shape.Item) (index int) {
	index = t.next
	t.next++
	t.Response.Output = append(t.Response.Output, x)
	shown := *x
	t.emit(shape.Event{Type: "response.output_item.added", Index: &index, Item: &shown})
	return index
}

// done ends an item of the output.
func (t *Translator) done(x *shape.Item, index int) {
	shown := *x
	t.emit(shape.Event{Type: "response.output_item.done", Index: &index, Item: &shown})
}

// id makes the id of an item that begins with the current line.
func (t *Translator) id(prefix string) string {
	return prefix + shape.Bare(string(t.Ref.Run)) + "_" + strconv.FormatInt(t.Seq, 10)
}

// delta adds a piece of text to the message or the reasoning that is being told.
func (t *Translator) delta(e *api.Event) {
	p := pieceOf(e.Data)
	if p.Text == "" {
		return
	}
	thinks := p.Channel == "reasoning"
	if o := t.text; o != nil {
		switch again := p.Step == o.step && (p.Try > o.try || p.Step == "" && e.Attempt != o.attempt); {
		case again:
			t.closeText("incomplete")
			t.forget(o)
		case p.Step != o.step, thinks != o.thinks:
			t.closeText("completed")
		}
	}
	// A text that was told whole is told again if its step was not recorded.
	for i := len(t.told) - 1; i >= 0 && p.Step != ""; i-- {
		if o := t.told[i]; p.Step == o.step && p.Try > o.try {
			t.forget(o)
		}
	}
	if t.text == nil {
		t.open(&telling{step: p.Step, try: p.Try, attempt: e.Attempt, thinks: thinks})
	}
	t.say(p.Text)
}

// open begins a message, or reasoning.
func (t *Translator) open(o *telling) {
	o.item = &shape.Item{Type: "message", ID: t.id("msg_"), Status: "in_progress", Role: "assistant",
		Content: &[]*shape.Part{}}
	if o.thinks {
		o.item = &shape.Item{Type: "reasoning", ID: t.id("rs_"), Status: "in_progress", Content: &[]*shape.Part{},
			Summary: []string{}}
	}
	o.index = t.add(o.item)
	t.text = o
	t.emit(shape.Event{Type: "response.content_part.added", ItemID: o.item.ID, Index: &o.index, Content: new(int),
		Part: o.part("")})
}

// part is the only part of the content.
func (o *telling) part(text string) *shape.Part {
	if o.thinks {
		return &shape.Part{Type: "reasoning_text", Text: text}
	}
	return &shape.Part{Type: "output_text", Text: text, Annotations: []string{}}
}

// event is an event about the text.
func (o *telling) event(what string) shape.Event {
	e := shape.Event{Type: "response.output_text." + what, ItemID: o.item.ID, Index: &o.index, Content: new(int),
		Logprobs: &[]string{}}
	if o.thinks {
		e.Type, e.Logprobs = "response.reasoning_text."+what, nil
	}
	return e
}

// say adds a text to the open message.
func (t *Translator) say(text string) {
	o := t.text
	if t.size += len(text); t.size <= frame.MaxAnswer/4 { // it stands four times in the events of its end
		o.text.WriteString(text)
	} else {
		t.Response.Incomplete = &shape.Incomplete{Reason: "max_output_tokens"}
	}
	e := o.event("delta")
	e.Delta = &text
	t.emit(e)
}

// closeText ends the open message.
func (t *Translator) closeText(status string) {
	o := t.text
	if o == nil {
		return
	}
	t.text = nil
	t.told = append(t.told, o)
	text := o.text.String()
	p := o.part(text)
	o.item.Status, o.item.Content = status, &[]*shape.Part{p}
	e := o.event("done")
	e.Text = &text
	t.emit(e)
	t.emit(shape.Event{Type: "response.content_part.done", ItemID: o.item.ID, Index: &o.index, Content: new(int),
		Part: p})
	t.done(o.item, o.index)
}

// forget takes a message that is told again out of the output.
func (t *Translator) forget(o *telling) {
	t.told = slices.DeleteFunc(t.told, func(x *telling) bool { return x == o })
	t.Response.Output = slices.DeleteFunc(t.Response.Output, func(x *shape.Item) bool { return x == o.item })
	t.size -= o.text.Len()
}

// tool begins or ends a call of a tool. A call that is told again after a crash stands in the output once.
func (t *Translator) tool(typ perdure.LineType, d *lineData) {
	key := d.ID
	if key == "" {
		key = d.Name
	}
	c := t.tools[key]
	if c == nil {
		t.closeText("completed")
		args := textOf(d.Input)
		c = &call{item: &shape.Item{Type: "mcp_call", ID: t.id("mcp_"), Status: "in_progress", Name: d.Name,
			Arguments: &args, Server: shape.Server}}
		t.tools[key], c.index = c, t.add(c.item)
	}
	if typ == perdure.LineToolStarted || c.done {
		return
	}
	c.item.Status = "completed"
	if typ == perdure.LineToolFailed {
		why := textOf(d.Error)
		c.item.Status, c.item.Error = "failed", &why
	} else {
		out := textOf(d.Output)
		c.item.Output = &out
	}
	c.done = true
	t.done(c.item, c.index)
}

// textOf is a string as it is, and any other value as JSON.
func textOf(v json.RawMessage) string {
	var text string
	if len(v) == 0 || json.Unmarshal(v, &text) == nil {
		return text
	}
	return string(v)
}

// ask ends the response if the run waits for a decision that no part of it has asked for yet. The
// lines that follow are the next part.
func (t *Translator) ask() error {
	var fresh []*question
	for _, q := range t.asked {
		if !q.shown && len(fresh) < maxShown {
			q.shown = true
			fresh = append(fresh, q)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	if t.muted() {
		t.nextPart()
		return nil
	}
	t.closeAll("completed")
	for _, q := range fresh {
		args := "{}"
		a, err := t.Look.Approval(q.approval)
		if err != nil {
			return err
		}
		if a != nil {
			args = string(a.Action)
		}
		x := &shape.Item{Type: "mcp_approval_request", ID: shape.RequestID(q.approval), Name: q.name, Arguments: &args,
			Server: shape.Server}
		t.done(x, t.add(x))
	}
	t.Response.Status, t.Ended = "completed", true
	t.lifecycle("response.completed")
	return nil
}

// nextPart begins the part of the run after the current line.
func (t *Translator) nextPart() {
	t.Part = t.Seq
	t.Response.Status, t.Response.Output, t.Response.Incomplete = "in_progress", []*shape.Item{}, nil
	t.next, t.size, t.text, t.told = 0, 0, nil, nil
	clear(t.tools)
}

// closeAll ends what is open: a message, and calls of tools whose end the log does not have.
func (t *Translator) closeAll(status string) {
	t.closeText(status)
	var open []*call
	for _, c := range t.tools {
		if !c.done {
			open = append(open, c)
		}
	}
	slices.SortFunc(open, func(a, b *call) int { return a.index - b.index })
	for _, c := range open {
		c.item.Status, c.done = "incomplete", true
		t.done(c.item, c.index)
	}
}

// end ends the response with the run.
func (t *Translator) end(typ perdure.LineType, d *lineData) error {
	t.Ended = true
	if t.muted() { // the part that was asked for can't follow
		return perdure.Errorf(perdure.CodeNotFound, "there is no such response")
	}
	if typ == perdure.LineCompleted {
		result, err := t.Look.Result()
		if err != nil {
			return err
		}
		t.conclude(resultText(result))
		t.closeAll("completed")
		t.Response.Usage = usageOf(result)
		if t.Response.Status = "completed"; t.Response.Incomplete != nil {
			t.Response.Status = "incomplete"
		}
		t.lifecycle("response." + t.Response.Status)
		return nil
	}
	t.closeAll("incomplete")
	if typ == perdure.LineCancelled {
		t.Response.Status = "cancelled"
		t.lifecycle("response.incomplete") // clients know no event for a cancelled response
		return nil
	}
	var why perdure.Failure
	_ = json.Unmarshal(d.Error, &why)
	t.Response.Status, t.Response.Error = "failed", &shape.Failure{Code: string(why.Code), Message: why.Message}
	t.lifecycle("response.failed")
	return nil
}

// conclude tells the result, unless the last message has it already.
func (t *Translator) conclude(text string) {
	last := t.text
	for i := len(t.told) - 1; i >= 0 && (last == nil || last.thinks); i-- {
		last = t.told[i]
	}
	if last != nil && last.thinks {
		last = nil
	}
	if text == "" || last != nil && strings.TrimSpace(last.text.String()) == strings.TrimSpace(text) {
		return
	}
	t.closeText("completed")
	t.open(&telling{})
	t.say(text)
}

// usageOf are the tokens that a result counts: as the supervisor does, or by OpenAI's names. Others count
// none.
func usageOf(result json.RawMessage) *shape.Usage {
	var in struct {
		Usage *struct {
			Input     int `json:"input"`
			Output    int `json:"output"`
			Cached    int `json:"cached_input"`
			Reasoning int `json:"reasoning"`

			InputTokens  int `json:"input_tokens"`
			OutputTokens int `json:"output_tokens"`
		} `json:"usage"`
	}
	if len(result) == 0 || result[0] != '{' || json.Unmarshal(result, &in) != nil || in.Usage == nil {
		return nil
	}
	u := in.Usage
	out := &shape.Usage{Input: cmp.Or(u.Input, u.InputTokens), Output: cmp.Or(u.Output, u.OutputTokens)}
	out.InputDetail.Cached, out.OutputDetail.Reasoning = u.Cached, u.Reasoning
	if out.Total = out.Input + out.Output; out.Input < 0 || out.Output < 0 || out.Total <= 0 {
		return nil
	}
	return out
}

// resultText is the text of a result: a string, or the member of an object that has the answer. Any
// other result is told as JSON.
func resultText(result json.RawMessage) string {
	var object struct {
		Answer, Text, Output *string
	}
	if len(result) > 0 && result[0] == '{' && json.Unmarshal(result, &object) == nil {
		for _, text := range []*string{object.Answer, object.Text, object.Output} {
			if text != nil {
				return *text
			}
		}
	}
	if string(result) == "null" {
		return ""
	}
	return textOf(result)
}

// Frames encodes events as server-sent events.
func Frames(events []shape.Event) (out []frame.Frame, err error) {
	for i := range events {
		b, err := perdure.Marshal(&events[i])
		if err != nil {
			return nil, err
		}
		out = append(out, frame.Frame{Event: events[i].Type, Data: b, Bare: true})
	}
	return out, nil
}
