package mcp

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// A schema that refers to itself would end this process, and one that doubles would take forever.
func TestHostileSchemasAreNotFollowed(t *testing.T) {
	doubling := `{"type":"object","allOf":[{"$ref":"#/$defs/a0"}],"$defs":{"a60":{}`
	for i := range 60 {
		doubling += fmt.Sprintf(`,"a%d":{"allOf":[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%d"}]}`, i, i+1, i+1)
	}
	for _, text := range []string{
		`{"type":"object","$ref":"#"}`, `{"type":"object","allOf":[{"$ref":"#"}]}`,
		`{"type":"object","$dynamicRef":"#"}`,
		`{"type":"object","allOf":[{"$ref":"#a"},{"$anchor":"a","allOf":[{"$ref":"#a"}]}]}`,
		`{"type":"object","allOf":[{"$id":"http://x/y","$ref":"http://x/y"}]}`,
		`{"type":"object","allOf":[{"$ref":"#/%24defs/x"}],"$defs":{"x":{"$ref":"#/%24defs/x"}}}`,
		`{"type":"object","$id":"http://x/y","allOf":[{"$ref":"http://x/y"}]}`,
		`{"type":"object","properties":{"$ref":{"$ref":"#/properties/$ref"}}}`,
		`{"type":"object","properties":{"x":{"$ref":"#/properties/x"}}}`,
		`{"type":"object","properties":{"$defs":{"$ref":"#"}},"$ref":"#/properties/$defs"}`,
		`{"type":"object","properties":{"$defs":{"$ref":"#/properties/$defs"}}}`,
		`{"type":"object","properties":{"$id":{"$ref":"#/properties/$id"}}}`,
		doubling + "}}",
		strings.Repeat(`{"type":"object","properties":{"x":`, 400) + `{}` + strings.Repeat("}}", 400),
	} {
		s, err := newSchema(json.RawMessage(text), true)
		if err != nil {
			continue // the tool is not offered
		}
		_ = s.check(json.RawMessage(`{"x":{"x":1},"$ref":1,"$defs":{},"$id":1}`)) // an end is all that is asked for
	}
}

// References that end are followed.
func TestReferencesAreChecked(t *testing.T) {
	s, err := newSchema(json.RawMessage(`{"type":"object","properties":{"x":{"$ref":"#/$defs/n"}},`+
		`"$defs":{"n":{"type":"integer"}}}`), true)
	if err != nil || s.resolved == nil {
		t.Fatalf("schema = %+v (error %v), want one that checks", s, err)
	}
	if err := s.check(json.RawMessage(`{"x":1}`)); err != nil {
		t.Errorf("an integer is refused: %v", err)
	}
	if s.check(json.RawMessage(`{"x":"1"}`)) == nil {
		t.Error("a string is accepted, want an integer")
	}
}
