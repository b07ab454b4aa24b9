package perdure

import (
	"cmp"
	"fmt"
	"reflect"
	"time"
)

// A Setting is a row of the table of settings: everything that is said of a value that an operator
// may change. Files, the environment, flags, checks and the documentation are derived from it.
type Setting struct {
	// Name is that in the file, with dots between sections.
	Name string
	// Value points to the value: *time.Duration, *int, *int64, *float64 or *bool in a policy.
	Value any
	// Default is of the type that Value points to; nil where the zero value says that nothing is set.
	Default any
	// Min and Max are the bounds, of the type that Value points to; nil where there is none.
	Min, Max any
	// Help says what the value does.
	Help string
}

// Bounds says what the value may be; it is empty where there are no bounds.
func (s *Setting) Bounds() string {
	switch {
	case s.Min != nil && s.Max != nil:
		return fmt.Sprintf("between %v and %v", s.Min, s.Max)
	case s.Min != nil:
		return fmt.Sprintf("at least %v", s.Min)
	}
	return ""
}

// Reset gives the value its default.
func (s *Setting) Reset() {
	if s.Default != nil {
		reflect.ValueOf(s.Value).Elem().Set(reflect.ValueOf(s.Default))
	}
}

// Check refuses a value out of its bounds.
func (s *Setting) Check() error {
	switch v := s.Value.(type) {
	case *time.Duration:
		return within(s, *v)
	case *int:
		return within(s, *v)
	case *int64:
		return within(s, *v)
	case *float64:
		return within(s, *v)
	}
	return nil
}

// within panics if a bound is of another type than its value, which is a mistake in the table.
func within[T cmp.Ordered](s *Setting, v T) error {
	if (s.Min == nil || v >= s.Min.(T)) && (s.Max == nil || v <= s.Max.(T)) {
		return nil
	}
	verb := "be"
	if s.Max != nil {
		verb = "lie"
	}
	return Invalid(s.Name, "must %s %s, not %v", verb, s.Bounds(), v)
}
