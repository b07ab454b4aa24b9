package upkeep

import (
	"context"
	"io"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Restoring fills an empty store from a backup. All leases are void, those of the backup and those
// that the lost store granted later: epochs continue far beyond any that can have been granted.
// Leased runs are claimable at once, and have lost no attempt. Those with a single attempt may have
// been executed meanwhile: they end with outcome_unknown. Processes may live on without the store: they
// are looked for first.
//
// A backup does not contain revocations that were made after it. Those keys are valid again, unless
// RevokeKeys is set.
type Restoring struct {
	Store  *store.Store
	Policy *perdure.Policy
	Told   func(store.Copied)
	// Entropy is the source of ids and secrets. Default: the system's.
	Entropy io.Reader
	// RevokeKeys revokes every key of the backup, and creates one platform key.
	RevokeKeys bool
	// Tenant is the tenant that the new key belongs to.
	Tenant perdure.TenantID

	Backup     store.Backup
	Generation int64
	// Revoked counts the keys of the backup that were valid.
	Revoked int
	// Secret is that of the new key. Empty: there is none.
	Secret string
	Key    perdure.Key
}

// Do restores everything in one transaction, or nothing.
func (op *Restoring) Do(ctx context.Context, path string) (err error) {
	e, err := kernel.New(op.Store, kernel.Options{Entropy: op.Entropy})
	if err != nil {
		return err
	}
	op.Backup, op.Generation, err = op.Store.Restore(ctx, path, func(generation int64,
		now perdure.Instant) store.Adoption {
		a := op.adoption(store.FirstEpoch(generation, now), now)
		a.More = func() ([]perdure.Key, []perdure.AuditEntry, error) { return op.more(e, generation, now) }
		return a
	}, op.Told)
	return err
}

// adoption decides how runs, inbox items and keys of the backup are changed.
func (op *Restoring) adoption(epoch int64, now perdure.Instant) store.Adoption {
	p := op.Policy
	return store.Adoption{
		Run: func(r perdure.Run) (perdure.Run, []perdure.Line, error) {
			return restoreRun(p, r, epoch, now)
		},
		Item: func(i perdure.Item) perdure.Item {
			i.Status, i.Epoch, i.AlarmAt = perdure.ItemPending, 0, now.Add(p.PendingWakeup)
			return i
		},
		// Instants between the backup and now may have fired in the store that was lost.
		Schedule: func(s store.ScheduleRow) store.ScheduleRow {
			s.FloorAt = now
			return s
		},
		// The leases that exist count, and a restore ends most of them.
		LimitKey: func(k store.LimitKeyRow) store.LimitKeyRow {
			k.Recount = true
			if k.Waiting > 0 {
				k.AlarmAt = now
			}
			return k
		},
		Key: func(k perdure.Key) perdure.Key {
			if op.RevokeKeys && k.RevokedAt == 0 {
				if k.Valid(now) {
					op.Revoked++
				}
				k.RevokedAt = now
			}
			return k
		},
	}
}

// processWatch is how long a restored process is looked for before it is given up or granted again. It
// is the default of the setting reattach_window.
const processWatch = 5 * time.Minute

// restoreRun gives a live run of the backup its new epoch. A leased run is queued, because its holder
// is fenced out. A process is not: it lives on without its store, and the server of its workspace gives
// it the new epoch.
func restoreRun(
	p *perdure.Policy, r perdure.Run, epoch int64, now perdure.Instant,
) (perdure.Run, []perdure.Line, error) {
	// A single attempt may have begun after the backup was made.
	again := r.MaxAttempts > 1 || r.Options.Process
	leased := r.State.Leased() && r.Cancel.RequestedAt == 0 && again
	switch {
	case r.Options.Process && r.State != perdure.Dispatched:
		return p.Apply(r, perdure.ProcessRestored{Epoch: epoch, Until: now.Add(processWatch)}, now)
	case !leased:
		return p.Apply(r, perdure.Renumbered{Epoch: epoch}, now)
	}
	r, lines, err := p.Apply(r, perdure.Restored{Epoch: epoch}, now)
	if err != nil || !r.Options.Process {
		return r, lines, err
	}
	r, more, err := p.Apply(r, perdure.ProcessRestored{Epoch: epoch, Until: now.Add(processWatch)}, now)
	return r, append(lines, more...), err
}

// more gives the new key, if there is to be one, and the audit entry.
func (op *Restoring) more(
	e *kernel.Engine, generation int64, now perdure.Instant,
) (keys []perdure.Key, audits []perdure.AuditEntry, err error) {
	if op.RevokeKeys {
		made := access.CreateKey{Tenant: op.Tenant, Name: "admin", Scopes: perdure.Scopes, Platform: true}
		if err := made.Generate(e.Random, now); err != nil {
			return nil, nil, err
		}
		op.Key, op.Secret = made.Key, made.Secret
		keys = append(keys, made.Key)
	}
	entry, err := e.AuditEntry(now, &kernel.Actor{Name: "perdure restore", Platform: true}, "", perdure.AuditRestore,
		strconv.FormatInt(generation, 10),
		"keys_revoked", op.Revoked, "new_key", op.Key.ID)
	return keys, append(audits, entry), err
}
