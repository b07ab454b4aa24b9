package agent

import (
	"errors"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/session"
)

// What a call of this package can end with, beside its own result. An agent that returns one of these timeouts
// ends as timed out; none of them is tried again, because a replay would only find them again.
var (
	// ErrCancelled says that the run was asked to stop, or that a child was.
	ErrCancelled error = &known{perdure.CodeCancelled, "the run was asked to stop"}
	// ErrTimeout says that nothing came before the time of a wait was over.
	ErrTimeout error = &known{perdure.CodeWaitTimeout, "nothing came in time"}
	// ErrSignalTimeout is the ErrTimeout of a signal.
	ErrSignalTimeout error = &known{perdure.CodeWaitTimeout, "no signal came in time"}
)

// A known error is one of the above.
type known struct {
	code perdure.Code
	text string
}

func (e *known) Error() string             { return e.text }
func (e *known) FailureCode() perdure.Code { return e.code }
func (e *known) Permanent() bool           { return true }
func (e *known) Is(target error) bool {
	return target == ErrTimeout && e.code == perdure.CodeWaitTimeout
}

// ErrTaskTimedOut says that a child ran out of its time. It compares by its TaskID, if the target has one.
type ErrTaskTimedOut struct {
	TaskID   perdure.RunID
	Deadline perdure.Instant
}

func (e ErrTaskTimedOut) Error() string {
	return fmt.Sprintf("task %s ran out of time at %s", e.TaskID, e.Deadline)
}

// Is lets errors.Is find any timed-out task, or a certain one.
func (e ErrTaskTimedOut) Is(target error) bool {
	t, ok := target.(ErrTaskTimedOut)
	return ok && (t == ErrTaskTimedOut{} || t.TaskID == e.TaskID)
}

// FailureCode is the code of an agent that fails with it.
func (e ErrTaskTimedOut) FailureCode() perdure.Code { return CodeTaskTimedOut }

// Permanent tells that trying again finds the same.
func (e ErrTaskTimedOut) Permanent() bool { return true }

// ErrTaskFailed says that a child failed for good, or was cancelled.
type ErrTaskFailed struct {
	TaskID  perdure.RunID
	Kind    string
	State   perdure.State
	Failure perdure.Failure
}

func (e ErrTaskFailed) Error() string {
	return fmt.Sprintf("task %s (%s) is %s: %s: %s", e.TaskID, e.Kind, e.State, e.Failure.Code, e.Failure.Message)
}

// Is lets errors.Is compare with ErrCancelled, with a code, or with any failed task.
func (e ErrTaskFailed) Is(target error) bool {
	switch t := target.(type) {
	case ErrTaskFailed:
		return t == ErrTaskFailed{} || t.TaskID == e.TaskID
	case *perdure.Error:
		return t.Code == e.Failure.Code
	}
	return target == ErrCancelled && e.State == perdure.Cancelled
}

// FailureCode is the code of an agent that fails with it.
func (e ErrTaskFailed) FailureCode() perdure.Code { return CodeTaskFailed }

// Permanent tells that trying again finds the same.
func (e ErrTaskFailed) Permanent() bool { return true }

// ErrAllTasksFailed says that none of the children succeeded; errors.Is and errors.As look into each.
type ErrAllTasksFailed struct{ Errors []error }

func (e ErrAllTasksFailed) Error() string {
	return fmt.Sprintf("all %d tasks failed: %v", len(e.Errors), errors.Join(e.Errors...))
}

// Is lets errors.Is find it.
func (e ErrAllTasksFailed) Is(target error) bool {
	_, ok := target.(ErrAllTasksFailed)
	return ok
}

// Unwrap gives the errors of the children.
func (e ErrAllTasksFailed) Unwrap() []error { return e.Errors }

// FailureCode is the code of an agent that fails with it.
func (e ErrAllTasksFailed) FailureCode() perdure.Code { return CodeAllTasksFailed }

// Permanent tells that trying again finds the same.
func (e ErrAllTasksFailed) Permanent() bool { return true }

// Waits that people know by name, and codes of agents that fail with an error of this package.
const (
	StartTask   = "start_task"   // a [Signal] that says go; by default it is waited for 5 minutes
	ApprovePush = "approve_push" // an [Approval] to push; by default it is waited for 10 minutes, and silence is a no

	CodeTaskTimedOut   perdure.Code = "task_timed_out"
	CodeTaskFailed     perdure.Code = "task_failed"
	CodeAllTasksFailed perdure.Code = "all_tasks_failed"
	CodeNotUndone      perdure.Code = "not_undone"   // a saga failed, and so did a compensation
	CodeMisuse         perdure.Code = "agent_misuse" // a call where it can't be made, such as a wait inside of a step

	codePanic  perdure.Code = "panic"
	codeResult perdure.Code = "invalid_result" // of a step: it can't be recorded
)

// Permanent marks an error as one that trying again won't mend. A step that ends with it is recorded and not
// executed again; an agent that returns it fails at once.
func Permanent(err error) error { return session.Permanent(err) }

// A recorded error is one that the journal has.
type recorded struct{ is *perdure.Error }

func (e *recorded) Error() string {
	if e.is.Code == perdure.CodeFailed {
		return e.is.Message // it had no code of its own
	}
	return e.is.Error()
}

func (e *recorded) Unwrap() error   { return e.is }
func (e *recorded) Permanent() bool { return true }

// lasts tells whether an error comes out of the journal, so that every execution has it as it is here.
func lasts(err error) bool {
	return errors.As(err, new(*known)) || errors.As(err, new(ErrTaskTimedOut)) || errors.As(err, new(ErrTaskFailed)) ||
		errors.As(err, new(ErrAllTasksFailed)) || errors.As(err, new(*recorded))
}

// nondeterminism is the error of a replay that the journal contradicts. It is tried again: the code that the
// journal knows may come back.
func nondeterminism(key, format string, args ...any) error {
	return perdure.Errorf(perdure.CodeNondeterminism, "%s: %s", key, fmt.Sprintf(format, args...))
}

// misuse notes a mistake in the agent's code, and gives the error that says so.
func (c *core) misuse(format string, args ...any) error {
	err := misuse(format, args...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wrong == nil {
		c.wrong = err
	}
	return err
}

func misuse(format string, args ...any) error {
	return Permanent(perdure.Errorf(CodeMisuse, format, args...))
}
