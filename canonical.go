package perdure

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Canonical returns a value as canonical JSON, which is the same for the same value in every language.
// Digests are made of it; docs/journal.md defines it:
//
//   - There is no white space. The members of objects are sorted by name, by the bytes of UTF-8.
//   - In strings only ", \\ and control characters are escaped, the short way where there is one.
//   - An integer that is written with digits alone keeps them, whatever its size; -0 is 0. Any other
//     number is written as ECMAScript prints the nearest double. One beyond all doubles stays as it is.
//
// An object that has a name twice is refused, because parsers differ in which of the two they return.
func Canonical(v json.RawMessage) ([]byte, error) {
	if !json.Valid(v) || !utf8.Valid(v) {
		return nil, Invalid("value", "is no JSON")
	}
	c := canonicalizer{in: v, out: make([]byte, 0, len(v)), number: appendNumber}
	if err := c.value(0); err != nil {
		return nil, Invalid("value", "%v", err)
	}
	return c.out, nil
}

// canonical checks a value and returns it as canonical JSON in which numbers stay as they were written;
// see [ActionHash].
func canonical(field string, v json.RawMessage) ([]byte, error) {
	if err := CheckValue(field, v); err != nil {
		return nil, err
	}
	return canonicalValid(field, v)
}

// canonicalValid is canonical for a value that is valid JSON.
func canonicalValid(field string, v json.RawMessage) ([]byte, error) {
	c := canonicalizer{in: v, out: make([]byte, 0, len(v))}
	if err := c.value(0); err != nil {
		return nil, Invalid(field, "%v", err)
	}
	return c.out, nil
}

// A canonicalizer writes valid JSON as canonical JSON. It goes through the text once, and copies what
// is canonical as it stands.
type canonicalizer struct {
	in  []byte
	at  int
	out []byte
	// number appends a number. It is nil if numbers stay as they are.
	number func(b, raw []byte) []byte
}

// space skips white space and gives the character behind it.
func (c *canonicalizer) space() byte {
	for c.in[c.at] <= ' ' {
		c.at++
	}
	return c.in[c.at]
}

// value copies one value.
func (c *canonicalizer) value(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("is nested more than %d deep", maxDepth)
	}
	switch c.space() {
	case '{':
		return c.object(depth)
	case '[':
		c.at++
		c.out = append(c.out, '[')
		for i := 0; c.space() != ']'; i++ {
			if i > 0 {
				c.at++ // the comma
				c.out = append(c.out, ',')
			}
			if err := c.value(depth + 1); err != nil {
				return err
			}
		}
		c.at++
		c.out = append(c.out, ']')
	case '"':
		c.text()
	default: // a number, true, false or null
		from := c.at
		for c.at < len(c.in) && c.in[c.at] > ' ' && c.in[c.at] != ',' && c.in[c.at] != ']' && c.in[c.at] != '}' {
			c.at++
		}
		raw := c.in[from:c.at]
		if c.number != nil && (raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9') {
			c.out = c.number(c.out, raw)
		} else {
			c.out = append(c.out, raw...)
		}
	}
	return nil
}

// appendNumber appends a number as [Canonical] writes it.
func appendNumber(b, raw []byte) []byte {
	if !bytes.ContainsAny(raw, ".eE") {
		if string(raw) == "-0" {
			raw = raw[1:]
		}
		return append(b, raw...)
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil { // no double is as large
		return append(b, raw...)
	}
	if f == 0 {
		return append(b, '0') // also for -0
	}
	if size := math.Abs(f); size >= 1e-6 && size < 1e21 {
		return strconv.AppendFloat(b, f, 'f', -1, 64)
	}
	b = strconv.AppendFloat(b, f, 'e', -1, 64)
	if n := len(b); b[n-4] == 'e' && b[n-2] == '0' { // e-09 is e-9
		b[n-2] = b[n-1]
		b = b[:n-1]
	}
	return b
}

// text copies a string and gives it decoded.
func (c *canonicalizer) text() string {
	from := c.at
	escaped := false
	for c.at++; c.in[c.at] != '"'; c.at++ {
		if c.in[c.at] == '\\' {
			escaped = true
			c.at++
		}
	}
	c.at++
	raw := c.in[from:c.at]
	if !escaped {
		c.out = append(c.out, raw...)
		return string(raw[1 : len(raw)-1])
	}
	var s string
	_ = json.Unmarshal(raw, &s) // it is valid
	c.out = appendString(c.out, s)
	return s
}

// object copies an object, and sorts its members by name if they are not sorted.
func (c *canonicalizer) object(depth int) error {
	type member struct {
		name     string
		from, to int // in out
	}
	var all []member
	sorted := true
	start := len(c.out) + 1
	c.at++
	c.out = append(c.out, '{')
	for i := 0; c.space() != '}'; i++ {
		if i > 0 {
			c.at++ // the comma
			c.out = append(c.out, ',')
			c.space()
		}
		m := member{from: len(c.out)}
		m.name = c.text()
		c.space()
		c.at++ // the colon
		c.out = append(c.out, ':')
		if err := c.value(depth + 1); err != nil {
			return err
		}
		m.to = len(c.out)
		sorted = sorted && (i == 0 || all[i-1].name < m.name)
		all = append(all, m)
	}
	c.at++
	if !sorted {
		slices.SortStableFunc(all, func(a, b member) int { return cmp.Compare(a.name, b.name) })
		members := slices.Clone(c.out[start:])
		c.out = c.out[:start]
		for i, m := range all {
			if i > 0 {
				if m.name == all[i-1].name {
					return fmt.Errorf("has %.60q twice", m.name)
				}
				c.out = append(c.out, ',')
			}
			c.out = append(c.out, members[m.from-start:m.to-start]...)
		}
	}
	c.out = append(c.out, '}')
	return nil
}

// appendString appends a JSON string with the shortest escapes, as RFC 8785 defines them.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= 0x20:
			b = append(b, c)
		case c >= '\b' && c <= '\r' && c != '\v':
			b = append(b, '\\', "btn fr"[c-'\b'])
		default:
			b = fmt.Appendf(b, `\u%04x`, c)
		}
	}
	return append(b, '"')
}
