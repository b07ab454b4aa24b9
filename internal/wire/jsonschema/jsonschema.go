// Package jsonschema derives JSON Schemas from Go types, by the rules of encoding/json. The server
// makes the schemas of its OpenAPI document with it, and workers those of their kinds.
//
// A named struct becomes a definition, to which other schemas refer. So a recursive type has a
// finite schema. [Of] is for one type, and a [Generator] for many that share their definitions.
//
// [Check] compares a value with a schema, within limits. The package knows nothing of tags other than
// json.
package jsonschema

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A Schema is a JSON Schema as a JSON object.
type Schema = map[string]any

// A Generator makes schemas that share definitions.
type Generator struct {
	// Prefix is the path of the definitions, such as "#/$defs/".
	Prefix string
	// Defs has the definitions by name.
	Defs map[string]any
	// Closed refuses properties that a struct does not have.
	Closed bool
	// Known returns the schema of a type that its structure does not describe, or nil. It may be nil.
	Known func(reflect.Type) Schema
	// Name returns the name of a struct's definition. The default is the name of the type.
	Name func(reflect.Type) string
	// Field refines the schema of a struct's field, unless that is a reference. It may be nil.
	Field func(of reflect.Type, name string, s Schema)

	names map[reflect.Type]string
	// within has the types without a definition whose schemas are being made.
	within map[reflect.Type]bool
}

// Of returns the schema of one type, with its definitions. It is empty for a type that can hold any
// JSON value.
func Of(t reflect.Type) Schema {
	g := &Generator{Prefix: "#/$defs/", Defs: make(map[string]any)}
	s := g.Of(t)
	if name, ok := strings.CutPrefix(fmt.Sprint(s["$ref"]), g.Prefix); ok && !refersTo(g.Defs, g.Prefix+name) {
		s = g.Defs[name].(Schema)
		delete(g.Defs, name)
	}
	if len(g.Defs) > 0 {
		s["$defs"] = g.Defs
	}
	return s
}

// refersTo tells whether a schema contains a reference.
func refersTo(v any, ref string) bool {
	m, ok := v.(map[string]any)
	if !ok {
		return false
	}
	for name, x := range m {
		if name == "$ref" && x == ref || refersTo(x, ref) {
			return true
		}
	}
	return false
}

var (
	typeTime      = reflect.TypeFor[time.Time]()
	typeRaw       = reflect.TypeFor[json.RawMessage]()
	typeNumber    = reflect.TypeFor[json.Number]()
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// Of returns the schema of a type.
func (g *Generator) Of(t reflect.Type) Schema {
	if g.Known != nil {
		if s := g.Known(t); s != nil {
			return s
		}
	}
	switch t {
	case typeTime:
		return Schema{"type": "string", "format": "date-time"}
	case typeRaw:
		return Schema{}
	case typeNumber:
		return Schema{"type": "number"}
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		// A type that contains itself has no definition to refer to, unless a struct is between.
		if g.within[t] {
			return Schema{}
		}
		if g.within == nil {
			g.within = make(map[reflect.Type]bool)
		}
		g.within[t] = true
		defer delete(g.within, t)
	}
	if t.Kind() == reflect.Pointer {
		return g.Of(t.Elem())
	}
	switch p := reflect.PointerTo(t); {
	case t.Kind() == reflect.Interface || p.Implements(marshaler):
		return Schema{}
	case p.Implements(textMarshaler):
		return Schema{"type": "string"}
	}
	return g.byKind(t)
}

// byKind returns the schema of a type that encoding/json writes by its structure.
func (g *Generator) byKind(t reflect.Type) Schema {
	switch t.Kind() {
	case reflect.String:
		return Schema{"type": "string"}
	case reflect.Bool:
		return Schema{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return Schema{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return Schema{"type": "integer", "minimum": int64(0)}
	case reflect.Float32, reflect.Float64:
		return Schema{"type": "number"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return Schema{"type": "string", "contentEncoding": "base64"}
		}
		return Schema{"type": "array", "items": g.Of(t.Elem())}
	case reflect.Array:
		return Schema{"type": "array", "items": g.Of(t.Elem()), "minItems": int64(t.Len()), "maxItems": int64(t.Len())}
	case reflect.Map:
		return Schema{"type": "object", "additionalProperties": g.Of(t.Elem())}
	case reflect.Struct:
		return g.Struct(t)
	}
	return Schema{} // a channel or a function: encoding/json refuses it
}

// notName matches what a definition's name does not have: the brackets and paths of type arguments.
var notName = regexp.MustCompile(`[^A-Za-z0-9_.]+`)

// nameOf returns the name of a struct's definition, or "" for an unnamed type.
func (g *Generator) nameOf(t reflect.Type) string {
	if name, ok := g.names[t]; ok {
		return name
	}
	name := t.Name()
	if g.Name != nil {
		name = g.Name(t)
	}
	if name = strings.Trim(notName.ReplaceAllString(name, "_"), "_"); name == "" {
		return ""
	}
	base := name
	for n := 2; g.Defs[name] != nil; n++ { // a type of another package
		name = fmt.Sprint(base, n)
	}
	if g.names == nil {
		g.names = make(map[reflect.Type]string)
	}
	g.names[t] = name
	return name
}

// Struct returns the schema of a struct by its fields, also if it has a method MarshalJSON: a
// reference to its definition, if it has a name.
func (g *Generator) Struct(t reflect.Type) Schema {
	_, known := g.names[t]
	name := g.nameOf(t)
	ref := Schema{"$ref": g.Prefix + name}
	if known {
		return ref
	}
	properties, required := Schema{}, []string(nil)
	s := Schema{"type": "object", "properties": properties}
	if g.Closed {
		s["additionalProperties"] = false
	}
	if name != "" {
		g.Defs[name] = s
		// The definition is complete whatever type it is made for, and a reference to it ends a cycle.
		defer func(before map[reflect.Type]bool) { g.within = before }(g.within)
		g.within = nil
	}
	for _, f := range fields(t) {
		p := g.Of(f.of)
		if f.quoted {
			p = Schema{"type": "string"}
		}
		if g.Field != nil && p["$ref"] == nil {
			g.Field(t, f.name, p)
		}
		properties[f.name] = p
		if !f.optional {
			required = append(required, f.name)
		}
	}
	if len(required) > 0 {
		slices.Sort(required)
		s["required"] = required
	}
	if name != "" {
		return ref
	}
	return s
}

// A field is a field of a struct as encoding/json sees it.
type field struct {
	name     string
	of       reflect.Type
	optional bool // it can be left out
	quoted   bool // it is written as a string
	depth    int
}

// fields returns the fields of a struct with those of embedded structs. A field hides the fields of
// the same name of structs that are embedded deeper. Of two at the same depth, the first counts.
func fields(t reflect.Type) (out []field) {
	at, inside := make(map[string]int), map[reflect.Type]bool{}
	var add func(t reflect.Type, depth int)
	add = func(t reflect.Type, depth int) {
		if inside[t] { // it embeds itself
			return
		}
		inside[t] = true
		defer delete(inside, t)
		for i := range t.NumField() {
			f := t.Field(i)
			tag := f.Tag.Get("json")
			name, opts, _ := strings.Cut(tag, ",")
			of := f.Type
			if of.Kind() == reflect.Pointer {
				of = of.Elem()
			}
			switch {
			case tag == "-":
				continue
			case f.Anonymous && name == "" && of.Kind() == reflect.Struct && of != typeTime:
				add(of, depth+1)
				continue
			case !f.IsExported():
				continue
			}
			if name == "" {
				name = f.Name
			}
			options := strings.Split(opts, ",")
			x := field{name: name, of: f.Type, depth: depth, quoted: slices.Contains(options, "string"),
				optional: slices.Contains(options, "omitempty") || slices.Contains(options, "omitzero")}
			if j, ok := at[name]; ok {
				if depth < out[j].depth {
					out[j] = x
				}
				continue
			}
			at[name] = len(out)
			out = append(out, x)
		}
	}
	add(t, 0)
	return out
}
