package model

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Tool calls come in fragments. By the protocol each fragment has the index of its call, and the
// first one of a call has an id and a name. Endpoints differ: some send no index, some the index 0
// for every call, some no id, some repeat id and name in every fragment, and some send whole calls.
// So a fragment belongs to
//
//  1. the call with its id, if there is one;
//  2. a new call, if it has a new id and the call at its index has another one;
//  3. the last call at its index, unless the fragment has a name and that call is complete;
//  4. the last call, if it has neither a known index nor an id nor a name.
//
// Otherwise it begins a new call.

// maxCalls limits the calls of an answer.
const maxCalls = 128

// errTooManyCalls is returned for an answer with more.
var errTooManyCalls = fmt.Errorf("the answer has more than %d tool calls", maxCalls)

// wireCall is a fragment of a call, or a whole one.
type wireCall struct {
	Index    number   `json:"index"`
	ID       lenient  `json:"id"`
	Function callBody `json:"function"`

	Extra json.RawMessage `json:"extra_content"`
}

type callBody struct {
	Name      lenient         `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// text returns the arguments: those of a JSON string, or the JSON itself, as some endpoints send an
// object.
func (b *callBody) text() string {
	raw := bytes.TrimSpace(b.Arguments)
	var s string
	switch {
	case len(raw) == 0, string(raw) == "null":
		return ""
	case json.Unmarshal(raw, &s) == nil:
		return s
	}
	return string(raw)
}

// A number is an integer that may be missing, or written as a text.
type number struct {
	n   int
	set bool
}

func (n *number) UnmarshalJSON(b []byte) error {
	i, err := strconv.Atoi(strings.Trim(string(b), `"`))
	*n = number{i, err == nil}
	return nil
}

// A lenient is a text. Any other value counts as an empty one.
type lenient string

func (t *lenient) UnmarshalJSON(b []byte) error {
	var s string
	if len(b) > 0 && b[0] == '"' && json.Unmarshal(b, &s) != nil {
		s = ""
	}
	*t = lenient(s)
	return nil
}

// A partial is a call of which some fragments have come.
type partial struct {
	index    number
	id, name string
	args     []byte
	extra    json.RawMessage
	scan     objectScan
}

// calls assembles the tool calls of an answer.
type calls struct {
	list []*partial
	byID map[string]*partial
}

// add takes a fragment.
func (c *calls) add(w *wireCall) error {
	id, name, args := string(w.ID), string(w.Function.Name), w.Function.text()
	p := c.find(w.Index, id, name, args)
	if p == nil {
		if len(c.list) == maxCalls {
			return errTooManyCalls
		}
		p = &partial{index: w.Index}
		c.list = append(c.list, p)
	}
	if id != "" && id == p.id && name != "" && p.scan.complete() {
		return nil // the whole call once more, as some endpoints send it at the end
	}
	if id != "" && p.id == "" && c.byID[id] == nil {
		if c.byID == nil {
			c.byID = make(map[string]*partial)
		}
		p.id, c.byID[id] = id, p
	}
	if name != p.name && len(p.args) == 0 {
		p.name += name
	}
	if isSet(w.Extra) {
		p.extra = w.Extra
	}
	p.args = append(p.args, args...)
	p.scan.add(args)
	return nil
}

// find returns the call that a fragment belongs to, or nil for a new one.
func (c *calls) find(index number, id, name, args string) *partial {
	at, last := c.at(index), (*partial)(nil)
	if n := len(c.list); n > 0 {
		last = c.list[n-1]
	}
	if p := c.byID[id]; id != "" && p != nil {
		if name != "" && index.set && at == nil {
			return nil // the head of another call, with an id that is in use
		}
		return p
	}
	switch {
	case index.set && at == nil && (id != "" || name != ""):
		return nil
	case !index.set || at == nil:
		at = last
		if at == nil {
			return nil
		}
	}
	switch {
	case id != "" && at.id != "":
		return nil
	case name == "" || at.name == "":
	case at.scan.complete() && (args != "" || name != at.name):
		return nil
	case !index.set && name != at.name:
		return nil
	}
	return at
}

// at returns the last call at an index.
func (c *calls) at(index number) *partial {
	for i := len(c.list) - 1; i >= 0 && index.set; i-- {
		if c.list[i].index == index {
			return c.list[i]
		}
	}
	return nil
}

// finished returns the calls, in the order in which they began. Each has an id of its own.
func (c *calls) finished() []ToolCall {
	var out []ToolCall
	for _, p := range c.list {
		call := ToolCall{ID: p.id, Name: p.name, Arguments: strings.TrimSpace(string(p.args)), Extra: p.extra}
		if call.ID == "" {
			call.ID = newCallID()
		}
		if call.Arguments == "" || call.Arguments == "null" {
			call.Arguments = "{}"
		}
		call.Invalid = invalid(&call)
		out = append(out, call)
	}
	return out
}

// invalid says what is wrong with a call.
func invalid(c *ToolCall) string {
	var v any
	if c.Name == "" {
		return "the call names no tool"
	}
	if err := json.Unmarshal([]byte(c.Arguments), &v); err != nil {
		return "the arguments are no JSON: " + err.Error()
	}
	if _, ok := v.(map[string]any); !ok {
		return "the arguments are no JSON object"
	}
	return ""
}

// newCallID returns an id for a call that came without one: nine letters and digits, because
// Mistral accepts nothing else.
func newCallID() string { return rand.Text()[:9] }

// An objectScan follows the braces of a JSON object, to see where it ends without reading it again
// for each fragment.
type objectScan struct {
	depth                 int
	begun, quoted, escape bool
}

func (s *objectScan) add(text string) {
	for i := range len(text) {
		b := text[i]
		switch {
		case s.escape:
			s.escape = false
		case s.quoted:
			s.escape, s.quoted = b == '\\', b != '"'
		case b == '"':
			s.quoted = true
		case b == '{' || b == '[':
			s.depth++
			s.begun = true
		case b == '}' || b == ']':
			s.depth--
		}
	}
}

// complete tells whether the text is an object from its first brace to its last.
func (s *objectScan) complete() bool { return s.begun && s.depth == 0 && !s.quoted }
