package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/internal/session"
)

// Why a handler's context ended; see [context.Cause].
var (
	ErrCancelled = agent.ErrCancelled
	ErrLeaseLost = errors.New("the run is no longer this worker's")
	ErrShutdown  = errors.New("the worker shuts down")

	errRegranted = errors.New("it was granted again")
	errSilence   = errors.New("the server was not heard for as long as the lease lasts")
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
	w.register(kind, handler{call: func(ctx context.Context, r *run) *perdure.Outcome {
		var result json.RawMessage
		err := w.around(ctx, func(ctx context.Context) error {
			in, err := read[In](r.grant.Input)
			if err != nil {
				return err
			}
			out, err := f(ctx, in)
			if err != nil {
				return err
			}
			result, err = write(out)
			return err
		})
		if err != nil {
			if context.Cause(ctx) == nil {
				r.log().Warn("a handler failed", "error", err)
			}
			return session.Failure(err)
		}
		return &perdure.Outcome{Type: perdure.OutcomeComplete, Result: result}
	}})
}

// read makes the input what a handler takes.
func read[In any](input json.RawMessage) (in In, err error) {
	if text := bytes.TrimSpace(input); len(text) > 0 {
		if err := json.Unmarshal(text, &in); err != nil {
			return in, Permanent(Fail(CodeInput, "the input is no %s: %v", reflect.TypeFor[In](), err))
		}
	}
	return in, nil
}

// write makes a run's result of what a handler returned.
func write(out any) (json.RawMessage, error) {
	b, err := encode(out)
	if err != nil {
		return nil, Permanent(Fail(CodeResult, "the result, a %T, can't be written as JSON: %v", out, err))
	}
	return b, nil
}

// encode writes JSON without escaping <, > and &: a value of many of them would grow past its bound. It leaves what is
// JSON already as it is, and the server to judge it.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Permanent marks an error as one that trying again won't mend: the run fails at once. So does any error with a
// method Permanent that says true.
func Permanent(err error) error { return session.Permanent(err) }

// Fail makes an error with a code, which callers find in the run's error. It is retried, unless wrapped by
// [Permanent].
func Fail(code perdure.Code, format string, args ...any) error {
	return perdure.Errorf(code, format, args...)
}

// A Coder is an error that knows the code of the failure it leads to.
type Coder interface{ FailureCode() perdure.Code }
