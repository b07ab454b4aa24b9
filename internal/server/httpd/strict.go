package httpd

// A body is read twice. First checkStrict walks over its tokens along the type of the call, with
// the tokenizer of go-json-experiment (the future encoding/json/v2). It refuses everything that the
// type does not have, and names the field. Then the same library decodes the body. The walk copies
// nothing of the body, and makes the path of a field only for a refusal.

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/perdure/perdure"
)

// maxDepth bounds the nesting of a value of any type. The depth of everything else follows from its
// type.
const maxDepth = 64

// decodeStrict decodes a body into its type. It refuses what encoding/json accepts: a body that is
// not an object, more than one value, unknown fields and fields in another case, duplicate keys,
// null in a list, unbounded nesting and lists, escaped NULs and lone surrogates.
func decodeStrict(b []byte, into any) error {
	if err := checkStrict(b, reflect.TypeOf(into).Elem()); err != nil {
		return err
	}
	if err := jsonv2.Unmarshal(b, into); err != nil {
		return perdure.Errorf(perdure.CodeInvalid, "%s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

// checkText checks that a body is text.
func checkText(b []byte) error {
	if bytes.HasPrefix(b, []byte("\xef\xbb\xbf")) {
		return perdure.Errorf(perdure.CodeInvalid, "the body begins with a byte order mark")
	}
	if !utf8.Valid(b) {
		return perdure.Errorf(perdure.CodeInvalid, "the body is not valid UTF-8")
	}
	return nil
}

// checkStrict walks over a body and returns its first error.
func checkStrict(b []byte, t reflect.Type) error {
	if err := checkText(b); err != nil {
		return err
	}
	w := walks.Get().(*walk)
	defer w.release(len(b))
	w.in = *bytes.NewBuffer(b)
	// The tokenizer accepts lone surrogates here, because BadEscape refuses them with a better
	// message.
	w.d.Reset(&w.in, jsontext.AllowInvalidUTF8(true))
	if err := w.begin(); err != nil {
		return err
	}
	if err := w.object(shapeOf(t)); err != nil {
		return err
	}
	if err := w.nothingMore(); err != nil {
		return err
	}
	if perdure.BadEscape(b) {
		return perdure.Errorf(perdure.CodeInvalid, `the body has an escaped NUL or a lone surrogate (\u0000, \ud800)`)
	}
	return nil
}

// A walk is the state of checkStrict for one body.
type walk struct {
	d  *jsontext.Decoder
	in bytes.Buffer
	// zero is set if the last value was a number or a duration that is not above zero.
	zero bool
}

var walks = sync.Pool{New: func() any { return &walk{d: new(jsontext.Decoder)} }}

// keptBody bounds the body that a walk in the pool may refer to.
const keptBody = 64 << 10

// release puts the walk back into the pool.
func (w *walk) release(size int) {
	if size > keptBody {
		w.in = bytes.Buffer{}
		w.d.Reset(&w.in)
	}
	walks.Put(w)
}

// begin reads the begin of a body, which is an object.
func (w *walk) begin() error {
	if tok, err := w.d.ReadToken(); err != nil {
		return w.broken(err)
	} else if tok.Kind() != '{' {
		return perdure.Errorf(perdure.CodeInvalid, "the body has to be a JSON object")
	}
	return nil
}

// nothingMore checks that the body ends here.
func (w *walk) nothingMore() error {
	if _, err := w.d.ReadToken(); err != io.EOF {
		return perdure.Errorf(perdure.CodeInvalid, "the body has more than one JSON value")
	}
	return nil
}

// value checks one value. If orNull is set, null is accepted, as for a field that is not given.
func (w *walk) value(s *shape, orNull bool) error {
	w.zero = false
	if s.raw {
		return w.raw()
	}
	switch k := w.d.PeekKind(); k {
	case '{', '[', 0:
		if _, err := w.d.ReadToken(); err != nil {
			return w.broken(err)
		}
		switch {
		case k == '{' && (s.fields != nil || s.elem != nil && s.of.Kind() == reflect.Map):
			return w.object(s)
		case k == '[' && s.elem != nil && s.of.Kind() == reflect.Slice:
			return w.list(s)
		}
		return w.leaf(s, k, []byte{byte(k)})
	default:
		v, err := w.d.ReadValue()
		if err != nil {
			return w.broken(err)
		}
		if k == 'n' && orNull {
			return nil
		}
		return w.leaf(s, k, v)
	}
}

// object checks the rest of an object: the fields of a struct, or the entries of a map.
func (w *walk) object(s *shape) error {
	for n := 0; w.d.PeekKind() != '}'; n++ {
		name, err := w.d.ReadValue()
		if err != nil {
			return w.broken(err)
		}
		if s.fields == nil {
			if n == perdure.MaxList {
				return tooMany(w.path(w.d.StackDepth() - 1))
			}
			if err := w.value(s.elem, false); err != nil {
				return err
			}
			continue
		}
		f, ok := s.fields[string(name[1:len(name)-1])]
		if !ok { // the name may have escapes
			plain, _ := jsontext.AppendUnquote(nil, name)
			if f, ok = s.fields[string(plain)]; !ok {
				return perdure.Invalid(w.path(-1), "is no field of this call")
			}
		}
		if err := w.value(f.shape, true); err != nil {
			return err
		}
		if w.zero && f.nonzero != nil {
			return refuseZero(w.path(-1), *f.nonzero)
		}
	}
	return w.end()
}

// list checks the rest of a list.
func (w *walk) list(s *shape) error {
	for n := 0; w.d.PeekKind() != ']'; n++ {
		if n == perdure.MaxList {
			return tooMany(w.path(w.d.StackDepth() - 1))
		}
		if err := w.value(s.elem, false); err != nil {
			return err
		}
	}
	return w.end()
}

// end reads the end of a list or an object.
func (w *walk) end() error {
	w.zero = false
	if _, err := w.d.ReadToken(); err != nil {
		return w.broken(err)
	}
	return nil
}

// leaf checks a string, number or boolean against its type.
func (w *walk) leaf(s *shape, k jsontext.Kind, v []byte) error {
	switch kind := s.of.Kind(); {
	case s.own:
		return w.own(s, k, v)
	case kind == reflect.String && k == '"', kind == reflect.Bool && (k == 't' || k == 'f'):
		return nil
	case (kind == reflect.Int || kind == reflect.Int64) && k == '0':
		n, err := strconv.ParseInt(string(v), 10, s.of.Bits())
		if err != nil {
			return perdure.Invalid(w.path(-1), "takes a whole number of %d bits", s.of.Bits())
		}
		w.zero = n == 0
		return nil
	}
	return perdure.Invalid(w.path(-1), "takes %s, not %s", kindOf(s.of), nameOf(k))
}

// own checks a value of a type that parses itself.
func (w *walk) own(s *shape, k jsontext.Kind, v []byte) error {
	switch u := reflect.New(s.of).Interface().(type) {
	case encoding.TextUnmarshaler: // durations
		if k != '"' {
			return perdure.Invalid(w.path(-1), `takes a duration such as "30s", not %s`, nameOf(k))
		}
		text := v[1 : len(v)-1]
		if bytes.IndexByte(text, '\\') >= 0 {
			text, _ = jsontext.AppendUnquote(nil, v)
		}
		if err := u.UnmarshalText(text); err != nil {
			return perdure.Invalid(w.path(-1), "%v", err)
		}
		d, ok := u.(*perdure.Duration)
		w.zero = ok && *d <= 0
	case json.Unmarshaler: // instants
		if err := u.UnmarshalJSON(v); err != nil {
			return perdure.Invalid(w.path(-1), "%v", err)
		}
	}
	return nil
}

// raw checks a value of any JSON type. It refuses values that are too large or nested too deep,
// duplicate keys, and numbers beyond a double, which other parsers read as infinity or refuse.
func (w *walk) raw() error {
	around := w.d.StackDepth()
	v, err := w.d.ReadValue()
	switch at := pointer(err); {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return perdure.Invalid(w.pathTo(at, around), "has the key %.100q twice in one object", at.LastToken())
	case strings.Count(string(at), "/") > around+maxDepth:
		return perdure.Invalid(w.pathTo(at, around), "is nested deeper than %d", maxDepth)
	case err != nil:
		return w.broken(err)
	}
	if len(v) > perdure.MaxValue || perdure.BadEscape(v) {
		return perdure.CheckValue(w.path(-1), json.RawMessage(v))
	}
	depth, number := measure(v)
	if depth > maxDepth {
		return perdure.Invalid(w.path(-1), "is nested deeper than %d", maxDepth)
	}
	if number != nil {
		return perdure.Invalid(w.path(-1), "has the number %.40s, which is beyond a double", number)
	}
	return nil
}

// measure returns the nesting of a valid value, and the first number in it that is beyond a double.
func measure(v []byte) (deepest int, number []byte) {
	depth := 0
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case c == '"':
			for i++; v[i] != '"'; i++ {
				if v[i] == '\\' {
					i++
				}
			}
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		case c == '-' || '0' <= c && c <= '9':
			from := i
			for i+1 < len(v) && strings.IndexByte("+-.eE0123456789", v[i+1]) >= 0 {
				i++
			}
			if number == nil && unbounded(v[from:i+1]) {
				number = v[from : i+1]
			}
		}
	}
	return deepest, number
}

// unbounded tells whether a number is beyond a double. The largest double has 309 digits.
func unbounded(number []byte) bool {
	if len(number) < 300 && !bytes.ContainsAny(number, "eE") {
		return false
	}
	_, err := strconv.ParseFloat(string(number), 64)
	return err != nil
}

// broken returns the error of a body that is not valid JSON or has a duplicate key.
func (w *walk) broken(err error) error {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return perdure.Invalid(w.pathTo(pointer(err), -1), "stands twice in the same object")
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	text := strings.TrimPrefix(err.Error(), "jsontext: ")
	return perdure.Errorf(perdure.CodeInvalid, "the body is not valid JSON: %s", text)
}

// pointer returns the place of a tokenizer's error.
func pointer(err error) jsontext.Pointer {
	var s *jsontext.SyntacticError
	if errors.As(err, &s) {
		return s.JSONPointer
	}
	return ""
}

// path returns the path of the last value, or its first steps if steps is not negative.
func (w *walk) path(steps int) string { return w.pathTo(w.d.StackPointer(), steps) }

// pathTo returns a pointer as a path such as commits[0].outcome.
func (w *walk) pathTo(p jsontext.Pointer, steps int) string {
	var b strings.Builder
	n := 0
	for token := range p.Tokens() {
		if n == steps {
			break
		}
		n++
		kind := jsontext.Kind('{')
		if n <= w.d.StackDepth() {
			kind, _ = w.d.StackIndex(n)
		}
		switch {
		case kind == '[':
			b.WriteString("[" + token + "]")
		case b.Len() > 0:
			b.WriteString("." + token)
		default:
			b.WriteString(token)
		}
	}
	return b.String()
}

func refuseZero(path string, b bound) error {
	if b.least == nil {
		return perdure.Invalid(path, `takes a duration above 0s such as "30s"; leave it out for the default`)
	}
	return perdure.Invalid(path, "0 does not lie between %d and %d; leave it out for the default", *b.least, *b.most)
}

func tooMany(path string) error {
	message := fmt.Sprintf("has more than %d entries", perdure.MaxList)
	return &perdure.Error{Code: perdure.CodeTooLarge, Field: path, Message: message}
}

func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	}
	return "a whole number"
}

func nameOf(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case '"':
		return "a string"
	case 't', 'f':
		return "true or false"
	case '[':
		return "a list"
	case '{':
		return "an object"
	}
	return "a number"
}
