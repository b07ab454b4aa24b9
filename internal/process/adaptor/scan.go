package adaptor

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/perdure/perdure"
)

// The functions of this file read JSON that is known to be valid, without decoding or copying what no
// rule asks for. An agent's line may have a megabyte of which ten bytes are of interest. None of them
// calls itself, so deep nesting costs no stack.

// skipSpace returns the index of the next byte that is no white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the index after a string that begins at i.
func skipString(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// skipValue returns the index after a value that begins at i.
func skipValue(b []byte, i int) int {
	for depth := 0; i < len(b); {
		switch b[i] {
		case '"':
			i = skipString(b, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\n', '\r':
			i++
			continue
		default:
			for i < len(b) && !endsLiteral(b[i]) {
				i++
			}
		}
		if depth <= 0 {
			return i
		}
	}
	return len(b)
}

// endsLiteral tells whether a byte comes after a number, a boolean or null.
func endsLiteral(c byte) bool {
	switch c {
	case ',', ']', '}', ' ', '\t', '\n', '\r':
		return true
	}
	return false
}

// members calls a function with each member of an object, until it returns false. Other values have
// none.
func members(b []byte, each func(name, value []byte) bool) {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '{' {
		return
	}
	for i = skipSpace(b, i+1); i < len(b) && b[i] == '"'; {
		end := skipString(b, i)
		name := b[i+1 : end-1]
		i = skipSpace(b, end) // the colon
		i = skipSpace(b, i+1) // the value
		end = skipValue(b, i)
		if !each(name, b[i:end]) {
			return
		}
		if i = skipSpace(b, end); i < len(b) && b[i] == ',' {
			i = skipSpace(b, i+1)
		}
	}
}

// elements calls a function with each element of an array, until it returns false. Other values have
// none.
func elements(b []byte, each func(value []byte) bool) {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '[' {
		return
	}
	for i = skipSpace(b, i+1); i < len(b) && b[i] != ']'; {
		end := skipValue(b, i)
		if !each(b[i:end]) {
			return
		}
		if i = skipSpace(b, end); i < len(b) && b[i] == ',' {
			i = skipSpace(b, i+1)
		}
	}
}

// A node is an object of a line whose members have been looked for once. It keeps the members that
// an engine's paths name.
type node struct {
	raw     []byte
	known   map[string]*node
	scanned bool
}

// member returns a member of an object, or nil.
func (n *node) member(name string, wanted map[string]bool) *node {
	if !n.scanned {
		n.scanned = true
		members(n.raw, func(key, value []byte) bool {
			if bytes.IndexByte(key, '\\') >= 0 {
				key = []byte(textOf(append(append([]byte{'"'}, key...), '"')))
			}
			if wanted[string(key)] && n.known[string(key)] == nil {
				if n.known == nil {
					n.known = make(map[string]*node)
				}
				n.known[string(key)] = &node{raw: value}
			}
			return len(n.known) < len(wanted)
		})
	}
	return n.known[name]
}

// textOf returns the text of a JSON string, and nothing for other values. A NUL and bytes that
// are not UTF-8 are replaced, because no store keeps them.
func textOf(raw []byte) string {
	var s string
	if len(raw) < 2 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return strings.ReplaceAll(s, "\x00", "\uFFFD")
}

// numberOf returns a number that is not negative, and 0 for other values.
func numberOf(raw []byte) float64 {
	if len(raw) == 0 || raw[0] == '"' {
		return 0
	}
	f, err := strconv.ParseFloat(string(raw[:min(len(raw), 64)]), 64)
	if err != nil || math.IsNaN(f) || f < 0 || f > 1<<53 {
		return 0
	}
	return f
}

// isValue tells whether two JSON values that are no objects or arrays are the same.
func isValue(raw, want []byte) bool {
	switch {
	case len(raw) == 0:
		return string(want) == "null"
	case raw[0] == '"' && len(want) > 0 && want[0] == '"':
		if bytes.IndexByte(raw, '\\') < 0 && bytes.IndexByte(want, '\\') < 0 {
			return bytes.Equal(raw, want)
		}
		return textOf(raw) == textOf(want)
	}
	return bytes.Equal(raw, want)
}

// cut returns at most n bytes of a text, and no part of a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// maxNested is the depth to which a value may be nested. The server's limit is for a whole call.
const maxNested = 32

// clip returns a copy of a JSON value. One that no log takes, because it is too large, too deep or not
// text, becomes a string with the beginning of it.
func clip(raw []byte, n int) json.RawMessage {
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil
	case len(raw) <= n && utf8.Valid(raw) && !perdure.BadEscape(raw) && depthOf(raw) <= maxNested:
		return bytes.Clone(raw)
	}
	text := textOf(raw)
	if raw[0] != '"' {
		text = strings.ToValidUTF8(string(raw[:min(len(raw), n)]), "")
	}
	if short := cut(text, n); len(short) < len(text) || len(raw) > n {
		text = short + "…"
	}
	b, err := perdure.Marshal(text)
	if err != nil {
		return nil
	}
	return b
}

// depthOf returns how deep arrays and objects are nested in a value.
func depthOf(b []byte) (deepest int) {
	for i, depth := 0, 0; i < len(b); {
		switch b[i] {
		case '"':
			i = skipString(b, i)
			continue
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		}
		i++
	}
	return deepest
}
