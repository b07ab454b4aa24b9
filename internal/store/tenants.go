package store

import (
	"encoding/json"
	"fmt"

	"github.com/perdure/perdure"
)

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

// SetLimits stages the limits of a tenant; zero takes one away.
func (repo *Tenants) SetLimits(t perdure.TenantID, l perdure.TenantLimits) {
	push(repo.in.tx, &repo.in.tx.later, statement{"UPDATE tenants SET max_live_runs=?, limits=? WHERE id=?", []any{l.MaxLiveRuns, limitsText(l), string(t)}, anyNumber})
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



const countLive = "SELECT count(*) FROM (SELECT 1 FROM runs WHERE tenant=? AND alarm_at IS NOT NULL LIMIT %d) AS live"
