package frames

import (
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
)

// kept is the key in the metadata of a message that holds it as the caller sent it.
const kept = "langgraph"

// MaxMessages bounds the messages of a call, and those of an answer.
const MaxMessages = 1000

// roles are the types of LangChain's messages and the roles of OpenAI's, as roles of a thread.
var roles = map[string]perdure.Role{"human": perdure.RoleUser, "user": perdure.RoleUser, "ai": perdure.RoleAssistant,
	"assistant": perdure.RoleAssistant, "tool": perdure.RoleTool, "system": perdure.RoleSystem,
	"developer": perdure.RoleSystem}

// types are the types of LangChain's messages.
var types = map[perdure.Role]string{perdure.RoleUser: "human", perdure.RoleAssistant: "ai", perdure.RoleTool: "tool",
	perdure.RoleSystem: "system"}

// TakeMessages reads messages of a caller: a list of objects or texts, or one of these.
func TakeMessages(field string, raw json.RawMessage) (out []perdure.Message, err error) {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		list = []json.RawMessage{raw}
	}
	if len(list) > MaxMessages {
		return nil, shape.Unprocessable(perdure.CodeTooLarge, field, "has more than 1000 messages")
	}
	for i, one := range list {
		at := field + "." + shape.Itoa(i)
		var text string
		if json.Unmarshal(one, &text) == nil {
			out = append(out, perdure.Message{Role: perdure.RoleUser, Content: one})
			continue
		}
		var m struct {
			Type    string          `json:"type"`
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		}
		if json.Unmarshal(one, &m) != nil {
			return nil, perdure.Invalid(at, "is no message")
		}
		role, ok := roles[m.Type]
		if !ok {
			role, ok = roles[m.Role]
		}
		if !ok {
			return nil, perdure.Invalid(at, "has no type or role of human, ai, tool, system")
		}
		if len(m.Content) == 0 {
			m.Content = json.RawMessage(`""`)
		}
		metadata, err := json.Marshal(map[string]json.RawMessage{kept: one})
		if err != nil {
			return nil, err
		}
		out = append(out, perdure.Message{Role: role, Content: m.Content, Metadata: metadata})
	}
	return out, nil
}

// ShowMessage gives a message of a thread in LangChain's shape.
func ShowMessage(thread string, m *api.Message) shape.Object {
	out := shape.Object{}
	var metadata map[string]json.RawMessage
	if json.Unmarshal(m.Metadata, &metadata) == nil && metadata[kept] != nil {
		if json.Unmarshal(metadata[kept], &out) != nil || out == nil {
			out = shape.Object{}
		}
		delete(out, "role")
	}
	kind, ok := types[m.Role]
	if !ok {
		kind = "ai"
	}
	out["type"], out["content"] = kind, content(m.Content)
	if id, ok := out["id"].(string); !ok || id == "" {
		out["id"] = thread + "-" + shape.Itoa(m.Seq)
	}
	for _, name := range []string{"additional_kwargs", "response_metadata"} {
		if out[name] == nil {
			out[name] = shape.Object{}
		}
	}
	return out
}

// content is what a message says: a text or a list of blocks. Anything else is shown as its JSON.
func content(raw json.RawMessage) any {
	if len(raw) > 0 && (raw[0] == '"' || raw[0] == '[') {
		return raw
	}
	return string(raw)
}

// ShowMessages gives messages in LangChain's shape.
func ShowMessages(thread string, list []api.Message) []shape.Object {
	out := make([]shape.Object, len(list))
	for i := range list {
		out[i] = ShowMessage(thread, &list[i])
	}
	return out
}

// AddResult adds the fields of a result to the values, if it is an object. Messages are those of the
// thread.
func AddResult(values shape.Object, result json.RawMessage) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(result, &fields) != nil {
		return
	}
	for name, value := range fields {
		if _, is := values[name]; !is {
			values[name] = value
		}
	}
}
