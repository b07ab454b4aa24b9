package engine

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// An Actor is the API key of a call and the address that the call came from. The audit log names
// it. An operation without an actor, such as the watchdog's, leaves no entry.
type Actor struct {
	KeyID    string
	Name     string
	Platform bool
	Remote   string
}

// actorKey is the context key of an Actor.
type actorKey struct{}

// WithActor gives a context whose operations are done by an actor.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, &a)
}

func actorOf(ctx context.Context) *Actor {
	a, _ := ctx.Value(actorKey{}).(*Actor)
	return a
}

// audit stages an entry of the audit log: the operation's actor, the action, and its target. An
// operation adds one at most. The tenant is empty for actions on the platform. pairs are names and
// values of the detail; none may be a text that a caller wrote.
func (tx *Tx) audit(t perdure.TenantID, action, target string, pairs ...any) error {
	if tx.actor == nil {
		return nil
	}
	a, err := tx.e.auditEntry(tx.Now, tx.actor, t, action, target, pairs...)
	if err == nil {
		tx.DB.AuditLog.Add(a)
	}
	return err
}

// auditEntry makes an entry. A detail that is too large is replaced by its size.
func (e *Engine) auditEntry(
	now perdure.Instant, by *Actor, t perdure.TenantID, action, target string, pairs ...any,
) (perdure.AuditEntry, error) {
	id, err := perdure.NewID(now, e.ids.Add(1), e.random)
	a := perdure.AuditEntry{ID: id, Tenant: t, At: now, KeyID: by.KeyID, KeyName: by.Name,
		Platform: by.Platform, Action: action, Target: target, Remote: by.Remote}
	if a.Detail = perdure.Object(pairs...); len(a.Detail) > perdure.MaxAuditDetail {
		a.Detail = perdure.Object("left_out", len(a.Detail))
	}
	if a.Detail == "{}" {
		a.Detail = ""
	}
	return a, err
}

// AddAuditEntry adds an audit entry for an action that changes nothing in the store, such as a backup.
type AddAuditEntry struct {
	Tenant perdure.TenantID
	Action string
	Target string
	Detail []any
}

func (*AddAuditEntry) Needs() []store.Ref { return nil }

// Do adds the entry.
func (op *AddAuditEntry) Do(tx *Tx) error {
	return tx.audit(op.Tenant, op.Action, op.Target, op.Detail...)
}

// auditBatch bounds the audit entries that retention removes in one step.
const auditBatch = 1000

// trimAudit removes at most auditBatch entries that are older than the policy's AuditRetention.
func trimAudit(tx *Tx) (more bool, err error) {
	n, err := tx.DB.AuditLog.Trim(tx.Now.Add(-tx.e.policy.AuditRetention), auditBatch)
	return n == auditBatch, err
}

// An AuditFilter selects entries of the audit log; see the store's.
type AuditFilter = store.AuditFilter

// AuditLog reads a page of the audit log, newest entries first. next is the cursor of the next page
// if there may be one.
func (e *Engine) AuditLog(ctx context.Context, f AuditFilter) (list []perdure.AuditEntry, next string, err error) {
	err = e.store.View(ctx, func(v *store.View) error {
		list, next, err = v.AuditLog.Page(f)
		return err
	})
	return list, next, err
}
