package api

import (
	"fmt"
	"net/http"

	"github.com/perdure/perdure"
)

// A Problem is an error of the API (RFC 9457), with a stable code.
type Problem struct {
	Type   string       `json:"type"`
	Title  string       `json:"title"`
	Status int          `json:"status"`
	Detail string       `json:"detail,omitempty"`
	Code   perdure.Code `json:"code"`
	Field  string       `json:"field,omitempty"`
	// ContinuedByRunID is set if the run has ended and this one continues it.
	ContinuedByRunID perdure.RunID `json:"continued_by_run_id,omitempty"`
	// RunID is the run that is in the way: with not_unique, the one that has the key.
	RunID perdure.RunID `json:"run_id,omitempty"`
}

func (p *Problem) Error() string {
	if p.Field != "" {
		return fmt.Sprintf("%s: %s: %s", p.Code, p.Field, p.Detail)
	}
	return fmt.Sprintf("%s: %s", p.Code, p.Detail)
}

// Is makes errors.Is compare by code, also with *perdure.Error.
func (p *Problem) Is(target error) bool {
	switch t := target.(type) {
	case *Problem:
		return t.Code == p.Code
	case *perdure.Error:
		return t.Code == p.Code
	}
	return false
}

// Codes of the HTTP layer. The domain has the others.
const (
	CodeUnauthorized perdure.Code = "unauthorized"
	CodeForbidden                 = perdure.CodeForbidden
	CodeMethod       perdure.Code = "method_not_allowed"
	CodeMediaType    perdure.Code = "unsupported_media_type"
	CodeHost         perdure.Code = "host_not_allowed"
	CodeAnswered     perdure.Code = "callback_answered"
	CodeRange        perdure.Code = "range_not_satisfiable"
	CodeRate                      = perdure.CodeTooMany
	CodeShuttingDown perdure.Code = "shutting_down"

	CodeTooManyStreams perdure.Code = "too_many_streams"
	CodeOrigin         perdure.Code = "origin_not_allowed"
	CodeUpgrade        perdure.Code = "upgrade_required"
	CodeCrossSite      perdure.Code = "cross_site"
)

// A CodeDef is the meaning of a code and its HTTP status.
type CodeDef struct {
	Code   perdure.Code
	Status int
	Title  string
}

// Codes has one row per code. The server and the client both use it.
var Codes = []CodeDef{
	{perdure.CodeInvalid, http.StatusBadRequest, "The request is malformed"},
	{perdure.CodeTooLarge, http.StatusRequestEntityTooLarge, "Something is over its limit"},
	{perdure.CodeUnprocessable, http.StatusUnprocessableEntity, "What it says can't be done"},
	{perdure.CodeOverBound, http.StatusUnprocessableEntity, "It is more than one call or one run takes"},
	{perdure.CodeNotFound, http.StatusNotFound, "There is no such thing"},
	{perdure.CodeStaleEpoch, http.StatusConflict, "The lease was taken away"},
	{perdure.CodeWrongState, http.StatusConflict, "The state does not allow this"},
	{perdure.CodeCancelRequested, http.StatusConflict, "The run is asked to stop"},
	{perdure.CodeNothingToWaitFor, http.StatusUnprocessableEntity, "There is nothing to wait for"},
	{perdure.CodeOutcome, http.StatusUnprocessableEntity, "The run can't have this outcome"},
	{perdure.CodeReused, http.StatusUnprocessableEntity, "The key was used with another body"},
	{perdure.CodeRestored, http.StatusConflict, "The store was restored; the process waits for its new epoch"},
	{perdure.CodeNotContinuable, http.StatusConflict, "The run can't be continued"},
	{perdure.CodeNoRunner, http.StatusConflict, "Nobody could execute the new run"},
	{perdure.CodeWouldRepeat, http.StatusConflict, "The journal has the failure; the retry would repeat it"},
	{perdure.CodeFrom, http.StatusUnprocessableEntity, "The retry can't begin there"},
	{perdure.CodeNondeterminism, http.StatusConflict, "The journal says otherwise"},
	{perdure.CodeThreadBusy, http.StatusConflict, "The thread is busy"},
	{perdure.CodeInUse, http.StatusConflict, "Somebody still refers to it"},
	{perdure.CodeRunEnded, http.StatusConflict, "The run has ended"},
	{perdure.CodeWaitClosed, http.StatusGone, "The wait is over"},
	{perdure.CodeAlreadyDecided, http.StatusConflict, "The approval was decided otherwise"},
	{perdure.CodeActionChanged, http.StatusConflict, "The decision is about another action"},
	{perdure.CodeNoOpenApproval, http.StatusConflict, "There is nothing to decide about"},
	{perdure.CodeAnswerInvalid, http.StatusUnprocessableEntity, "The answer does not fit the form"},
	{perdure.CodeSignalInvalid, http.StatusUnprocessableEntity, "The signal does not fit the schema of its kind"},
	{perdure.CodeNeverFires, http.StatusUnprocessableEntity, "The schedule has no instant"},
	{perdure.CodeUnknownFormat, http.StatusUnprocessableEntity, "There is no such format"},
	{perdure.CodeUnknownLimit, http.StatusUnprocessableEntity, "There is no such limit"},
	{perdure.CodeNameTaken, http.StatusConflict, "The name is taken"},
	{perdure.CodeNotUnique, http.StatusConflict, "Another run has the unique key"},
	{perdure.CodeOlderNode, http.StatusConflict, "A node of an older release does not know this; nothing was changed"},
	{perdure.CodePlatformDecides, http.StatusForbidden, "The platform decides about this"},
	{perdure.CodeQuota, http.StatusTooManyRequests, "The quota is used up"},
	{perdure.CodeSignatureInvalid, http.StatusConflict, "The run is not what was accepted"},
	{perdure.CodeNoSigner, http.StatusServiceUnavailable, "The server has no key to sign with; nothing was changed"},
	{perdure.CodeURLRefused, http.StatusUnprocessableEntity, "The server does not send to this address"},
	{perdure.CodeStorageFull, http.StatusInsufficientStorage, "The disk is full; nothing was changed"},
	{perdure.CodeQueryTimeout, http.StatusServiceUnavailable, "The query took longer than one may; ask for less"},
	{perdure.CodeUnavailable, http.StatusServiceUnavailable, "Nothing was changed; try again"},
	{perdure.CodeUnknown, http.StatusServiceUnavailable,
		"It may or may not have been stored; try again with the same key"},
	{perdure.CodeInternal, http.StatusInternalServerError, "The server has a defect"},
	{CodeUnauthorized, http.StatusUnauthorized, "A valid key is needed"},
	{CodeForbidden, http.StatusForbidden, "The key does not allow this"},
	{CodeMethod, http.StatusMethodNotAllowed, "The path does not take this method"},
	{CodeMediaType, http.StatusUnsupportedMediaType, "The body has to be application/json"},
	{CodeHost, http.StatusMisdirectedRequest, "The server does not answer for this host"},
	{CodeAnswered, http.StatusConflict, "The callback was answered otherwise"},
	{CodeRange, http.StatusRequestedRangeNotSatisfiable, "There are no such bytes"},
	{CodeRate, http.StatusTooManyRequests, "Too many requests"},
	{CodeShuttingDown, http.StatusServiceUnavailable, "The server is shutting down"},
	{CodeOrigin, http.StatusForbidden, "Pages of this origin are not let in"},
	{CodeCrossSite, http.StatusForbidden, "The call does not come from a page of the dashboard"},
	{CodeUpgrade, http.StatusUpgradeRequired, "This path is a WebSocket"},
	{CodeTooManyStreams, http.StatusServiceUnavailable,
		"The node has as many streams as it may, or the tenant its share"},
}

// StatusOf returns the HTTP status of a code.
func StatusOf(code perdure.Code) int { return def(code).Status }

func def(code perdure.Code) CodeDef {
	for _, d := range Codes {
		if d.Code == code {
			return d
		}
	}
	return CodeDef{code, http.StatusInternalServerError, "The server has a defect"}
}

// NewProblem returns the problem of a code, with its type, title and status.
func NewProblem(code perdure.Code, detail, field string) *Problem {
	d := def(code)
	return &Problem{
		Type: "urn:perdure:problem:" + string(code), Title: d.Title, Status: d.Status,
		Detail: detail, Code: code, Field: field,
	}
}
