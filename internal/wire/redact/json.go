package redact

import (
	"bytes"
	"encoding/json"
	"strings"
)

// JSON redacts the strings, names and numbers of a JSON text, however they are escaped. Valid JSON
// stays valid, and a text without secrets stays the same to the byte. Invalid JSON is redacted like
// any text.
func (s *Set) JSON(raw []byte) []byte {
	if s == nil || bytes.IndexByte(raw, '\\') < 0 && !s.Has(string(raw)) {
		return raw
	}
	return s.each(raw, s.String)
}

// Values is like JSON, and also redacts pieces of secrets at the ends of strings, because another
// value may follow; see Whole.
func (s *Set) Values(raw []byte) []byte { return s.each(raw, s.Whole) }

// Text redacts a text that may be JSON.
func (s *Set) Text(text string) string {
	if s == nil || !s.Has(text) {
		return text
	}
	if json.Valid([]byte(text)) {
		return string(s.JSON([]byte(text)))
	}
	return s.String(text)
}

// each applies a function to the strings and names of a JSON text, and redacts its numbers.
func (s *Set) each(raw []byte, of func(string) string) []byte {
	if s == nil || len(raw) == 0 {
		return raw
	}
	if !json.Valid(raw) {
		return []byte(s.String(string(raw)))
	}
	var out []byte // nil while nothing has changed
	last := 0
	put := func(from, to int, with string) {
		out = append(append(out, raw[last:from]...), with...)
		last = to
	}
	for i := 0; i < len(raw); {
		switch c := raw[i]; {
		case c == '"':
			end := i + 1
			escaped := false
			for ; raw[end] != '"'; end++ {
				if raw[end] == '\\' {
					escaped = true
					end++
				}
			}
			end++
			text := string(raw[i+1 : end-1])
			if escaped && json.Unmarshal(raw[i:end], &text) != nil {
				text = string(raw[i+1 : end-1])
			}
			if clean := of(text); clean != text {
				put(i, end, quote(clean))
			}
			i = end
		case c == '-' || c >= '0' && c <= '9':
			end := i + 1
			for end < len(raw) && strings.IndexByte("0123456789+-.eE", raw[end]) >= 0 {
				end++
			}
			if s.Has(string(raw[i:end])) {
				put(i, end, `"`+Mark+`"`)
			}
			i = end
		default:
			i++
		}
	}
	if out == nil {
		return raw
	}
	return append(out, raw[last:]...)
}

func quote(text string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // never fails for a string
	return strings.TrimSuffix(b.String(), "\n")
}
