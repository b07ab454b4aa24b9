package rules

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// PlatformKinds is the tenant of the platform's kinds; see the store's.
const PlatformKinds = store.PlatformKinds

// announceEvery is the least time between two writes for announcements that change nothing.
const announceEvery = time.Minute

// AnnounceKind registers a worker's description of a kind that it executes. The build that was first
// seen last counts. Repeating an announcement changes nothing.
type AnnounceKind struct {
	Tenant perdure.TenantID
	// Platform announces to the layer under every tenant's.
	Platform bool
	Kind     string
	Build    string
	Def      perdure.KindDef

	// FirstSeen is when the build was first announced, and Counts is set if it is the one that counts.
	FirstSeen perdure.Instant
	Counts    bool
}

func (*AnnounceKind) Needs() []store.Ref { return nil }

// Do registers the build.
func (op *AnnounceKind) Do(tx *kernel.Tx) error {
	if err := perdure.CheckName("kind", op.Kind); err != nil {
		return err
	}
	if err := perdure.CheckBuild("build", op.Build); err != nil {
		return err
	}
	if err := op.Def.Validate(); err != nil {
		return err
	}
	t := op.Tenant
	if op.Platform {
		t = store.PlatformKinds
	}
	row, err := ensureKind(tx, t, op.Kind)
	if err != nil {
		return err
	}
	b, known, err := tx.DB.Kinds.Build(t, op.Kind, op.Build)
	if err != nil {
		return err
	}
	same := known && sameDef(&b.Def, &op.Def)
	if !known {
		b = store.KindBuild{Tenant: t, Kind: op.Kind, Build: op.Build, FirstSeen: tx.Now}
		row.Newest, row.NewestAt = op.Build, tx.Now
		tx.DB.Kinds.PruneBuilds(t, op.Kind, perdure.KeptBuilds)
	}
	op.FirstSeen, op.Counts = b.FirstSeen, row.Newest == op.Build
	if same && tx.Now.Sub(b.LastSeen) < announceEvery {
		return nil
	}
	b.Def, b.LastSeen = op.Def, tx.Now
	tx.DB.Kinds.PutBuild(b)
	PutKind(tx, row)
	return nil
}

// sameDef compares definitions by their JSON.
func sameDef(a, b *perdure.KindDef) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

// ensureKind gives a kind's entry, or a new one within the tenant's quota.
func ensureKind(tx *kernel.Tx, t perdure.TenantID, kind string) (store.KindRow, error) {
	row, ok, err := tx.DB.Kinds.Get(t, kind)
	if err != nil || ok {
		return row, err
	}
	if tx.DB.Kinds.Dropped(t, kind) {
		return row, perdure.Errorf(perdure.CodeUnavailable, "the kind is being deleted: try again")
	}
	if err := tx.DB.RefuseIfFull(); err != nil {
		return row, err
	}
	q, err := tx.DB.Kinds.Quota(t)
	if err != nil {
		return row, err
	}
	if q.Kinds >= perdure.MaxKinds {
		return row, perdure.Errorf(perdure.CodeQuota, "a tenant may have %d kinds, and this one has them: "+
			"delete those that are no longer used", perdure.MaxKinds)
	}
	q.Kinds++
	tx.DB.Kinds.PutQuota(q)
	return store.KindRow{Tenant: t, Kind: kind, CreatedAt: tx.Now}, nil
}

// PutKind stages an entry, and invalidates the cache once it is durable.
func PutKind(tx *kernel.Tx, row store.KindRow) {
	tx.DB.Kinds.Put(row)
	tx.DB.After(func() { forgetKind(tx.Engine, row.Tenant, row.Kind) })
}

// PatchKind overrides fields of a kind in the operator's layer. With a Key it counts once.
type PatchKind struct {
	Tenant perdure.TenantID
	Kind   string
	// Def has the fields to set, and Remove the names of overrides to remove.
	Def    perdure.KindDef
	Remove []string
	Key    string
}

func (*PatchKind) Needs() []store.Ref { return nil }

// Do changes the overrides.
func (op *PatchKind) Do(tx *kernel.Tx) error {
	if err := perdure.CheckName("kind", op.Kind); err != nil {
		return err
	}
	_, err := kernel.UnderKey(tx, op.Tenant, "kind:"+op.Kind, op.Key, []any{op.Def, op.Remove}, func() (string, error) {
		return "", op.change(tx)
	}, func(string) error { return nil })
	return err
}

func (op *PatchKind) change(tx *kernel.Tx) error {
	_, own, err := tx.DB.Kinds.Get(op.Tenant, op.Kind)
	if err != nil {
		return err
	}
	_, platform, err := tx.DB.Kinds.Get(store.PlatformKinds, op.Kind)
	if err != nil {
		return err
	}
	if !own && !platform {
		return kernel.NotFound("kind")
	}
	row, err := ensureKind(tx, op.Tenant, op.Kind)
	if err != nil {
		return err
	}
	for _, name := range op.Remove {
		if err := row.Overrides.Clear(name); err != nil {
			return err
		}
	}
	row.Overrides.Overlay(&op.Def, perdure.KindFromOperator, nil)
	if err := row.Overrides.Validate(); err != nil {
		return err
	}
	PutKind(tx, row)
	if err := lookAtLimit(tx, op.Tenant, perdure.LimitOfKind+op.Kind); err != nil {
		return err
	}
	return tx.Audit(op.Tenant, perdure.AuditKindChange, op.Kind, "removed", op.Remove)
}

// DeleteKind removes a kind from the registry, with its builds and its overrides. It appears again
// when a worker announces it. With a Key it counts once.
type DeleteKind struct {
	Tenant perdure.TenantID
	// Platform deletes from the layer under every tenant's.
	Platform bool
	Kind     string
	Key      string
}

func (*DeleteKind) Needs() []store.Ref { return nil }

// Do removes the kind.
func (op *DeleteKind) Do(tx *kernel.Tx) error {
	if err := perdure.CheckName("kind", op.Kind); err != nil {
		return err
	}
	_, err := kernel.UnderKey(tx, op.Tenant, "kind.delete:"+op.Kind, op.Key, op.Platform, func() (string, error) {
		return "", op.remove(tx)
	}, func(string) error { return nil })
	return err
}

func (op *DeleteKind) remove(tx *kernel.Tx) error {
	t := op.Tenant
	if op.Platform {
		t = store.PlatformKinds
	}
	row, ok, err := tx.DB.Kinds.Get(t, op.Kind)
	if err == nil && !ok {
		err = kernel.NotFound("kind")
	}
	if err != nil {
		return err
	}
	ok, err = DropKind(tx, &row)
	if err == nil && !ok {
		err = perdure.Errorf(perdure.CodeUnavailable, "the kind is being changed: try again")
	}
	if err != nil {
		return err
	}
	return tx.Audit(t, perdure.AuditKindDelete, op.Kind)
}

// DropKind stages the removal of an entry. It tells whether that is possible in this batch.
func DropKind(tx *kernel.Tx, row *store.KindRow) (bool, error) {
	q, err := tx.DB.Kinds.Quota(row.Tenant)
	if err != nil || !tx.DB.Kinds.Drop(row) {
		return false, err
	}
	q.Kinds--
	tx.DB.Kinds.PutQuota(q)
	t, kind := row.Tenant, row.Kind
	tx.DB.After(func() { forgetKind(tx.Engine, t, kind) })
	return true, nil
}
