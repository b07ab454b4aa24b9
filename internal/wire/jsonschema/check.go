package jsonschema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits of a check. Schemas and values come from strangers, and a schema may refer to itself.
const (
	maxDepth = 64
	maxSteps = 20_000
)

// Check tells whether a value fits a schema. The error names the first place that does not, by its
// path, and never quotes the value.
//
// It knows the keywords that [Of] writes, and the common ones beside them: type, properties, required,
// additionalProperties, items, enum, const, anyOf, oneOf, allOf, not, references within the schema, and
// the bounds of numbers, texts, lists and objects. Other keywords, such as pattern and format, are
// ignored. So is everything beyond the limits of depth and of work: Check refuses only values that it has seen
// not to fit.
func Check(schema, value json.RawMessage) error {
	var s, v any
	if err := decode(schema, &s); err != nil {
		return nil // no schema: nothing is known about the value
	}
	if err := decode(value, &v); err != nil {
		return &Mismatch{What: "is no JSON"}
	}
	c := &checker{root: s}
	if m := c.check(s, v, nil, 0); m != nil && c.steps <= maxSteps {
		return m
	}
	return nil
}

// A Mismatch says where a value does not fit a schema, and how.
type Mismatch struct {
	// Path leads to the place, such as "items[2].price". It is empty for the value itself.
	Path string
	What string
}

func (m *Mismatch) Error() string { return strings.TrimSpace(m.Path + " " + m.What) }

// decode reads JSON and keeps numbers as they are written.
func decode(text json.RawMessage, to *any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(to)
}

type checker struct {
	root  any
	steps int
}

// place is the path to a value, linked from its end.
type place struct {
	up   *place
	name string
}

func (p *place) String() string {
	var names []string
	for ; p != nil; p = p.up {
		names = append(names, p.name)
	}
	slices.Reverse(names)
	path := strings.TrimPrefix(strings.Join(names, ""), ".")
	if len(path) > 200 {
		path = strings.ToValidUTF8(path[:200], "") + "…"
	}
	return path
}

func (p *place) fail(format string, args ...any) *Mismatch {
	return &Mismatch{Path: p.String(), What: fmt.Sprintf(format, args...)}
}

// check returns the first mismatch, or nil. Beyond its limits it returns nil.
func (c *checker) check(schema, v any, at *place, depth int) *Mismatch {
	if c.steps++; depth > maxDepth {
		c.steps = maxSteps + 1 // the whole check is given up
	}
	if c.steps > maxSteps {
		return nil
	}
	if schema == false {
		return at.fail("is not allowed")
	}
	s, ok := schema.(map[string]any)
	if !ok {
		return nil
	}
	if ref, ok := s["$ref"].(string); ok {
		if m := c.check(c.resolve(ref), v, at, depth+1); m != nil {
			return m
		}
	}
	if m := checkType(s["type"], v, at); m != nil {
		return m
	}
	if list, ok := s["enum"].([]any); ok && !slices.ContainsFunc(list, func(x any) bool { return equal(x, v) }) {
		return at.fail("is none of the %d values that it may have", len(list))
	}
	if x, ok := s["const"]; ok && !equal(x, v) {
		return at.fail("is not the value that it has to have")
	}
	if m := c.checkCombined(s, v, at, depth); m != nil {
		return m
	}
	switch v := v.(type) {
	case json.Number:
		return checkNumber(s, v, at)
	case string:
		return checkCount(s, "minLength", "maxLength", utf8.RuneCountInString(v), "characters", at)
	case []any:
		return c.checkList(s, v, at, depth)
	case map[string]any:
		return c.checkObject(s, v, at, depth)
	}
	return nil
}

// resolve follows a reference within the schema. It gives true, which accepts all, for others.
func (c *checker) resolve(ref string) any {
	rest, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return true
	}
	to := c.root
	for _, name := range strings.Split(rest, "/")[1:] {
		name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
		m, ok := to.(map[string]any)
		if !ok {
			return true
		}
		if to, ok = m[name]; !ok {
			return true
		}
	}
	return to
}

// checkCombined checks allOf, anyOf, oneOf and not.
func (c *checker) checkCombined(s map[string]any, v any, at *place, depth int) *Mismatch {
	all, _ := s["allOf"].([]any)
	for _, x := range all {
		if m := c.check(x, v, at, depth+1); m != nil {
			return m
		}
	}
	for _, keyword := range []string{"anyOf", "oneOf"} {
		list, ok := s[keyword].([]any)
		if !ok || len(list) == 0 {
			continue
		}
		fits, first := 0, (*Mismatch)(nil)
		for _, x := range list {
			m := c.check(x, v, at, depth+1)
			if m == nil {
				fits++
			} else if first == nil {
				first = m
			}
		}
		switch {
		case fits == 0 && len(list) == 1:
			return first
		case fits == 0:
			return at.fail("fits none of the %d forms that it may have", len(list))
		case fits > 1 && keyword == "oneOf":
			return at.fail("fits %d of the forms, of which it may have one", fits)
		}
	}
	if x, ok := s["not"]; ok && c.check(x, v, at, depth+1) == nil {
		return at.fail("has the form that it may not have")
	}
	return nil
}

// checkType compares the type of a value with one name or a list of them.
func checkType(want, v any, at *place) *Mismatch {
	var names []string
	switch want := want.(type) {
	case string:
		names = []string{want}
	case []any:
		for _, x := range want {
			if name, ok := x.(string); ok {
				names = append(names, name)
			}
		}
	}
	have := typeOf(v)
	if len(names) == 0 || slices.Contains(names, have) || have == "integer" && slices.Contains(names, "number") {
		return nil
	}
	return at.fail("is of type %s, want %s", have, strings.Join(names, " or "))
}

func typeOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case json.Number:
		if n, err := v.Float64(); err == nil && n == math.Trunc(n) {
			return "integer"
		}
		return "number"
	}
	return "object"
}

// equal compares JSON values. Numbers are equal if they are the same double.
func equal(a, b any) bool {
	switch x := a.(type) {
	case json.Number:
		n, ok := number(x)
		m, ok2 := number(b)
		y, isNumber := b.(json.Number)
		return isNumber && (x == y || ok && ok2 && n == m)
	case []any:
		y, ok := b.([]any)
		return ok && slices.EqualFunc(x, y, equal)
	case map[string]any:
		y, ok := b.(map[string]any)
		return ok && maps.EqualFunc(x, y, equal)
	case string:
		y, ok := b.(string)
		return ok && x == y
	case bool:
		y, ok := b.(bool)
		return ok && x == y
	}
	return a == nil && b == nil
}

func number(v any) (float64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	f, err := n.Float64()
	return f, err == nil
}

func checkNumber(s map[string]any, v json.Number, at *place) *Mismatch {
	n, ok := number(v)
	if !ok {
		return nil
	}
	for _, b := range []struct {
		keyword string
		broken  func(limit float64) bool
		text    string
	}{
		{"minimum", func(l float64) bool { return n < l }, "is below %v"},
		{"maximum", func(l float64) bool { return n > l }, "is above %v"},
		{"exclusiveMinimum", func(l float64) bool { return n <= l }, "is not above %v"},
		{"exclusiveMaximum", func(l float64) bool { return n >= l }, "is not below %v"},
	} {
		if limit, ok := number(s[b.keyword]); ok && b.broken(limit) {
			return at.fail(b.text, limit)
		}
	}
	return nil
}

// checkCount checks how many characters, entries or fields a value has.
func checkCount(s map[string]any, least, most string, n int, what string, at *place) *Mismatch {
	if limit, ok := number(s[least]); ok && float64(n) < limit {
		return at.fail("has %d %s, want %v at least", n, what, limit)
	}
	if limit, ok := number(s[most]); ok && float64(n) > limit {
		return at.fail("has %d %s, want %v at most", n, what, limit)
	}
	return nil
}

func (c *checker) checkList(s map[string]any, v []any, at *place, depth int) *Mismatch {
	if m := checkCount(s, "minItems", "maxItems", len(v), "entries", at); m != nil {
		return m
	}
	items, ok := s["items"]
	if !ok {
		return nil
	}
	first, _ := s["prefixItems"].([]any)
	for i, x := range v {
		of := items
		if i < len(first) {
			of = first[i]
		}
		if m := c.check(of, x, &place{at, fmt.Sprintf("[%d]", i)}, depth+1); m != nil {
			return m
		}
		if c.steps > maxSteps {
			break
		}
	}
	return nil
}

func (c *checker) checkObject(s, v map[string]any, at *place, depth int) *Mismatch {
	if m := checkCount(s, "minProperties", "maxProperties", len(v), "fields", at); m != nil {
		return m
	}
	required, _ := s["required"].([]any)
	for _, x := range required {
		if name, ok := x.(string); ok {
			if _, ok := v[name]; !ok {
				return (&place{at, "." + name}).fail("is missing")
			}
		}
	}
	properties, _ := s["properties"].(map[string]any)
	names := make([]string, 0, len(v))
	for name := range v {
		names = append(names, name)
	}
	slices.Sort(names) // so that the same value has the same mismatch
	for _, name := range names {
		of, ok := properties[name]
		if !ok {
			_, patterns := s["patternProperties"]
			if of, ok = s["additionalProperties"]; !ok || patterns {
				continue
			}
		}
		if m := c.check(of, v[name], &place{at, "." + name}, depth+1); m != nil {
			return m
		}
		if c.steps > maxSteps {
			break
		}
	}
	return nil
}
