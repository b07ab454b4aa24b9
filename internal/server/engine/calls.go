package engine

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
)

// Calls of wings that are neither an operation nor a read of a noun. Each says there what it does.

// AuditLog reads a page of the audit log.
func (e *Engine) AuditLog(
	ctx context.Context, f access.AuditFilter,
) (list []perdure.AuditEntry, next string, err error) {
	return access.AuditLog(ctx, e.Engine, f)
}

// Posted is signalled when webhooks have something to send.
func (e *Engine) Posted() <-chan struct{} { return outbox.Posted(e.Engine) }

// TakePosted gives the endpoints with something to send.
func (e *Engine) TakePosted() []outbox.Posting { return outbox.TakePosted(e.Engine) }

// Signer gives the key that signs accepted runs. Nil: runs are not signed.
func (e *Engine) Signer() *perdure.Signer { return rules.Signer(e.Engine) }

// ProcessTokens gives the tokens that a process of a run may present.
func (e *Engine) ProcessTokens(t perdure.TenantID, run perdure.RunID, epoch int64) []string {
	return life.ProcessTokens(e.Engine, t, run, epoch)
}

// ValidToken tells whether a callback token is one of this store.
func (e *Engine) ValidToken(token string) bool { return life.ValidToken(e.Engine, token) }

// StandBy has a poll that found nothing wait for runs.
func (e *Engine) StandBy(op *dispatch.Claim) *dispatch.Standby { return dispatch.StandBy(e.Engine, op) }

// Queues reads a page of a tenant's queues by name.
func (e *Engine) Queues(
	ctx context.Context, t perdure.TenantID, p kernel.Page,
) (list []dispatch.Queue, next string, err error) {
	return dispatch.Queues(ctx, e.Engine, t, p)
}

// Workers reads a page of a tenant's workers by id.
func (e *Engine) Workers(
	ctx context.Context, t perdure.TenantID, p kernel.Page,
) (list []perdure.Worker, next string, err error) {
	return dispatch.Workers(ctx, e.Engine, t, p)
}

// Ready reads the queues and kinds that have a claimable run.
func (e *Engine) Ready(ctx context.Context, round *dispatch.ReadyRound) ([]dispatch.Ready, error) {
	return dispatch.ReadyPlaces(ctx, e.Engine, round)
}

// Held reads places that have held runs, and gives those that this node did not know.
func (e *Engine) Held(ctx context.Context) ([]dispatch.Ready, error) {
	return dispatch.NewHeldPlaces(ctx, e.Engine)
}

// Delete runs an Op that deletes something, and removes all of it.
func (e *Engine) Delete(ctx context.Context, op kernel.Op) error {
	return upkeep.Delete(ctx, e.Engine, op)
}

// ResetClock moves the instants of the store back to the machine's clock.
func (e *Engine) ResetClock(ctx context.Context, now perdure.Instant, by time.Duration) (moved int, err error) {
	return upkeep.ResetClock(ctx, e.Engine, now, by)
}

// CheckInvariants looks for rows that can't be.
func (e *Engine) CheckInvariants(ctx context.Context, within time.Duration) (upkeep.Invariants, error) {
	return upkeep.CheckInvariants(ctx, e.Engine, within)
}

// Backup copies the store to a file.
func (e *Engine) Backup(ctx context.Context, path string) error {
	return reads.Backup(ctx, e.Engine, path)
}

// FlushHistory stores what was counted in minutes that are over.
func (e *Engine) FlushHistory(ctx context.Context, all bool) error {
	return reads.FlushHistory(ctx, e.Engine, all)
}

// Survey reads many runs of one or all tenants.
func (e *Engine) Survey(ctx context.Context, s *reads.Survey) error {
	return reads.ReadSurvey(ctx, e.Engine, s)
}

// WatchdogLog reads a page of what the watchdog has done.
func (e *Engine) WatchdogLog(
	ctx context.Context, f reads.WatchFilter, likely perdure.TenantID,
) ([]perdure.WatchdogAction, error) {
	return reads.WatchdogLog(ctx, e.Engine, f, likely)
}

// Shared tells whether other processes write to the store as well.
func (e *Engine) Shared() bool { return reads.Shared(e.Engine) }
