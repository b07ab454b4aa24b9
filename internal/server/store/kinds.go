package store

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/perdure/perdure"
)

// PlatformKinds is the tenant under which the kinds of the platform are stored. No tenant has an
// empty name.
const PlatformKinds perdure.TenantID = ""

// A KindRow is an entry of the registry of kinds. The definitions are in its builds.
type KindRow struct {
	Tenant perdure.TenantID
	Kind   string
	// Newest is the build that counts, first seen at NewestAt. There is none if NewestAt is zero.
	Newest    string
	NewestAt  perdure.Instant
	Overrides perdure.KindDef
	CreatedAt perdure.Instant
	Version   int64
}

var kindTable = register(&table[KindRow]{
	name: "kinds", versioned: true, version: func(k *KindRow) *int64 { return &k.Version },
	keys: []string{"tenant", "kind"},
	columns: func(c *columns, k *KindRow) {
		text(c, "tenant", &k.Tenant)
		text(c, "kind", &k.Kind)
		text(c, "newest", &k.Newest)
		number(c, "newest_at", &k.NewestAt)
		packed(c, "overrides", defOf{&k.Overrides})
		number(c, "created_at", &k.CreatedAt)
		number(c, "version", &k.Version)
	},
})

// A KindBuild is the announcement of one build of a worker's program.
type KindBuild struct {
	Tenant    perdure.TenantID
	Kind      string
	Build     string
	FirstSeen perdure.Instant
	LastSeen  perdure.Instant
	Def       perdure.KindDef
}

var kindBuildTable = register(&table[KindBuild]{
	name: "kind_builds", keys: []string{"tenant", "kind", "build"},
	columns: func(c *columns, b *KindBuild) {
		text(c, "tenant", &b.Tenant)
		text(c, "kind", &b.Kind)
		text(c, "build", &b.Build)
		number(c, "first_seen", &b.FirstSeen)
		number(c, "last_seen", &b.LastSeen)
		packed(c, "definition", defOf{&b.Def})
	},
})

// A KindQuota counts a tenant's kinds. Every operation that adds or removes one writes it, so that
// two of them conflict.
type KindQuota struct {
	Tenant  perdure.TenantID
	Kinds   int64
	Version int64
}

var kindQuotaTable = register(&table[KindQuota]{
	name: "kind_quota", versioned: true, version: func(q *KindQuota) *int64 { return &q.Version },
	keys: []string{"tenant"},
	columns: func(c *columns, q *KindQuota) {
		text(c, "tenant", &q.Tenant)
		number(c, "kinds", &q.Kinds)
		number(c, "version", &q.Version)
	},
})

// defOf is a column with a definition. NULL, and a text that can't be read, give an empty one: the
// policy then counts.
type defOf struct{ d *perdure.KindDef }

func (x defOf) value() any {
	if x.d.Empty() {
		return ""
	}
	b, _ := json.Marshal(x.d) // its raw parts were checked
	return string(b)
}

func (x defOf) Scan(v any) error {
	*x.d = perdure.KindDef{}
	if text, _ := v.(string); text != "" && json.Unmarshal([]byte(text), x.d) != nil {
		*x.d = perdure.KindDef{}
	}
	return nil
}

type kindKey struct {
	t    perdure.TenantID
	kind string
}

type kindBuildKey struct {
	kindKey
	build string
}

// Kinds is the registry of kinds: of tenants and of the platform.
type Kinds struct {
	in     *base
	rows   staged[kindKey, KindRow]
	builds staged[kindBuildKey, KindBuild]
	quotas staged[perdure.TenantID, KindQuota]
}

func (repo *Kinds) open(in *base) {
	repo.in = in
	openRows(&repo.rows, in, kindTable)
	openRows(&repo.quotas, in, kindQuotaTable)
	openRows(&repo.builds, in, kindBuildTable)
}

// Get gives an entry.
func (repo *Kinds) Get(t perdure.TenantID, kind string) (KindRow, bool, error) {
	return loadRow(&repo.rows, kindKey{t, kind}, "WHERE tenant=? AND kind=?", string(t), kind)
}

// Build gives a build of an entry.
func (repo *Kinds) Build(t perdure.TenantID, kind, build string) (KindBuild, bool, error) {
	return loadRow(&repo.builds, kindBuildKey{kindKey{t, kind}, build}, "WHERE tenant=? AND kind=? AND build=?",
		string(t), kind, build)
}

// Quota gives the number of a tenant's kinds.
func (repo *Kinds) Quota(t perdure.TenantID) (KindQuota, error) {
	q, ok, err := loadRow(&repo.quotas, t, "WHERE tenant=?", string(t))
	if !ok {
		q.Tenant = t
	}
	return q, err
}

// Put stages an entry. Its version is incremented when the batch is written.
func (repo *Kinds) Put(k KindRow) { putRow(&repo.rows, kindKey{k.Tenant, k.Kind}, k) }

// PutQuota stages the number of a tenant's kinds.
func (repo *Kinds) PutQuota(q KindQuota) { putRow(&repo.quotas, q.Tenant, q) }

// PutBuild stages a build. The caller also stages the entry, whose version guards both.
func (repo *Kinds) PutBuild(b KindBuild) {
	putRow(&repo.builds, kindBuildKey{kindKey{b.Tenant, b.Kind}, b.Build}, b)
}

// PruneBuilds stages the removal of all builds of an entry but the ones that were first seen last.
func (repo *Kinds) PruneBuilds(t perdure.TenantID, kind string, keep int) {
	const of = " WHERE tenant=? AND kind=?"
	repo.in.stage("DELETE FROM kind_builds"+of+" AND build NOT IN (SELECT build FROM kind_builds"+of+
		fmt.Sprintf(" ORDER BY first_seen DESC, build DESC LIMIT %d)", keep),
		[]any{string(t), kind, string(t), kind}, anyNumber)
}

// Drop stages the removal of an entry and its builds, provided that the entry has not changed. It
// tells whether that is possible in this batch: not if the batch has changed the entry.
func (repo *Kinds) Drop(k *KindRow) bool {
	at := kindKey{k.Tenant, k.Kind}
	absorbRow(&repo.rows, at, *k, true)
	if repo.rows.byKey[at].dirty {
		return false
	}
	dropRow(&repo.rows, at)
	repo.in.stage("DELETE FROM kinds WHERE tenant=? AND kind=? AND version=?", []any{string(k.Tenant), k.Kind,
		k.Version}, 1)
	repo.in.stage("DELETE FROM kind_builds WHERE tenant=? AND kind=?", []any{string(k.Tenant), k.Kind}, anyNumber)
	return true
}

// Dropped tells whether this batch removes the entry. It can't be written again before that is
// committed.
func (repo *Kinds) Dropped(t perdure.TenantID, kind string) bool {
	r := repo.rows.byKey[kindKey{t, kind}]
	return r != nil && r.stored && !r.exists
}

// A KindCursor is a position among all kinds. The zero value is before the first.
type KindCursor struct {
	Tenant perdure.TenantID
	Kind   string
}

// A KindSeen says when an entry was last used.
type KindSeen struct {
	KindCursor
	// LastSeen is when a build was last announced or served, or when the entry was made.
	LastSeen perdure.Instant
	// Overridden is set if an operator has set a field.
	Overridden bool
}

// Seen reads at most limit entries after a position, in order. next is where to continue, or zero at
// the end.
func (repo *Kinds) Seen(after KindCursor, limit int) (out []KindSeen, next KindCursor, err error) {
	err = repo.in.sess.Query("SELECT k.tenant,k.kind,k.created_at,k.overrides,coalesce((SELECT max(b.last_seen) "+
		"FROM kind_builds b WHERE b.tenant=k.tenant AND b.kind=k.kind),0) FROM kinds k WHERE (k.tenant,k.kind)>(?,?) "+
		"ORDER BY k.tenant,k.kind"+atMost, []any{string(after.Tenant), after.Kind, int64(limit)},
		func(scan func(...any) error) error {
			var k KindSeen
			var overrides string
			var seen perdure.Instant
			err := scan(&k.Tenant, &k.Kind, &k.LastSeen, &overrides, &seen)
			k.LastSeen, k.Overridden = max(k.LastSeen, seen), overrides != ""
			out = append(out, k)
			return err
		})
	if len(out) == limit {
		next = out[limit-1].KindCursor
	}
	return out, next, err
}

// LiveKinds are the kinds of a tenant's live runs. More is set if not all runs were read.
type LiveKinds struct {
	Kinds map[string]bool
	More  bool
}

// OfLiveRuns gives the kinds of a tenant's live runs, or of all tenants' for PlatformKinds. It reads
// at most limit runs.
func (repo *Kinds) OfLiveRuns(t perdure.TenantID, limit int) (out LiveKinds, err error) {
	where, args := "", []any{}
	if t != PlatformKinds {
		where, args = "tenant=? AND ", []any{string(t)}
	}
	out.Kinds = make(map[string]bool)
	err = repo.in.sess.Query("SELECT kind, count(*) FROM (SELECT kind FROM runs WHERE "+where+
		"alarm_at IS NOT NULL"+atMost+") AS live GROUP BY kind", append(args, int64(limit)),
		func(scan func(...any) error) error {
			var kind string
			var n int
			err := scan(&kind, &n)
			out.Kinds[kind] = true
			limit -= n
			return err
		})
	out.More = limit <= 0
	return out, err
}

// A KindLayer is an entry with the definition of the build that counts.
type KindLayer struct {
	KindRow
	Announced perdure.KindDef
	// Size is the number of stored bytes.
	Size int
}

// layersQuery reads entries of a tenant and of the platform, with the builds that count. It reads
// what is committed.
const layersQuery = "SELECT k.tenant,k.kind,k.newest,k.newest_at,k.overrides,k.created_at,b.definition FROM kinds k " +
	"LEFT JOIN kind_builds b ON b.tenant=k.tenant AND b.kind=k.kind AND b.build=k.newest AND k.newest_at<>0 " +
	"WHERE k.tenant IN (?,'') AND "

func (repo *Kinds) layers(where string, args []any, row func(*KindLayer) error) error {
	return repo.in.sess.Query(layersQuery+where, args, func(scan func(...any) error) error {
		var l KindLayer
		var overrides, announced sizedDef
		if err := scan(&l.Tenant, &l.Kind, &l.Newest, &l.NewestAt, &overrides, &l.CreatedAt, &announced); err != nil {
			return err
		}
		l.Overrides, l.Announced, l.Size = overrides.def, announced.def, overrides.size+announced.size
		return row(&l)
	})
}

// A sizedDef scans a definition and its size.
type sizedDef struct {
	def  perdure.KindDef
	size int
}

func (x *sizedDef) Scan(v any) error {
	text, _ := v.(string)
	x.size = len(text)
	return defOf{&x.def}.Scan(v)
}

// Layers gives the committed entries of a kind: that of the platform, then that of the tenant. Each
// may be missing.
func (repo *Kinds) Layers(t perdure.TenantID, kind string) (out []KindLayer, err error) {
	err = repo.layers("k.kind=? ORDER BY k.tenant", []any{string(t), kind}, func(l *KindLayer) error {
		out = append(out, *l)
		return nil
	})
	return out, err
}

// A KindEntry is a kind with its layers, as Layers gives them.
type KindEntry struct {
	Kind   string
	Layers []KindLayer
}

// Page lists the kinds of a tenant and of the platform by name. next is where to continue, or empty
// at the end.
func (repo *Kinds) Page(t perdure.TenantID, p Page) ([]KindEntry, string, error) {
	return paged(p, func(after string, n int, row func(*KindEntry) error) error {
		return repo.entries(t, after, n, row)
	}, func(e *KindEntry) string { return e.Kind }, func(e *KindEntry) int {
		bytes := 1024 + quoted(e.Kind)
		for i := range e.Layers {
			bytes += e.Layers[i].Size
		}
		return bytes
	})
}

// entries reads at most n kinds after one, by name.
func (repo *Kinds) entries(t perdure.TenantID, after string, n int, row func(*KindEntry) error) error {
	first, last := "", ""
	err := repo.in.sess.Query("SELECT DISTINCT kind FROM kinds WHERE tenant IN (?,'') AND kind>? ORDER BY kind"+atMost,
		[]any{string(t), after, int64(n)}, func(scan func(...any) error) error {
			err := scan(&last)
			first = cmp.Or(first, last)
			return err
		})
	if err != nil || first == "" {
		return err
	}
	var list []KindEntry
	err = repo.layers("k.kind>=? AND k.kind<=? ORDER BY k.kind, k.tenant", []any{string(t), first, last},
		func(l *KindLayer) error {
			if len(list) == 0 || list[len(list)-1].Kind != l.Kind {
				list = append(list, KindEntry{Kind: l.Kind})
			}
			e := &list[len(list)-1]
			e.Layers = append(e.Layers, *l)
			return nil
		})
	for i := range list {
		if err == nil {
			err = row(&list[i])
		}
	}
	return err
}

// Builds gives the builds of a tenant's kinds from one kind to another, without their definitions,
// newest first.
func (repo *Kinds) Builds(t perdure.TenantID, from, to string) (out []KindBuild, err error) {
	err = repo.in.sess.Query("SELECT tenant,kind,build,first_seen,last_seen FROM kind_builds WHERE tenant=? AND "+
		"kind>=? "+
		"AND kind<=? ORDER BY kind, first_seen DESC, build DESC", []any{string(t), from, to},
		func(scan func(...any) error) error {
			var b KindBuild
			err := scan(&b.Tenant, &b.Kind, &b.Build, &b.FirstSeen, &b.LastSeen)
			out = append(out, b)
			return err
		})
	return out, err
}
