package jsonschema_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/wire/jsonschema"
)

func TestValuesFitTheirSchemas(t *testing.T) {
	for _, x := range []struct{ schema, value, want string }{
		{`{}`, `1`, ""},
		{`true`, `null`, ""},
		{`{"type":"string"}`, `"a"`, ""},
		{`{"type":"string"}`, `1`, "is of type integer, want string"},
		{`{"type":["string","null"]}`, `null`, ""},
		{`{"type":["string","null"]}`, `true`, "is of type boolean, want string or null"},
		{`{"type":"number"}`, `1`, ""},
		{`{"type":"integer"}`, `1.0`, ""},
		{`{"type":"integer"}`, `1.5`, "is of type number, want integer"},
		{`{"enum":["a",1,null]}`, `1`, ""},
		{`{"enum":["a"]}`, `"secret"`, "is none of the 1 values that it may have"},
		{`{"const":{"a":[1]}}`, `{"a":[1.0]}`, ""},
		{`{"const":{"a":[1]}}`, `{"a":[1,2]}`, "is not the value that it has to have"},
		{`{"minimum":1,"maximum":3}`, `4`, "is above 3"},
		{`{"exclusiveMinimum":1}`, `1`, "is not above 1"},
		{`{"minLength":2}`, `"ä"`, "has 1 characters, want 2 at least"},
		{`{"items":{"type":"integer"},"maxItems":2}`, `[1,"b"]`, "[1] is of type string, want integer"},
		{`{"items":{"type":"integer"},"maxItems":2}`, `[1,2,3]`, "has 3 entries, want 2 at most"},
		{`{"properties":{"a":{"properties":{"b":{"type":"string"}}}}}`, `{"a":{"b":1}}`,
			"a.b is of type integer, want string"},
		{`{"required":["a"]}`, `{}`, "a is missing"},
		{`{"properties":{"a":{}},"additionalProperties":false}`, `{"a":1,"b":2}`, "b is not allowed"},
		{`{"additionalProperties":{"type":"string"}}`, `{"b":2}`, "b is of type integer, want string"},
		{`{"anyOf":[{"type":"string"},{"type":"null"}]}`, `1`, "fits none of the 2 forms that it may have"},
		{`{"oneOf":[{"type":"number"},{"type":"integer"}]}`, `1`, "fits 2 of the forms, of which it may have one"},
		{`{"allOf":[{"type":"number"},{"maximum":3}]}`, `4`, "is above 3"},
		{`{"not":{"type":"null"}}`, `null`, "has the form that it may not have"},
		{`{"$ref":"#/$defs/N","$defs":{"N":{"type":"object","properties":{"next":{"$ref":"#/$defs/N"}}}}}`,
			`{"next":{"next":1}}`, "next.next is of type integer, want object"},
		{`{"$ref":"https://example.com/other"}`, `1`, ""},
		{`{"pattern":"^a"}`, `"b"`, ""},
		{`no schema`, `1`, ""},
	} {
		got := ""
		if err := jsonschema.Check(json.RawMessage(x.schema), json.RawMessage(x.value)); err != nil {
			got = err.Error()
		}
		if got != x.want {
			t.Errorf("schema %s, value %s: %q, want %q", x.schema, x.value, got, x.want)
		}
	}
}

func TestCheckOfAHostileSchemaEnds(t *testing.T) {
	twice := `{"$defs":{"A":{"allOf":[{"$ref":"#/$defs/A"},{"$ref":"#/$defs/A"}]}},"$ref":"#/$defs/A"}`
	if err := jsonschema.Check(json.RawMessage(twice), json.RawMessage(`1`)); err != nil {
		t.Errorf("a schema that refers to itself twice: %v, want no mismatch", err)
	}
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	list := `{"$defs":{"L":{"items":{"$ref":"#/$defs/L"}}},"$ref":"#/$defs/L"}`
	if err := jsonschema.Check(json.RawMessage(list), json.RawMessage(deep)); err != nil {
		t.Errorf("a deep value: %v, want no mismatch", err)
	}
}

func TestDerivedSchemasFitTheirValues(t *testing.T) {
	type inner struct {
		N    int     `json:"n"`
		Next *inner2 `json:"next,omitempty"`
	}
	v := struct {
		Name string         `json:"name"`
		List []inner        `json:"list"`
		More map[string]any `json:"more"`
	}{"a", []inner{{1, &inner2{true}}}, map[string]any{"x": 1}}
	schema, _ := json.Marshal(jsonschema.Of(reflect.TypeOf(v)))
	value, _ := json.Marshal(v)
	if err := jsonschema.Check(schema, value); err != nil {
		t.Errorf("schema %s, value %s: %v", schema, value, err)
	}
}

type inner2 struct{ B bool }
