package httpd

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
)

// approvalPage bounds the bytes of a page of approvals.
const approvalPage = 4 << 20

func listApprovals(c *call, _ *none) (int, *api.Approvals, error) {
	limit, err := c.whole("limit", 50, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	q := c.URL.Query()
	f := store.ApprovalFilter{State: q.Get("state"), RunID: perdure.RunID(q.Get("run_id")), After: perdure.ApprovalID(q.Get("cursor")), Limit: int(limit), Bytes: approvalPage}
	switch f.State {
	case "":
		f.State = perdure.ApprovalOpen
	case "all":
		f.State = ""
	}
	out := &api.Approvals{Approvals: []perdure.Approval{}}
	err = c.s.engine.Store().View(c.Context(), func(v *store.View) error {
		list, next, err := v.ApprovalPage(c.tenant(), f)
		out.Approvals, out.NextCursor = append(out.Approvals, list...), string(next)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	return 0, out, nil
}

func getApproval(c *call, _ *none) (int, *perdure.Approval, error) {
	var a perdure.Approval
	err := c.s.engine.Store().View(c.Context(), func(v *store.View) (err error) {
		var ok bool
		if a, ok, err = v.Approval(c.tenant(), perdure.ApprovalID(c.PathValue("id"))); err == nil && !ok {
			err = perdure.Errorf(perdure.CodeNotFound, "no such approval")
		}
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	return 0, &a, nil
}

func decide(c *call, in *api.Decide) (int, *perdure.Approval, error) {
	op := &engine.Decide{Tenant: c.tenant(), ID: perdure.ApprovalID(c.PathValue("id")), Decision: *in, By: c.key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	if op.Refused != nil {
		return 0, nil, op.Refused
	}
	return getApproval(c, nil)
}
