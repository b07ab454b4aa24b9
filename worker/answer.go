package worker

// This file handles the server's answers to commits. An answer falls into one of four groups:
//
//   - success: the run goes on, or is finished if the commit had its outcome;
//   - temporary: the same commit is sent again later, and no other run waits for it;
//   - lease gone: the handler is stopped, and only a finished result is still sent, as a late
//     result;
//   - refused: the agent gets the error, or the run fails with it.

import (
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/session"
)

// maxDefects is how often a commit is retried after an internal error of the server, which takes
// about a quarter of a minute. After that the run fails, so that it does not hang until its
// deadline.
const maxDefects = 9

// commitResult handles the result of the run's commit. A temporary refusal postpones the commit.
func (r *run) commitResult(res *api.CommitResult) {
	e := res.Error
	switch {
	case e == nil:
	case e.Code == perdure.CodeQuota && r.stopping():
		// The run is cancelled, so it need not wait for the quota any longer.
		res = &api.CommitResult{RunID: res.RunID, Error: &api.Refusal{Code: perdure.CodeCancelRequested,
			Detail: "the run is asked to stop, and waited for its tenant's quota: " + e.Detail}}
	case client.Transient(&api.Problem{Code: e.Code}), e.Code == perdure.CodeInternal && r.defect():
		r.postpone(e.Code, perdure.Errorf(e.Code, "%s", e.Detail))
		return
	}
	r.answered(res)
}

// postpone schedules the run's commit for a retry, with a growing backoff. Other runs are not
// delayed.
func (r *run) postpone(code perdure.Code, why error) {
	r.mu.Lock()
	r.postponed++
	r.notBefore = time.Now().Add(pause(r.postponed))
	news := r.postponedBy != code
	r.postponedBy = code
	r.mu.Unlock()
	switch {
	case !news:
	case code == perdure.CodeQuota:
		r.w.log.Warn("a run waits for its tenant's quota", "run", r.lease.RunID, "kind", r.grant.Kind, "error", why)
	default:
		r.w.log.Warn("a commit is not taken; it is sent again", "run", r.lease.RunID, "kind", r.grant.Kind, "error",
			why)
	}
}

// stopping tells whether the run has a cancel request.
func (r *run) stopping() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cancel
}

// defect counts an internal error of the server, and tells whether the commit is retried.
func (r *run) defect() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.defects++
	return r.defects <= maxDefects
}

// answered handles the final result of the run's commit.
func (r *run) answered(res *api.CommitResult) {
	w := r.w
	r.mu.Lock()
	sent := r.inFlight
	r.inFlight, r.postponed, r.defects, r.notBefore = nil, 0, 0, time.Time{}
	r.over = res.Error == nil && sent.Outcome != nil
	waits := r.outcome != nil
	if res.Error != nil && res.Error.Code == perdure.CodeCancelRequested {
		r.events = append(sent.Events[:r.own:r.own], r.events...) // these lines were not the reason of the refusal
	}
	gone := res.Error != nil && leaseGone(res.Error)
	ofAgent := res.Error != nil && !gone && r.asked != nil &&
		!strings.HasPrefix(strings.TrimPrefix(res.Error.Field, "commits[0]."), "outcome")
	if ofAgent && !waits && session.RefusedChild(res.Error) >= 0 {
		r.events = append(sent.Events[:r.own:r.own], r.events...)
		r.mu.Unlock()
		r.answerAgent(res) // it leaves the child out, and sends the rest again
		kick(w.kickOutcome)
		return
	}
	if ofAgent && !waits && !(sent.Outcome != nil && res.Error.Code == perdure.CodeCancelRequested) {
		r.refused = res.Error // the agent's function may be returning right now
	}
	r.mu.Unlock()
	if res.Error != nil && res.Error.Code == perdure.CodeCancelRequested {
		r.cancelled() // before the agent gets the answer
	}
	asked := !gone && r.answerAgent(res)
	switch {
	case r.over:
		w.drop(r.lease)
		return
	case res.Error == nil:
		if res.Cancel {
			r.cancelled()
		}
	case gone:
		why := perdure.Errorf(res.Error.Code, "%s", res.Error.Detail)
		if sent.Outcome == nil || sent.Outcome.Type == perdure.OutcomeSuspend {
			r.lost(why)
			break
		}
		late := sent.Outcome.Type == perdure.OutcomeComplete && res.Error.Code == perdure.CodeStaleEpoch
		w.log.Warn("a result came too late", "run", r.lease.RunID, "kind", r.grant.Kind,
			"outcome", sent.Outcome.Type, "kept_as_late_result", late, "error", why)
		w.drop(r.lease)
		return
	case asked && !waits:
		// The agent has got the refusal and decides what follows.
	case ofAgent:
		w.log.Error("what an agent had to commit when it returned was refused; the run does not complete without it",
			"run", r.lease.RunID, "code", res.Error.Code, "error", res.Error.Detail)
		r.mu.Lock()
		r.outcome = without(r.outcome, res.Error)
		r.mu.Unlock()
	case sent.Outcome == nil:
		w.log.Error("lines for a run's log were refused and are dropped", "run", r.lease.RunID, "error",
			res.Error.Detail)
	case sent.Outcome.Error != nil && sent.Outcome.Error.Code == CodeRefused,
		sent.Outcome.Type == perdure.OutcomeCancelled:
		w.log.Error("the server takes no end for a run; its lease ends by itself", "run", r.lease.RunID, "error",
			res.Error.Detail)
		w.drop(r.lease)
		return
	case sent.Outcome.ContinueWith != nil && res.Error.Code == perdure.CodeCancelRequested:
		r.mu.Lock()
		r.outcome = &perdure.Outcome{Type: perdure.OutcomeCancelled}
		r.mu.Unlock()
		waits = true
	case sent.Outcome.ContinueWith != nil && res.Error.Code == perdure.CodeInvalid &&
		strings.HasSuffix(res.Error.Field, "outcome.continue_with"):
		// A server of an older release does not know the field. One that does continues the run.
		w.log.Error("a run can't go on as a new one; it is held", "run", r.lease.RunID, "error",
			res.Error.Detail)
		r.mu.Lock()
		r.outcome = session.Defective(CodeRefused, "the server does not know agent.Anew, which its release is too old "+
			"for: upgrade the server, and the run goes on; "+session.Refusal(res.Error))
		r.mu.Unlock()
		waits = true
	case sent.Outcome.ContinueWith != nil && res.Error.Code == perdure.CodeOverBound:
		// The run keeps its inbox: a release that takes more of it continues the run.
		w.log.Error("a run can't go on as a new one; it is held", "run", r.lease.RunID, "error", res.Error.Detail)
		r.mu.Lock()
		r.outcome = session.Defective(CodeRefused, session.Refusal(res.Error))
		r.mu.Unlock()
		waits = true
	default:
		// Without another outcome the run would hang until its lease ends, and again in each
		// attempt.
		w.log.Error("a result was refused; the run fails with that", "run", r.lease.RunID, "error", res.Error.Detail)
		r.mu.Lock()
		message := fmt.Sprintf("the server refused the outcome: %s: %s", res.Error.Code, session.Refusal(res.Error))
		r.outcome = session.Failed(CodeRefused, message, false)
		r.mu.Unlock()
		waits = true
	}
	if waits {
		kick(w.kickOutcome)
	}
}

// without returns the outcome of a run whose agent had a commit refused. A failure or a cancel
// stays as it is. A completion becomes a failure, because the run is not complete without that
// commit. Only nondeterminism is retried.
func without(out *perdure.Outcome, refused *api.Refusal) *perdure.Outcome {
	switch {
	case out.Type != perdure.OutcomeComplete:
		return out
	case refused.Code == perdure.CodeCancelRequested:
		return &perdure.Outcome{Type: perdure.OutcomeCancelled}
	}
	return session.Failed(refused.Code, session.Refusal(refused), refused.Code == perdure.CodeNondeterminism)
}

// leaseGone tells whether a refusal means that this worker no longer holds the run. A refusal of a
// part of the commit has a field and does not; a child's thread may be not_found, for example.
func leaseGone(e *api.Refusal) bool {
	switch e.Code {
	case perdure.CodeStaleEpoch, perdure.CodeWrongState, perdure.CodeNotFound, perdure.CodeRunEnded:
		return e.Field == ""
	}
	return false
}
