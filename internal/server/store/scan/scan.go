// Package scan converts single values of a database into the types that callers point to, as
// database/sql does. Both stores use it, which have no driver of database/sql, and it reads the columns
// of a damaged row.
package scan

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strconv"
)

// Value stores a column's value in dest. A value that is neither a number nor a text, such as NULL,
// is accepted by an any, and by a sql.Scanner as NULL.
func Value(dest, v any) error {
	switch v := v.(type) {
	case int64:
		return Int(dest, v)
	case string:
		return Text(dest, []byte(v))
	case []byte: // a text that was stored as bytes
		return Text(dest, v)
	}
	switch d := dest.(type) {
	case *any:
		*d = v
		return nil
	case sql.Scanner:
		return d.Scan(nil)
	}
	return errors.New("nothing that belongs there")
}

// Bytes stores bytes in dest: a pointer to a []byte or an any, which get a copy, or what a text could
// be stored in.
func Bytes(dest any, b []byte) error {
	switch d := dest.(type) {
	case *[]byte:
		*d = append([]byte{}, b...)
	case *any:
		*d = append([]byte{}, b...)
	default:
		return Text(dest, b)
	}
	return nil
}

// Int stores a whole number in dest: a pointer to an integer type, a string or an any, or a
// sql.Scanner.
func Int(dest any, n int64) error {
	switch d := dest.(type) {
	case *int64:
		*d = n
	case *int:
		*d = int(n)
	case *any:
		*d = n
	case *string:
		*d = strconv.FormatInt(n, 10)
	case sql.Scanner:
		return d.Scan(n)
	default:
		v := reflect.ValueOf(dest).Elem()
		if !v.CanInt() {
			return fmt.Errorf("a number into %T", dest)
		}
		v.SetInt(n)
	}
	return nil
}

// Text stores a text in dest: a pointer to a string type, an integer that the text spells, or an
// any, or a sql.Scanner. nil is NULL, which makes a string empty.
func Text(dest any, text []byte) error {
	switch d := dest.(type) {
	case *string:
		*d = string(text)
	case *any:
		if *d = nil; text != nil {
			*d = string(text)
		}
	case sql.Scanner:
		if text == nil {
			return d.Scan(nil)
		}
		return d.Scan(string(text))
	default:
		v := reflect.ValueOf(dest).Elem()
		switch {
		case v.Kind() == reflect.String:
			v.SetString(string(text))
		case v.CanInt(): // PostgreSQL gives a sum of integers as a decimal
			n, err := strconv.ParseInt(string(text), 10, 64)
			if err != nil {
				return fmt.Errorf("a text into %T", dest)
			}
			v.SetInt(n)
		default:
			return fmt.Errorf("a text into %T", dest)
		}
	}
	return nil
}
