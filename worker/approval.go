package worker

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/perdure/perdure"
)

// CheckApproval asks the server whether the platform has approved exactly this action for this run. It
// is for the executor of an action that must not rest on the run's journal alone: any worker of the
// tenant may write that, and a retry begins with the journal of another run. It returns an error if the
// action must not be executed. The worker's key needs the scopes runs:read and, to serve all tenants,
// platform:read.
func CheckApproval(ctx context.Context, id perdure.ApprovalID, action json.RawMessage) error {
	r := from(ctx)
	if r == nil {
		return errNoRun
	}
	if id == "" {
		return perdure.Errorf(perdure.CodeForbidden, "nobody has approved this")
	}
	c := r.w.c
	if r.w.opt.AllTenants {
		c = c.For(r.grant.Tenant)
	}
	a, err := c.Approval(ctx, id)
	if err != nil {
		return fmt.Errorf("check the approval %s: %w", id, err)
	}
	return a.Permits(r.grant.RunID, action)
}
