package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/perdure/perdure/internal/wire/sse"
)

// A chunk is one frame of a stream, or a whole answer that was not streamed. An endpoint that fails
// after it has begun sends a frame with an error, also with the status 200.
type chunk struct {
	Model   lenient         `json:"model"`
	Choices []choice        `json:"choices"`
	Usage   json.RawMessage `json:"usage"`
	Error   json.RawMessage `json:"error"`
	Object  lenient         `json:"object"`
}

type choice struct {
	Index   number          `json:"index"`
	Delta   *delta          `json:"delta"`
	Message *delta          `json:"message"` // of an answer that was not streamed
	Finish  lenient         `json:"finish_reason"`
	Error   json.RawMessage `json:"error"`
}

type delta struct {
	Content   content    `json:"content"`
	Refusal   lenient    `json:"refusal"`
	Reasoning lenient    `json:"reasoning"`         // OpenRouter, Ollama
	Thoughts  lenient    `json:"reasoning_content"` // DeepSeek, vLLM
	ToolCalls []wireCall `json:"tool_calls"`
}

// content is a text, or a list of parts of which some are text.
type content struct{ text, reasoning string }

func (c *content) UnmarshalJSON(b []byte) error {
	if len(b) == 0 || b[0] != '[' {
		return json.Unmarshal(b, (*lenient)(&c.text))
	}
	var parts []struct {
		Text     lenient         `json:"text"`
		Thinking json.RawMessage `json:"thinking"` // Mistral: parts again, one level deep
	}
	if err := json.Unmarshal(b, &parts); err != nil {
		return err
	}
	for _, p := range parts {
		c.text += string(p.Text)
		var thoughts []struct {
			Text lenient `json:"text"`
		}
		_ = json.Unmarshal(p.Thinking, &thoughts) // another form is left out
		for _, t := range thoughts {
			c.reasoning += string(t.Text)
		}
	}
	return nil
}

// An answer is assembled from chunks.
type answer struct {
	limit    int // of text, reasoning and arguments together, in bytes
	size     int
	text     strings.Builder
	thoughts strings.Builder
	calls    calls
	finish   string
	model    string
	usage    *wireUsage
	done     bool // [DONE] has come

	onText, onReasoning func(string) error
	onToken             func()
	// passed is set when something was passed to one of them.
	passed bool
	// clock is told when a part of the answer comes.
	clock *tokenClock
}

// A callbackError is an error of the caller's own function. It ends the call as it is.
type callbackError struct{ error }

// add takes a chunk.
func (a *answer) add(data []byte) error {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return garbage("a part of the answer is no JSON of this protocol: %v: %s", err, excerpt(data))
	}
	if isSet(c.Error) || c.Object == "error" {
		return refusal(data)
	}
	if c.Model != "" {
		a.model = string(c.Model)
	}
	if isSet(c.Usage) {
		var u wireUsage
		if json.Unmarshal(c.Usage, &u) == nil && u.Prompt+u.Completion > 0 {
			a.usage = &u // the last one counts: some send a running total
		}
	}
	for i := range c.Choices {
		if ch := &c.Choices[i]; ch.Index.n == 0 {
			if err := a.addChoice(ch); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *answer) addChoice(ch *choice) error {
	if isSet(ch.Error) {
		return refusal(ch.Error)
	}
	d := ch.Delta
	if ch.Message != nil && a.size == 0 && len(a.calls.list) == 0 {
		d = ch.Message // some endpoints send a whole answer in one frame
	}
	if d != nil {
		if err := a.addDelta(d); err != nil {
			return err
		}
	}
	if ch.Finish == "error" {
		return &Error{Kind: Transient, Code: CodeUnavailable, Message: "the endpoint failed while it answered"}
	}
	if ch.Finish != "" && a.finish == "" {
		a.finish = string(ch.Finish)
		a.clock.finished()
	}
	return nil
}

func (a *answer) addDelta(d *delta) error {
	text := clean(d.Content.text + string(d.Refusal))
	thoughts := clean(string(d.Reasoning) + d.Content.reasoning)
	if d.Reasoning == "" {
		thoughts += clean(string(d.Thoughts)) // some send both, with the same text
	}
	a.size += len(text) + len(thoughts)
	for i := range d.ToolCalls {
		f := &d.ToolCalls[i]
		a.size += len(f.Function.Arguments) + len(f.Function.Name) + len(f.ID) + len(f.Extra)
		if a.size > a.limit {
			break
		}
		if err := a.calls.add(f); err != nil {
			return garbage("%v", err)
		}
	}
	if a.size > a.limit {
		return tooLarge("%v: it has more than %d bytes", errTooLarge, a.limit)
	}
	if text == "" && thoughts == "" && len(d.ToolCalls) == 0 {
		return nil
	}
	a.text.WriteString(text)
	a.thoughts.WriteString(thoughts)
	a.clock.pause() // the time that the caller takes is not the endpoint's
	if a.onToken != nil {
		a.onToken()
	}
	if err := a.pass(a.onReasoning, thoughts); err != nil {
		return err
	}
	if err := a.pass(a.onText, text); err != nil {
		return err
	}
	a.clock.token()
	return nil
}

// pass hands a piece to the caller.
func (a *answer) pass(f func(string) error, text string) error {
	if f == nil || text == "" {
		return nil
	}
	a.passed = true
	if err := f(text); err != nil {
		return &callbackError{err}
	}
	return nil
}

// readStream reads an event stream to its end.
func (a *answer) readStream(f *sse.Reader) error {
	for !a.done {
		event, data, err := f.Next()
		switch {
		case errors.Is(err, io.EOF):
			if f.Known == 0 && f.Unknown > 0 {
				return garbage("the answer is no event stream")
			}
			return nil
		case err != nil:
			return err
		case len(data) == 0:
		case strings.TrimSpace(string(data[:min(len(data), 16)])) == "[DONE]":
			a.done = true
		case event == "error":
			return refusal(data)
		default:
			if err := a.add(data); err != nil {
				return err
			}
		}
	}
	return nil
}

// readWhole reads an answer that is one JSON value, as some endpoints send it in spite of stream.
func (a *answer) readWhole(r io.Reader, limit int) error {
	data, err := io.ReadAll(&boundedReader{r, int64(limit)})
	if err != nil {
		return err
	}
	if err := a.add(data); err != nil {
		return err
	}
	if a.finish == "" {
		return garbage("the answer is JSON, and no answer of this protocol: %s", excerpt(data))
	}
	return nil
}

// complete tells whether the answer has come to its end. A stream that ends without a finish_reason
// was cut off, even if the connection was closed in order. One that says [DONE] may leave the
// reason out, if there is an answer and none of its calls is cut.
func (a *answer) complete() bool {
	if a.finish != "" {
		return true
	}
	if !a.done || a.size == 0 {
		return false
	}
	for _, c := range a.calls.list {
		if len(c.args) > 0 && !isObject(string(c.args)) {
			return false
		}
	}
	return true
}

// clean removes NUL characters, which no store of texts accepts.
func clean(text string) string {
	if strings.IndexByte(text, 0) < 0 {
		return text
	}
	return strings.ReplaceAll(text, "\x00", "")
}

// isSet tells whether a JSON value is there.
func isSet(raw json.RawMessage) bool {
	switch string(raw) {
	case "", "null", "{}", `""`, "false":
		return false
	}
	return true
}

// excerpt returns the beginning of a body, for a message.
func excerpt(data []byte) string {
	return fmt.Sprintf("%q", strings.ToValidUTF8(string(data[:min(len(data), 200)]), ""))
}
