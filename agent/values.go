package agent

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
)

// This file reads recorded values into the types for which the agent asks.

// readStrict reads the recorded result of a step. A field that the type does not have is an error,
// and so is null for a type that is never null: the value is of another type then. A field that the
// value does not have stays zero, because types may gain fields.
func readStrict(data json.RawMessage, out any) error {
	if t := reflect.TypeOf(out).Elem(); string(data) == "null" && !takesNull(t) {
		return errors.New("it is null")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(out); err != nil {
		return err
	}
	return checkLengths(data, out)
}

// checkLengths returns an error if an array in a value has another length than the type's. Package
// json leaves out surplus elements, and adds zeros for missing ones. Only types with arrays are
// looked at.
func checkLengths(data json.RawMessage, out any) error {
	t := reflect.TypeOf(out).Elem()
	found, known := arraysIn.Load(t)
	if !known {
		found = hasArray(t, map[reflect.Type]bool{})
		arraysIn.Store(t, found)
	}
	if found == false {
		return nil
	}
	again, err := perdure.Marshal(out)
	if err != nil {
		return err
	}
	var before, after any
	if err := errors.Join(json.Unmarshal(data, &before), json.Unmarshal(again, &after)); err != nil {
		return err
	}
	if !sameLengths(before, after) {
		return errors.New("an array in it has another length")
	}
	return nil
}

// arraysIn has the answers of hasArray by type. A program has few types of results.
var arraysIn sync.Map

// hasArray tells whether values of a type have arrays in their JSON. Types that read themselves don't
// count.
func hasArray(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] || readsItself(t) {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Array:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return hasArray(t.Elem(), seen)
	case reflect.Struct:
		for n := range t.NumField() {
			if hasArray(t.Field(n).Type, seen) {
				return true
			}
		}
	}
	return false
}

// readsItself tells whether a type has a method that reads it from JSON.
func readsItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) ||
		p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// sameLengths tells whether the arrays that two values have at the same place are of the same length.
func sameLengths(a, b any) bool {
	switch a := a.(type) {
	case []any:
		b, ok := b.([]any)
		if !ok {
			return true
		}
		if len(a) != len(b) {
			return false
		}
		for n := range a {
			if !sameLengths(a[n], b[n]) {
				return false
			}
		}
	case map[string]any:
		b, _ := b.(map[string]any)
		for name := range a {
			if other, ok := b[name]; ok && !sameLengths(a[name], other) {
				return false
			}
		}
	}
	return true
}

// takesNull tells whether null is a value of a type.
func takesNull(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return true
	}
	return reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
}

// shapeOf describes a JSON value without its content, which may be secret.
func shapeOf(v json.RawMessage) string {
	if len(v) == 0 {
		return "nothing"
	}
	switch v[0] {
	case '{':
		var fields map[string]json.RawMessage
		if json.Unmarshal(v, &fields) != nil || len(fields) == 0 {
			return "an object"
		}
		names := make([]string, 0, len(fields))
		for name := range fields {
			names = append(names, name)
		}
		slices.Sort(names)
		const few = 10
		if len(names) > few {
			names = append(names[:few], "…")
		}
		return "an object with " + strings.Join(names, ", ")
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// fits tells whether data can be read into a type.
func fits[T any](data json.RawMessage) bool { return decode("", data, new(T)) == nil }

// readItem reads what a child, a callback, a signal or a message has brought. id is its key, or that of its
// wait. Data that does not fit the type is an error that the agent may handle, and a fact. But if an
// earlier execution could read it, the type was changed: the code does not fit the journal.
func readItem[T any](c *execution, what, id string, i *journal.Item) (out T, err error) {
	data := c.dataOf(i)
	err = decode(what, data, &out)
	replaying := c.replaying()
	c.mu.Lock()
	unfit := c.record.Unfit(id, i)
	known := i.Loaded && (claimed(i) || replaying)
	c.mu.Unlock()
	switch {
	case unfit:
		return *new(T), &recordedAt{error: cmp.Or(err, errUnfit(what)), seq: i.Seq}
	case err == nil:
		return out, nil
	case known:
		c.fail(nondeterminism(id, "%s, %s, is no %s, for which the agent asks now, and an earlier release could read "+
			"it; keep the type, or announce the change with Version: %v",
			what, shapeOf(data), reflect.TypeFor[T](), err))
	}
	c.write(func(w *journal.Writer) { w.Unfit(id) })
	return *new(T), &recordedAt{error: err, seq: i.Seq}
}

// claimed tells whether an item is one that the agent has read when it is in the journal.
func claimed(i *journal.Item) bool {
	return i.Type == perdure.ItemSignal || i.Type == perdure.ItemMessage
}

// errUnfit is the error of a result that a type of an earlier release could not read, and the present one
// can. The agent has acted on the error.
func errUnfit(what string) error {
	return perdure.Permanent(fmt.Errorf("what came of %s did not fit the type that the agent asked for then", what))
}

// decode reads a result. An error is permanent, because the next attempt would get the same data.
func decode(what string, data json.RawMessage, out any) error {
	if len(data) == 0 || string(data) == "null" {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return perdure.Permanent(fmt.Errorf("what came of %s is no %s: %w", what, reflect.TypeOf(out).Elem(), err))
	}
	return nil
}
