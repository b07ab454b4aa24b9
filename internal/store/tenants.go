package store

import (
	"encoding/json"

	"github.com/perdure/perdure"
)

// A TenantRow is an isolation boundary.
type TenantRow struct {
	ID        perdure.TenantID
	CreatedAt perdure.Instant
	Limits    perdure.TenantLimits
	Signed    bool // its runs are granted only with a valid signature
}

var tenantTable = &table[TenantRow]{
	name: "tenants", quiet: true, keys: []string{"id"},
	cols: []string{"id", "created_at", "max_live_runs", "require_signatures", "limits"},
	bind: func(t *TenantRow) []any {
		return []any{string(t.ID), int64(t.CreatedAt), t.Limits.MaxLiveRuns, toBit(t.Signed), limitsText(t.Limits)}
	},
	scan: func(t *TenantRow) []any {
		return []any{&t.ID, &t.CreatedAt, &t.Limits.MaxLiveRuns, bit{&t.Signed}, limitsOf{&t.Limits}}
	},
}

// limitsText is a tenant's limits as the column holds them. The limit of live runs has a column of its own.
func limitsText(l perdure.TenantLimits) string {
	if l.MaxLiveRuns = 0; l.IsZero() {
		return ""
	}
	b, _ := json.Marshal(l)
	return string(b)
}

// limitsOf scans that column.
type limitsOf struct{ l *perdure.TenantLimits }

// Scan reads the column and leaves the limit of live runs as it is. A text that can't be read means no limits:
// the tenant's calls must not fail for it.
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

// Tenants are the tenants and their limits.
type Tenants struct {
	in   *Records
	rows staged[perdure.TenantID, TenantRow]
}

func (repo *Tenants) open(in *Records) {
	repo.in = in
	repo.rows.over(in, tenantTable)
}

// Get and HasQueue tell whether the surroundings of a run exist.
func (repo *Tenants) Get(t perdure.TenantID) (TenantRow, bool, error) {
	return repo.rows.load(t, "WHERE id=?", string(t))
}

// Next gives the tenant after one, or none.
func (repo *Tenants) Next(after perdure.TenantID) (t perdure.TenantID, err error) {
	err = repo.in.sess.Query("SELECT id FROM tenants WHERE id>? ORDER BY id LIMIT 1", []any{string(after)}, func(scan func(...any) error) error { return scan(&t) })
	return t, err
}

// Page lists tenants by their ids, after one.
func (repo *Tenants) Page(after perdure.TenantID, limit int) (out []TenantRow, err error) {
	return repo.where("WHERE id>?", after, limit)
}

// Limited lists the tenants that have limits, after one.
func (repo *Tenants) Limited(after perdure.TenantID, limit int) ([]TenantRow, error) {
	return repo.where("WHERE (limits<>'' OR max_live_runs>0) AND id>?", after, limit)
}

func (repo *Tenants) where(where string, after perdure.TenantID, limit int) (out []TenantRow, err error) {
	err = tenantTable.query(repo.in.sess, where+" ORDER BY id"+atMost, []any{string(after), int64(limit)}, func(x *TenantRow) error {
		out = append(out, *x)
		return nil
	})
	return out, err
}

// AnySigned gives one of the tenants that require signatures, or none.
func (repo *Tenants) AnySigned() (t perdure.TenantID, err error) {
	err = repo.in.sess.Query("SELECT id FROM tenants WHERE require_signatures=1 ORDER BY id LIMIT 1", nil, func(scan func(...any) error) error { return scan(&t) })
	return t, err
}

// Signed gives tenants that require signatures.
func (repo *Tenants) Signed(limit int) (out []perdure.TenantID, err error) {
	err = repo.in.sess.Query("SELECT id FROM tenants WHERE require_signatures=1 ORDER BY id"+atMost, []any{int64(limit)}, func(scan func(...any) error) error {
		var t perdure.TenantID
		err := scan(&t)
		out = append(out, t)
		return err
	})
	return out, err
}

// Put stages a new tenant.
func (repo *Tenants) Put(v TenantRow) { repo.rows.put(v.ID, v) }

// SetLimits stages the limits of a tenant; zero takes one away.
func (repo *Tenants) SetLimits(t perdure.TenantID, l perdure.TenantLimits) {
	repo.in.tx.later.add(statement{"UPDATE tenants SET max_live_runs=?, limits=? WHERE id=?", []any{l.MaxLiveRuns, limitsText(l), string(t)}, anyNumber})
}

// SetQuota bounds the live runs of a tenant; zero takes the bound away.
func (repo *Tenants) SetQuota(t perdure.TenantID, liveRuns int64) {
	repo.in.tx.later.add(statement{"UPDATE tenants SET max_live_runs=? WHERE id=?", []any{liveRuns, string(t)}, anyNumber})
}

// RequireSignatures stages whether a tenant's runs are granted only with a valid signature.
func (repo *Tenants) RequireSignatures(t perdure.TenantID, yes bool) {
	repo.in.tx.later.add(statement{"UPDATE tenants SET require_signatures=? WHERE id=?", []any{toBit(yes), string(t)}, anyNumber})
}
