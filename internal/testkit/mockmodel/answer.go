package mockmodel

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/perdure/perdure"
)

const (
	// created is the time that all answers bear, so that they are the same each time.
	created = 1_735_689_600
	// argumentPiece is the number of characters of a piece of arguments, if the script does not say.
	argumentPiece = 8
	// flushEvery is how many pieces without a delay are sent together.
	flushEvery = 64
)

// A reply is one answer under way.
type reply struct {
	w      http.ResponseWriter
	ctx    context.Context
	q      *request
	a      *Answer
	groups []string

	status int
	sent   int    // pieces
	ended  string // as in Record
}

// The parts of an answer on the wire.
type (
	delta struct {
		Role      string      `json:"role,omitempty"`
		Content   *string     `json:"content,omitempty"`
		Reasoning string      `json:"reasoning,omitempty"`
		ToolCalls []callDelta `json:"tool_calls,omitempty"`
	}
	callDelta struct {
		Index    *int          `json:"index,omitempty"`
		ID       string        `json:"id,omitempty"`
		Type     string        `json:"type,omitempty"`
		Function functionDelta `json:"function"`
	}
	functionDelta struct {
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments"`
	}
	wireChoice struct {
		Index   int     `json:"index"`
		Delta   *delta  `json:"delta,omitempty"`
		Message *delta  `json:"message,omitempty"`
		Finish  *string `json:"finish_reason"`
	}
	envelope struct {
		ID      string       `json:"id"`
		Object  string       `json:"object"`
		Created int64        `json:"created"`
		Model   string       `json:"model"`
		Choices []wireChoice `json:"choices"`
		Usage   *wireUsage   `json:"usage,omitempty"`
	}
	wireUsage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	}
)

func (p *reply) has(quirk string) bool { return slices.Contains(p.a.Quirks, quirk) }

// write sends the answer.
func (p *reply) write() {
	p.ended = "left" // unless it comes to its end
	for name, value := range p.a.Header {
		p.w.Header().Set(name, value)
	}
	if p.a.RetryAfter != "" {
		p.w.Header().Set("Retry-After", p.a.RetryAfter)
	}
	switch {
	case p.a.Fault == FaultHang:
		p.fault()
	case p.a.Status/100 > 2 || p.a.Body != "":
		if p.wait(p.a.FirstToken) {
			p.refuse()
		}
	case p.q.Stream && !p.has(QuirkNoStream):
		p.stream()
	default:
		p.whole()
	}
}

// wait waits for a delay. It returns false if the caller has left.
func (p *reply) wait(d perdure.Duration) bool {
	if d <= 0 {
		return p.ctx.Err() == nil
	}
	t := time.NewTimer(time.Duration(d))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.ctx.Done():
		return false
	}
}

// fault does what the script says instead of an ordinary end.
func (p *reply) fault() {
	p.ended = p.a.Fault
	switch p.a.Fault {
	case FaultHang, FaultSilence:
		<-p.ctx.Done()
	case FaultCut:
		panic(http.ErrAbortHandler) // without this the server would end the body in order
	}
}

// refuse sends a status, a body, or both.
func (p *reply) refuse() {
	p.ended = "refused"
	if p.a.Status != 0 {
		p.status = p.a.Status
	}
	if p.a.Body != "" {
		if p.w.Header().Get("Content-Type") == "" {
			p.w.Header().Set("Content-Type", typeOf(p.a.Body))
		}
		p.w.WriteHeader(p.status)
		_, _ = p.w.Write([]byte(p.a.Body)) // the caller may have left
		return
	}
	typ, code := "invalid_request_error", ""
	switch {
	case p.status == http.StatusTooManyRequests:
		typ, code = "requests", "rate_limit_exceeded"
	case p.status >= 500:
		typ, code = "server_error", "server_error"
	}
	refuse(p.w, p.status, typ, code, "The script says "+strings.ToLower(http.StatusText(p.status)))
}

// typeOf guesses the type of a body that the script has.
func typeOf(body string) string {
	switch {
	case strings.HasPrefix(body, "data:") || strings.HasPrefix(body, ":"):
		return "text/event-stream"
	case strings.HasPrefix(body, "<"):
		return "text/html"
	}
	return "application/json"
}

// whole sends the answer as one JSON value.
func (p *reply) whole() {
	if !p.wait(p.a.FirstToken) {
		return
	}
	m := delta{Role: "assistant", Reasoning: p.q.fill(p.a.Reasoning, p.groups), ToolCalls: p.calls()}
	text := strings.Repeat(p.q.fill(p.a.Text, p.groups), max(p.a.Repeat, 1))
	if text != "" || len(m.ToolCalls) == 0 {
		m.Content = &text
	}
	for range p.pieces() {
		p.sent++
	}
	e := p.envelope("chat.completion")
	finish := p.finish()
	e.Choices = []wireChoice{{Message: &m, Finish: &finish}}
	if p.has(QuirkNoFinish) {
		e.Choices[0].Finish = nil
	}
	if !p.has(QuirkNoUsage) {
		e.Usage = p.usage()
	}
	body, _ := json.Marshal(e)
	p.w.Header().Set("Content-Type", "application/json")
	switch p.a.Fault {
	case "":
		p.ended = "complete"
		_, _ = p.w.Write(body)
		return
	case FaultError:
		p.ended = FaultError
		writeJSON(p.w, http.StatusOK, p.problem())
		return
	}
	// Half of the body comes, and the length says that more would.
	if p.a.Fault != FaultClose && p.a.Fault != FaultGarbage {
		p.w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	}
	_, _ = p.w.Write(body[:len(body)/2])
	p.flush()
	p.fault()
}

func (p *reply) flush() {
	if f, ok := p.w.(http.Flusher); ok {
		f.Flush()
	}
}

func (p *reply) envelope(object string) *envelope {
	return &envelope{ID: "chatcmpl-" + p.q.id, Object: object, Created: created, Model: p.q.Model,
		Choices: []wireChoice{}}
}

// finish returns the finish_reason.
func (p *reply) finish() string {
	switch {
	case p.a.Finish != "":
		return p.a.Finish
	case len(p.a.ToolCalls) > 0:
		return "tool_calls"
	}
	return "stop"
}

// usage counts each piece as a token.
func (p *reply) usage() *wireUsage {
	u := wireUsage{Prompt: p.q.tokens(), Completion: p.sent}
	if p.a.Usage != nil {
		u.Prompt, u.Completion = p.a.Usage.Prompt, p.a.Usage.Completion
	}
	u.Total = u.Prompt + u.Completion
	return &u
}

// problem returns the error of the fault "error".
func (p *reply) problem() any {
	if p.a.Error != nil {
		return map[string]any{"error": p.a.Error}
	}
	return map[string]any{"error": map[string]any{"message": "Provider disconnected", "code": 502}}
}

// calls returns the tool calls, complete.
func (p *reply) calls() (out []callDelta) {
	for i, c := range p.a.ToolCalls {
		d := callDelta{Index: &i, ID: c.ID, Type: "function", Function: functionDelta{Name: c.Name}}
		if d.ID == "" {
			d.ID = fmt.Sprintf("call_%s_%d", p.q.id[:8], i)
		}
		switch args := p.q.fillAll(c.Arguments, p.groups).(type) {
		case nil:
			d.Function.Arguments = "{}"
		case string:
			d.Function.Arguments = args
		default:
			text, _ := json.Marshal(args)
			d.Function.Arguments = string(text)
		}
		if p.has(QuirkNoID) {
			d.ID = ""
		}
		switch {
		case p.has(QuirkNoIndex):
			d.Index = nil
		case p.has(QuirkIndexZero):
			d.Index = new(int)
		}
		out = append(out, d)
	}
	return out
}

// pieces returns the parts of the answer in their order: reasoning, text, and calls.
func (p *reply) pieces() iter.Seq[*delta] {
	return func(yield func(*delta) bool) {
		for piece := range split(p.q.fill(p.a.Reasoning, p.groups), p.a.Pieces) {
			if !yield(&delta{Reasoning: piece}) {
				return
			}
		}
		text := p.q.fill(p.a.Text, p.groups)
		for range max(p.a.Repeat, 1) {
			for piece := range split(text, p.a.Pieces) {
				if !yield(&delta{Content: &piece}) {
					return
				}
			}
		}
		p.callPieces(yield)
	}
}

// callPieces yields the pieces of the calls.
func (p *reply) callPieces(yield func(*delta) bool) {
	calls := p.calls()
	if p.has(QuirkAtOnce) && len(calls) > 0 {
		yield(&delta{ToolCalls: calls})
		return
	}
	lists := make([][]callDelta, len(calls))
	for i, c := range calls {
		if p.has(QuirkWholeCalls) {
			lists[i] = []callDelta{c}
			continue
		}
		args := c.Function.Arguments
		c.Function.Arguments = ""
		lists[i] = []callDelta{c}
		size := p.a.Pieces
		if size == 0 {
			size = argumentPiece
		}
		for piece := range split(args, size) {
			lists[i] = append(lists[i], callDelta{Index: c.Index, Function: functionDelta{Arguments: piece}})
		}
	}
	for _, c := range ordered(lists, p.has(QuirkInterleave)) {
		if !yield(&delta{ToolCalls: []callDelta{c}}) {
			return
		}
	}
}

// ordered puts the pieces of several calls in one order: one call after the other, or in turns.
func ordered(lists [][]callDelta, inTurns bool) (out []callDelta) {
	if !inTurns {
		return slices.Concat(lists...)
	}
	for i := 0; ; i++ {
		n := len(out)
		for _, l := range lists {
			if i < len(l) {
				out = append(out, l[i])
			}
		}
		if len(out) == n {
			return out
		}
	}
}

// split cuts a text into pieces of some characters, or into words with the spaces after them.
func split(text string, size int) iter.Seq[string] {
	return func(yield func(string) bool) {
		start, n, space := 0, 0, false
		for i, r := range text {
			cut := size > 0 && n == size || size == 0 && space && !unicode.IsSpace(r)
			if cut && i > start {
				if !yield(text[start:i]) {
					return
				}
				start, n = i, 0
			}
			space = unicode.IsSpace(r)
			n++
		}
		if start < len(text) {
			yield(text[start:])
		}
	}
}
