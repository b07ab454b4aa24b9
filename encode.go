package perdure

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// maxNested limits the nesting of a value. It is below the server's limit, because a call wraps the
// value.
const maxNested = 50

// Encode writes a value as JSON that the server accepts. It decodes and encodes the JSON once more:
// raw JSON inside the value may name a field twice, and the server would refuse the whole call for
// it.
func Encode(v any) (json.RawMessage, error) {
	b, err := Marshal(v)
	if err != nil {
		return nil, err
	}
	// A value far over the limit is not decoded. The factor is the longest escape of one byte,
	// \u0000.
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
	if b, err = Marshal(plain); err != nil {
		return nil, err
	}
	return b, CheckValue("value", b)
}

// Marshal writes JSON without escaping <, > and &. Escapes would let a value grow past its limit, and a
// value that was recorded would not come back byte by byte. Raw JSON inside the value is not checked.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// depth returns how deep arrays and objects are nested in a value.
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
