package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// A schema checks values. Its zero value accepts all.
//
// A server writes the schema, and the library that checks with it follows references without a limit. A
// schema that refers to itself would end this process, because a stack that is full can't be recovered
// from. A few schemas that refer to each other twice would take forever.
//
// So the library never gets what the server wrote. A copier reads the schema, by exact names, and
// writes another one that has no references: each is replaced by a copy of its target. The copy
// has a limited number of parts and a limited depth, and so has everything that the library does with
// it. A schema that exceeds a limit accepts all, as the server has to check its arguments anyway.
type schema struct {
	resolved *jsonschema.Resolved
	// parts counts the parts of the copy.
	parts int
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
	c := &copier{root: root}
	if err := checkNames(root, 0); err != nil {
		return s, err
	}
	copied, err := c.schema(root, 0)
	if errors.Is(err, errNotChecked) {
		return schema{}, nil
	}
	if err != nil {
		return s, err
	}
	if s.resolved, err = compile(copied); err != nil {
		return schema{}, err
	}
	s.parts = c.parts
	return s, nil
}

// compile gives a copy to the library.
func compile(copied any) (out *jsonschema.Resolved, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, fmt.Errorf("it can't be compiled: %v", p)
		}
	}()
	raw, err := json.Marshal(copied)
	if err != nil {
		return nil, err
	}
	var parsed jsonschema.Schema
	if err := json.Unmarshal(raw, &parsed); err != nil {
		return nil, err
	}
	return parsed.Resolve(&jsonschema.ResolveOptions{})
}

// errNotChecked means that a schema exceeds a limit, or has references that are not followed.
var errNotChecked = errors.New("the schema is not checked")

// A form says what the value of a keyword contains.
type form int

const (
	plain   form = iota // a value without schemas
	ignored             // nothing that a check needs
	one                 // a schema, or a list of them
	named               // schemas by name
	refused             // a reference or a name of a schema that is not followed
)

// keywords are those that the library knows. Others have no effect.
var keywords = map[string]form{
	"type": plain, "enum": plain, "const": plain, "multipleOf": plain, "minimum": plain, "maximum": plain,
	"exclusiveMinimum": plain, "exclusiveMaximum": plain, "minLength": plain, "maxLength": plain, "pattern": plain,
	"minItems": plain, "maxItems": plain, "uniqueItems": plain, "minContains": plain, "maxContains": plain,
	"minProperties": plain, "maxProperties": plain, "required": plain, "dependentRequired": plain,

	"$schema": ignored, "$comment": ignored, "$vocabulary": ignored, "$defs": ignored, "definitions": ignored,
	"title": ignored, "description": ignored, "default": ignored, "deprecated": ignored, "readOnly": ignored,
	"writeOnly": ignored, "examples": ignored, "format": ignored, "contentEncoding": ignored,
	"contentMediaType": ignored, "contentSchema": ignored, "$ref": ignored,

	"items": one, "prefixItems": one, "additionalItems": one, "contains": one, "unevaluatedItems": one,
	"additionalProperties": one, "propertyNames": one, "unevaluatedProperties": one, "allOf": one, "anyOf": one,
	"oneOf": one, "not": one, "if": one, "then": one, "else": one,

	"properties": named, "patternProperties": named, "dependentSchemas": named, "dependencies": named,

	"$anchor": refused, "$dynamicRef": refused, "$dynamicAnchor": refused, "$recursiveRef": refused,
	"$recursiveAnchor": refused, "$id": refused, "id": refused,
}

// A copier copies a schema.
type copier struct {
	root map[string]any
	// parts and pattern count what was copied: schemas and values, and the size of expressions.
	parts, pattern int
}

// checkNames refuses names that equal a keyword in everything but case. A decoder that ignores case
// takes them for the keyword, and others ignore them: the server and the model would not mean the same.
func checkNames(v any, depth int) error {
	if depth > maxRawDepth {
		return fmt.Errorf("it is deeper than %d", maxRawDepth)
	}
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			if err := checkNames(x, depth+1); err != nil {
				return err
			}
		}
	case map[string]any:
		for name, x := range v {
			f, known := keywords[name]
			if word := miscased(name); !known && word != "" {
				return fmt.Errorf("it has %q, which is the keyword %q in another case", cut(name, maxName), word)
			}
			var err error
			switch {
			case f == one || name == "contentSchema":
				err = checkNames(x, depth+1)
			case f == named || name == "$defs" || name == "definitions":
				byName, _ := x.(map[string]any)
				err = checkNames(slices.Collect(maps.Values(byName)), depth+1) // these names are free
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// miscased returns the keyword that a name is in another case. Case is compared as decoders do, so that
// "ſ" and "K" (the sign of kelvin) are letters too.
func miscased(name string) string {
	for word := range keywords {
		if strings.EqualFold(word, name) {
			return word
		}
	}
	return ""
}

// count counts a part.
func (c *copier) count(depth int) error {
	if c.parts++; c.parts > maxChecks || depth > maxDepth {
		return errNotChecked
	}
	return nil
}

// schema copies a schema, without references.
func (c *copier) schema(v any, depth int) (any, error) {
	if err := c.count(depth); err != nil {
		return nil, err
	}
	if b, ok := v.(bool); ok {
		return b, nil
	}
	in, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("a part of it is neither an object nor a boolean")
	}
	out := make(map[string]any)
	ref, refers := in["$ref"]
	if refers && c.refersAlone() {
		in = nil
	}
	for name, x := range in {
		var err error
		switch f, known := keywords[name]; {
		case !known || f == ignored:
		case f == refused:
			if _, text := x.(string); text && depth > 0 || name != "$id" && name != "id" {
				return nil, errNotChecked
			}
		case f == one:
			out[name], err = c.oneOrMany(x, depth+1)
		case f == named:
			out[name], err = c.byName(name, x, depth+1)
		default:
			out[name], err = x, c.value(name, x, depth+1)
		}
		if err != nil {
			return nil, err
		}
	}
	if !refers {
		return out, nil
	}
	target, ok := c.follow(ref)
	if !ok {
		return nil, errNotChecked
	}
	copied, err := c.schema(target, depth+1)
	if err != nil {
		return nil, err
	}
	all, _ := out["allOf"].([]any)
	out["allOf"] = append(slices.Clone(all), copied)
	return out, nil
}

// refersAlone tells whether a reference makes its schema ignore everything else, as before 2019.
func (c *copier) refersAlone() bool {
	version, _ := c.root["$schema"].(string)
	for _, old := range []string{"draft-07", "draft-06", "draft-04", "draft-03"} {
		if strings.Contains(version, old) {
			return true
		}
	}
	return false
}

// oneOrMany copies a schema, or a list of them.
func (c *copier) oneOrMany(v any, depth int) (any, error) {
	list, ok := v.([]any)
	if !ok {
		return c.schema(v, depth)
	}
	out := make([]any, len(list))
	for i, x := range list {
		var err error
		if out[i], err = c.schema(x, depth); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// byName copies schemas that have names of their own.
func (c *copier) byName(keyword string, v any, depth int) (any, error) {
	in, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("its %s are no object", keyword)
	}
	out := make(map[string]any, len(in))
	for name, x := range in {
		var err error
		if _, list := x.([]any); list && keyword == "dependencies" {
			out[name], err = x, c.value(keyword, x, depth)
		} else {
			out[name], err = c.schema(x, depth)
		}
		if err == nil && keyword == "patternProperties" {
			err = c.expression(name)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// value counts a value without schemas.
func (c *copier) value(keyword string, v any, depth int) error {
	if text, ok := v.(string); ok && keyword == "pattern" {
		return c.expression(text)
	}
	return c.each(v, depth)
}

// each counts all parts of a value.
func (c *copier) each(v any, depth int) error {
	if err := c.count(depth); err != nil {
		return err
	}
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			if err := c.each(x, depth+1); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, x := range v {
			if err := c.each(x, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// expression counts the size of a regular expression once compiled: a few bytes of text can need
// many megabytes.
func (c *copier) expression(text string) error {
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return fmt.Errorf("a pattern of it: %w", err)
	}
	if c.pattern += compiledSize(re); c.pattern > maxPattern {
		return errNotChecked
	}
	return nil
}

// compiledSize estimates the instructions of an expression.
func compiledSize(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		n += compiledSize(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return n
}

// follow returns what a reference refers to.
func (c *copier) follow(ref any) (any, bool) {
	text, _ := ref.(string)
	path, ok := strings.CutPrefix(text, "#")
	if !ok || strings.ContainsAny(path, "%") {
		return nil, false
	}
	var at any = c.root
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

// check tells whether a value fits. One that would take long is not checked.
func (s schema) check(raw json.RawMessage) (err error) {
	if s.resolved == nil || len(raw) > maxChecked {
		return nil
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return err
	}
	if s.parts*countValues(v) > maxCompared {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it can't be checked: %v", p)
		}
	}()
	return s.resolved.Validate(v)
}

// countValues counts the values in a value.
func countValues(v any) int {
	n := 1
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			n += countValues(x)
		}
	case map[string]any:
		for _, x := range v {
			n += countValues(x)
		}
	}
	return n
}
