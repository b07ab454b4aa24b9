package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
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
func (op *AnnounceKind) Do(tx *Tx) error {
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
	putKind(tx, row)
	return nil
}

// sameDef compares definitions by their JSON.
func sameDef(a, b *perdure.KindDef) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

// ensureKind gives a kind's entry, or a new one within the tenant's quota.
func ensureKind(tx *Tx, t perdure.TenantID, kind string) (store.KindRow, error) {
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

// putKind stages an entry, and invalidates the cache once it is durable.
func putKind(tx *Tx, row store.KindRow) {
	tx.DB.Kinds.Put(row)
	tx.DB.After(func() { tx.e.forgetKind(row.Tenant, row.Kind) })
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
func (op *PatchKind) Do(tx *Tx) error {
	if err := perdure.CheckName("kind", op.Kind); err != nil {
		return err
	}
	_, err := underKey(tx, op.Tenant, "kind:"+op.Kind, op.Key, []any{op.Def, op.Remove}, func() (string, error) {
		return "", op.change(tx)
	}, func(string) error { return nil })
	return err
}

func (op *PatchKind) change(tx *Tx) error {
	_, own, err := tx.DB.Kinds.Get(op.Tenant, op.Kind)
	if err != nil {
		return err
	}
	_, platform, err := tx.DB.Kinds.Get(store.PlatformKinds, op.Kind)
	if err != nil {
		return err
	}
	if !own && !platform {
		return notFound("kind")
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
	putKind(tx, row)
	return tx.audit(op.Tenant, perdure.AuditKindChange, op.Kind, "removed", op.Remove)
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
func (op *DeleteKind) Do(tx *Tx) error {
	if err := perdure.CheckName("kind", op.Kind); err != nil {
		return err
	}
	_, err := underKey(tx, op.Tenant, "kind.delete:"+op.Kind, op.Key, op.Platform, func() (string, error) {
		return "", op.remove(tx)
	}, func(string) error { return nil })
	return err
}

func (op *DeleteKind) remove(tx *Tx) error {
	t := op.Tenant
	if op.Platform {
		t = store.PlatformKinds
	}
	row, ok, err := tx.DB.Kinds.Get(t, op.Kind)
	if err == nil && !ok {
		err = notFound("kind")
	}
	if err != nil {
		return err
	}
	ok, err = dropKind(tx, &row)
	if err == nil && !ok {
		err = perdure.Errorf(perdure.CodeUnavailable, "the kind is being changed: try again")
	}
	if err != nil {
		return err
	}
	return tx.audit(t, perdure.AuditKindDelete, op.Kind)
}

// dropKind stages the removal of an entry. It tells whether that is possible in this batch.
func dropKind(tx *Tx, row *store.KindRow) (bool, error) {
	q, err := tx.DB.Kinds.Quota(row.Tenant)
	if err != nil || !tx.DB.Kinds.Drop(row) {
		return false, err
	}
	q.Kinds--
	tx.DB.Kinds.PutQuota(q)
	t, kind := row.Tenant, row.Kind
	tx.DB.After(func() { tx.e.forgetKind(t, kind) })
	return true, nil
}

// A KindInfo is a kind as the registry shows it.
type KindInfo struct {
	Kind string
	// Def is the effective definition, and Sources has the layer of each field that is set.
	Def     perdure.KindDef
	Sources map[string]string
	// Build is the build that counts, if any has announced the kind.
	Build string
	// Builds are the stored builds, newest first, those of the tenant before those of the platform.
	Builds []store.KindBuild
	// Served is set if a live worker polls for the kind, and LastPolledAt is when the last one was seen.
	Served       bool
	LastPolledAt perdure.Instant
}

// Get reads a kind of a tenant.
func (q Kinds) Get(ctx context.Context, t perdure.TenantID, kind string) (info KindInfo, err error) {
	if perdure.CheckName("kind", kind) != nil {
		return info, notFound("kind") // no kind has such a name, and a database may refuse to look for it
	}
	err = q.e.store.View(ctx, func(v *store.View) error {
		layers, err := v.Kinds.Layers(t, kind)
		if err == nil && len(layers) == 0 {
			err = notFound("kind")
		}
		if err != nil {
			return err
		}
		list, err := q.describe(v, t, []store.KindEntry{{Kind: kind, Layers: layers}})
		if err == nil {
			info = list[0]
		}
		return err
	})
	return info, err
}

// Page lists the kinds of a tenant by name, with those of the platform.
func (q Kinds) Page(ctx context.Context, t perdure.TenantID, p Page) (list []KindInfo, next string, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		var entries []store.KindEntry
		if entries, next, err = v.Kinds.Page(t, p); err != nil || len(entries) == 0 {
			return err
		}
		list, err = q.describe(v, t, entries)
		return err
	})
	return list, next, err
}

// describe merges the layers of kinds, and adds their builds and whether they are served.
func (q Kinds) describe(v *store.View, t perdure.TenantID, entries []store.KindEntry) ([]KindInfo, error) {
	workers, err := servingNow(&v.Records, &q.e.policy, t, v.Now)
	if err != nil {
		return nil, err
	}
	out, at := make([]KindInfo, len(entries)), make(map[string]int, len(entries))
	for i, e := range entries {
		info := KindInfo{Kind: e.Kind, Sources: make(map[string]string)}
		info.Def, info.Build = mergeLayers(e.Layers, info.Sources)
		info.Served, info.LastPolledAt = workers.look(e.Kind, "")
		out[i], at[e.Kind] = info, i
	}
	for _, of := range []perdure.TenantID{t, store.PlatformKinds} {
		builds, err := v.Kinds.Builds(of, entries[0].Kind, entries[len(entries)-1].Kind)
		if err != nil {
			return nil, err
		}
		for _, b := range builds {
			if i, ok := at[b.Kind]; ok {
				out[i].Builds = append(out[i].Builds, b)
			}
		}
	}
	return out, nil
}

// mergeLayers gives the effective definition of a kind and the build that counts. The layers are
// that of the platform and that of the tenant. sources may be nil.
func mergeLayers(layers []store.KindLayer, sources map[string]string) (def perdure.KindDef, build string) {
	for i := range layers {
		l := &layers[i]
		from := perdure.KindFromWorker
		if l.Tenant == store.PlatformKinds {
			from = perdure.KindFromPlatform
		}
		if l.NewestAt != 0 {
			def.Overlay(&l.Announced, from, sources)
			build = l.Newest
		}
		def.Overlay(&l.Overrides, perdure.KindFromOperator, sources)
	}
	return def, build
}
