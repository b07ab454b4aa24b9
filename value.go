package perdure

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// A Value is JSON as it is kept: the text itself when it is small, or a reference to content that is
// stored once, by its hash, written "@<sha256>:<size>". "@" begins no JSON text, so the two can't be
// taken for each other.
type Value string

// RefValue is a reference to content of that hash and size.
func RefValue(hash string, size int) Value {
	return Value("@" + hash + ":" + strconv.Itoa(size))
}

// Ref gives the hash and the size of a reference; ok is false for a value that stands inline.
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
		return json.Marshal(string(v)) // damaged: as the text that it is, so that what stands beside it can be shown
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

// object builds a JSON object from names and values in the given order, leaving out what is not set. The
// log is compared byte by byte, so its lines must not depend on the order of a map.
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

// with gives an object with one more name.
func (v Value) with(name string, val any) Value {
	more := object(name, val)
	if len(v) <= len("{}") {
		return more
	}
	return v[:len(v)-1] + "," + more[1:]
}

// Object builds a log line's payload: names and values in the given order, without what is not set.
func Object(pairs ...any) Value { return object(pairs...) }
