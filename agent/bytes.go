package agent

import (
	"encoding/base64"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// JSON writes []byte as a text, in base64. The text alone does not tell whether it was a string or
// bytes, so a step whose type was changed from one to the other would read garbage. The record of a
// step therefore marks where its result has bytes, and where it has a string that could be taken for
// bytes. Most records have no mark.

const (
	markBytes = "b:" // followed by a path: the value there is bytes
	markText  = "t:" // the value there is a string which is also base64
	// maxMarks bounds the marks of a record, and maxMarked the values that are looked at. A result with
	// more of them has marks for the first.
	maxMarks  = 64
	maxMarked = 10000
)

// marks are those of one record.
type marks []string

// marksOf returns the marks of a result. A path has the names of fields, and a star for each element of
// an array or an object.
func marksOf(v reflect.Value) marks {
	m := marker{seen: map[string]bool{}}
	m.walk(v, "")
	return m.found
}

type marker struct {
	found  marks
	seen   map[string]bool
	looked int
}

func (m *marker) add(mark string) {
	if !m.seen[mark] && len(m.found) < maxMarks {
		m.seen[mark] = true
		m.found = append(m.found, mark)
	}
}

func (m *marker) walk(v reflect.Value, path string) {
	if m.looked++; m.looked > maxMarked || readsItself(v.Type()) {
		return
	}
	switch {
	case v.Kind() == reflect.String:
		if !m.seen[markText+path] && isBase64(v.String()) {
			m.add(markText + path)
		}
	case isBytes(v.Type()):
		if v.Len() > 0 {
			m.add(markBytes + path)
		}
	case v.Kind() == reflect.Pointer && !v.IsNil():
		m.walk(v.Elem(), path)
	case v.Kind() == reflect.Slice || v.Kind() == reflect.Array:
		for n := 0; n < v.Len() && m.looked <= maxMarked; n++ {
			m.walk(v.Index(n), path+"/*")
		}
	case v.Kind() == reflect.Map:
		for each := v.MapRange(); m.looked <= maxMarked && each.Next(); {
			m.walk(each.Value(), path+"/*")
		}
		slices.Sort(m.found) // the order of a map is none
	case v.Kind() == reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			if at, err := v.FieldByIndexErr(f.Index); err == nil {
				m.walk(at, path+"/"+jsonName(&f))
			}
		}
	}
}

// check returns an error if a type has a string where bytes are marked, or bytes where a string is.
func (m marks) check(t reflect.Type) error {
	for _, mark := range m {
		path := mark[len(markBytes):]
		at := typeAt(t, path)
		switch {
		case at == nil:
		case strings.HasPrefix(mark, markBytes) && at.Kind() == reflect.String:
			return fmt.Errorf("%s has bytes, and is a string now", placeOf(path))
		case strings.HasPrefix(mark, markText) && isBytes(at):
			return fmt.Errorf("%s has a string, and is bytes now", placeOf(path))
		}
	}
	return nil
}

// placeOf names a place in a value.
func placeOf(path string) string {
	if path == "" {
		return "it"
	}
	return path[1:]
}

// typeAt returns the type at a path, or nil if it can't be told or reads itself.
func typeAt(t reflect.Type, path string) reflect.Type {
	for t.Kind() == reflect.Pointer && !readsItself(t) {
		t = t.Elem()
	}
	if readsItself(t) {
		return nil
	}
	if path == "" {
		return t
	}
	name, rest, _ := strings.Cut(path[1:], "/")
	if rest != "" {
		rest = "/" + rest
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map:
		return typeAt(t.Elem(), rest)
	case reflect.Struct:
		for _, f := range fieldsOf(t) {
			if strings.EqualFold(jsonName(&f), name) {
				return typeAt(f.Type, rest)
			}
		}
	}
	return nil
}

// fieldsOf returns the fields of a struct that JSON has, those of embedded structs included.
func fieldsOf(t reflect.Type) []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool {
		return !f.IsExported() || f.Anonymous && f.Tag.Get("json") == "" || strings.Contains(jsonName(&f), "/") ||
			f.Tag.Get("json") == "-"
	})
}

// jsonName returns the name of a field in JSON.
func jsonName(f *reflect.StructField) string {
	if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
		return name
	}
	return f.Name
}

// isBytes tells whether JSON writes values of a type as base64.
func isBytes(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 && !readsItself(t.Elem())
}

// isBase64 tells whether a text could be taken for bytes.
func isBase64(text string) bool {
	if text == "" || len(text)%4 != 0 {
		return false
	}
	_, err := base64.StdEncoding.DecodeString(text)
	return err == nil
}
