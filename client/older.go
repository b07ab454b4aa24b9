package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A server refuses fields that it does not know. During an upgrade a call may reach a server of the
// release before, which does not know the newest fields. Those that such a server does well without
// have the tag `older:"omit"` in package api: when a server refuses one, the call is sent again
// without it, and the next calls leave it out for olderAgain. Other fields stay: the caller gets the
// refusal, because what it asked for would not happen.

// olderAgain is after what time a field that was refused is tried again. Its server may be upgraded by
// then, or be one of several.
const olderAgain = time.Minute

// unknownField is what a server says of a field that it does not know.
const unknownField = "is no field of this call"

// An omitted has the fields that a server has refused: by type of the body and path, such as
// "commits[].build".
type omitted struct {
	mu    sync.Mutex
	until map[reflect.Type]map[string]time.Time
}

// refused notes a field that a server does not know. It returns false if the call can't do without.
func (o *omitted) refused(body any, err error) bool {
	var p *api.Problem
	if body == nil || !errors.As(err, &p) || p.Code != perdure.CodeInvalid ||
		!strings.Contains(p.Detail, unknownField) {
		return false
	}
	t, at := reflect.TypeOf(body), pattern(p.Field)
	if !dispensable(t, strings.Split(at, ".")) {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Now().Before(o.until[t][at]) {
		return false // it was left out
	}
	if o.until == nil {
		o.until = make(map[reflect.Type]map[string]time.Time)
	}
	if o.until[t] == nil {
		o.until[t] = make(map[string]time.Time)
	}
	o.until[t][at] = time.Now().Add(olderAgain)
	return true
}

// without removes the fields that servers have refused from a body.
func (o *omitted) without(body any, text []byte) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out any
	for at, until := range o.until[reflect.TypeOf(body)] {
		if time.Now().After(until) {
			delete(o.until[reflect.TypeOf(body)], at)
			continue
		}
		if out == nil {
			d := json.NewDecoder(bytes.NewReader(text))
			d.UseNumber()
			if d.Decode(&out) != nil {
				return text
			}
		}
		remove(out, strings.Split(at, "."))
	}
	if out == nil {
		return text
	}
	if b, err := perdure.Marshal(out); err == nil {
		return b
	}
	return text
}

// pattern is a path without the positions in its lists: "commits[3].build" is "commits[].build".
func pattern(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		b.WriteByte(path[i])
		if path[i] == '[' {
			for i+1 < len(path) && path[i+1] != ']' {
				i++
			}
		}
	}
	return b.String()
}

// dispensable tells whether an older server does without a field of a type.
func dispensable(t reflect.Type, path []string) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return false
	}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" && dispensable(f.Type, path) {
			return true
		}
		if name != strings.TrimRight(path[0], "[]") {
			continue
		}
		if len(path) == 1 {
			return f.Tag.Get("older") == "omit"
		}
		return dispensable(f.Type, path[1:])
	}
	return false
}

// remove removes a field wherever its path leads to.
func remove(v any, path []string) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			remove(x, path)
		}
	case map[string]any:
		name := strings.TrimRight(path[0], "[]")
		if len(path) == 1 {
			delete(v, name)
		} else if next, ok := v[name]; ok {
			remove(next, path[1:])
		}
	}
}
