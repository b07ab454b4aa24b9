package session

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// IsPermanent tells whether an error, or one that it wraps, has a method Permanent that returns
// true.
func IsPermanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// Defect marks an error as a fault of the code and not of the run. A run that fails with it is held:
// it is tried again without an attempt being spent.
func Defect(err error) error {
	if err == nil {
		return nil
	}
	return &defect{err}
}

type defect struct{ error }

func (d *defect) Unwrap() error { return d.error }
func (d *defect) Defect() bool  { return true }

// IsDefect tells whether an error, or one that it wraps, has a method Defect that returns true.
func IsDefect(err error) bool {
	var d interface{ Defect() bool }
	return errors.As(err, &d) && d.Defect()
}

// Describe converts an error into a failure. Its code is, in this order, that of a method
// FailureCode, of a *perdure.Error or of an *api.Problem, and otherwise "failed".
func Describe(err error) perdure.Failure {
	code, message := perdure.CodeFailed, err.Error()
	var (
		coder   interface{ FailureCode() perdure.Code }
		own     *perdure.Error
		problem *api.Problem
	)
	switch {
	case errors.As(err, &coder) && coder.FailureCode() != "":
		code = coder.FailureCode()
	case errors.As(err, &own) && own.Code != "":
		code = own.Code
		if message == own.Error() { // the code is not repeated in the message
			message = own.Message
		}
	case errors.As(err, &problem) && problem.Code != "":
		code = problem.Code
	}
	return perdure.Failure{Code: perdure.Code(Text(string(code), 200)), Message: Text(message, perdure.MaxText)}
}

// Failure returns the outcome of a function that returned an error.
func Failure(err error) *perdure.Outcome {
	f := Describe(err)
	if IsDefect(err) {
		return Defective(f.Code, f.Message)
	}
	return Failed(f.Code, f.Message, !IsPermanent(err))
}

// Defective returns the outcome of a defect of the code. Code and message are cut to their limits.
func Defective(code perdure.Code, message string) *perdure.Outcome {
	out := Failed(code, message, true)
	out.Defect = true
	return out
}

// Failed returns the outcome of a failure. Code and message are cut to their limits.
func Failed(code perdure.Code, message string, retryable bool) *perdure.Outcome {
	why := &perdure.Failure{Code: perdure.Code(Text(string(code), 200)), Message: Text(message, perdure.MaxText)}
	return &perdure.Outcome{Type: perdure.OutcomeFail, Error: why, Retryable: &retryable}
}

// Refusal returns the message of a refused commit for the author of the function. The commit's
// position in the call is removed from the field, because that author does not know of commits.
func Refusal(r *api.Refusal) string {
	field := r.Field
	if strings.HasPrefix(field, "commits[") {
		_, field, _ = strings.Cut(field, "].")
	}
	switch field {
	case "":
		return r.Detail
	case "outcome.result":
		return "the result " + r.Detail
	}
	return field + ": " + r.Detail
}

// RefusedChild returns the index of the child because of whose data a commit was refused, or -1. The
// agent leaves that child out, and the rest of the commit is sent again.
func RefusedChild(r *api.Refusal) int {
	if r == nil {
		return -1
	}
	switch r.Code {
	case perdure.CodeThreadBusy, perdure.CodeNotFound, perdure.CodeInvalid, perdure.CodeTooLarge:
	default:
		return -1
	}
	field := r.Field
	if strings.HasPrefix(field, "commits[") {
		_, field, _ = strings.Cut(field, "].")
	}
	index, ok := strings.CutPrefix(field, "children[")
	index, _, closed := strings.Cut(index, "]")
	n, err := strconv.Atoi(index)
	if !ok || !closed || err != nil || n < 0 {
		return -1
	}
	return n
}

// Text makes a string acceptable to the server: valid UTF-8, without NUL, and at most limit bytes.
// The end is cut off.
func Text(s string, limit int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "")
	if len(s) <= limit {
		return s
	}
	s = s[:limit-len("…")]
	for len(s) > 0 && !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "…"
}
