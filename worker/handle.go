package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// Why a handler's context ended; see [context.Cause].
var (
	ErrCancelled = errors.New("the run was asked to stop")
	ErrLeaseLost = errors.New("the run is no longer this worker's")
	ErrShutdown  = errors.New("the worker shuts down")

	errRegranted = errors.New("it was granted again")
	errDone      = errors.New("the run's result is delivered")
)

// Codes of failures that this package gives; see [Fail] for a handler's own.
const (
	CodeInput   perdure.Code = "invalid_input"  // the input is not what the handler takes: not retried
	CodeResult  perdure.Code = "invalid_result" // the result can't be written as JSON: not retried
	CodeRefused perdure.Code = "result_refused" // the server takes no such result (its size, say): not retried
	CodePanic   perdure.Code = "panic"
)

// Handle registers the function that executes runs of a kind. Its input is read from JSON, what is missing being
// zero; its result is written as JSON. It panics when the kind is no name, or has a handler already.
func Handle[In, Out any](w *Worker, kind string, f func(ctx context.Context, in In) (Out, error)) {
	w.register(kind, func(ctx context.Context, r *run) *perdure.Outcome {
		var in In
		if text := bytes.TrimSpace(r.grant.Input); len(text) > 0 {
			if err := json.Unmarshal(text, &in); err != nil {
				return failed(CodeInput, fmt.Sprintf("the input is no %T: %v", in, err), false)
			}
		}
		out, err := f(ctx, in)
		if err != nil {
			if context.Cause(ctx) == nil {
				w.log.Warn("a handler failed", "run", r.lease.RunID, "kind", kind, "attempt", r.grant.Attempt, "error", err)
			}
			return failure(err)
		}
		b, err := encode(out)
		if err != nil {
			return failed(CodeResult, fmt.Sprintf("the result, a %T, can't be written as JSON: %v", out, err), false)
		}
		return &perdure.Outcome{Type: perdure.OutcomeComplete, Result: b}
	})
}

// Permanent marks an error as one that trying again won't mend: the run fails at once.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanent{err}
}

type permanent struct{ error }

func (p *permanent) Unwrap() error { return p.error }

// Fail makes an error with a code, which callers find in the run's error. It is retried, unless wrapped by
// [Permanent].
func Fail(code perdure.Code, format string, args ...any) error {
	return perdure.Errorf(code, format, args...)
}

// A Coder is an error that knows the code of the failure it leads to.
type Coder interface{ FailureCode() perdure.Code }

// failure is what a handler's error makes of the attempt.
func failure(err error) *perdure.Outcome {
	var p *permanent
	retryable := !errors.As(err, &p)
	message := err.Error()
	code := perdure.CodeFailed
	var coder Coder
	var own *perdure.Error
	var problem *api.Problem
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
	return failed(code, message, retryable)
}

func failed(code perdure.Code, message string, retryable bool) *perdure.Outcome {
	return &perdure.Outcome{Type: perdure.OutcomeFail, Error: &perdure.Failure{Code: perdure.Code(text(string(code), 200)), Message: text(message, perdure.MaxText)}, Retryable: &retryable}
}

// text makes a string acceptable: valid, without NUL, bounded. What is cut off is the end: a message begins with
// what matters.
func text(s string, limit int) string {
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
