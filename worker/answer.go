package worker

import (
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/session"
)

// maxDefects is how often a commit is sent again that meets a defect of the server, which takes about a quarter of a
// minute. A defect that stays is the run's failure, so that it does not hang until its deadline.
const maxDefects = 9

// heard takes the server's word about the run's commit. One that may still be taken stays to be sent again.
func (r *run) heard(res *api.CommitResult) {
	e := res.Error
	switch {
	case e == nil:
	case e.Code == perdure.CodeQuota && r.stopping():
		// There was no room for what it asks for, and there need not be any more.
		res = &api.CommitResult{RunID: res.RunID, Error: &api.Refusal{Code: perdure.CodeCancelRequested, Detail: "the run is asked to stop, and waited for its tenant's quota: " + e.Detail}}
	case client.Transient(&api.Problem{Code: e.Code}), e.Code == perdure.CodeInternal && r.defect():
		r.putOff(e.Code, perdure.Errorf(e.Code, "%s", e.Detail))
		return
	}
	r.answered(res)
}

// putOff has the run's commit sent again later, and later each time. Nothing else waits for that.
func (r *run) putOff(code perdure.Code, why error) {
	r.mu.Lock()
	r.notTaken++
	r.notBefore = time.Now().Add(pause(r.notTaken))
	news := r.putOffBy != code
	r.putOffBy = code
	r.mu.Unlock()
	switch {
	case !news:
	case code == perdure.CodeQuota:
		r.w.log.Warn("a run waits for its tenant's quota", "run", r.lease.RunID, "kind", r.grant.Kind, "error", why)
	default:
		r.w.log.Warn("a commit is not taken; it is sent again", "run", r.lease.RunID, "kind", r.grant.Kind, "error", why)
	}
}

func (r *run) stopping() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cancel
}

// defect counts one of the server, and tells whether that may pass.
func (r *run) defect() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.defects++
	return r.defects <= maxDefects
}

// answered acts on the server's last word about the run's commit.
func (r *run) answered(res *api.CommitResult) {
	w := r.w
	r.mu.Lock()
	sent := r.flying
	r.flying, r.notTaken, r.defects, r.notBefore = nil, 0, 0, time.Time{}
	r.over = res.Error == nil && sent.Outcome != nil
	waits := r.outcome != nil
	if res.Error != nil && res.Error.Code == perdure.CodeCancelRequested {
		r.events = append(sent.Events[:r.own:r.own], r.events...) // nothing is wrong with them
	}
	gone := res.Error != nil && leaseGone(res.Error)
	ofAgent := res.Error != nil && !gone && r.asked != nil && !strings.HasPrefix(strings.TrimPrefix(res.Error.Field, "commits[0]."), "outcome")
	if ofAgent && !waits && !(sent.Outcome != nil && res.Error.Code == perdure.CodeCancelRequested) {
		r.refused = res.Error // its function may be returning right now
	}
	r.mu.Unlock()
	if res.Error != nil && res.Error.Code == perdure.CodeCancelRequested {
		r.cancelled() // before the agent hears of it
	}
	asked := !gone && r.toldAgent(res)
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
		w.log.Warn("a result came too late", "run", r.lease.RunID, "kind", r.grant.Kind, "outcome", sent.Outcome.Type, "kept_as_late_result", late, "error", why)
		w.drop(r.lease)
		return
	case asked && !waits:
		// The agent knows what was refused, and what becomes of the run.
	case ofAgent:
		w.log.Error("what an agent had to commit when it returned was refused; the run does not complete without it", "run", r.lease.RunID, "code", res.Error.Code, "error", res.Error.Detail)
		r.mu.Lock()
		r.outcome = without(r.outcome, res.Error)
		r.mu.Unlock()
	case sent.Outcome == nil:
		w.log.Error("lines for a run's log were refused and are dropped", "run", r.lease.RunID, "error", res.Error.Detail)
	case sent.Outcome.Error != nil && sent.Outcome.Error.Code == CodeRefused, sent.Outcome.Type == perdure.OutcomeCancelled:
		w.log.Error("the server takes no end for a run; its lease ends by itself", "run", r.lease.RunID, "error", res.Error.Detail)
		w.drop(r.lease)
		return
	default:
		// A result that no server will take must not leave the run hanging until its lease ends, and again.
		w.log.Error("a result was refused; the run fails with that", "run", r.lease.RunID, "error", res.Error.Detail)
		r.mu.Lock()
		r.outcome = session.Failed(CodeRefused, fmt.Sprintf("the server refused the outcome: %s: %s", res.Error.Code, session.Refusal(res.Error)), false)
		r.mu.Unlock()
		waits = true
	}
	if waits {
		kick(w.kickOutcome)
	}
}

// without is the outcome of a run of which something was refused: one that has failed or was stopped stays that, but
// none completes as if all of it had been taken. Only a contradiction of the journal may pass.
func without(out *perdure.Outcome, refused *api.Refusal) *perdure.Outcome {
	switch {
	case out.Type != perdure.OutcomeComplete:
		return out
	case refused.Code == perdure.CodeCancelRequested:
		return &perdure.Outcome{Type: perdure.OutcomeCancelled}
	}
	return session.Failed(refused.Code, session.Refusal(refused), refused.Code == perdure.CodeNondeterminism)
}

// leaseGone tells whether a refusal means that the run is no longer this worker's. One that is about a part of the
// commit does not: a child's thread that is not there, say.
func leaseGone(e *api.Refusal) bool {
	switch e.Code {
	case perdure.CodeStaleEpoch, perdure.CodeWrongState, perdure.CodeNotFound, perdure.CodeRunEnded:
		return e.Field == ""
	}
	return false
}
