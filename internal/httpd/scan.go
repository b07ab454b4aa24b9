package httpd

import (
	"bytes"
	"encoding"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/perdure/perdure"
)

// scan tells whether a body is as its type says, in one pass over its bytes. It says no as well when it is not
// sure: checkStrict then decides, and finds the words. Whatever scan takes, checkStrict takes.
func scan(b []byte, t reflect.Type) bool {
	s := scanner{b: b}
	return t.Kind() == reflect.Struct && s.value(shapeOf(t), false, 0) && s.next() == 0 && s.i == len(b) &&
		utf8.Valid(b) && !perdure.BadEscape(b) // which reads valid JSON alone
}

// A shape is what scan has to know of a type.
type shape struct {
	kind   reflect.Kind // of a type that has none of the shapes below
	bits   int
	above  bool // a number that is zero is left to checkStrict
	elem   *shape
	fields map[string]*shape
}

var (
	raw      = &shape{} // a value of no type, up to a size
	anything = &shape{} // what is in one
	duration = &shape{}
	positive = &shape{} // a duration above zero
	instant  = &shape{}
	unsure   = &shape{} // left to checkStrict
)

func init() { anything.elem = anything }

var shapes sync.Map // reflect.Type → *shape

// shapeOf takes a type apart as checkStrict does. No body has a type that holds itself.
func shapeOf(t reflect.Type) *shape {
	if of, ok := shapes.Load(t); ok {
		return of.(*shape)
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch p := reflect.PointerTo(t); {
	case isRaw(t):
		return raw
	case t == reflect.TypeFor[perdure.Duration]():
		return duration
	case t == reflect.TypeFor[perdure.Instant]():
		return instant
	case t.Kind() != reflect.Struct && (p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) || p.Implements(reflect.TypeFor[json.Unmarshaler]())):
		return unsure
	}
	of := &shape{kind: t.Kind()}
	switch t.Kind() {
	case reflect.Struct:
		of.fields = make(map[string]*shape)
		for name, ft := range fieldsOf(t) {
			field := shapeOf(ft)
			switch refuses := boundsOf(t)[name].zero; {
			case refuses && field == duration:
				field = positive
			case refuses:
				field = &shape{kind: field.kind, bits: field.bits, above: true}
			}
			of.fields[name] = field
		}
	case reflect.Map, reflect.Slice:
		of.elem = shapeOf(t.Elem())
	case reflect.Int, reflect.Int64:
		of.bits = t.Bits()
	}
	shapes.Store(t, of)
	return of
}

// maxKeys bounds the keys that are compared one by one, of all open objects. It is less than a map may have (MaxBatch).
const maxKeys = 128

type scanner struct {
	b    []byte
	i    int
	keys [maxKeys][]byte
	n    int // how many of keys there are
}

// next goes past space, and gives the byte that follows; 0 at the end.
func (s *scanner) next() byte {
	for ; s.i < len(s.b); s.i++ {
		if c := s.b[s.i]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

// take goes past space and the byte c, if that is what follows.
func (s *scanner) take(c byte) bool {
	ok := s.next() == c
	if ok {
		s.i++
	}
	return ok
}

// value reads one value, and the space before it. The depth is that of what is around it, but not around a raw one.
func (s *scanner) value(of *shape, orNull bool, depth int) bool {
	c := s.next()
	from := s.i
	switch {
	case of == raw:
		return s.value(anything, true, 0) && s.i-from <= perdure.MaxValue
	case c == '{':
		return (of == anything || of.kind == reflect.Struct || of.kind == reflect.Map) && depth < maxDepth && s.object(of, depth+1)
	case c == '[':
		return (of == anything || of.kind == reflect.Slice) && depth < maxDepth && s.list(of, depth+1)
	case c == '"':
		text, plain, ok := s.text()
		switch of {
		case duration, positive:
			var d perdure.Duration
			return ok && plain && d.UnmarshalText(text) == nil && (of == duration || d > 0)
		case instant:
			var i perdure.Instant
			return ok && plain && i.UnmarshalJSON(s.b[from:s.i]) == nil
		}
		return ok && (of == anything || of.kind == reflect.String)
	case c == 't' || c == 'f':
		return (s.word("true") || s.word("false")) && (of == anything || of.kind == reflect.Bool)
	case c == 'n':
		return s.word("null") && (of == anything || orNull)
	}
	bounded, ok := s.number()
	var err error
	if of != anything {
		ok = ok && of.bits > 0
		var n int64
		n, err = strconv.ParseInt(string(s.b[from:s.i]), 10, of.bits)
		ok = ok && (n != 0 || !of.above)
	} else if !bounded {
		_, err = strconv.ParseFloat(string(s.b[from:s.i]), 64)
	}
	return ok && err == nil
}

// object reads the fields of a struct, the entries of a map, or an object of no type.
func (s *scanner) object(of *shape, depth int) bool {
	s.i++
	first := s.n
	for !s.take('}') {
		if s.n > first && !s.take(',') || s.next() != '"' {
			return false
		}
		key, plain, ok := s.text() // one with escapes may be the same as one without
		if !ok || !plain || s.n == maxKeys || !s.take(':') {
			return false
		}
		for _, k := range s.keys[first:s.n] {
			if bytes.Equal(k, key) {
				return false
			}
		}
		s.keys[s.n] = key
		s.n++
		elem := of.elem
		if of.kind == reflect.Struct {
			elem = of.fields[string(key)]
		}
		if elem == nil || !s.value(elem, of.kind == reflect.Struct, depth) {
			return false
		}
	}
	s.n = first
	return true
}

func (s *scanner) list(of *shape, depth int) bool {
	s.i++
	for n := 0; !s.take(']'); n++ {
		if n > 0 && !s.take(',') || n == perdure.MaxBatch && of != anything || !s.value(of.elem, false, depth) {
			return false
		}
	}
	return true
}

// text reads a string and gives what is between its quotes. It is plain if it has no escapes.
func (s *scanner) text() (text []byte, plain, ok bool) {
	from := s.i + 1
	plain = true
	for i := from; i < len(s.b); i++ {
		switch c := s.b[i]; {
		case c == '"':
			s.i = i + 1
			return s.b[from:i], plain, true
		case c < ' ':
			return nil, false, false
		case c == '\\':
			plain = false
			s.i = i + 1
			if !s.pass(`"\/bfnrt`) && !(s.pass("u") && s.pass(hex) && s.pass(hex) && s.pass(hex) && s.pass(hex)) {
				return nil, false, false
			}
			i = s.i - 1
		}
	}
	return nil, false, false
}

// number reads a number. It is bounded if its length alone keeps it below the largest double, which has 309 digits.
func (s *scanner) number() (bounded, ok bool) {
	from := s.i
	s.pass("-")
	ok = s.pass("0") || s.digits()
	if s.pass(".") {
		ok = s.digits() && ok
	}
	if s.pass("eE") {
		s.pass("+-")
		return false, s.digits() && ok
	}
	return s.i-from < 300, ok
}

func (s *scanner) digits() bool {
	from := s.i
	for s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > from
}

const hex = "0123456789abcdefABCDEF"

// pass goes past one byte, if it is among these.
func (s *scanner) pass(these string) bool {
	ok := s.i < len(s.b) && strings.IndexByte(these, s.b[s.i]) >= 0
	if ok {
		s.i++
	}
	return ok
}

func (s *scanner) word(w string) bool {
	ok := bytes.HasPrefix(s.b[s.i:], []byte(w))
	if ok {
		s.i += len(w)
	}
	return ok
}
