package runner

import (
	"context"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

// verify checks the signature of a granted run, as a worker of the SDK does. Without Trust nothing is
// checked. The command of perdure exec is not from the grant, so there is nothing to check.
func (j *Job) verify(g *api.Grant) *failure {
	if j.Trust == "" || j.RunID != "" {
		return nil
	}
	trust, err := perdure.ParseTrust([]byte(j.Trust))
	if err == nil {
		err = session.Verify(trust, g)
	}
	if err != nil {
		return &failure{code: perdure.CodeSignatureInvalid, err: err}
	}
	return nil
}

// reject tells the server that the run's signature is not valid. Nothing was started.
func (e *execution) reject(life context.Context, f *failure) error {
	e.report(Report{Event: Failed, RunID: e.grant.RunID, Code: f.code, Message: f.err.Error()})
	ctx, cancel := context.WithTimeout(life, failTime)
	defer cancel()
	_, err := e.link.commit(ctx, perdure.Commit{ID: fmt.Sprintf("end-%d", e.grant.Epoch), RunID: e.grant.RunID,
		Epoch: e.grant.Epoch, Outcome: &perdure.Outcome{Type: perdure.OutcomeReject, Reason: string(f.code)}})
	if err != nil {
		return err
	}
	return f.err
}
