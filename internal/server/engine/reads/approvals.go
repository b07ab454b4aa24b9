package reads

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// An ApprovalFilter selects approvals; see the store's.
type ApprovalFilter = store.ApprovalFilter

// Approvals reads a page of a tenant's approvals, oldest first. next is the cursor of the next page
// if there may be one.
func (q Runs) Approvals(
	ctx context.Context, t perdure.TenantID, f ApprovalFilter,
) (list []perdure.Approval, next perdure.ApprovalID, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		list, next, err = v.Approvals.Page(t, f)
		return err
	})
	for i := range list {
		nameApprovers(&list[i])
	}
	return list, next, err
}

// PlatformApprovals reads a page of the open approvals that the platform decides about, of all
// tenants, oldest first. next is the cursor of the next page if there may be one.
func (q Runs) PlatformApprovals(
	ctx context.Context, cursor string, limit, bytes int,
) (list []perdure.Approval, next string, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		list, next, err = v.Approvals.OpenOfPlatform(cursor, limit, bytes)
		return err
	})
	return list, next, err
}

// Approval reads an approval.
func (q Runs) Approval(
	ctx context.Context, t perdure.TenantID, id perdure.ApprovalID,
) (a perdure.Approval, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		var ok bool
		if a, ok, err = v.Approvals.ByID(t, id); err == nil && !ok {
			err = kernel.NotFound("approval")
		}
		return err
	})
	nameApprovers(&a)
	return a, err
}

// nameApprovers names who decides, where the store has an empty text for the default.
func nameApprovers(a *perdure.Approval) {
	if a.Approvers == "" {
		a.Approvers = perdure.ApproversTenant
	}
}
