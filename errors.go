package perdure

import (
	"errors"
	"fmt"
)

// A Code names a refusal or an end. Codes are stable: callers, workers and dashboards act on them.
type Code string

// Codes of refusals: the call changed nothing.
const (
	CodeInvalid          Code = "invalid"             // the input is malformed; Field says where
	CodeTooLarge         Code = "too_large"           // a value or a batch is over its limit
	CodeNotFound         Code = "not_found"           // no such thing in this tenant
	CodeStaleEpoch       Code = "stale_epoch"         // the lease was taken away; stop this run
	CodeWrongState       Code = "wrong_state"         // the run is not in a state that allows this
	CodeCancelRequested  Code = "cancel_requested"    // a run that is to be cancelled may not suspend
	CodeNothingToWaitFor Code = "nothing_to_wait_for" // suspend without an open wait
	CodeOutcome          Code = "outcome_invalid"     // an outcome that this run can't have
	CodeReused           Code = "key_reused"          // the same key or commit_id with another body
	CodeNondeterminism   Code = "nondeterminism"      // the journal contradicts what the worker now says
	CodeThreadBusy       Code = "thread_busy"         // multitask_strategy reject, or a child on its ancestor's thread
	CodeInUse            Code = "in_use"              // somebody still refers to what is to be deleted
	CodeRunEnded         Code = "run_ended"           // the run has ended; it takes no more of this
	CodeWaitClosed       Code = "wait_closed"         // the wait of the callback or the approval is over
	CodeAlreadyDecided   Code = "already_decided"     // somebody decided otherwise
	CodeActionChanged    Code = "action_changed"      // the decision is about another action than this
	CodeNoOpenApproval   Code = "no_open_approval"    // a decision, and nothing to decide about
	CodeAnswerInvalid    Code = "answer_invalid"      // the answer does not fit the form
	CodeForbidden        Code = "forbidden"           // whoever asks may not do this
	CodeQuota            Code = "quota_exceeded"      // more live runs than the tenant may have
	CodeNoSigner         Code = "signing_unavailable" // the tenant requires signatures, and the server has no key
	CodeURLRefused       Code = "url_refused"         // the server does not send to this address
	CodeTooMany          Code = "too_many_requests"   // the tenant has its share: nothing was changed; try again
	CodeStorageFull      Code = "storage_full"        // the disk is full: nothing was changed, and no new work is taken until there is room
	CodeUnavailable      Code = "unavailable"         // nothing was changed; try again
	CodeUnknown          Code = "unknown_outcome"     // it may or may not have been stored; try again with the same key
	CodeInternal         Code = "internal"            // a defect of the server
)

// Codes of ends: they stand in the error of a run.
const (
	CodeDeadline           Code = "deadline_exceeded"
	CodeDispatchTimeout    Code = "dispatch_timeout"
	CodeAttemptsExhausted  Code = "attempts_exhausted"
	CodeReaped             Code = "timeout_reaped_by_watchdog"
	CodeHeartbeatLost      Code = "heartbeat_lost"
	CodeOrphaned           Code = "orphaned"
	CodeDamaged            Code = "damaged"
	CodeCancelled          Code = "cancelled"
	CodeRejected           Code = "rejected"
	CodeSignatureInvalid   Code = "signature_invalid"
	CodeWaitTimeout        Code = "wait_timeout"
	CodeToolTimeout        Code = "tool_timeout"
	CodeFailed             Code = "failed"
	CodeContinuationFailed Code = "continuation_failed"
)

// An Error is a refusal that a caller may act on.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"` // which part of the input, when one is to blame
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

// Errorf makes an Error.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Invalid says what is wrong with a field.
func Invalid(field, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// CodeOf is the code of an error, CodeInternal for one that has none, and empty for nil.
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

// A Failure is why a run ended as it did, or why an attempt was lost.
type Failure struct {
	Code    Code   `json:"code"`
	Message string `json:"message,omitempty"`
}
