package httpd

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"sync"

	"github.com/perdure/perdure"
)

// A shape is a type as the walk uses it.
type shape struct {
	// of is the type without pointers.
	of reflect.Type
	// raw is set for a value of any JSON type.
	raw bool
	// own is set for durations and instants, which parse themselves.
	own    bool
	fields map[string]field
	// elem is the shape of the elements of a list or a map.
	elem *shape
}

// A field is a field of a shape. If an explicit zero is refused, nonzero is its bound.
type field struct {
	*shape
	nonzero *bound
}

var shapes sync.Map // reflect.Type → *shape

// shapeOf returns the shape of a type. Types of bodies are not recursive.
func shapeOf(t reflect.Type) *shape {
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	s := &shape{of: t}
	for s.of.Kind() == reflect.Pointer {
		s.of = s.of.Elem()
	}
	p := reflect.PointerTo(s.of)
	switch s.raw = isRaw(s.of); s.of.Kind() {
	case reflect.Struct:
		s.fields = make(map[string]field)
		for name, ft := range fieldsOf(s.of) {
			f := field{shape: shapeOf(ft)}
			if b := boundsOf(s.of)[name]; b.zero {
				f.nonzero = &b
			}
			s.fields[name] = f
		}
	default:
		s.own = !s.raw && (p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) ||
			p.Implements(reflect.TypeFor[json.Unmarshaler]()))
		if k := s.of.Kind(); !s.raw && !s.own && (k == reflect.Map || k == reflect.Slice) {
			s.elem = shapeOf(s.of.Elem())
		}
	}
	shapes.Store(t, s)
	return s
}

// isRaw tells whether a type holds any JSON value.
func isRaw(t reflect.Type) bool {
	return t == reflect.TypeFor[json.RawMessage]() || t == reflect.TypeFor[perdure.Value]()
}

var fieldCache sync.Map // reflect.Type → map[string]reflect.Type

// fieldsOf returns the fields of a struct by their names in JSON, with those of embedded structs.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	if m, ok := fieldCache.Load(t); ok {
		return m.(map[string]reflect.Type)
	}
	out := make(map[string]reflect.Type)
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			for name, of := range fieldsOf(f.Type) {
				if out[name] == nil {
					out[name] = of
				}
			}
			continue
		}
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			out[name] = f.Type
		}
	}
	fieldCache.Store(t, out)
	return out
}
