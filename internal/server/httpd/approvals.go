package httpd

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

// approvalPage bounds the bytes of a page of approvals.
const approvalPage = 4 << 20

func listApprovals(c *call, _ *none) (int, *api.Approvals, error) {
	limit, err := c.intParam("limit", 50, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	q := c.URL.Query()
	if c.allTenants {
		return listPlatformApprovals(c, int(limit))
	}
	f := reads.ApprovalFilter{State: perdure.ApprovalState(q.Get("state")), RunID: perdure.RunID(q.Get("run_id")),
		RootID: perdure.RunID(q.Get("root_run_id")), ThreadID: perdure.ThreadID(q.Get("thread_id")),
		After: perdure.ApprovalID(q.Get("cursor")), Limit: int(limit), Bytes: approvalPage}
	switch f.State {
	case "":
		f.State = perdure.ApprovalOpen
	case perdure.ApprovalAll:
		f.State = ""
	}
	out := &api.Approvals{Approvals: []perdure.Approval{}}
	list, next, err := c.s.engine.Runs.Approvals(c.Context(), c.tenant(), f)
	out.Approvals, out.NextCursor = append(out.Approvals, list...), string(next)
	return 0, out, err
}

// listPlatformApprovals lists the open approvals of all tenants that the platform decides about.
func listPlatformApprovals(c *call, limit int) (int, *api.Approvals, error) {
	q := c.URL.Query()
	if state := perdure.ApprovalState(q.Get("state")); state != "" && state != perdure.ApprovalOpen {
		return 0, nil, perdure.Invalid("state", "over all tenants, only open approvals are listed")
	}
	for _, name := range []string{"run_id", "root_run_id", "thread_id"} {
		if q.Get(name) != "" {
			return 0, nil, perdure.Invalid(name, "name its tenant")
		}
	}
	list, next, err := c.s.engine.Runs.PlatformApprovals(c.Context(), q.Get("cursor"), limit, approvalPage)
	return 0, &api.Approvals{Approvals: append([]perdure.Approval{}, list...), NextCursor: next}, err
}

func getApproval(c *call, _ *none) (int, *perdure.Approval, error) {
	a, err := c.s.engine.Runs.Approval(c.Context(), c.tenant(), perdure.ApprovalID(c.PathValue("id")))
	return 0, &a, err
}

func decide(c *call, in *api.Decide) (int, *perdure.Approval, error) {
	op := &life.Decide{Tenant: c.tenant(), ID: perdure.ApprovalID(c.PathValue("id")), Decision: *in, By: c.by()}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	if op.Refused != nil {
		return 0, nil, op.Refused
	}
	return getApproval(c, nil)
}
