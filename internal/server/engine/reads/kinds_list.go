package reads

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
)

// Kinds reads the registry of kinds.
type Kinds struct{ e *kernel.Engine }

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
	// Paused is set while none of its runs is granted.
	Paused *perdure.QueuePause
	// MissingLimits are limits of the kind that do not exist.
	MissingLimits []string
}

// Get reads a kind of a tenant.
func (q Kinds) Get(ctx context.Context, t perdure.TenantID, kind string) (info KindInfo, err error) {
	if perdure.CheckName("kind", kind) != nil {
		return info, kernel.NotFound("kind") // no kind has such a name, and a database may refuse to look for it
	}
	err = q.e.Store().View(ctx, func(v *store.View) error {
		layers, err := v.Kinds.Layers(t, kind)
		if err == nil && len(layers) == 0 {
			err = kernel.NotFound("kind")
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
func (q Kinds) Page(ctx context.Context, t perdure.TenantID, p kernel.Page) (list []KindInfo, next string, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
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
	workers, err := dispatch.ServingNow(&v.Records, q.e.Policy(), t, v.Now)
	if err != nil {
		return nil, err
	}
	paused, err := rules.PausedNow(&v.Records, t)
	if err != nil {
		return nil, err
	}
	out, at := make([]KindInfo, len(entries)), make(map[string]int, len(entries))
	for i, e := range entries {
		info := KindInfo{Kind: e.Kind, Sources: make(map[string]string)}
		info.Def, info.Build = rules.MergeLayers(e.Layers, info.Sources)
		info.Served, info.LastPolledAt = workers.Look(e.Kind, "")
		info.Paused = paused.OfKind(e.Kind, v.Now)
		if info.MissingLimits, err = v.Limits.Missing(t, info.Def.Limits); err != nil {
			return nil, err
		}
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
