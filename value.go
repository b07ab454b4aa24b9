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
	b := []byte{'{'}
	for i := 0; i+1 < len(pairs); i += 2 {
		name, val := pairs[i].(string), pairs[i+1]
		var text []byte
		switch x := val.(type) {
		case nil:
			continue
		case string:
			if x == "" {
				continue
			}
			text, _ = json.Marshal(x)
		case int:
			text = strconv.AppendInt(nil, int64(x), 10)
		case int64:
			text = strconv.AppendInt(nil, x, 10)
		case bool:
			if !x {
				continue
			}
			text = []byte("true")
		case Instant:
			if x == 0 {
				continue
			}
			text, _ = x.MarshalJSON()
		case Value:
			if x == "" {
				continue
			}
			text, _ = x.MarshalJSON()
		default:
			text, _ = json.Marshal(x)
			if string(text) == "null" || string(text) == `""` {
				continue
			}
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = append(b, name...)
		b = append(b, '"', ':')
		b = append(b, text...)
	}
	return Value(append(b, '}'))
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
