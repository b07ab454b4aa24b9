package kernel

import (
	"bytes"
	"encoding/json"
	"slices"
	"unicode/utf8"
)

// Canonical JSON has sorted keys, no spaces, and the escapes of encoding/json. Numbers stay as they
// are written. Two bodies with the same canonical text have the same values.
//
// Most bodies differ from it in the order of keys alone. An arranger copies such a text with its keys
// sorted. Decoding and encoding give the same, and take ten times as long. They are for texts with
// escapes or spaces.

// maxCanonical bounds the bodies that are made canonical, because decoding takes many times their
// size in memory.
const maxCanonical = 64 << 10

// Canonical rewrites a JSON value. A value above maxCanonical stays as it is.
func Canonical(text []byte) []byte {
	if len(text) > maxCanonical {
		return text
	}
	a := arranger{in: text, out: make([]byte, 0, len(text))}
	if a.value(0) && a.pos == len(a.in) && utf8.Valid(text) {
		return a.out
	}
	return recode(text)
}

// recode decodes a value and encodes it. A text that can't be decoded stays as it is.
func recode(text []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return text
	}
	out, err := json.Marshal(v)
	if err != nil {
		return text
	}
	return out
}

// maxArranged bounds the nesting of a value that is arranged.
const maxArranged = 100

// An arranger copies a valid JSON text with the keys of its objects sorted. Its methods return false
// if the text has something else to be rewritten.
type arranger struct {
	in  []byte
	pos int
	out []byte
}

// A member is a member of an object in the output.
type member struct {
	key      []byte
	from, to int
}

// next returns the next byte of the input, or 0 at its end.
func (a *arranger) next() byte {
	if a.pos == len(a.in) {
		return 0
	}
	return a.in[a.pos]
}

// take copies the next byte if it is c.
func (a *arranger) take(c byte) bool {
	if a.next() != c {
		return false
	}
	a.out = append(a.out, c)
	a.pos++
	return true
}

// value copies one value.
func (a *arranger) value(depth int) bool {
	switch c := a.next(); {
	case depth == maxArranged:
		return false
	case c == '{':
		return a.object(depth + 1)
	case c == '[':
		return a.list(depth + 1)
	case c == '"':
		return a.text()
	}
	from := a.pos
	for a.pos < len(a.in) && isScalar(a.in[a.pos]) {
		a.pos++
	}
	a.out = append(a.out, a.in[from:a.pos]...)
	return a.pos > from
}

// isScalar tells whether a character occurs in a number, true, false or null.
func isScalar(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '+' || c == '.' || c == 'E'
}

// text copies a string that needs no escape.
func (a *arranger) text() bool {
	from := a.pos
	for a.pos++; a.pos < len(a.in); a.pos++ {
		switch c := a.in[a.pos]; {
		case c == '"':
			a.pos++
			a.out = append(a.out, a.in[from:a.pos]...)
			return true
		case c < 0x20 || c == '\\' || c == '<' || c == '>' || c == '&':
			return false
		case c == 0xe2 && isSeparator(a.in[a.pos:]):
			return false // encoding/json escapes it
		}
	}
	return false
}

// isSeparator tells whether a text begins with a line or paragraph separator.
func isSeparator(text []byte) bool {
	r, _ := utf8.DecodeRune(text)
	return r == '\u2028' || r == '\u2029'
}

// list copies a list.
func (a *arranger) list(depth int) bool {
	if a.take('['); a.take(']') {
		return true
	}
	for a.value(depth) {
		if a.take(']') {
			return true
		}
		if !a.take(',') {
			return false
		}
	}
	return false
}

// object copies an object, and then moves its members into the order of their keys.
func (a *arranger) object(depth int) bool {
	if a.take('{'); a.take('}') {
		return true
	}
	start, sorted := len(a.out), true
	members := make([]member, 0, 8)
	for {
		m := member{from: len(a.out)}
		if a.next() != '"' || !a.text() {
			return false
		}
		m.key = a.in[a.pos-(len(a.out)-m.from)+1 : a.pos-1]
		if !a.take(':') || !a.value(depth) {
			return false
		}
		m.to = len(a.out)
		if len(members) > 0 {
			sorted = sorted && bytes.Compare(members[len(members)-1].key, m.key) < 0
		}
		members = append(members, m)
		if a.next() == '}' {
			break
		}
		if !a.take(',') {
			return false
		}
	}
	if !sorted && !a.sort(start, members) {
		return false
	}
	return a.take('}')
}

// sort puts the members of an object, which are the output from start on, into order. A key that
// stands twice is not for an arranger.
func (a *arranger) sort(start int, members []member) bool {
	slices.SortFunc(members, func(x, y member) int { return bytes.Compare(x.key, y.key) })
	copied := slices.Clone(a.out[start:])
	a.out = a.out[:start]
	for i, m := range members {
		if i > 0 {
			if bytes.Equal(members[i-1].key, m.key) {
				return false
			}
			a.out = append(a.out, ',')
		}
		a.out = append(a.out, copied[m.from-start:m.to-start]...)
	}
	return true
}
