package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// CreateKey makes a key of this key's tenant. Its secret is in the answer, and nowhere else: a key whose answer was lost
// is revoked, and another one is made. Under an [IdempotencyKey] of the caller's own the second call gives the key
// without its secret.
func (c *Client) CreateKey(ctx context.Context, in api.CreateKey, opts ...CallOption) (*api.NewKey, error) {
	return c.createKey(ctx, v1+"/keys", in, opts)
}

// CreateTenantKey makes a key of any tenant, and the tenant if there is none of that name. It takes a key of the
// platform. Otherwise it is as [Client.CreateKey].
func (c *Client) CreateTenantKey(ctx context.Context, tenant perdure.TenantID, in api.CreateKey, opts ...CallOption) (*api.NewKey, error) {
	return c.createKey(ctx, path("/api/admin/tenants/%s/keys", string(tenant)), in, opts)
}

// CreatePlatformKey makes a key of the platform. It takes one, and gives away no scope that the caller's key lacks. Otherwise it is
// as [Client.CreateKey].
func (c *Client) CreatePlatformKey(ctx context.Context, in api.CreateKey, opts ...CallOption) (*api.NewKey, error) {
	return c.createKey(ctx, "/api/admin/keys", in, opts)
}

// createKey makes a key whose secret is known. Where no answer came, the next one says which key was made: nobody has its
// secret, so it must not stay.
func (c *Client) createKey(ctx context.Context, keys string, in api.CreateKey, opts []CallOption) (*api.NewKey, error) {
	for n := 0; ; n++ {
		r := &request{method: "POST", path: keys, body: in}
		key, err := answer[api.NewKey](ctx, c, r, opts...)
		if err != nil || key.Secret != "" || r.given {
			return key, err
		}
		if _, err := c.do(ctx, &request{method: "DELETE", path: keys + path("/%s", key.ID)}, nil); err != nil {
			return nil, fmt.Errorf("the answer with the secret of key %s was lost, and the key could not be revoked: %w", key.ID, err)
		}
		if n >= c.opt.Retries {
			return nil, api.NewProblem(perdure.CodeUnavailable, "the answers with the secrets of new keys were lost; these keys are revoked", "")
		}
	}
}

// Keys lists the tenant's keys, without their secrets.
func (c *Client) Keys(ctx context.Context) ([]perdure.Key, error) {
	return pages(ctx, c, v1+"/keys", func(p *api.Keys) ([]perdure.Key, string) { return p.Keys, p.NextCursor })
}

// RevokeKey ends a key at once.
func (c *Client) RevokeKey(ctx context.Context, id string) (*perdure.Key, error) {
	return answer[perdure.Key](ctx, c, &request{method: "DELETE", path: path(v1+"/keys/%s", id)})
}

// RevokeTenantKey ends a key of any tenant at once. It takes a key of the platform.
func (c *Client) RevokeTenantKey(ctx context.Context, tenant perdure.TenantID, id string) (*perdure.Key, error) {
	return answer[perdure.Key](ctx, c, &request{method: "DELETE", path: path("/api/admin/tenants/%s/keys/%s", string(tenant), id)})
}

// RevokePlatformKey ends a key of the platform at once. It takes a key of the platform.
func (c *Client) RevokePlatformKey(ctx context.Context, id string) (*perdure.Key, error) {
	return answer[perdure.Key](ctx, c, &request{method: "DELETE", path: path("/api/admin/keys/%s", id)})
}

// SigningKeys lists the public keys that runs are signed with, the one that signs first.
func (c *Client) SigningKeys(ctx context.Context) ([]api.SigningKey, error) {
	var out api.SigningKeys
	_, err := c.do(ctx, &request{method: "GET", path: v1 + "/signing-keys"}, &out)
	return out.Keys, err
}

// Tenant looks at a tenant. It takes a key of the platform.
func (c *Client) Tenant(ctx context.Context, tenant perdure.TenantID) (*api.Tenant, error) {
	return answer[api.Tenant](ctx, c, &request{method: "GET", path: path("/api/admin/tenants/%s", string(tenant))})
}

// A TenantFilter chooses a page of tenants. Zero is the first one, of the usual length.
type TenantFilter struct {
	Cursor string // the NextCursor of the page before
	Limit  int
}

// Tenants lists tenants by their names. It takes a key of the platform.
func (c *Client) Tenants(ctx context.Context, f TenantFilter) (*api.Tenants, error) {
	q := url.Values{}
	if f.Cursor != "" {
		q.Set("cursor", f.Cursor)
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return answer[api.Tenants](ctx, c, &request{method: "GET", path: "/api/admin/tenants", query: q})
}

// ChangeTenant says what holds for a tenant, and makes it if there is none of that name. It takes a key of the platform.
func (c *Client) ChangeTenant(ctx context.Context, tenant perdure.TenantID, in api.ChangeTenant) (*api.Tenant, error) {
	return answer[api.Tenant](ctx, c, &request{method: "PUT", path: path("/api/admin/tenants/%s", string(tenant)), body: in})
}

// Backup writes a backup of the whole store, as of one moment, and says how many bytes that are. It takes a key of the platform.
// What is written is whole only if there is no error.
func (c *Client) Backup(ctx context.Context, to io.Writer) (int64, error) {
	r := &request{method: http.MethodGet, path: "/api/admin/backup"}
	req, err := c.request(ctx, r)
	if err != nil {
		return 0, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return 0, r.explain(ctx, &failure{err: err}, false)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		return 0, r.explain(ctx, refused(res, b), false)
	}
	n, err := io.Copy(to, res.Body)
	if err == nil && strconv.FormatInt(n, 10) != res.Header.Get("Content-Length") {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return n, fmt.Errorf("the backup broke off: %w", err)
	}
	return n, nil
}

// Invariants checks the whole store. It takes a key of the platform.
func (c *Client) Invariants(ctx context.Context) (*api.Invariants, error) {
	return answer[api.Invariants](ctx, c, &request{method: "GET", path: "/api/admin/invariants"})
}

// A WatchdogFilter chooses entries of the watchdog's log. Empty fields choose all.
type WatchdogFilter struct {
	Rule   string // W1 to W15, or the name of one of them
	RunID  perdure.RunID
	Tenant perdure.TenantID
	Limit  int
	Cursor string // NextCursor of the page before
}

// Watchdog gives a page of what the watchdog did and why, newest first. It takes a key of the platform.
func (c *Client) Watchdog(ctx context.Context, f WatchdogFilter) (*api.WatchdogLog, error) {
	q := url.Values{}
	for name, text := range map[string]string{"rule": f.Rule, "run_id": string(f.RunID), "tenant": string(f.Tenant), "cursor": f.Cursor} {
		if text != "" {
			q.Set(name, text)
		}
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return answer[api.WatchdogLog](ctx, c, &request{method: "GET", path: "/api/admin/watchdog", query: q})
}

// An AuditFilter chooses entries of the audit log. Empty fields choose all.
type AuditFilter struct {
	Action string // one of perdure.AuditActions
	KeyID  string
	Target string
	Limit  int
	Cursor string // NextCursor of the page before
}

func (f *AuditFilter) query() url.Values {
	q := url.Values{}
	for name, text := range map[string]string{"action": f.Action, "key_id": f.KeyID, "target": f.Target, "cursor": f.Cursor} {
		if text != "" {
			q.Set(name, text)
		}
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return q
}

// Audit gives a page of what was done in this key's tenant and by whom, newest first.
func (c *Client) Audit(ctx context.Context, f AuditFilter) (*api.AuditLog, error) {
	return answer[api.AuditLog](ctx, c, &request{method: "GET", path: v1 + "/audit", query: f.query()})
}

// PlatformAudit gives a page of what was done in a tenant, or with an empty one in all of them and to the platform itself, newest
// first. It takes a key of the platform.
func (c *Client) PlatformAudit(ctx context.Context, tenant perdure.TenantID, f AuditFilter) (*api.AuditLog, error) {
	q := f.query()
	if tenant != "" {
		q.Set("tenant", string(tenant))
	}
	return answer[api.AuditLog](ctx, c, &request{method: "GET", path: "/api/admin/audit", query: q})
}

// Health asks whether the server's process lives. It is asked once.
func (c *Client) Health(ctx context.Context) (*api.Health, error) {
	return answer[api.Health](ctx, c, &request{method: "GET", path: "/healthz", single: true})
}

// Ready asks whether the server should get traffic. A server that says no is an answer, not an error: see
// Status and Detail. It is asked once.
func (c *Client) Ready(ctx context.Context) (health *api.Health, ready bool, err error) {
	health = new(api.Health)
	status, err := c.do(ctx, &request{method: "GET", path: "/readyz", single: true, also: http.StatusServiceUnavailable}, health)
	if err != nil {
		return nil, false, err
	}
	return health, status == http.StatusOK, nil
}
