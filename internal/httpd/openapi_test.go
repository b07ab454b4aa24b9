package httpd

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A document is the served OpenAPI document, as far as the tests use it.
type document struct {
	OpenAPI    string
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]*schema }
}

type operation struct {
	OperationID string
	Summary     string
	Parameters  []struct{ Name, In string }
	RequestBody struct{ Content map[string]media }
	Responses   map[string]struct{ Content map[string]media }
}

type media struct{ Schema *schema }

// A schema is the part of JSON Schema that the document uses.
type schema struct {
	Ref                  string `json:"$ref"`
	Type                 string
	Format               string
	Enum                 []string
	Properties           map[string]*schema
	Required             []string
	Items                *schema
	AdditionalProperties json.RawMessage
}

func readDocument(t *testing.T, b []byte) *document {
	t.Helper()
	var d document
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatalf("the OpenAPI document: %v", err)
	}
	return &d
}

// check validates an answer of a route.
func (d *document) check(method, path string, status int, body []byte) error {
	op, ok := d.Paths[path][strings.ToLower(method)]
	if !ok {
		return fmt.Errorf("%s %s is not in the document", method, path)
	}
	res, ok := op.Responses[fmt.Sprint(status)]
	if !ok {
		return fmt.Errorf("%s %s says nothing of %d", method, path, status)
	}
	if len(res.Content) == 0 && len(body) == 0 {
		return nil
	}
	var v any = string(body)
	for _, text := range []string{api.MediaStream, api.MediaText, perdure.AnyContent} {
		if res.Content[text].Schema != nil {
			return d.validate(res.Content[text].Schema, v, "answer")
		}
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return err
	}
	return d.validate(res.Content["application/json"].Schema, v, "answer")
}

func (d *document) resolve(s *schema) (*schema, error) {
	if s == nil {
		return nil, errors.New("no schema")
	}
	if s.Ref == "" {
		return s, nil
	}
	name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/")
	if got := d.Components.Schemas[name]; ok && got != nil {
		return got, nil
	}
	return nil, fmt.Errorf("%s leads nowhere", s.Ref)
}

func (d *document) validate(s *schema, v any, at string) error {
	s, err := d.resolve(s)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	ok := true
	switch s.Type {
	case "":
	case "string":
		var text string
		if text, ok = v.(string); ok && s.Format == "date-time" {
			if _, err := time.Parse(time.RFC3339Nano, text); err != nil {
				return fmt.Errorf("%s: %w", at, err)
			}
		}
		if ok && s.Enum != nil && !slices.Contains(s.Enum, text) {
			return fmt.Errorf("%s: %q is none of %v", at, text, s.Enum)
		}
	case "integer":
		var n float64
		n, ok = v.(float64)
		ok = ok && n == float64(int64(n))
	case "boolean":
		_, ok = v.(bool)
	case "array":
		var list []any
		if list, ok = v.([]any); ok {
			for i, x := range list {
				if err := d.validate(s.Items, x, fmt.Sprintf("%s[%d]", at, i)); err != nil {
					return err
				}
			}
		}
	case "object":
		var o obj
		if o, ok = v.(obj); ok {
			return d.validateObject(s, o, at)
		}
	default:
		return fmt.Errorf("%s: a schema of type %q", at, s.Type)
	}
	if !ok {
		return fmt.Errorf("%s: %v is no %s", at, v, s.Type)
	}
	return nil
}

func (d *document) validateObject(s *schema, o obj, at string) error {
	for _, name := range s.Required {
		if _, ok := o[name]; !ok {
			return fmt.Errorf("%s lacks %s", at, name)
		}
	}
	for name, v := range o {
		of := s.Properties[name]
		if of == nil {
			if string(s.AdditionalProperties) == "false" || len(s.AdditionalProperties) == 0 {
				return fmt.Errorf("%s has %s, which the document does not know", at, name)
			}
			of = &schema{}
			if err := json.Unmarshal(s.AdditionalProperties, of); err != nil {
				return err
			}
		}
		if err := d.validate(of, v, at+"."+name); err != nil {
			return err
		}
	}
	return nil
}

func TestTheDocumentIsTheTable(t *testing.T) {
	w := newWorld(t, setup{})
	a := w.send(ask{method: "GET", path: "/openapi.json"})
	a.is(200)
	d := readDocument(t, a.body)
	if d.OpenAPI != "3.1.0" {
		t.Errorf("openapi %q", d.OpenAPI)
	}
	var table, document []string
	ids := map[string]bool{}
	for _, r := range w.s.routes {
		table = append(table, r.method+" "+r.pattern)
		op := d.Paths[r.pattern][strings.ToLower(r.method)]
		if op.Summary == "" || op.OperationID == "" || ids[op.OperationID] {
			t.Errorf("%s %s: summary %q, operationId %q", r.method, r.pattern, op.Summary, op.OperationID)
		}
		ids[op.OperationID] = true
		var inPath, inQuery []string
		for _, p := range op.Parameters {
			switch p.In {
			case "path":
				inPath = append(inPath, "{"+p.Name+"}")
			case "query":
				inQuery = append(inQuery, p.Name)
			}
		}
		if !slices.Equal(inPath, placeholder.FindAllString(r.pattern, -1)) || !slices.Equal(inQuery, r.query) {
			t.Errorf("%s %s: parameters %v %v", r.method, r.pattern, inPath, inQuery)
		}
		if _, ok := op.Responses["default"].Content["application/problem+json"]; !ok {
			t.Errorf("%s %s: no problem", r.method, r.pattern)
		}
	}
	for path, ops := range d.Paths {
		for method := range ops {
			document = append(document, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(table)
	slices.Sort(document)
	if !slices.Equal(table, document) {
		t.Errorf("the table has\n%v\nand the document\n%v", table, document)
	}
}

func TestEveryReferenceOfTheDocumentResolves(t *testing.T) {
	w := newWorld(t, setup{})
	var all any
	if err := json.Unmarshal(w.s.openapi, &all); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case obj:
			if ref, ok := v["$ref"].(string); ok {
				if _, err := w.doc.resolve(&schema{Ref: ref}); err != nil {
					t.Error(err)
				}
				used[strings.TrimPrefix(ref, "#/components/schemas/")] = true
			}
			for _, x := range v {
				walk(x)
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(all)
	for name := range w.doc.Components.Schemas {
		if !used[name] {
			t.Errorf("nobody uses the schema %s", name)
		}
	}
}

// Two types of one name would be described as one of them.
func TestEverySchemaIsOneType(t *testing.T) {
	w := newWorld(t, setup{})
	types := map[string]reflect.Type{}
	seen := map[reflect.Type]bool{}
	var visit func(reflect.Type)
	visit = func(t2 reflect.Type) {
		if isRaw(t2) || seen[t2] {
			return
		}
		seen[t2] = true
		switch t2.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			visit(t2.Elem())
		case reflect.Struct:
			name := schemaName(t2)
			if before, ok := types[name]; ok {
				t.Errorf("%v and %v are both %s", before, t2, name)
			}
			types[name] = t2
			for _, f := range fieldsOf(t2) {
				visit(f)
			}
		}
	}
	for _, r := range w.s.routes {
		visit(r.in)
		visit(r.out)
	}
	for name, t2 := range types {
		s := w.doc.Components.Schemas[name]
		if s == nil {
			t.Errorf("no schema %s", name)
			continue
		}
		for field := range fieldsOf(t2) {
			if s.Properties[field] == nil {
				t.Errorf("schema %s lacks %s", name, field)
			}
		}
	}
}

func TestTheValidatorRefuses(t *testing.T) {
	w := newWorld(t, setup{})
	for _, body := range []string{`{}`, `{"status":1}`, `{"status":"ok","more":1}`, `[]`, `null`, `{"status":null}`} {
		if err := w.doc.check("GET", "/healthz", 200, []byte(body)); err == nil {
			t.Errorf("%s passes", body)
		}
	}
	if err := w.doc.check("GET", "/healthz", 418, []byte(`{}`)); err == nil {
		t.Error("418 passes")
	}
}
