package session

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// Permanent marks an error as one that trying again won't mend.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanent{err}
}

type permanent struct{ error }

func (p *permanent) Unwrap() error   { return p.error }
func (p *permanent) Permanent() bool { return true }

// IsPermanent tells whether trying again is of no use, as far as the error knows.
func IsPermanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// Describe gives what is kept of an error: its code and its text.
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
		if message == own.Error() { // not said twice
			message = own.Message
		}
	case errors.As(err, &problem) && problem.Code != "":
		code = problem.Code
	}
	return perdure.Failure{Code: perdure.Code(Text(string(code), 200)), Message: Text(message, perdure.MaxText)}
}

// Failure is what a function's error makes of the attempt.
func Failure(err error) *perdure.Outcome {
	f := Describe(err)
	return Failed(f.Code, f.Message, !IsPermanent(err))
}

// Failed is a failure.
func Failed(code perdure.Code, message string, retryable bool) *perdure.Outcome {
	return &perdure.Outcome{Type: perdure.OutcomeFail, Error: &perdure.Failure{Code: perdure.Code(Text(string(code), 200)), Message: Text(message, perdure.MaxText)}, Retryable: &retryable}
}

// Refusal is what a server said against a commit, in words for who wrote the function: that it was a commit, and how many
// there were in the call, is nothing to him.
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

// Text makes a string acceptable: valid, without NUL, bounded. What is cut off is the end: a message begins with
// what matters.
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
