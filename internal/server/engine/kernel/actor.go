package kernel

import (
	"context"

	"github.com/perdure/perdure"
)

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

// Audit stages an entry of the audit log: the operation's actor, the action, and its target. An
// operation adds one at most. The tenant is empty for actions on the platform. pairs are names and
// values of the detail; none may be a text that a caller wrote.
func (tx *Tx) Audit(t perdure.TenantID, action, target string, pairs ...any) error {
	if tx.Actor == nil {
		return nil
	}
	a, err := tx.Engine.AuditEntry(tx.Now, tx.Actor, t, action, target, pairs...)
	if err == nil {
		tx.DB.AuditLog.Add(a)
	}
	return err
}

// AuditEntry makes an entry. A detail that is too large is replaced by its size.
func (e *Engine) AuditEntry(
	now perdure.Instant, by *Actor, t perdure.TenantID, action, target string, pairs ...any,
) (perdure.AuditEntry, error) {
	id, err := perdure.NewID(now, e.ids.Add(1), e.Random)
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
