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

// A name that is a keyword in another case means one thing to this program and another to the library.
func TestKeywordInAnotherCaseIsRefused(t *testing.T) {
	for _, text := range []string{
		`{"type":"object","$REF":"#"}`, `{"type":"object","$Ref":"#"}`,
		`{"type":"object","properties":{"x":{"$rEf":"#"}}}`, `{"type":"object","ALLOF":[{"$ref":"#"}]}`,
		`{"type":"object","$defſ":{},"a":1}`, `{"type":"object","allOf":[{"PROPERTIES":{"x":{"$ref":"#"}}}]}`,
		`{"type":"object","$defs":{"a":{"$DynamicRef":"#"}}}`, `{"type":"object","Key":1,"titKe":1,"Type":"string"}`,
	} {
		if _, err := newSchema(json.RawMessage(text), true); err == nil {
			t.Errorf("the schema %s is taken, want an error that names the keyword", text)
		}
	}
	// The name of a property is free, and so is a value.
	for _, text := range []string{
		`{"type":"object","properties":{"Type":{"type":"string"},"$REF":{"enum":[{"Type":1}]}}}`,
		`{"type":"object","x-vendor":{"Title":"x"},"default":{"Type":1},"$defs":{"Items":{}}}`,
	} {
		if s, err := newSchema(json.RawMessage(text), true); err != nil || s.resolved == nil {
			t.Errorf("the schema %s is not checked (%v), want that it is", text, err)
		}
	}
}

// A few bytes of an expression need many megabytes, and a large list of values is compared with each.
func TestCostlyChecksAreLeftOut(t *testing.T) {
	long := fmt.Sprintf(`{"type":"object","properties":{"x":{"pattern":"(%s){1000}"}}}`, strings.Repeat("ab", 1000))
	if s, err := newSchema(json.RawMessage(long), true); err != nil || s.resolved != nil {
		t.Errorf("an expression of 2,000,000 instructions is compiled (%v), want none", err)
	}
	enum := `{"type":"object","properties":{"x":{"items":{"enum":[0` + strings.Repeat(",1", 1500) + `]}}}}`
	s, err := newSchema(json.RawMessage(enum), true)
	if err != nil || s.resolved == nil {
		t.Fatalf("the list is not checked (%v), want that it is", err)
	}
	if err := s.check(json.RawMessage(`{"x":[2]}`)); err == nil {
		t.Error("a value that is not in the list is taken")
	}
	if err := s.check(json.RawMessage(`{"x":[2` + strings.Repeat(",2", 20_000) + `]}`)); err != nil {
		t.Errorf("20,000 values are compared with 1,500: %v", err)
	}
}

// Siblings of a reference count, except in old drafts.
func TestReferenceWithSiblings(t *testing.T) {
	for version, want := range map[string]bool{"https://json-schema.org/draft/2020-12/schema": false,
		"http://json-schema.org/draft-07/schema#": true, "": false} {
		s, err := newSchema(json.RawMessage(fmt.Sprintf(`{"$schema":%q,"type":"object","properties":{"x":{"$ref":`+
			`"#/$defs/n","minimum":5}},"$defs":{"n":{"type":"integer"}}}`, version)), true)
		if err != nil || s.resolved == nil {
			t.Fatalf("%q: schema = %+v (error %v), want one that checks", version, s, err)
		}
		if got := s.check(json.RawMessage(`{"x":1}`)) == nil; got != want {
			t.Errorf("%q: 1 beside a minimum of 5 is accepted: %v, want %v", version, got, want)
		}
		if s.check(json.RawMessage(`{"x":"1"}`)) == nil {
			t.Errorf("%q: a text is accepted, want an integer", version)
		}
	}
}

// A schema of a server never ends this process, whatever it is.
func FuzzSchema(f *testing.F) {
	for _, seed := range []string{
		`{"type":"object","$ref":"#"}`, `{"type":"object","$REF":"#"}`, `{"type":"object","allOf":[{"$ref":"#"}]}`,
		`{"type":"object","$dynamicRef":"#"}`, `{"type":"object","$Schema":"x","$ref":"#"}`,
		`{"type":"object","$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}`,
		`{"type":"object","properties":{"x":{"pattern":"^(a{10}){10}$"}},"patternProperties":{"^x":true}}`,
		`{"type":"object","dependencies":{"x":["y"],"y":{"$ref":"#"}},"items":[{},{"items":{}}]}`,
		`{"type":"object","if":{},"then":{"not":{}},"else":false,"unevaluatedProperties":false}`,
		`{"type":["object"],"const":{"x":1},"enum":[{"x":1}],"uniqueItems":true,"minContains":1}`,
	} {
		f.Add(seed, `{"x":{"x":[1,"aaaa"]},"y":[[],{}],"$ref":"#"}`)
	}
	f.Fuzz(func(_ *testing.T, text, value string) {
		for _, object := range []bool{true, false} {
			if s, err := newSchema(json.RawMessage(text), object); err == nil {
				_ = s.check(json.RawMessage(value)) // an end is all that is asked for
			}
		}
	})
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
