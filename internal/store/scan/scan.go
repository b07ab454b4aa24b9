// Package scan puts single values of a database into what the caller points to, as the drivers of
// database/sql do. It is for what comes from elsewhere than from them: PostgreSQL's values (see
// package pg), and columns of a damaged row.
package scan

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strconv"
)

// Value puts whatever a column held into what dest points to. What is neither a number nor a text,
// such as NULL, is put into a sql.Scanner alone, as NULL.
func Value(dest, v any) error {
	switch v := v.(type) {
	case int64:
		return Int(dest, v)
	case string:
		return Text(dest, []byte(v))
	case []byte: // a text that is marked as bytes
		return Text(dest, v)
	}
	if s, ok := dest.(sql.Scanner); ok {
		return s.Scan(nil)
	}
	return errors.New("nothing that belongs there")
}

// Int puts a whole number into what dest points to: a number of its kind, a text, an any or a
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

// Text puts a text into what dest points to: a text of its kind, a number that it spells, an any or
// a sql.Scanner. A text that is nil is NULL, which makes a text empty.
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
		case v.CanInt(): // a sum is more than a whole number to the server
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
