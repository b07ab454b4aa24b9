package perdure

import (
	"errors"
	"fmt"
)

// A Code names the reason of a refusal or of a run's end. Codes are stable, because callers,
// workers and dashboards act on them.
type Code string

// Codes of refusals. Except for CodeUnknown, a refused call has changed nothing.
const (
	CodeInvalid          Code = "invalid"             // the input is malformed; Field says where
	CodeTooLarge         Code = "too_large"           // a value or a batch is over its limit
	CodeOverBound        Code = "over_bound"          // well-formed, but more than one call or one run may have
	CodeUnprocessable    Code = "unprocessable"       // well-formed, but what it says can't be done; Field says where
	CodeNotFound         Code = "not_found"           // the tenant has no such thing
	CodeStaleEpoch       Code = "stale_epoch"         // the worker no longer holds the lease; it stops the run
	CodeWrongState       Code = "wrong_state"         // the run is not in a state that allows this
	CodeCancelRequested  Code = "cancel_requested"    // a run with a cancel request may not suspend
	CodeNothingToWaitFor Code = "nothing_to_wait_for" // a suspend without an open wait
	CodeOutcome          Code = "outcome_invalid"     // an outcome that this run cannot have
	CodeReused           Code = "key_reused"          // the same key or commit_id with another body
	CodeRestored         Code = "restored"            // an epoch from before a restore; the process gets a new one
	CodeNotContinuable   Code = "not_continuable"     // the run is a command, which can't be told what has happened
	CodeNoRunner         Code = "no_runner"           // nobody may take the run that a retry would make
	CodeWouldRepeat      Code = "would_repeat"        // a retry from the journal would fail in the same way
	CodeFrom             Code = "from_invalid"        // a retry can't begin there
	CodeNondeterminism   Code = "nondeterminism"      // a replayed step contradicts the journal
	CodeThreadBusy       Code = "thread_busy"         // multitask_strategy reject, or a child on its ancestor's thread
	CodeInUse            Code = "in_use"              // the thing to be deleted is still referred to
	CodeRunEnded         Code = "run_ended"           // the run has ended and does not accept this any more
	CodeWaitClosed       Code = "wait_closed"         // the wait of the callback or the approval has ended
	CodeAlreadyDecided   Code = "already_decided"     // another decision was made before
	CodeActionChanged    Code = "action_changed"      // the decision names the hash of another action
	CodeNoOpenApproval   Code = "no_open_approval"    // the run has no open approval
	CodeAnswerInvalid    Code = "answer_invalid"      // the answer does not fit the form
	CodeSignalInvalid    Code = "signal_invalid"      // the signal does not fit the schema of its kind
	CodeNeverFires       Code = "never_fires"         // a schedule without any instant
	CodeUnknownFormat    Code = "unknown_format"      // a webhook names a format that there is not
	CodeUnknownLimit     Code = "unknown_limit"       // a submission names a limit that the tenant does not have
	CodeNameTaken        Code = "name_taken"          // the tenant has a thing of this name
	CodeNotUnique        Code = "not_unique"          // another run has the unique key
	CodeOlderNode        Code = "older_node"          // a node of an older release is connected, and does not know this
	CodeForbidden        Code = "forbidden"           // the key lacks the permission
	CodePlatformDecides  Code = "platform_decides"    // only a key of the platform decides about this approval
	CodeQuota            Code = "quota_exceeded"      // the tenant has as many live runs as it may have
	CodeTooMany          Code = "too_many_requests"   // the tenant is over its share while others are active
	CodeNoSigner         Code = "signing_unavailable" // the tenant requires signatures, and the server has no key
	CodeURLRefused       Code = "url_refused"         // the server does not send webhooks to this address
	CodeStorageFull      Code = "storage_full"        // the disk is full; new work is refused until there is space
	CodeQueryTimeout     Code = "query_timeout"       // a query took too long; ask for less
	CodeUnavailable      Code = "unavailable"         // temporary; try again
	CodeUnknown          Code = "unknown_outcome"     // it may or may not be stored; try again with the same key
	CodeInternal         Code = "internal"            // a defect of the server
)

// Codes of ends, in the error of a run that did not complete.
const (
	CodeDeadline          Code = "deadline_exceeded"
	CodeDispatchTimeout   Code = "dispatch_timeout"
	CodeAttemptsExhausted Code = "attempts_exhausted"
	CodeOutcomeUnknown    Code = "outcome_unknown" // a single attempt may or may not have been executed
	CodeReaped            Code = "timeout_reaped_by_watchdog"
	CodeHeartbeatLost     Code = "heartbeat_lost"
	CodeOrphaned          Code = "orphaned"
	CodeDamaged           Code = "damaged"
	CodeCancelled         Code = "cancelled"
	CodeReplaced          Code = "replaced" // another submission under its unique key took its place
	CodeRejected          Code = "rejected"
	CodeSignatureInvalid  Code = "signature_invalid"
	CodeWaitTimeout       Code = "wait_timeout"
	CodeToolTimeout       Code = "tool_timeout"
	CodeFailed            Code = "failed"
)

// An Error is a refusal that a caller may act on.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"` // the part of the input that is wrong, if it is one
	// ContinuedBy is set if the run has ended and this one continues it.
	ContinuedBy RunID `json:"continued_by_run_id,omitempty"`
	// RunID is the run that is in the way: with CodeNotUnique, the one that has the key.
	RunID RunID `json:"run_id,omitempty"`
}

func (e *Error) Error() string {
	if e.Field != "" {
		return fmt.Sprintf("%s: %s: %s", e.Code, e.Field, e.Message)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Is makes errors.Is compare by code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Errorf returns an Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Invalid returns an Error for a malformed field.
func Invalid(field, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Unprocessable returns an Error for a field that is well-formed, with a value that can't be or that
// does not go with another one: a limit of 0, a time zone that there is not.
func Unprocessable(field, format string, args ...any) *Error {
	return &Error{Code: CodeUnprocessable, Field: field, Message: fmt.Sprintf(format, args...)}
}

// OverBound returns an Error for a field that is well-formed but over a limit of one call or one
// run.
func OverBound(field, format string, args ...any) *Error {
	return &Error{Code: CodeOverBound, Field: field, Message: fmt.Sprintf(format, args...)}
}

// CodeOf returns the code of an error: CodeInternal if it has none, and empty for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

// A Failure is the reason why a run ended without a result, or why an attempt was lost.
type Failure struct {
	Code    Code   `json:"code"`
	Message string `json:"message,omitempty"`
	// CauseKey names the entry of the run's journal that records the cause, if one does. A retry
	// with that entry would fail in the same way.
	CauseKey string `json:"cause_key,omitempty"`
}

// Permanent marks an error that is not to be retried. A task or an agent that returns it fails at
// once. A step that returns it is recorded and not executed again. Any error with a method Permanent
// that returns true has the same effect. Permanent of nil is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanent{err}
}

type permanent struct{ error }

func (p *permanent) Unwrap() error   { return p.error }
func (p *permanent) Permanent() bool { return true }
