package agent

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/perdure/perdure/agent/internal/journal"
	"github.com/perdure/perdure/internal/wire/session"
)

// The input of a run is there before its journal, and never changes. The type that reads it may change with
// a release. The first execution may ignore fields that its type does not have, as JSON does, and records
// which. A later one that ignores others has lost a field, and would work with an empty value.

func init() { session.CheckInput = checkInput }

// checkInput checks the input of the run against the type of the agent's function. err is the error of
// reading it. gone has the fields that the type no longer has on purpose.
func checkInput(of any, t reflect.Type, gone []string, err error) error {
	c := of.(*Context).c
	input := c.grant.Input
	c.mu.Lock()
	c.inputType = t
	first := c.record.Empty()
	before, known := c.record.Ignored()
	c.mu.Unlock()
	if err != nil {
		if first {
			return err
		}
		c.fail(nondeterminism("input", "the run's input, %s, is no %s, for which the agent asks now, and an earlier "+
			"release could read it; keep a type that reads it, or let the release before finish the run: %v",
			shapeOf(bytes.TrimSpace(input)), t, err))
	}
	if !first && !known || !hasFields(input) {
		return nil
	}
	ignored := ignoredFields(input, t)
	if first {
		c.mu.Lock()
		c.writer.Input(ignored)
		c.mu.Unlock()
		return nil
	}
	for _, field := range ignored {
		if slices.Contains(before, field) || slices.Contains(before, moreFields) || slices.Contains(gone, field) ||
			field == moreFields {
			continue
		}
		c.fail(nondeterminism("input", "the run's input has the field %s, which an earlier release has read, and %s "+
			"does not have it now; if it is gone on purpose, name it in worker.Kind.Ignores", field, t))
	}
	return nil
}

// moreFields stands for all fields beyond journal.MaxIgnored.
const moreFields = "*"

// hasFields tells whether an input is an object, or has some in it.
func hasFields(input json.RawMessage) bool { return bytes.IndexByte(input, '{') >= 0 }

// ignoredFields returns the fields of a value that a type does not have: their names, with those of the
// fields that they are in before them, and a star for each element of an array or a map. A field that is
// null is left out, because nothing is lost with it.
func ignoredFields(value json.RawMessage, t reflect.Type) []string {
	strict := json.NewDecoder(bytes.NewReader(value))
	strict.DisallowUnknownFields()
	if strict.Decode(reflect.New(t).Interface()) == nil {
		return nil
	}
	found := map[string]bool{}
	addIgnored(value, t, "", found)
	list := sortedNames(found)
	if len(list) > journal.MaxIgnored {
		list = append(list[:journal.MaxIgnored-1], moreFields)
	}
	return list
}

func addIgnored(value json.RawMessage, t reflect.Type, path string, found map[string]bool) {
	for t.Kind() == reflect.Pointer && !readsItself(t) {
		t = t.Elem()
	}
	if readsItself(t) || len(found) > journal.MaxIgnored || isBytes(t) {
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		var members map[string]json.RawMessage
		if json.Unmarshal(value, &members) != nil {
			return
		}
		fields := fieldsOf(t)
		for _, name := range sortedNames(members) {
			same := func(f reflect.StructField) bool { return strings.EqualFold(jsonName(&f), name) }
			n := slices.IndexFunc(fields, same)
			switch {
			case n >= 0:
				addIgnored(members[name], fields[n].Type, path+name+"/", found)
			case string(members[name]) != "null":
				found[shortened(path+name)] = true
			}
		}
	case reflect.Slice, reflect.Array:
		var elements []json.RawMessage
		_ = json.Unmarshal(value, &elements) // null has none
		for _, e := range elements {
			addIgnored(e, t.Elem(), path+"*/", found)
		}
	case reflect.Map:
		var members map[string]json.RawMessage
		_ = json.Unmarshal(value, &members) // null has none
		for _, name := range sortedNames(members) {
			addIgnored(members[name], t.Elem(), path+"*/", found)
		}
	}
}

// shortened returns a path of at most 200 bytes, so that a list of them has a bounded size.
func shortened(path string) string {
	const most = 200
	if len(path) <= most {
		return path
	}
	return strings.ToValidUTF8(path[:most], "")
}

// sortedNames returns the keys of a map in their order.
func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
