package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// A schema checks values. Its zero value accepts all.
//
// A server writes the schema, and the library follows its references without a limit: one that refers to
// itself would end this process, and a few that refer to each other twice would take forever. So the
// references are followed here first, with a limit. A schema that exceeds it accepts all, as the server
// has to check its arguments anyway.
type schema struct {
	resolved *jsonschema.Resolved
}

// newSchema reads a schema of an object, or of any value. It is an error if it is none.
func newSchema(raw json.RawMessage, object bool) (s schema, err error) {
	if len(raw) > maxSchema {
		return s, fmt.Errorf("it has %d bytes, and may have %d", len(raw), maxSchema)
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return s, err
	}
	root, ok := tree.(map[string]any)
	switch {
	case !ok:
		return s, errors.New("it is no JSON object")
	case object && root["type"] != "object":
		return s, errors.New("its type is not object")
	}
	w := &walk{root: root}
	if !w.visit(root, 0) {
		return schema{}, nil
	}
	var parsed jsonschema.Schema
	if err := json.Unmarshal(raw, &parsed); err != nil {
		return s, err
	}
	s.resolved, err = parsed.Resolve(&jsonschema.ResolveOptions{})
	return s, err
}

// A walk counts subschemas, with references followed.
type walk struct {
	root map[string]any
	seen int
}

// visit tells whether a part of a schema can be checked within the limits.
func (w *walk) visit(v any, depth int) bool {
	if w.seen++; w.seen > maxChecks || depth > maxDepth {
		return false
	}
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			if !w.visit(x, depth+1) {
				return false
			}
		}
	case map[string]any:
		for name, x := range v {
			if _, text := x.(string); text {
				switch name {
				case "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef":
					return false
				case "$id", "id": // it changes what references mean
					if depth > 0 {
						return false
					}
				}
			}
			if name == "$ref" {
				var ok bool
				if x, ok = w.follow(x); !ok {
					return false
				}
			}
			if !w.visit(x, depth+1) {
				return false
			}
		}
	}
	return true
}

// follow returns what a reference refers to.
func (w *walk) follow(ref any) (any, bool) {
	text, _ := ref.(string)
	path, ok := strings.CutPrefix(text, "#")
	if !ok || strings.ContainsAny(path, "%") {
		return nil, false
	}
	var at any = w.root
	for i, name := range strings.Split(path, "/") {
		if i == 0 {
			if name != "" {
				return nil, false
			}
			continue
		}
		object, ok := at.(map[string]any)
		if !ok {
			return nil, false
		}
		if at, ok = object[strings.NewReplacer("~1", "/", "~0", "~").Replace(name)]; !ok {
			return nil, false
		}
	}
	return at, true
}

// check tells whether a value fits. A large one is not checked.
func (s schema) check(raw json.RawMessage) error {
	if s.resolved == nil || len(raw) > maxChecked {
		return nil
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return err
	}
	return s.resolved.Validate(v)
}
