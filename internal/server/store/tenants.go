package store

import (
	"encoding/json"

	"github.com/perdure/perdure"
)

// A TenantRow is a tenant.
type TenantRow struct {
	ID        perdure.TenantID
	CreatedAt perdure.Instant
	Limits    perdure.TenantLimits
	Signed    bool // runs are granted only with a valid signature
}

var tenantTable = register(&table[TenantRow]{
	name: "tenants", quiet: true, keys: []string{"id"},
	columns: func(c *columns, t *TenantRow) {
		text(c, "id", &t.ID)
		number(c, "created_at", &t.CreatedAt)
		number(c, "max_live_runs", &t.Limits.MaxLiveRuns)
		flag(c, "require_signatures", &t.Signed)
		packed(c, "limits", limitsOf{&t.Limits})
	},
})

// limitsText is the column of a tenant's limits. The limit of live runs has a column of its own.
func limitsText(l perdure.TenantLimits) string {
	if l.MaxLiveRuns = 0; l.IsZero() {
		return ""
	}
	b, _ := json.Marshal(l)
	return string(b)
}

// limitsOf is the column of limits.
type limitsOf struct{ l *perdure.TenantLimits }

func (x limitsOf) value() any { return limitsText(*x.l) }

// Scan leaves the limit of live runs unchanged. A text that can't be read means no limits, so that
// the tenant's calls do not fail.
func (x limitsOf) Scan(v any) error {
	live := x.l.MaxLiveRuns
	*x.l = perdure.TenantLimits{}
	var text []byte
	switch v := v.(type) {
	case string:
		text = []byte(v)
	case []byte:
		text = v
	}
	if len(text) > 0 && json.Unmarshal(text, x.l) != nil {
		*x.l = perdure.TenantLimits{}
	}
	x.l.MaxLiveRuns = live
	return nil
}

// Tenants holds the tenants and their limits.
type Tenants struct {
	in   *base
	rows staged[perdure.TenantID, TenantRow]
}

func (repo *Tenants) open(in *base) {
	repo.in = in
	openRows(&repo.rows, in, tenantTable)
}

// Get gives a tenant.
func (repo *Tenants) Get(t perdure.TenantID) (TenantRow, bool, error) {
	return loadRow(&repo.rows, t, "WHERE id=?", string(t))
}

// Next gives the tenant after one, or an empty id.
func (repo *Tenants) Next(after perdure.TenantID) (t perdure.TenantID, err error) {
	err = repo.in.sess.Query("SELECT id FROM tenants WHERE id>? ORDER BY id LIMIT 1", []any{string(after)},
		func(scan func(...any) error) error { return scan(&t) })
	return t, err
}

// Page lists tenants after one, by id.
func (repo *Tenants) Page(after perdure.TenantID, limit int) (out []TenantRow, err error) {
	return repo.where("WHERE id>?", after, limit)
}

// Newest gives the newest run of each of the first tenants, by id. A tenant without runs has an empty one.
func (repo *Tenants) Newest(limit int) (map[perdure.TenantID]perdure.RunID, error) {
	out := make(map[perdure.TenantID]perdure.RunID)
	err := repo.in.sess.Query("SELECT t.id, coalesce((SELECT max(r.id) FROM runs r WHERE r.tenant=t.id),'') "+
		"FROM tenants t ORDER BY t.id"+atMost, []any{int64(limit)}, func(scan func(...any) error) error {
		var t perdure.TenantID
		var id perdure.RunID
		err := scan(&t, &id)
		out[t] = id
		return err
	})
	return out, err
}

// Limited lists tenants after one that have limits, by id.
func (repo *Tenants) Limited(after perdure.TenantID, limit int) ([]TenantRow, error) {
	return repo.where("WHERE (limits<>'' OR max_live_runs>0) AND id>?", after, limit)
}

// where reads tenants after one that meet a condition.
func (repo *Tenants) where(where string, after perdure.TenantID, limit int) (out []TenantRow, err error) {
	return tenantTable.list(repo.in.sess, where+" ORDER BY id"+atMost, []any{string(after), int64(limit)})
}

// AnySigned gives a tenant that requires signatures, or an empty id.
func (repo *Tenants) AnySigned() (t perdure.TenantID, err error) {
	err = repo.in.sess.Query("SELECT id FROM tenants WHERE require_signatures=1 ORDER BY id LIMIT 1", nil,
		func(scan func(...any) error) error { return scan(&t) })
	return t, err
}

// Signed gives at most limit tenants that require signatures.
func (repo *Tenants) Signed(limit int) (out []perdure.TenantID, err error) {
	err = repo.in.sess.Query("SELECT id FROM tenants WHERE require_signatures=1 ORDER BY id"+atMost,
		[]any{int64(limit)}, func(scan func(...any) error) error {
			var t perdure.TenantID
			err := scan(&t)
			out = append(out, t)
			return err
		})
	return out, err
}

// Put stages a new tenant.
func (repo *Tenants) Put(v TenantRow) { putRow(&repo.rows, v.ID, v) }

// SetLimits stages the limits of a tenant. Zero removes a limit.
func (repo *Tenants) SetLimits(t perdure.TenantID, l perdure.TenantLimits) {
	addRows(&repo.in.tx.later, statement{"UPDATE tenants SET max_live_runs=?, limits=? WHERE id=?",
		[]any{l.MaxLiveRuns, limitsText(l), string(t)}, anyNumber})
}

// SetQuota stages the limit of live runs of a tenant. Zero removes it.
func (repo *Tenants) SetQuota(t perdure.TenantID, liveRuns int64) {
	addRows(&repo.in.tx.later, statement{"UPDATE tenants SET max_live_runs=? WHERE id=?", []any{liveRuns, string(t)},
		anyNumber})
}

// RequireSignatures stages whether a tenant's runs are granted only with a valid signature.
func (repo *Tenants) RequireSignatures(t perdure.TenantID, yes bool) {
	repo.in.stage("UPDATE tenants SET require_signatures=? WHERE id=?", []any{toBit(yes), string(t)}, anyNumber)
}
