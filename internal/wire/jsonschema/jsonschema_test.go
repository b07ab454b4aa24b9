package jsonschema_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/wire/jsonschema"
)

type base struct {
	ID   string `json:"id"`
	Note string `json:"note"`
}

type Node struct {
	Name     string  `json:"name"`
	Children []*Node `json:"children,omitempty"`
}

type hex uint32

func (hex) MarshalText() ([]byte, error) { return nil, nil }

type order struct {
	base
	Note   int               `json:"note"` // hides that of base
	At     time.Time         `json:"at"`
	Raw    json.RawMessage   `json:"raw,omitempty"`
	Tags   map[string]string `json:"tags,omitzero"`
	Price  float64
	Colour hex    `json:"colour"`
	Data   []byte `json:"data,omitempty"`
	Pair   [2]int `json:"pair"`
	Big    int64  `json:"big,string"`
	Any    any    `json:"any,omitempty"`
	Tree   *Node  `json:"tree,omitempty"`
	Inline struct {
		X uint8 `json:"x"`
	} `json:"inline"`
	Hidden string `json:"-"`
	secret string
}

func TestSchemaOfType(t *testing.T) {
	_ = order{}.secret
	tests := map[string]struct {
		of   reflect.Type
		want string
	}{
		"any":    {reflect.TypeFor[any](), `{}`},
		"string": {reflect.TypeFor[string](), `{"type":"string"}`},
		"slice":  {reflect.TypeFor[[]int](), `{"items":{"type":"integer"},"type":"array"}`},
		"struct": {reflect.TypeFor[order](),
			`{"$defs":{"Node":{"properties":{"children":{"items":{"$ref":"#/$defs/Node"},` +
				`"type":"array"},"name":{"type":"string"}},"required":["name"],"type":"object"}},"properties":{` +
				`"Price":{"type":"number"},"any":{},"at":{"format":"date-time","type":"string"},` +
				`"big":{"type":"string"},` +
				`"colour":{"type":"string"},"data":{"contentEncoding":"base64","type":"string"},` +
				`"id":{"type":"string"},` +
				`"inline":{"properties":{"x":{"minimum":0,"type":"integer"}},"required":["x"],"type":"object"},` +
				`"note":{"type":"integer"},"pair":{"items":{"type":"integer"},"maxItems":2,"minItems":2,` +
				`"type":"array"},` +
				`"raw":{},"tags":{"additionalProperties":{"type":"string"},"type":"object"},` +
				`"tree":{"$ref":"#/$defs/Node"}},` +
				`"required":["Price","at","big","colour","id","inline","note","pair"],"type":"object"}`},
		"recursive": {reflect.TypeFor[Node](),
			`{"$defs":{"Node":{"properties":{"children":{"items":{"$ref":"#/$defs/Node"},` +
				`"type":"array"},"name":{"type":"string"}},"required":["name"],"type":"object"}},` +
				`"$ref":"#/$defs/Node"}`},
		"channel": {reflect.TypeFor[chan int](), `{}`},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := json.Marshal(jsonschema.Of(x.of))
			if err != nil || string(got) != x.want {
				t.Errorf("schema of %s =\n%s (%v), want\n%s", x.of, got, err, x.want)
			}
		})
	}
}

type (
	nested  []nested
	tree    map[string]tree
	pointer *pointer
	inline  []struct{ Inner inline }
	nodes   []Vertex
)

// A Vertex refers to itself through a slice with a name.
type Vertex struct{ Next nodes }

// A type that contains itself without a struct between has no name to refer to.
func TestTypeThatContainsItselfHasASchema(t *testing.T) {
	for _, typ := range []reflect.Type{
		reflect.TypeFor[nested](), reflect.TypeFor[tree](), reflect.TypeFor[pointer](), reflect.TypeFor[[]tree](),
		reflect.TypeFor[inline](),
	} {
		if b, err := json.Marshal(jsonschema.Of(typ)); err != nil {
			t.Errorf("schema of %s = %s, %v", typ, b, err)
		}
	}
	b, err := json.Marshal(jsonschema.Of(reflect.TypeFor[nodes]()))
	if want := `{"$defs":{"Vertex":{"properties":{"Next":{"items":{"$ref":"#/$defs/Vertex"},"type":"array"}},` +
		`"required":["Next"],` +
		`"type":"object"}},"items":{"$ref":"#/$defs/Vertex"},"type":"array"}`; err != nil || string(b) != want {
		t.Errorf("schema of nodes = %s, %v, want %s", b, err, want)
	}
	b, err = json.Marshal(jsonschema.Of(reflect.TypeFor[[2]nested]()))
	if want := `{"items":{"items":{},"type":"array"},"maxItems":2,"minItems":2,"type":"array"}`; err != nil ||
		string(b) != want {
		t.Errorf("schema of [2]nested = %s, %v, want %s", b, err, want)
	}
}
