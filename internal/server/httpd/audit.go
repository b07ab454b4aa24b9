package httpd

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/access"
)

// auditFilters are the parameters of the calls that list the audit log.
var auditFilters = []string{"action", "key_id", "target", "limit", "cursor"}

// auditFilter reads the parameters that select entries.
func auditFilter(c *call) (f access.AuditFilter, err error) {
	limit, err := c.intParam("limit", 50, 1, maxPage)
	if err != nil {
		return f, err
	}
	cursor, err := c.cursorParam()
	if err != nil {
		return f, err
	}
	q := c.URL.Query()
	f = access.AuditFilter{Action: q.Get("action"), KeyID: q.Get("key_id"), Target: q.Get("target"),
		Before: string(cursor), Limit: int(limit)}
	if f.Action != "" && !slices.Contains(perdure.AuditActions, f.Action) {
		return f, perdure.Invalid("action", "is none of %v", perdure.AuditActions)
	}
	for name, text := range map[string]string{"key_id": f.KeyID, "target": f.Target} {
		if err := perdure.CheckText(name, text); err != nil {
			return f, err
		}
	}
	return f, nil
}

// tenantAudit lists the entries of the caller's tenant. Entries of platform keys are listed without
// the key, its name and its address, because a tenant does not see the platform's keys.
func tenantAudit(c *call, _ *none) (int, *api.AuditLog, error) {
	f, err := auditFilter(c)
	if err != nil {
		return 0, nil, err
	}
	t := c.tenant()
	f.Of, f.TenantKeys = &t, !c.key.Platform
	out, err := auditPage(c, f)
	if err == nil && !c.key.Platform {
		for i := range out.Entries {
			if a := &out.Entries[i]; a.Platform {
				a.KeyID, a.KeyName, a.Remote = "", "", ""
			}
		}
	}
	return 0, out, err
}

// platformAudit lists the entries of all tenants and of the platform itself, or those of one
// tenant.
func platformAudit(c *call, _ *none) (int, *api.AuditLog, error) {
	f, err := auditFilter(c)
	if err != nil {
		return 0, nil, err
	}
	if q := c.URL.Query(); q.Has("tenant") {
		t := perdure.TenantID(q.Get("tenant"))
		if err := perdure.CheckName("tenant", string(t)); err != nil {
			return 0, nil, err
		}
		f.Of = &t
	}
	out, err := auditPage(c, f)
	return 0, out, err
}

func auditPage(c *call, f access.AuditFilter) (*api.AuditLog, error) {
	list, next, err := c.s.engine.AuditLog(c.Context(), f)
	return &api.AuditLog{Entries: append([]perdure.AuditEntry{}, list...), NextCursor: next}, err
}
