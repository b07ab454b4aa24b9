package httpd

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
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
	Parameters  []struct {
		Name, In string
		Schema   *schema
	}
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
	Pattern              string
	Minimum, Maximum     *float64
	MaxLength, MaxItems  *int
	MaxProperties        *int
	Properties           map[string]*schema
	Required             []string
	Items                *schema
	AdditionalProperties json.RawMessage
}

// documents has each document once, by its text: most servers serve the same, and no test changes it.
var documents sync.Map

func readDocument(t *testing.T, b []byte) *document {
	t.Helper()
	if known, ok := documents.Load(string(b)); ok {
		return known.(*document)
	}
	var d document
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatalf("the OpenAPI document: %v", err)
	}
	documents.Store(string(b), &d)
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
		// Where an answer may be of either form, it is taken for JSON if it looks like it.
		if res.Content[text].Schema != nil && (res.Content["application/json"].Schema == nil || !json.Valid(body)) {
			return d.validate(res.Content[text].Schema, v, "answer")
		}
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return err
	}
	return d.validate(res.Content["application/json"].Schema, v, "answer")
}

// checkRequest validates the body of a call that was accepted. A field that is null is one that is not given.
func (d *document) checkRequest(method, path string, body []byte) error {
	content, ok := d.Paths[path][strings.ToLower(method)].RequestBody.Content["application/json"]
	if !ok || len(body) == 0 || string(body) == "{}" { // a list that is not there is an empty one
		return nil
	}
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return err
	}
	return d.validate(content.Schema, withoutNulls(v, true), "body")
}

// withoutNulls takes out the fields that are null, but not inside of values of any shape, where null is one.
func withoutNulls(v any, top bool) any {
	o, ok := v.(obj)
	if !ok {
		return v
	}
	for name, x := range o {
		if x == nil {
			delete(o, name)
		} else if list, ok := x.([]any); ok && top {
			for i := range list {
				list[i] = withoutNulls(list[i], true)
			}
		} else if top && name == "retry" { // of a kind, whose fields may be null one by one
			o[name] = withoutNulls(x, false)
		}
	}
	return o
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
		if ok && s.MaxLength != nil && len(text) > *s.MaxLength {
			return fmt.Errorf("%s has %d bytes, more than %d", at, len(text), *s.MaxLength)
		}
		if ok && s.Pattern != "" && !regexp.MustCompile(s.Pattern).MatchString(text) {
			return fmt.Errorf("%s: %q does not match %s", at, text, s.Pattern)
		}
	case "number":
		_, ok = v.(float64)
	case "integer":
		var n float64
		n, ok = v.(float64)
		ok = ok && n == float64(int64(n))
		if ok && (s.Minimum != nil && n < *s.Minimum || s.Maximum != nil && n > *s.Maximum) {
			return fmt.Errorf("%s: %v is out of bounds", at, n)
		}
	case "boolean":
		_, ok = v.(bool)
	case "array":
		var list []any
		if list, ok = v.([]any); ok {
			if s.MaxItems != nil && len(list) > *s.MaxItems {
				return fmt.Errorf("%s has %d entries, more than %d", at, len(list), *s.MaxItems)
			}
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
	if s.MaxProperties != nil && len(o) > *s.MaxProperties {
		return fmt.Errorf("%s has %d entries, more than %d", at, len(o), *s.MaxProperties)
	}
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

func TestOpenAPIHasEveryRoute(t *testing.T) {
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

func TestOpenAPIReferencesResolve(t *testing.T) {
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
func TestSchemaNamesAreUnique(t *testing.T) {
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

func TestSchemaValidatorRefuses(t *testing.T) {
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

// The document says what values there are and how large they may be, as the code checks them.
func TestOpenAPIHasEnumsAndBounds(t *testing.T) {
	w := newWorld(t, setup{})
	field := func(name, property string) *schema {
		s := w.doc.Components.Schemas[name]
		if s == nil || s.Properties[property] == nil {
			t.Fatalf("no schema of %s.%s", name, property)
		}
		return s.Properties[property]
	}
	states := oneOf(perdure.States...).enum
	for _, c := range []struct {
		schema, property string
		want             []string
	}{
		{"Run", "state", states}, {"Run", "status", append(slices.Clone(states), "deferred")},
		{"Run", "class", []string{"task", "agent", "process", "open"}},
		{"Run", "tier", perdure.Tiers}, {"StartRun", "multitask_strategy", oneOf(perdure.MultitaskStrategies...).enum},
		{"StartRun", "on_disconnect", oneOf(perdure.Dispositions...).enum},
		{"Spawn", "on_parent_end", oneOf(perdure.Dispositions...).enum},
		{"WaitSpec", "type", oneOf(perdure.WaitTypes...).enum}, {"WaitSpec", "mode", oneOf(perdure.Modes...).enum},
		{"Outcome", "type", oneOf(perdure.OutcomeTypes...).enum}, {"CreateGroup", "mode", oneOf(perdure.Modes...).enum},
		{"Group", "state", oneOf(perdure.GroupStates...).enum},
		{"Decision", "decision", []string{"approve", "reject"}}, {"Delivery", "state", perdure.NoteStates},
		{"LateResult", "state", perdure.LateStates},
		{"Approval", "state", oneOf(perdure.ApprovalStates...).enum},
		{"FormField", "type", []string{"string", "text", "number", "boolean", "choice"}},
	} {
		if got := field(c.schema, c.property).Enum; !slices.Equal(got, c.want) {
			t.Errorf("%s.%s: enum %v, want %v", c.schema, c.property, got, c.want)
		}
	}
	if s := field("StartRun", "priority"); *s.Minimum != -perdure.MaxPriority || *s.Maximum != perdure.MaxPriority {
		t.Errorf("priority from %v to %v", *s.Minimum, *s.Maximum)
	}
	if s := field("StartRun", "max_attempts"); *s.Minimum != 1 || *s.Maximum != perdure.MaxAttempts {
		t.Errorf("max_attempts from %v to %v", *s.Minimum, *s.Maximum)
	}
	if n := *field("StartRun", "kind").MaxLength; n != perdure.MaxName {
		t.Errorf("a kind has %d bytes", n)
	}
	if n := *field("StartRun", "metadata").MaxProperties; n != perdure.MaxMetadata {
		t.Errorf("metadata has %d entries", n)
	}
	for _, list := range []struct{ schema, property string }{{"StartRun", "messages"}, {"Commits", "commits"},
		{"Commit", "journal"}, {"Beats", "runs"}, {"CreateGroup", "run_ids"}} {
		if s := field(list.schema, list.property); s.MaxItems == nil || *s.MaxItems != perdure.MaxList {
			t.Errorf("%s.%s: at most %v entries, want %d", list.schema, list.property, s.MaxItems, perdure.MaxList)
		}
	}
}

// A whole number of a query is refused below and above what the document says, and the refusal names it.
func TestParametersHaveDocumentedBounds(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	id := fmt.Sprint(g["run_id"])
	typed := 0
	for path, ops := range w.doc.Paths {
		for method, op := range ops {
			for _, p := range op.Parameters {
				if p.In != "query" || p.Schema.Type != "integer" {
					continue
				}
				typed++
				key := w.key
				if strings.HasPrefix(path, "/api/admin/") {
					key = w.admin
				}
				target := strings.NewReplacer("{id}", id, "{child}", id, "{name}", "x").Replace(path)
				if strings.Contains(path, "webhooks/{id}") {
					continue // which needs a webhook
				}
				for _, n := range []int64{int64(*p.Schema.Minimum) - 1, int64(*p.Schema.Maximum) + 1} {
					a := w.send(ask{method: strings.ToUpper(method), path: fmt.Sprintf("%s?%s=%d", target, p.Name, n),
						key: key})
					if a.status != 400 || !strings.Contains(a.problem()["field"].(string), p.Name) &&
						p.Name != "after" && p.Name != "last_event_id" {
						t.Errorf("%s: %d %s, want 400 and the field %s", a.what, a.status, a.body, p.Name)
					}
				}
			}
		}
	}
	if typed < 20 {
		t.Errorf("only %d parameters are whole numbers", typed)
	}
}
