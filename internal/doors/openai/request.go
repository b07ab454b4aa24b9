package openai

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
)

// A request is the body of POST /v1/responses. Fields that the door does not know are ignored.
type request struct {
	Model        string            `json:"model"`
	Input        json.RawMessage   `json:"input"`
	Instructions json.RawMessage   `json:"instructions"`
	Metadata     map[string]string `json:"metadata"`
	Background   bool              `json:"background"`
	Stream       bool              `json:"stream"`
	Previous     string            `json:"previous_response_id"`
	Conversation json.RawMessage   `json:"conversation"`

	others
}

// others are fields that the door knows and can't honour.
type others struct {
	Include      json.RawMessage `json:"include"`
	MaxTokens    json.RawMessage `json:"max_output_tokens"`
	MaxToolCalls json.RawMessage `json:"max_tool_calls"`
	Prompt       json.RawMessage `json:"prompt"`
	Reasoning    json.RawMessage `json:"reasoning"`
	ServiceTier  json.RawMessage `json:"service_tier"`
	Temperature  json.RawMessage `json:"temperature"`
	Text         json.RawMessage `json:"text"`
	ToolChoice   json.RawMessage `json:"tool_choice"`
	Tools        json.RawMessage `json:"tools"`
	TopLogprobs  json.RawMessage `json:"top_logprobs"`
	TopP         json.RawMessage `json:"top_p"`
	Truncation   json.RawMessage `json:"truncation"`
}

func (o *others) ignored() (names []string) {
	for _, f := range []struct {
		name  string
		value json.RawMessage
	}{{"include", o.Include}, {"max_output_tokens", o.MaxTokens}, {"max_tool_calls", o.MaxToolCalls},
		{"prompt", o.Prompt}, {"reasoning", o.Reasoning}, {"service_tier", o.ServiceTier},
		{"temperature", o.Temperature}, {"text", o.Text}, {"tool_choice", o.ToolChoice}, {"tools", o.Tools},
		{"top_logprobs", o.TopLogprobs}, {"top_p", o.TopP}, {"truncation", o.Truncation}} {
		if text := string(f.value); text != "" && text != "null" && text != "[]" {
			names = append(names, f.name)
		}
	}
	return names
}

// An inputItem is an item of the input, as far as the door looks at it.
type inputItem struct {
	Type    string          `json:"type"`
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`

	Approval string `json:"approval_request_id"`
	Approve  bool   `json:"approve"`
	Reason   string `json:"reason"`
}

// Bounds of a request.
const (
	maxItems    = 1000
	maxMetadata = 16
	// maxKeys is how many entries of the metadata are keys to search by.
	maxKeys = 10
)

// items reads the input: a text, or a list of items.
func items(input json.RawMessage) (list []inputItem, err error) {
	var text string
	if json.Unmarshal(input, &text) == nil {
		if strings.TrimSpace(text) == "" {
			return nil, perdure.Invalid("input", "is empty: there is nothing to answer")
		}
		return []inputItem{{Role: "user", Content: input}}, nil
	}
	if err := json.Unmarshal(input, &list); err != nil || len(list) == 0 {
		return nil, perdure.Invalid("input", "takes a text, or a list of items")
	}
	if len(list) > maxItems {
		return nil, perdure.OverBound("input", "has %d items; a request takes %d", len(list), maxItems)
	}
	return list, nil
}

// messages are the messages of an input. Items of other types are left to the run's input.
func messages(instructions json.RawMessage, list []inputItem) (out []perdure.Message) {
	var text string
	if json.Unmarshal(instructions, &text) == nil && text != "" {
		out = append(out, perdure.Message{Role: perdure.RoleSystem, Content: instructions})
	}
	for _, x := range list {
		if x.Type != "" && x.Type != "message" || len(x.Content) == 0 || string(x.Content) == "null" {
			continue
		}
		role := perdure.RoleUser
		switch x.Role {
		case "assistant":
			role = perdure.RoleAssistant
		case "system", "developer":
			role = perdure.RoleSystem
		}
		out = append(out, perdure.Message{Role: role, Content: plainText(x.Content)})
	}
	return out
}

// plainText makes one text of parts that are texts. Other content stays as it is.
func plainText(content json.RawMessage) json.RawMessage {
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if json.Unmarshal(content, &parts) != nil || len(parts) == 0 {
		return content
	}
	var b strings.Builder
	for _, p := range parts {
		if p.Text == nil || !strings.HasSuffix(p.Type, "text") {
			return content
		}
		b.WriteString(*p.Text)
	}
	out, _ := perdure.Marshal(b.String()) // never fails for a string
	return out
}

// An echo is what a response repeats of its request, in the run's metadata.
type echo struct {
	Metadata   map[string]string `json:"metadata,omitempty"`
	Previous   string            `json:"previous,omitempty"`
	Background bool              `json:"background,omitempty"`
	// Call tells calls with the same body from each other. It begins with 0 for a first call, and with 1
	// for a retry that has found no run.
	Call string `json:"call"`
}

// Keys of the run's metadata.
const (
	echoKey   = "door.openai"
	digestKey = "door.digest"
)

// metadata are those of a run.
func metadata(e *echo, digest string, ignored []string) (map[string]string, error) {
	if len(e.Metadata) > maxMetadata {
		return nil, perdure.OverBound("metadata", "has %d entries; a response takes %d", len(e.Metadata), maxMetadata)
	}
	out := make(map[string]string)
	for _, k := range sortedKeys(e.Metadata) {
		if len(out) == maxKeys {
			break
		}
		if !strings.HasPrefix(k, "door.") && perdure.CheckName("metadata", k) == nil {
			out[k] = e.Metadata[k]
		}
	}
	b, err := perdure.Marshal(e)
	if err != nil {
		return nil, err
	}
	out[echoKey], out[digestKey] = string(b), digest
	if len(ignored) > 0 {
		out[doors.Ignored] = doors.IgnoredFields(ignored)
	}
	return out, nil
}

func sortedKeys(m map[string]string) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// runInput is the input of a run: what the request asked.
type runInput struct {
	Input        json.RawMessage `json:"input"`
	Instructions json.RawMessage `json:"instructions,omitempty"`
}

// responseOf is the response of a run before its first line. It has only what never changes.
func responseOf(run *api.Run, r ref) *response {
	var e echo
	_ = json.Unmarshal([]byte(run.Metadata[echoKey]), &e) // a run that did not come through the door has none
	var in runInput
	if json.Unmarshal(run.Input, &in) != nil || len(in.Instructions) == 0 {
		in.Instructions = json.RawMessage("null")
	}
	out := &response{ID: r.String(), Object: "response", CreatedAt: int64(run.CreatedAt) / 1_000_000, Status: "queued",
		Background: e.Background, Instruct: in.Instructions, Metadata: e.Metadata, Model: run.Kind, Output: []*item{},
		Parallel: true, ToolChoice: "auto", Tools: []string{}, Store: true}
	if out.Metadata == nil {
		out.Metadata = map[string]string{}
	}
	if e.Previous != "" {
		out.Previous = &e.Previous
	}
	if run.ThreadID != "" {
		out.Talk = &conversation{conversationPrefix + bare(string(run.ThreadID))}
	}
	return out
}
