package input

import (
	"encoding/json"
	"strings"

	"github.com/perdure/perdure"
)

// Others are fields that the door knows and can't honour.
type Others struct {
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

// Ignored names the fields that the caller has sent.
func (o *Others) Ignored() (names []string) {
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

// An Item is an item of the input, as far as the door looks at it.
type Item struct {
	Type    string          `json:"type"`
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`

	Approval string `json:"approval_request_id"`
	Approve  bool   `json:"approve"`
	Reason   string `json:"reason"`
}

// MaxItems bounds the items of a request.
const MaxItems = 1000

// Items reads the input: a text, or a list of items.
func Items(input json.RawMessage) (list []Item, err error) {
	var text string
	if json.Unmarshal(input, &text) == nil {
		if strings.TrimSpace(text) == "" {
			return nil, perdure.Invalid("input", "is empty: there is nothing to answer")
		}
		return []Item{{Role: "user", Content: input}}, nil
	}
	if err := json.Unmarshal(input, &list); err != nil || len(list) == 0 {
		return nil, perdure.Invalid("input", "takes a text, or a list of items")
	}
	if len(list) > MaxItems {
		return nil, perdure.OverBound("input", "has %d items; a request takes %d", len(list), MaxItems)
	}
	return list, nil
}

// Messages are the messages of an input. Items of other types are left to the run's input.
func Messages(instructions json.RawMessage, list []Item) (out []perdure.Message) {
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
