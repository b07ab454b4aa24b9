package perdure

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"
)

// checkName checks kinds, queues, keys, wait ids, roles and signal names. They are printable,
// short, and free of characters that mean something in a path, a terminal or SQL.
func checkName(field, s string) error {
	switch {
	case s == "":
		return Invalid(field, "is missing")
	case len(s) > MaxName:
		return Invalid(field, "is longer than %d bytes", MaxName)
	case !utf8.ValidString(s) || !nameOK.MatchString(s) || strings.Contains(s, "..") || strings.HasSuffix(s, " "):
		return Invalid(field, "%q is not a name: letters, digits and _ . : / # @ + - and inner spaces, "+
			"beginning with a letter, digit or _", s)
	}
	return nil
}

// CheckName checks a name from outside: a kind, queue, key, wait id, role or signal.
func CheckName(field, s string) error { return checkName(field, s) }

// Bounds of names that callers choose for their threads and runs.
const (
	MaxNames      = 8   // names of a thread or run
	maxChosenName = 255 // bytes of one
)

// CheckChosenName checks a name that a caller chose for a thread or run. It takes more than CheckName,
// because ids of other programs are such names.
func CheckChosenName(field, s string) error {
	switch {
	case s == "":
		return Invalid(field, "is missing")
	case len(s) > maxChosenName:
		return Invalid(field, "is longer than %d bytes", maxChosenName)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return Invalid(field, "is not valid UTF-8, or has a control character")
	}
	return nil
}

func checkText(field, s string) error {
	if len(s) > MaxText {
		return tooLarge(field, "is longer than %d bytes", MaxText)
	}
	if !cleanText(s) {
		return Invalid(field, "is not valid UTF-8, or has a NUL byte")
	}
	return nil
}

// CheckText checks a text from outside: a reason, a summary, a comment.
func CheckText(field, s string) error { return checkText(field, s) }

// CheckCode checks the code of a failure from outside. It is short, because it is indexed.
func CheckCode(field string, code Code) error {
	if err := checkText(field, string(code)); err != nil {
		return err
	}
	if len(code) > MaxCode {
		return OverBound(field, "has %d bytes; a code takes %d", len(code), MaxCode)
	}
	return nil
}

// CheckEpoch checks that a worker names an epoch. Epochs begin at 1.
func CheckEpoch(field string, n int64) error {
	switch {
	case n == 0:
		return Invalid(field, "is missing")
	case n < 0:
		return Invalid(field, "%d is no epoch: they begin at 1", n)
	}
	return nil
}

func cleanText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// CheckValue checks that a JSON value is within its limit and valid. It refuses NUL, invalid UTF-8
// and lone surrogates, which SQLite and PostgreSQL treat differently.
func CheckValue(field string, v json.RawMessage) error {
	switch {
	case len(v) == 0:
		return Invalid(field, "is missing")
	case len(v) > MaxValue:
		return tooLarge(field, "has %d bytes; a value takes %d: put larger things into an artifact", len(v), MaxValue)
	case !utf8.Valid(v):
		return Invalid(field, "is not valid UTF-8")
	case !json.Valid(v):
		return Invalid(field, "is not valid JSON")
	}
	if BadEscape(v) {
		return Invalid(field, `has an escaped NUL or a lone surrogate (\u0000, \ud800)`)
	}
	return nil
}

// BadEscape tells whether valid JSON contains \u0000 or a surrogate without its partner.
func BadEscape(v []byte) bool {
	if !bytes.Contains(v, []byte(`\u`)) {
		return false
	}
	for i := 0; i < len(v); i++ {
		if v[i] != '\\' {
			continue
		}
		i++
		if v[i] != 'u' {
			continue
		}
		c := hex4(v[i+1:])
		i += 4
		switch {
		case c == 0:
			return true
		case c >= 0xdc00 && c <= 0xdfff:
			return true
		case c >= 0xd800 && c <= 0xdbff:
			if i+6 >= len(v) || v[i+1] != '\\' || v[i+2] != 'u' {
				return true
			}
			if d := hex4(v[i+3:]); d < 0xdc00 || d > 0xdfff {
				return true
			}
			i += 6
		}
	}
	return false
}

// hex4 reads four hexadecimal digits.
func hex4(b []byte) (n int) {
	for _, c := range b[:4] {
		n <<= 4
		switch {
		case c >= 'a':
			n |= int(c-'a') + 10
		case c >= 'A':
			n |= int(c-'A') + 10
		default:
			n |= int(c - '0')
		}
	}
	return n
}
