package access

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// AddAuditEntry adds an audit entry for an action that changes nothing in the store, such as a backup.
type AddAuditEntry struct {
	Tenant perdure.TenantID
	Action string
	Target string
	Detail []any
}

func (*AddAuditEntry) Needs() []store.Ref { return nil }

// Do adds the entry.
func (op *AddAuditEntry) Do(tx *kernel.Tx) error {
	return tx.Audit(op.Tenant, op.Action, op.Target, op.Detail...)
}

// auditBatch bounds the audit entries that retention removes in one step.
const auditBatch = 1000

// TrimAudit removes at most auditBatch entries that are older than the policy's AuditRetention.
func TrimAudit(tx *kernel.Tx) (more bool, err error) {
	n, err := tx.DB.AuditLog.Trim(tx.Now.Add(-tx.Engine.Policy().AuditRetention), auditBatch)
	return n == auditBatch, err
}

// An AuditFilter selects entries of the audit log; see the store's.
type AuditFilter = store.AuditFilter

// AuditLog reads a page of the audit log, newest entries first. next is the cursor of the next page
// if there may be one.
func AuditLog(
	ctx context.Context, e *kernel.Engine, f AuditFilter,
) (list []perdure.AuditEntry, next string, err error) {
	err = e.Store().View(ctx, func(v *store.View) error {
		list, next, err = v.AuditLog.Page(f)
		return err
	})
	return list, next, err
}
