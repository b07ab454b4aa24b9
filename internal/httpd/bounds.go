package httpd

import (
	"reflect"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A bound is what holds for a field of a body beside its type. The OpenAPI document is made from it. The values are those
// that the domain checks by.
type bound struct {
	enum        []string
	least, most *int64 // of a whole number
	length      int    // bytes of a text at most
	items       int    // entries of a list or an object at most
	positive    bool   // of a duration
}

// refusesZero tells whether a zero that is given is refused. A field that is not given has a default, and its zero is
// how the domain says so: the two can be told apart in the body alone.
func (b bound) refusesZero() bool { return b.positive || b.least != nil && *b.least > 0 }

func between(least, most int64) bound { return bound{least: &least, most: &most} }

// bounds are those of the types of bodies.
var bounds = map[reflect.Type]map[string]bound{
	reflect.TypeFor[perdure.Submission](): {
		"timeout":      {positive: true},
		"max_attempts": between(1, perdure.MaxAttempts),
	},
	reflect.TypeFor[perdure.Spawn](): {
		"timeout":      {positive: true},
		"max_attempts": between(1, perdure.MaxAttempts),
	},
	reflect.TypeFor[api.CreateGroup](): {
		"timeout": {positive: true},
	},
}

var boundCache sync.Map // reflect.Type → map[string]bound

// boundsOf gives the bounds of a struct's fields by their names in JSON; those of an embedded one are its own.
func boundsOf(t reflect.Type) map[string]bound {
	if m, ok := boundCache.Load(t); ok {
		return m.(map[string]bound)
	}
	out := make(map[string]bound)
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous {
			for name, b := range boundsOf(f.Type) {
				out[name] = b
			}
		}
	}
	for name, b := range bounds[t] {
		out[name] = b
	}
	boundCache.Store(t, out)
	return out
}
