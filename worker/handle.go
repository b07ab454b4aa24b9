package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/internal/wire/session"
)

// The causes of a handler's ended context; see [context.Cause].
var (
	ErrCancelled = agent.ErrCancelled
	ErrLeaseLost = errors.New("the run is no longer this worker's")
	ErrShutdown  = errors.New("the worker shuts down")

	errRegranted = errors.New("it was granted again")
	errSilence   = errors.New("the server was not heard for as long as the lease lasts")
	errDone      = errors.New("the run's result is delivered")
)

// Codes of failures that this package makes. [Fail] makes those of a handler.
const (
	CodeInput   perdure.Code = "invalid_input"  // the input does not fit the handler's type; not retried
	CodeResult  perdure.Code = "invalid_result" // the result cannot be written as JSON; not retried
	CodeRefused perdure.Code = "result_refused" // the server refuses the result, e.g. for its size; not retried
	CodePanic   perdure.Code = "panic"
)

// Handle registers the function that executes runs of a kind. Its input is decoded from JSON, with
// zero for what is missing, and its result is encoded as JSON. [Worker.Run] returns an error if the
// kind is not a valid name or already has a handler.
//
// Run announces the kind to the server's registry, as a task with the JSON Schemas of In and Out. A
// [Kind] adds a description, a timeout and a retry policy.
func Handle[In, Out any](w *Worker, kind string, f func(ctx context.Context, in In) (Out, error), opts ...Kind) {
	def, err := define[In, Out](perdure.Task, opts)
	w.register(kind, handler{def: def, call: func(ctx context.Context, r *run) *perdure.Outcome {
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
			if r.handBack(ctx, err) {
				return nil
			}
			if context.Cause(ctx) == nil {
				r.log().Warn("a handler failed", "error", err)
			}
			return session.Failure(err)
		}
		return &perdure.Outcome{Type: perdure.OutcomeComplete, Result: result}
	}}, f == nil, err)
}

// read decodes an input into the handler's type.
func read[In any](input json.RawMessage) (in In, err error) {
	if text := bytes.TrimSpace(input); len(text) > 0 {
		if err := json.Unmarshal(text, &in); err != nil {
			return in, perdure.Permanent(Fail(CodeInput, "the input is no %s: %v", reflect.TypeFor[In](), err))
		}
	}
	return in, nil
}

// write encodes a handler's result.
func write(out any) (json.RawMessage, error) {
	b, err := perdure.Marshal(out)
	if err != nil {
		return nil, perdure.Permanent(Fail(CodeResult, "the result, a %T, can't be written as JSON: %v", out, err))
	}
	return b, nil
}

// Fail makes an error with a code, which callers find in the run's error. It is retried unless it
// is wrapped by [perdure.Permanent].
func Fail(code perdure.Code, format string, args ...any) error {
	return perdure.Errorf(code, format, args...)
}

// A Coder is an error with the code of the failure that it leads to.
type Coder interface{ FailureCode() perdure.Code }
