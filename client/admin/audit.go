package admin

import (
	"context"
	"net/url"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// An AuditFilter selects entries of the audit log. An empty field selects all.
type AuditFilter struct {
	Action string // one of perdure.AuditActions
	KeyID  string
	Target string
	Limit  int
	Cursor string // NextCursor of the page before
}

func (f *AuditFilter) query() url.Values {
	q := url.Values{}
	for name, text := range map[string]string{"action": f.Action, "key_id": f.KeyID, "target": f.Target,
		"cursor": f.Cursor} {
		if text != "" {
			q.Set(name, text)
		}
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return q
}

// Audit returns a page of the audit log of this key's tenant, newest first.
func (c *Client) Audit(ctx context.Context, f AuditFilter) (*api.AuditLog, error) {
	return get[api.AuditLog](ctx, c, v1+"/audit", f.query())
}

// PlatformAudit returns a page of the audit log of a tenant, newest first. With an empty tenant it
// is the log of all tenants and of the platform itself. It needs a platform key.
func (c *Client) PlatformAudit(ctx context.Context, tenant perdure.TenantID, f AuditFilter) (*api.AuditLog, error) {
	q := f.query()
	if tenant != "" {
		q.Set("tenant", string(tenant))
	}
	return get[api.AuditLog](ctx, c, "/api/admin/audit", q)
}
