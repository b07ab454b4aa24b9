package perdure

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// maxNested is less than the server allows, since a value stands inside of a call.
const maxNested = 50

// Encode writes a value as JSON that the server takes. It goes through the value once more, because JSON that
// came from elsewhere as text may be valid and still name a field twice, and a call with that in it is refused
// as a whole.
func Encode(v any) (json.RawMessage, error) {
	b, err := encode(v)
	if err != nil {
		return nil, err
	}
	// What is far too large is not looked at more closely. A character may have been escaped with six.
	if len(b) > 6*MaxValue {
		return nil, CheckValue("value", b)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var plain any
	if err := d.Decode(&plain); err != nil {
		return nil, err
	}
	if depth(plain) > maxNested {
		return nil, fmt.Errorf("is nested deeper than %d", maxNested)
	}
	if b, err = encode(plain); err != nil {
		return nil, err
	}
	return b, CheckValue("value", b)
}

// encode writes JSON without escaping <, > and &: a value of many of them would grow past its bound.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func depth(v any) int {
	n := 0
	switch x := v.(type) {
	case map[string]any:
		for _, e := range x {
			n = max(n, depth(e))
		}
		return n + 1
	case []any:
		for _, e := range x {
			n = max(n, depth(e))
		}
		return n + 1
	}
	return 0
}
