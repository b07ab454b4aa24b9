package httpd

import (
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/engine/rules"
)

func kindName(c *call) string { return c.PathValue("kind") }

// mayChangePlatform refuses a call about the kinds of the platform without a platform key.
func mayChangePlatform(c *call, asked bool) error {
	if asked && !c.key.Platform {
		return perdure.Errorf(api.CodeForbidden, "only a key of the platform speaks for all tenants")
	}
	return nil
}

func announceKind(c *call, in *api.AnnounceKind) (int, *api.KindAnnounced, error) {
	if err := mayChangePlatform(c, in.AllTenants); err != nil {
		return 0, nil, err
	}
	op := &rules.AnnounceKind{Tenant: c.tenant(), Platform: in.AllTenants, Kind: kindName(c), Build: in.Build,
		Def: in.KindDef}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return 0, &api.KindAnnounced{Kind: op.Kind, Build: op.Build, FirstSeenAt: op.FirstSeen, Counts: op.Counts}, nil
}

func listKinds(c *call, _ *none) (int, *api.Kinds, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.Kinds.Page(c.Context(), c.tenant(), page)
	out := &api.Kinds{Kinds: []api.Kind{}, NextCursor: next}
	for i := range list {
		out.Kinds = append(out.Kinds, *showKind(&list[i]))
	}
	return 0, out, err
}

func getKind(c *call, _ *none) (int, *api.Kind, error) {
	k, err := c.s.engine.Kinds.Get(c.Context(), c.tenant(), kindName(c))
	if err != nil {
		return 0, nil, err
	}
	return 0, showKind(&k), nil
}

func showKind(k *reads.KindInfo) *api.Kind {
	out := &api.Kind{Kind: k.Kind, KindDef: k.Def, Sources: k.Sources, Build: k.Build, Builds: []api.KindBuild{},
		Served: k.Served, LastPolledAt: optional(k.LastPolledAt), Paused: k.Paused,
		MissingLimits: k.MissingLimits}
	for i := range k.Builds {
		b := &k.Builds[i]
		out.Builds = append(out.Builds, api.KindBuild{Build: b.Build, FirstSeenAt: b.FirstSeen, LastSeenAt: b.LastSeen,
			Platform: b.Tenant == rules.PlatformKinds})
	}
	return out
}

func changeKind(c *call, in *api.ChangeKind) (int, *api.Kind, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &rules.PatchKind{Tenant: c.tenant(), Kind: kindName(c), Def: in.KindDef, Remove: in.Remove, Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	c.share.changed = true
	return getKind(c, nil)
}

func deleteKind(c *call, _ *none) (int, *none, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	all := false
	if text := c.URL.Query().Get("platform"); text != "" {
		if all, err = strconv.ParseBool(text); err != nil {
			return 0, nil, perdure.Invalid("platform", "takes true or false")
		}
	}
	if err := mayChangePlatform(c, all); err != nil {
		return 0, nil, err
	}
	op := &rules.DeleteKind{Tenant: c.tenant(), Platform: all, Kind: kindName(c), Key: key}
	return 0, &none{}, c.s.engine.Do(c.Context(), op)
}
