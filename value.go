package perdure

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// A Value is JSON as it is stored. A small value is the text itself. A large one is a reference,
// "@<sha256>:<size>", to content that is stored once under its hash. No JSON text begins with "@",
// so the two forms cannot be confused.
type Value string

// RefValue returns a reference to content by its hash and size.
func RefValue(hash string, size int) Value {
	return Value("@" + hash + ":" + strconv.Itoa(size))
}

// Ref returns the hash and the size of a reference. ok is false for an inline value.
func (v Value) Ref() (hash string, size int, ok bool) {
	rest, found := strings.CutPrefix(string(v), "@")
	if !found {
		return "", 0, false
	}
	hash, n, _ := strings.Cut(rest, ":")
	size, err := strconv.Atoi(n)
	return hash, size, err == nil
}

// MarshalJSON writes the text, or {"ref","size"} for a reference, or null.
func (v Value) MarshalJSON() ([]byte, error) {
	if v == "" {
		return []byte("null"), nil
	}
	if hash, size, ok := v.Ref(); ok {
		return fmt.Appendf(nil, `{"ref":"sha256:%s","size":%d}`, hash, size), nil
	}
	if !json.Valid([]byte(v)) {
		return json.Marshal(string(v)) // corrupted: written as a string, so that the rest can be shown
	}
	return []byte(v), nil
}

// UnmarshalJSON keeps the text.
func (v *Value) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*v = ""
		return nil
	}
	*v = Value(b)
	return nil
}

// object builds a JSON object from names and values in the given order, and omits unset values. The
// order is fixed because logs are compared byte by byte.
func object(pairs ...any) Value {
	var most [256]byte // an object that fits needs no other buffer
	b := append(most[:0], '{')
	for i := 0; i+1 < len(pairs); i += 2 {
		before := len(b)
		if before > 1 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = append(b, pairs[i].(string)...)
		b = append(b, '"', ':')
		var set bool
		if b, set = appendSet(b, pairs[i+1]); !set {
			b = b[:before]
		}
	}
	return Value(append(b, '}'))
}

// appendSet appends a value as JSON. If the value is unset, the rest of b is to be discarded.
func appendSet(b []byte, val any) (_ []byte, set bool) {
	switch x := val.(type) {
	case nil:
		return b, false
	case string:
		return appendText(b, x), x != ""
	case int:
		return strconv.AppendInt(b, int64(x), 10), true
	case int64:
		return strconv.AppendInt(b, x, 10), true
	case bool:
		return append(b, "true"...), x
	case Instant:
		return x.append(b), x != 0
	case Value:
		if x == "" {
			return b, false
		}
		text, _ := x.MarshalJSON()
		return append(b, text...), true
	}
	text, _ := json.Marshal(val)
	return append(b, text...), string(text) != "null" && string(text) != `""`
}

// appendText appends a text as json.Marshal writes it.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			text, _ := json.Marshal(s)
			return append(b, text...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// with returns an object with one more member.
func (v Value) with(name string, val any) Value {
	more := object(name, val)
	if len(v) <= len("{}") {
		return more
	}
	return v[:len(v)-1] + "," + more[1:]
}

// Object builds the data of a log line from names and values in the given order. Unset values are
// omitted.
func Object(pairs ...any) Value { return object(pairs...) }
