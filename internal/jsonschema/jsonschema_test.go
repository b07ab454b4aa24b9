package jsonschema_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/jsonschema"
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
		"struct": {reflect.TypeFor[order](), `{"$defs":{"Node":{"properties":{"children":{"items":{"$ref":"#/$defs/Node"},` +
			`"type":"array"},"name":{"type":"string"}},"required":["name"],"type":"object"}},"properties":{` +
			`"Price":{"type":"number"},"any":{},"at":{"format":"date-time","type":"string"},"big":{"type":"string"},` +
			`"colour":{"type":"string"},"data":{"contentEncoding":"base64","type":"string"},"id":{"type":"string"},` +
			`"inline":{"properties":{"x":{"minimum":0,"type":"integer"}},"required":["x"],"type":"object"},` +
			`"note":{"type":"integer"},"pair":{"items":{"type":"integer"},"maxItems":2,"minItems":2,"type":"array"},` +
			`"raw":{},"tags":{"additionalProperties":{"type":"string"},"type":"object"},"tree":{"$ref":"#/$defs/Node"}},` +
			`"required":["Price","at","big","colour","id","inline","note","pair"],"type":"object"}`},
		"recursive": {reflect.TypeFor[Node](), `{"$defs":{"Node":{"properties":{"children":{"items":{"$ref":"#/$defs/Node"},` +
			`"type":"array"},"name":{"type":"string"}},"required":["name"],"type":"object"}},"$ref":"#/$defs/Node"}`},
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
