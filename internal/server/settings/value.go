package settings

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure/internal/server/doorbell"
)

// set gives the setting a value: a text, as the environment and flags have it, or a value of a
// file. A text is taken for every type; a list as a text has commas.
func (s *Setting) set(v any) (err error) {
	switch at := s.Value.(type) {
	case *[]string:
		*at, err = list(v)
	case *[]int:
		var texts []string
		texts, err = list(v)
		*at = nil
		for _, text := range texts {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				return fmt.Errorf("%s: %q is no whole number; allowed is %s", s.Name, text, s.Bounds())
			}
			*at = append(*at, n)
		}
	default:
		err = s.setScalar(v)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return plain(s.Check(), "")
}

func (s *Setting) setScalar(v any) error {
	switch v.(type) {
	case string, int64, float64, bool:
	default:
		return fmt.Errorf("%v is not a single value", v)
	}
	text := fmt.Sprint(v)
	var err error
	switch at := s.Value.(type) {
	case *string:
		if _, ok := v.(string); !ok {
			return fmt.Errorf("%v is not a text", v)
		}
		*at = text
	case *bool:
		if *at, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("%q is neither true nor false", text)
		}
	case *int:
		if *at, err = strconv.Atoi(text); err != nil {
			return s.wrong(text, "a whole number")
		}
	case *int64:
		if *at, err = strconv.ParseInt(text, 10, 64); err != nil {
			return s.wrong(text, "a whole number")
		}
	case *float64:
		if *at, err = strconv.ParseFloat(text, 64); err != nil {
			return s.wrong(text, "a number")
		}
	case *time.Duration:
		if *at, err = time.ParseDuration(text); err != nil {
			return s.wrong(text, "a duration such as 30s")
		}
	default:
		panic(fmt.Sprintf("%s: the table has a value of type %T", s.Name, s.Value))
	}
	return nil
}

func (s *Setting) wrong(text, kind string) error {
	return fmt.Errorf("%q is not %s, %s", text, kind, s.Bounds())
}

// list returns the items of a list in a file, or of a text with commas.
func list(v any) ([]string, error) {
	switch v := v.(type) {
	case string:
		return strings.Split(v, ","), nil
	case []any:
		out := make([]string, 0, len(v))
		for _, item := range v {
			switch item.(type) {
			case string, int64:
				out = append(out, fmt.Sprint(item))
			default:
				return nil, fmt.Errorf("%v has no place in a list", item)
			}
		}
		return out, nil
	}
	return nil, fmt.Errorf("%v is not a list", v)
}

// IsList tells whether the setting has several values.
func (s *Setting) IsList() bool { return reflect.TypeOf(s.Value).Elem().Kind() == reflect.Slice }

// Text is the value as a flag would give it, without passwords. Otherwise stands for an empty
// value.
func (s *Setting) Text() string {
	v := reflect.ValueOf(s.Value).Elem()
	switch {
	case v.IsZero() && s.Otherwise != "":
		return s.Otherwise
	case s.IsList():
		items := make([]string, v.Len())
		for i := range items {
			items[i] = fmt.Sprint(v.Index(i))
		}
		return strings.Join(items, ",")
	case s.Address:
		return doorbell.Mask(v.String())
	}
	return fmt.Sprint(v)
}

// json returns the value for programs, without passwords.
func (s *Setting) json() any {
	if s.Address {
		return doorbell.Mask(*s.Value.(*string))
	}
	if d, ok := s.Value.(*time.Duration); ok {
		return d.String()
	}
	return reflect.ValueOf(s.Value).Elem().Interface()
}
