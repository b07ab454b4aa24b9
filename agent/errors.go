package agent

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
	"github.com/perdure/perdure/internal/wire/session"
)

// Errors that the functions of this package return. An agent that returns one of the timeouts ends
// as timed out. None of these errors is retried, because a replay would get the same one.
var (
	// ErrCancelled means that the run was asked to stop, or that a child was.
	ErrCancelled error = &packageError{perdure.CodeCancelled, "the run was asked to stop"}
	// ErrTimeout means that a wait was not satisfied in time.
	ErrTimeout error = &packageError{perdure.CodeWaitTimeout, "nothing came in time"}
	// ErrSignalTimeout is the ErrTimeout of a signal.
	ErrSignalTimeout error = &packageError{perdure.CodeWaitTimeout, "no signal came in time"}
)

// A packageError is one of the errors above.
type packageError struct {
	code perdure.Code
	text string
}

func (e *packageError) Error() string             { return e.text }
func (e *packageError) FailureCode() perdure.Code { return e.code }
func (e *packageError) Permanent() bool           { return true }
func (e *packageError) Is(target error) bool {
	return target == ErrTimeout && e.code == perdure.CodeWaitTimeout
}

// ErrTaskTimedOut means that the deadline of a child has passed.
type ErrTaskTimedOut struct {
	TaskID   perdure.RunID
	Kind     string
	Deadline perdure.Instant
	// Why says what the server knows of the cause: that no worker serves the kind, or that its queue is
	// paused. It is empty for a child that a worker had.
	Why string
}

func (e ErrTaskTimedOut) Error() string {
	text := fmt.Sprintf("task %s (%s) ran out of time at %s", e.TaskID, e.Kind, e.Deadline)
	if e.Why != "" {
		text += ": " + e.Why
	}
	return text
}

// Is lets errors.Is match any timed-out task, or the one with the TaskID of the target.
func (e ErrTaskTimedOut) Is(target error) bool {
	t, ok := target.(ErrTaskTimedOut)
	return ok && (t == ErrTaskTimedOut{} || t.TaskID == e.TaskID)
}

// FailureCode returns the code of an agent that fails with this error.
func (e ErrTaskTimedOut) FailureCode() perdure.Code { return CodeTaskTimedOut }

// Permanent returns true: a retry would get the same error.
func (e ErrTaskTimedOut) Permanent() bool { return true }

// ErrTaskFailed means that a child has failed, with all its attempts, or was cancelled.
type ErrTaskFailed struct {
	TaskID  perdure.RunID
	Kind    string
	State   perdure.State
	Failure perdure.Failure
}

func (e ErrTaskFailed) Error() string {
	return fmt.Sprintf("task %s (%s) is %s: %s: %s", e.TaskID, e.Kind, e.State, e.Failure.Code, e.Failure.Message)
}

// Is lets errors.Is match ErrCancelled, the code of a *perdure.Error, any failed task, or a certain
// one.
func (e ErrTaskFailed) Is(target error) bool {
	switch t := target.(type) {
	case ErrTaskFailed:
		return t == ErrTaskFailed{} || t.TaskID == e.TaskID
	case *perdure.Error:
		return t.Code == e.Failure.Code
	}
	return target == ErrCancelled && e.State == perdure.Cancelled
}

// FailureCode returns the code of an agent that fails with this error.
func (e ErrTaskFailed) FailureCode() perdure.Code { return CodeTaskFailed }

// Permanent returns true: a retry would get the same error.
func (e ErrTaskFailed) Permanent() bool { return true }

// ErrAllTasksFailed means that none of the children succeeded, or too few for a [FirstOK]. Errors has
// nil for a child that did not fail. errors.Is and errors.As look into each.
type ErrAllTasksFailed struct{ Errors []error }

func (e ErrAllTasksFailed) Error() string {
	failed := 0
	for _, err := range e.Errors {
		if err != nil {
			failed++
		}
	}
	if failed < len(e.Errors) {
		return fmt.Sprintf("%d of %d tasks failed: %v", failed, len(e.Errors), errors.Join(e.Errors...))
	}
	return fmt.Sprintf("all %d tasks failed: %v", len(e.Errors), errors.Join(e.Errors...))
}

// Is matches any ErrAllTasksFailed.
func (e ErrAllTasksFailed) Is(target error) bool {
	_, ok := target.(ErrAllTasksFailed)
	return ok
}

// Unwrap returns the errors of the children.
func (e ErrAllTasksFailed) Unwrap() []error { return e.Errors }

// FailureCode returns the code of an agent that fails with this error.
func (e ErrAllTasksFailed) FailureCode() perdure.Code { return CodeAllTasksFailed }

// Permanent returns true: a retry would get the same error.
func (e ErrAllTasksFailed) Permanent() bool { return true }

// ErrStalled means that a child with Options.OnStall looks stuck, while the agent waited for it. The
// child goes on. [Future.Peek] tells more, [Future.Cancel] ends it, and another join waits for it
// again.
type ErrStalled struct {
	TaskID perdure.RunID
	Kind   string
	Key    string // as [Future.Key]
}

func (e ErrStalled) Error() string { return fmt.Sprintf("task %s (%s) looks stuck", e.Key, e.Kind) }

// Is lets errors.Is match any stalled task, or the one with the TaskID of the target.
func (e ErrStalled) Is(target error) bool {
	t, ok := target.(ErrStalled)
	return ok && (t == ErrStalled{} || t.TaskID == e.TaskID)
}

// FailureCode returns the code of an agent that fails with this error.
func (e ErrStalled) FailureCode() perdure.Code { return CodeTaskStalled }

// Permanent returns true: a retry would get the same error.
func (e ErrStalled) Permanent() bool { return true }

// Names of waits with a meaning of their own, and codes of agents that fail with an error of this
// package.
const (
	// StartTask is the [Signal] to begin. Its default timeout is 5 minutes.
	StartTask = "start_task"
	// ApprovePush is the [Approval] of a push. Its default timeout is 10 minutes, and then it
	// counts as rejected.
	ApprovePush = "approve_push"

	CodeTaskTimedOut   perdure.Code = "task_timed_out"
	CodeTaskFailed     perdure.Code = "task_failed"
	CodeAllTasksFailed perdure.Code = "all_tasks_failed"
	CodeTaskStalled    perdure.Code = "task_stalled"
	CodeStepTimeout    perdure.Code = "step_timeout" // a try of a step took longer than its Timeout
	CodeNotUndone      perdure.Code = "not_undone"   // a saga failed, and so did a compensation
	CodeMisuse         perdure.Code = "agent_misuse" // a call where it can't be made, such as a wait inside of a step

	codePanic  perdure.Code = "panic"
	codeResult perdure.Code = "invalid_result" // a step's result can't be recorded
)

// A recordedError is an error from the journal.
type recordedError struct {
	is *perdure.Error
	// key is that of the entry, and seq the number of the inbox item in it. One of them is set.
	key string
	seq int64
}

func (e *recordedError) Error() string {
	if e.is.Code == perdure.CodeFailed {
		return e.is.Message // the original error had no code
	}
	return e.is.Error()
}

func (e *recordedError) Unwrap() error   { return e.is }
func (e *recordedError) Permanent() bool { return true }

// recordedFailure returns the error that is recorded under a key.
func recordedFailure(why *perdure.Failure, key string) error {
	if why.Code == perdure.CodeCancelled {
		return ErrCancelled
	}
	return &recordedError{is: perdure.Errorf(why.Code, "%s", why.Message), key: key}
}

// A recordedAt is an error that follows from a journal entry, so that every execution gets the same.
type recordedAt struct {
	error
	// key is that of the entry, and seq the number of the inbox item in it. One of them is set.
	key string
	seq int64
}

func (e *recordedAt) Unwrap() error { return e.error }

// A stepError is the error of a step that is not recorded, or not yet. It has the code and the text
// that the journal would have, so that code that tells errors apart decides as a replay will.
type stepError struct {
	recordedError
	recorded atomic.Bool
}

// Permanent tells whether the error is recorded: the next attempt would get it again.
func (e *stepError) Permanent() bool { return e.recorded.Load() }

// Is matches ErrCancelled, as the recorded error does.
func (e *stepError) Is(target error) bool {
	return target == ErrCancelled && e.is.Code == perdure.CodeCancelled
}

// notUndone is the error of a saga that could not undo all its steps. It is retried.
type notUndone struct {
	keys []string
	errs []error
}

func (e *notUndone) Error() string {
	return fmt.Sprintf("not undone: %s: %v", strings.Join(e.keys, ", "), errors.Join(e.errs...))
}
func (e *notUndone) FailureCode() perdure.Code { return CodeNotUndone }
func (e *notUndone) Permanent() bool           { return false }

// fromJournal tells whether an error comes from the journal, so that every execution gets the same.
func fromJournal(err error) bool {
	if s := (*stepError)(nil); errors.As(err, &s) && s.recorded.Load() {
		return true
	}
	return errors.As(err, new(*packageError)) || errors.As(err, new(ErrTaskTimedOut)) ||
		errors.As(err, new(ErrTaskFailed)) || errors.As(err, new(ErrAllTasksFailed)) ||
		errors.As(err, new(ErrStalled)) ||
		errors.As(err, new(*recordedError))
}

// nondeterminism returns the error of a replay that the journal contradicts.
func nondeterminism(key, format string, args ...any) error {
	return journal.Contradiction(key, format, args...)
}

// misuse returns the error of a mistake in the agent's code. It is a defect, and permanent for
// servers that hold no runs.
func misuse(format string, args ...any) error {
	return session.Defect(perdure.Permanent(perdure.Errorf(CodeMisuse, format, args...)))
}

// malformed returns the error of a value that can't be sent, such as a kind or an input that came
// from a model. It is no mistake of the agent's code, and code that handles it goes on.
func malformed(err error, format string, args ...any) error {
	code, why := perdure.CodeInvalid, err.Error()
	if refused := (*perdure.Error)(nil); errors.As(err, &refused) {
		code, why = refused.Code, refused.Message
	}
	return perdure.Permanent(perdure.Errorf(code, "%s: %s", fmt.Sprintf(format, args...), why))
}
