package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A Request is what a model is asked.
type Request struct {
	Messages []Message
	Tools    []Tool
	// ToolChoice is "auto", "none", "required" or the name of a tool. Empty leaves it to the
	// endpoint.
	ToolChoice string
	// Temperature is left to the endpoint if it is nil.
	Temperature *float64
	// MaxTokens limits the tokens of the answer. Zero leaves it to the endpoint.
	MaxTokens int

	// OnText gets each piece of the text as it comes. An error of it ends the call, which returns it.
	OnText func(text string) error
	// OnReasoning gets each piece of the model's reasoning, if the endpoint sends that.
	OnReasoning func(text string) error
	// OnToken is told of each piece of the answer, of text, reasoning and tool calls: a sign of life.
	OnToken func()
	// OnRetry is told that an attempt has failed and that another one follows after a pause. The pause
	// is zero if the next endpoint is called.
	OnRetry func(cause *Error, pause time.Duration)
	// MayRetry is asked before each further attempt, with what those before have used. Nil allows all.
	MayRetry func(lost Usage) bool
	// OnRestart is told that an attempt has failed after it had passed text or reasoning on, and that
	// another one begins from the beginning. If it is nil, such a failure ends the call.
	OnRestart func(cause *Error)
}

// Roles of messages.
const (
	System    = "system"
	User      = "user"
	Assistant = "assistant"
	ToolRole  = "tool"
)

// A Message is one of a conversation.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content,omitempty"`
	// ToolCalls are those of an assistant's message. Each one needs an answer of the role tool
	// before the next message of another role.
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
	// ToolCallID names the call that a message of the role tool answers.
	ToolCallID string `json:"tool_call_id,omitempty"`
	// Reasoning is that of an assistant's message. It is sent only to endpoints that demand it.
	Reasoning string `json:"reasoning,omitempty"`
}

// A ToolCall is a model's wish to call a tool.
type ToolCall struct {
	// ID is unique in its message. A call without an id gets one.
	ID   string `json:"id"`
	Name string `json:"name"`
	// Arguments is the text that the model has written: a JSON object, unless Invalid is set. A call
	// without arguments has {}.
	Arguments string `json:"arguments"`
	// Invalid says what is wrong with the call. It is empty for a valid one.
	Invalid string `json:"invalid,omitempty"`
	// Extra is the field extra_content. Gemini signs its calls there, and refuses a conversation in
	// which the signature is missing.
	Extra json.RawMessage `json:"extra,omitempty"`
}

// A Tool is a function that the model may call.
type Tool struct {
	Name        string
	Description string
	// Parameters is a JSON Schema of the arguments. Empty means an object without properties.
	Parameters json.RawMessage
}

// The request on the wire.
type (
	wireRequest struct {
		Model         string         `json:"model"`
		Messages      []wireMessage  `json:"messages"`
		Tools         []wireTool     `json:"tools,omitempty"`
		ToolChoice    any            `json:"tool_choice,omitempty"`
		Temperature   *float64       `json:"temperature,omitempty"`
		MaxTokens     int            `json:"max_tokens,omitempty"`
		MaxCompletion int            `json:"max_completion_tokens,omitempty"`
		Stream        bool           `json:"stream"`
		StreamOptions *streamOptions `json:"stream_options,omitempty"`
	}
	streamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	}
	wireMessage struct {
		Role       string         `json:"role"`
		Content    *string        `json:"content"`
		ToolCalls  []wireSentCall `json:"tool_calls,omitempty"`
		ToolCallID string         `json:"tool_call_id,omitempty"`
		Reasoning  *string        `json:"reasoning_content,omitempty"`
	}
	wireSentCall struct {
		ID       string          `json:"id"`
		Type     string          `json:"type"`
		Function sentFunction    `json:"function"`
		Extra    json.RawMessage `json:"extra_content,omitempty"`
	}
	sentFunction struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	wireTool struct {
		Type     string       `json:"type"`
		Function wireFunction `json:"function"`
	}
	wireFunction struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters"`
	}
)

// Validate checks what no endpoint can accept.
func (r *Request) Validate() error {
	if len(r.Messages) == 0 {
		return errors.New("a request has at least one message")
	}
	for i, m := range r.Messages {
		if m.Role == "" {
			return fmt.Errorf("messages[%d] has no role", i)
		}
	}
	for i, t := range r.Tools {
		if t.Name == "" || t.Name != sentName(t.Name) {
			return fmt.Errorf("tools[%d]: the name %q is not 1 to 64 letters, digits, - and _", i, t.Name)
		}
		if len(t.Parameters) > 0 && !isObject(string(t.Parameters)) {
			return fmt.Errorf("tools[%d] (%s): the parameters are no JSON object", i, t.Name)
		}
	}
	return nil
}

// encode writes the request for a model, in a form that its endpoint accepts.
func (r *Request) encode(model string, form adaptation) ([]byte, error) {
	out := wireRequest{Model: model, Messages: make([]wireMessage, len(r.Messages)), Stream: true,
		Temperature: r.Temperature, MaxTokens: r.MaxTokens, StreamOptions: &streamOptions{IncludeUsage: true}}
	for i := range r.Messages {
		out.Messages[i] = r.Messages[i].wire(form)
	}
	for _, t := range r.Tools {
		f := wireFunction(t)
		if len(f.Parameters) == 0 {
			f.Parameters = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		out.Tools = append(out.Tools, wireTool{"function", f})
	}
	switch r.ToolChoice {
	case "":
	case "auto", "none", "required":
		out.ToolChoice = r.ToolChoice
	default:
		out.ToolChoice = map[string]any{"type": "function", "function": map[string]string{"name": r.ToolChoice}}
	}
	form.apply(&out)
	return json.Marshal(out)
}

// wire returns a message as it is sent. Endpoints refuse a whole conversation because of one
// malformed call, so that is replaced by a well-formed one that has its text.
func (m *Message) wire(form adaptation) wireMessage {
	out := wireMessage{Role: m.Role, ToolCallID: m.ToolCallID}
	if m.Content != "" || len(m.ToolCalls) == 0 {
		out.Content = &m.Content
	}
	if form.sendReasoning && m.Role == Assistant {
		out.Reasoning = &m.Reasoning
	}
	for _, c := range m.ToolCalls {
		f := sentFunction{sentName(c.Name), c.Arguments}
		if !isObject(c.Arguments) {
			text, _ := json.Marshal(map[string]string{"invalid_arguments": c.Arguments})
			f.Arguments = string(text)
		}
		sent := wireSentCall{c.ID, "function", f, c.Extra}
		if form.noExtra || !isObject(string(c.Extra)) {
			sent.Extra = nil
		}
		out.ToolCalls = append(out.ToolCalls, sent)
	}
	return out
}

// sentName returns a name that every endpoint accepts: 1 to 64 letters, digits, - and _.
func sentName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, name)
	if name == "" {
		return "unnamed"
	}
	return name[:min(len(name), 64)]
}

// isObject tells whether a text is a JSON object.
func isObject(text string) bool {
	text = strings.TrimSpace(text)
	return strings.HasPrefix(text, "{") && json.Valid([]byte(text))
}
