package httpd

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/life"
)

func sendSignal(c *call, in *api.SendSignal) (int, *api.SignalSent, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &life.Signal{Tenant: c.tenant(), RunID: c.run(), Name: c.PathValue("name"), Data: in.Data,
		Key: key, By: c.by()}
	if in.Decision != "" || in.Comment != "" || in.ActionHash != "" || len(in.Answer) > 0 {
		if len(in.Data) > 0 {
			return 0, nil, perdure.Invalid("data", "stands without a decision, or has it inside")
		}
		op.Decision = &perdure.Decision{Decision: in.Decision, Comment: in.Comment, Answer: in.Answer,
			ActionHash: in.ActionHash}
	}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	if op.Refused != nil {
		return 0, nil, op.Refused
	}
	return 0, &api.SignalSent{RunID: op.Run.ID, Status: op.Run.Status(), ApprovalID: op.Approval,
		WaitingForSignals: op.Waiting}, nil
}

// callbackToken refuses a token that this store has not signed. Anybody can send tokens, so the
// check costs no read of the store.
func callbackToken(s *Server, token string) error {
	if !s.engine.ValidToken(token) {
		return perdure.Errorf(perdure.CodeNotFound, "no such callback")
	}
	return nil
}

func useCallback(c *call, in *api.UseCallback) (int, *api.CallbackUsed, error) {
	if in.Error != nil && (len(in.Result) > 0 || in.Error.Code == "") {
		return 0, nil, perdure.Invalid("error", "is {code, message}, and stands without a result")
	}
	op := &life.Callback{Token: c.PathValue("token"), Result: in.Result, Error: in.Error}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		if perdure.CodeOf(err) == perdure.CodeReused {
			err = perdure.Errorf(api.CodeAnswered, "this callback was answered with another body")
		}
		return 0, nil, err
	}
	if op.Refused != nil {
		return 0, nil, op.Refused
	}
	return 0, &api.CallbackUsed{RunID: op.RunID}, nil
}
