package httpd

import (
	"net"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
)

// actor is who makes the call, for the audit log. The address is that of the connection: headers that a proxy adds can be forged.
func (c *call) actor() engine.Actor {
	remote := c.RemoteAddr
	if host, _, err := net.SplitHostPort(remote); err == nil {
		remote = host
	}
	return engine.Actor{KeyID: c.key.ID, Name: c.key.Name, Platform: c.key.Platform, Remote: remote}
}

// auditFilters are the parameters of the calls that list the audit log.
var auditFilters = []string{"action", "key_id", "target", "limit", "cursor"}

// auditFilter reads which entries are meant.
func (c *call) auditFilter() (f engine.AuditFilter, err error) {
	limit, err := c.intParam("limit", 50, 1, maxPage)
	if err != nil {
		return f, err
	}
	cursor, err := c.cursorParam()
	if err != nil {
		return f, err
	}
	q := c.URL.Query()
	f = engine.AuditFilter{Action: q.Get("action"), KeyID: q.Get("key_id"), Target: q.Get("target"), Before: string(cursor), Limit: int(limit)}
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

// tenantAudit lists what was done in the caller's tenant. What a platform key did is told, and not which key: a tenant doesn't see
// the platform's keys.
func tenantAudit(c *call, _ *none) (int, *api.AuditLog, error) {
	f, err := c.auditFilter()
	if err != nil {
		return 0, nil, err
	}
	t := c.tenant()
	f.Of, f.TenantKeys = &t, !c.key.Platform
	out, err := c.auditPage(f)
	if err == nil && !c.key.Platform {
		for i := range out.Entries {
			if a := &out.Entries[i]; a.Platform {
				a.KeyID, a.KeyName, a.Remote = "", "", ""
			}
		}
	}
	return 0, out, err
}

// platformAudit lists what was done in all tenants and to the platform itself, or in one tenant.
func platformAudit(c *call, _ *none) (int, *api.AuditLog, error) {
	f, err := c.auditFilter()
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
	out, err := c.auditPage(f)
	return 0, out, err
}

func (c *call) auditPage(f engine.AuditFilter) (*api.AuditLog, error) {
	list, next, err := c.s.engine.AuditLog(c.Context(), f)
	return &api.AuditLog{Entries: append([]perdure.AuditEntry{}, list...), NextCursor: next}, err
}
