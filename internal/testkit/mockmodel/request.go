package mockmodel

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"
)

// A request is a call of the API, as far as rules look at it.
type request struct {
	Model    string    `json:"model"`
	Messages []message `json:"messages"`
	Tools    []struct {
		Function struct {
			Name       string          `json:"name"`
			Parameters json.RawMessage `json:"parameters"`
		} `json:"function"`
	} `json:"tools"`
	Stream        bool `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`

	key  string
	size int    // of the body
	id   string // a digest of the body
}

type message struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	ToolCallID string          `json:"tool_call_id"`
	ToolCalls  []struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// text returns the content of a message: a text, or the text of its parts.
func (m *message) text() string {
	var s string
	if json.Unmarshal(m.Content, &s) == nil {
		return s
	}
	var parts []struct{ Text string }
	_ = json.Unmarshal(m.Content, &parts) // other content has no text
	for _, p := range parts {
		s += p.Text
	}
	return s
}

// readRequest parses a body.
func readRequest(body []byte, key string) (*request, error) {
	r := &request{key: key, size: len(body)}
	if err := json.Unmarshal(body, r); err != nil {
		return nil, fmt.Errorf("the body is not JSON of this API: %w", err)
	}
	h := fnv.New64a()
	h.Write(body)
	r.id = fmt.Sprintf("%016x", h.Sum64())
	return r, nil
}

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// check finds what the providers refuse: a conversation in which calls and results do not fit
// together, malformed names and arguments.
func (r *request) check() error {
	if r.Model == "" {
		return fmt.Errorf("you must provide a model parameter")
	}
	if len(r.Messages) == 0 {
		return fmt.Errorf("messages is empty")
	}
	for i, t := range r.Tools {
		if !toolName.MatchString(t.Function.Name) {
			return fmt.Errorf("tools[%d].function.name %q does not match %s", i, t.Function.Name, toolName)
		}
	}
	open := make(map[string]bool)
	for i := range r.Messages {
		m := &r.Messages[i]
		if m.Role == "tool" {
			if !open[m.ToolCallID] {
				return fmt.Errorf("messages[%d]: tool_call_id %q names no call that is open", i, m.ToolCallID)
			}
			delete(open, m.ToolCallID)
			continue
		}
		if len(open) > 0 {
			return fmt.Errorf("messages[%d]: %d tool calls before it have no result", i, len(open))
		}
		switch m.Role {
		case "system", "developer", "user":
			if string(m.Content) == "" || string(m.Content) == "null" {
				return fmt.Errorf("messages[%d] has no content", i)
			}
		case "assistant":
			if m.text() == "" && len(m.ToolCalls) == 0 {
				return fmt.Errorf("messages[%d] has neither content nor tool_calls", i)
			}
		default:
			return fmt.Errorf("messages[%d]: there is no role %q", i, m.Role)
		}
		for _, c := range m.ToolCalls {
			var args map[string]any
			switch {
			case c.ID == "" || open[c.ID]:
				return fmt.Errorf("messages[%d]: the id %q of a tool call is empty or used twice", i, c.ID)
			case c.Type != "function" || !toolName.MatchString(c.Function.Name):
				return fmt.Errorf("messages[%d]: a call of type %q to %q", i, c.Type, c.Function.Name)
			case json.Unmarshal([]byte(c.Function.Arguments), &args) != nil || args == nil:
				return fmt.Errorf("messages[%d]: the arguments of %s are no JSON object", i, c.Function.Name)
			}
			open[c.ID] = true
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("%d tool calls of the last message have no result", len(open))
	}
	return nil
}

// tokens counts the tokens of the request: four bytes each.
func (r *request) tokens() int { return (r.size + 3) / 4 }

// last returns the last message.
func (r *request) last() *message {
	if len(r.Messages) == 0 {
		return &message{}
	}
	return &r.Messages[len(r.Messages)-1]
}

// user returns the text of the last message of the user.
func (r *request) user() string {
	for i := len(r.Messages) - 1; i >= 0; i-- {
		if r.Messages[i].Role == "user" {
			return r.Messages[i].text()
		}
	}
	return ""
}

// turn and step count the answers of the model, and those since the last message of the user. The
// one that is requested counts too.
func (r *request) turn() (turn, step int) {
	turn, step = 1, 1
	for i := range r.Messages {
		switch r.Messages[i].Role {
		case "assistant":
			turn++
			step++
		case "user":
			step = 1
		}
	}
	return turn, step
}

// tool returns the name of the tool whose result the last message is.
func (r *request) tool() string {
	last := r.last()
	if last.Role != "tool" {
		return ""
	}
	for i := len(r.Messages) - 1; i >= 0; i-- {
		for _, c := range r.Messages[i].ToolCalls {
			if c.ID == last.ToolCallID {
				return c.Function.Name
			}
		}
	}
	return ""
}

func (r *request) offers(name string) bool {
	for _, t := range r.Tools {
		if t.Function.Name == name {
			return true
		}
	}
	return false
}

func (r *request) inSystem(part string) bool {
	for i := range r.Messages {
		if m := &r.Messages[i]; (m.Role == "system" || m.Role == "developer") && strings.Contains(m.text(), part) {
			return true
		}
	}
	return false
}
