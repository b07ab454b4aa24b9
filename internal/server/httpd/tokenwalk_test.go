package httpd

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"unicode/utf8"

	"github.com/perdure/perdure"
)

// walkTokens says what is wrong with a body by the tokens of encoding/json, which knows nothing of jsontext: the tests
// hold checkStrict against it.
func walkTokens(b []byte, t reflect.Type) error {
	if bytes.HasPrefix(b, []byte("\xef\xbb\xbf")) {
		return perdure.Errorf(perdure.CodeInvalid, "the body begins with a byte order mark")
	}
	if !utf8.Valid(b) {
		return perdure.Errorf(perdure.CodeInvalid, "the body is not valid UTF-8")
	}
	s := newTokenWalk(b)
	if tok, err := s.token(); err != nil {
		return err
	} else if tok != json.Delim('{') {
		return perdure.Errorf(perdure.CodeInvalid, "the body has to be a JSON object")
	}
	if err := s.object(t, ""); err != nil {
		return err
	}
	if _, err := s.d.Token(); err != io.EOF {
		return perdure.Errorf(perdure.CodeInvalid, "the body has more than one JSON value")
	}
	if perdure.BadEscape(b) {
		return perdure.Errorf(perdure.CodeInvalid, `the body has an escaped NUL or a lone surrogate (\u0000, \ud800)`)
	}
	return nil
}

// strict walks a body along a type.
type tokenWalk struct {
	d    *json.Decoder
	zero bool // the value just read is a number or a duration, and not above zero
}

func newTokenWalk(b []byte) *tokenWalk {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return &tokenWalk{d: d}
}

func (s *tokenWalk) token() (json.Token, error) {
	tok, err := s.d.Token()
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, perdure.Errorf(perdure.CodeInvalid, "the body is not valid JSON: %v", err)
	}
	return tok, nil
}

// value reads one value of a type. null stands for a field that is not given.
func (s *tokenWalk) value(t reflect.Type, path string, orNull bool) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if isRaw(t) {
		var raw json.RawMessage
		if err := s.d.Decode(&raw); err != nil {
			return perdure.Errorf(perdure.CodeInvalid, "the body is not valid JSON: %v", err)
		}
		if err := perdure.CheckValue(path, raw); err != nil {
			return err
		}
		return newTokenWalk(raw).any(path)
	}
	tok, err := s.token()
	s.zero = false
	switch {
	case err != nil:
		return err
	case tok == nil && orNull:
		return nil
	case tok == json.Delim('{') && (t.Kind() == reflect.Struct || t.Kind() == reflect.Map):
		return s.object(t, path)
	case tok == json.Delim('[') && t.Kind() == reflect.Slice:
		return s.list(t.Elem(), path)
	}
	err = tokenLeaf(t, path, tok)
	s.zero = err == nil && isZero(t, tok)
	return err
}

// isZero tells whether a token of that type is a number or a duration that is not above zero.
func isZero(t reflect.Type, tok json.Token) bool {
	switch v := tok.(type) {
	case json.Number:
		n, err := v.Int64()
		return err == nil && n == 0
	case string:
		var d perdure.Duration
		return t == reflect.TypeFor[perdure.Duration]() && d.UnmarshalText([]byte(v)) == nil && d <= 0
	}
	return false
}

// object reads the rest of an object: the fields of a struct, or the entries of a map.
func (s *tokenWalk) object(t reflect.Type, path string) error {
	var fields map[string]reflect.Type
	if t.Kind() == reflect.Struct {
		fields = fieldsOf(t)
	}
	seen := make(map[string]bool)
	for {
		tok, err := s.token()
		if err != nil {
			return err
		}
		key, ok := tok.(string)
		if !ok {
			return nil // its end
		}
		at := key
		if path != "" {
			at = path + "." + key
		}
		if seen[key] {
			return perdure.Invalid(at, "stands twice in the same object")
		}
		seen[key] = true
		of := fields[key]
		switch {
		case fields == nil:
			if len(seen) > perdure.MaxList {
				return tooMany(path)
			}
			err = s.value(t.Elem(), at, false)
		case of == nil:
			return perdure.Invalid(at, "is no field of this call")
		default:
			err = s.value(of, at, true)
			if err == nil && s.zero && boundsOf(t)[key].zero {
				err = refuseZero(at, boundsOf(t)[key])
			}
		}
		if err != nil {
			return err
		}
	}
}

func (s *tokenWalk) list(t reflect.Type, path string) error {
	for i := 0; s.d.More(); i++ {
		if i == perdure.MaxList {
			return tooMany(path)
		}
		if err := s.value(t, fmt.Sprintf("%s[%d]", path, i), false); err != nil {
			return err
		}
	}
	_, err := s.token()
	return err
}

// leaf checks a string, number or boolean against its type.
func tokenLeaf(t reflect.Type, path string, tok json.Token) error {
	if p := reflect.New(t).Interface(); t.Kind() != reflect.Struct {
		text, isText := tok.(string)
		switch u := p.(type) {
		case encoding.TextUnmarshaler: // durations
			if isText {
				if err := u.UnmarshalText([]byte(text)); err != nil {
					return perdure.Invalid(path, "%v", err)
				}
				return nil
			}
			return perdure.Invalid(path, `takes a duration such as "30s", not %s`, tokenName(tok))
		case json.Unmarshaler: // instants
			b, _ := json.Marshal(tok)
			if err := u.UnmarshalJSON(b); err != nil {
				return perdure.Invalid(path, "%v", err)
			}
			return nil
		}
	}
	ok := false
	switch t.Kind() {
	case reflect.String:
		_, ok = tok.(string)
	case reflect.Bool:
		_, ok = tok.(bool)
	case reflect.Int, reflect.Int64:
		n, isNumber := tok.(json.Number)
		if isNumber {
			if _, err := strconv.ParseInt(n.String(), 10, t.Bits()); err != nil {
				return perdure.Invalid(path, "takes a whole number of %d bits", t.Bits())
			}
		}
		ok = isNumber
	}
	if !ok {
		return perdure.Invalid(path, "takes %s, not %s", kindOf(t), tokenName(tok))
	}
	return nil
}

func tokenName(tok json.Token) string {
	switch tok := tok.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case bool:
		return "true or false"
	case json.Delim:
		if tok == '[' {
			return "a list"
		}
		return "an object"
	}
	return "a number"
}

// any checks a value of no particular shape: no key twice, no nesting without bound, and no number that most
// readers would take for infinity or refuse.
func (s *tokenWalk) any(path string) error {
	type level struct {
		object, key bool // key: the next token of an object is a key
		seen        map[string]bool
	}
	var stack []level
	for {
		tok, err := s.d.Token()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return perdure.Invalid(path, "is not valid JSON: %v", err)
		}
		var top *level
		if len(stack) > 0 {
			top = &stack[len(stack)-1]
		}
		if top != nil && top.object && top.key {
			if key, ok := tok.(string); ok {
				if top.seen[key] {
					return perdure.Invalid(path, "has the key %.100q twice in one object", key)
				}
				top.seen[key], top.key = true, false
				continue
			}
		}
		if top != nil {
			top.key = true
		}
		if n, ok := tok.(json.Number); ok {
			if _, err := n.Float64(); err != nil {
				return perdure.Invalid(path, "has the number %.40s, which is beyond a double", n)
			}
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			if len(stack) >= maxDepth {
				return perdure.Invalid(path, "is nested deeper than %d", maxDepth)
			}
			l := level{object: tok == json.Delim('{'), key: true}
			if l.object {
				l.seen = make(map[string]bool)
			}
			stack = append(stack, l)
		case json.Delim('}'), json.Delim(']'):
			stack = stack[:len(stack)-1]
		}
	}
}
