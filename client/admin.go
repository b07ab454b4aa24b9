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

// CreateKey creates a key for the tenant of this client's key. The secret is only in the answer. If
// the answer is lost, CreateKey revokes the key and creates another one. With an [IdempotencyKey],
// a second call returns the key without its secret instead.
func (c *Client) CreateKey(ctx context.Context, in api.CreateKey, opts ...CallOptions) (*api.NewKey, error) {
	return c.createKey(ctx, v1+"/keys", in, opts)
}

// CreateTenantKey creates a key for any tenant, and the tenant if it does not exist. It needs a
// platform key. Otherwise it is like [Client.CreateKey].
func (c *Client) CreateTenantKey(ctx context.Context, tenant perdure.TenantID, in api.CreateKey,
	opts ...CallOptions) (*api.NewKey, error) {
	return c.createKey(ctx, path("/api/admin/tenants/%s/keys", string(tenant)), in, opts)
}

// CreatePlatformKey creates a platform key. It needs a platform key, and the new key can only have
// scopes of the caller's key. Otherwise it is like [Client.CreateKey].
func (c *Client) CreatePlatformKey(ctx context.Context, in api.CreateKey, opts ...CallOptions) (*api.NewKey, error) {
	return c.createKey(ctx, "/api/admin/keys", in, opts)
}

// createKey creates keys until it gets one with its secret. If an answer was lost, the repeated
// call returns the key without its secret. Such a key is revoked, because no caller has its secret.
func (c *Client) createKey(
	ctx context.Context, keys string, in api.CreateKey, opts []CallOptions,
) (*api.NewKey, error) {
	for n := 0; ; n++ {
		r := &request{method: "POST", path: keys, body: in}
		key, err := answer[api.NewKey](ctx, c, r, opts...)
		if err != nil || key.Secret != "" || r.callerKey {
			return key, err
		}
		if _, err := c.do(ctx, &request{method: "DELETE", path: keys + path("/%s", key.ID)}, nil); err != nil {
			return nil, fmt.Errorf("the answer with the secret of key %s was lost, and the key could not be "+
				"revoked: %w",
				key.ID, err)
		}
		if n >= c.opt.Retries {
			return nil, api.NewProblem(perdure.CodeUnavailable,
				"the answers with the secrets of new keys were lost; these keys are revoked", "")
		}
	}
}

// Session returns what the server knows of this client's key: its tenant, its scopes, and whether it is
// one of the platform.
func (c *Client) Session(ctx context.Context) (*api.Session, error) {
	return answer[api.Session](ctx, c, &request{method: "GET", path: v1 + "/session"})
}

// Keys lists the tenant's keys, without their secrets.
func (c *Client) Keys(ctx context.Context) ([]perdure.Key, error) {
	return pages(ctx, c, v1+"/keys", func(p *api.Keys) ([]perdure.Key, string) { return p.Keys, p.NextCursor })
}

// LoginLink makes a link that opens the dashboard once, without typing a key. It works for ten minutes.
// A call that is repeated because its answer was lost makes another one.
func (c *Client) LoginLink(ctx context.Context, in api.OpenSession, opts ...CallOptions) (*api.LoginLink, error) {
	return answer[api.LoginLink](ctx, c, &request{method: "POST", path: v1 + "/session/links", body: &in}, opts...)
}

// RevokeKey revokes a key at once.
func (c *Client) RevokeKey(ctx context.Context, id string, opts ...CallOptions) (*perdure.Key, error) {
	return answer[perdure.Key](ctx, c, &request{method: "DELETE", path: path(v1+"/keys/%s", id)}, opts...)
}

// RevokeTenantKey revokes a key of any tenant at once. It needs a platform key.
func (c *Client) RevokeTenantKey(
	ctx context.Context, tenant perdure.TenantID, id string, opts ...CallOptions,
) (*perdure.Key, error) {
	return answer[perdure.Key](ctx, c, &request{method: "DELETE",
		path: path("/api/admin/tenants/%s/keys/%s", string(tenant), id)}, opts...)
}

// RevokePlatformKey revokes a platform key at once. It needs a platform key.
func (c *Client) RevokePlatformKey(ctx context.Context, id string, opts ...CallOptions) (*perdure.Key, error) {
	return answer[perdure.Key](ctx, c, &request{method: "DELETE", path: path("/api/admin/keys/%s", id)}, opts...)
}

// SigningKeys lists the public keys of signatures. The one that signs new runs is first.
func (c *Client) SigningKeys(ctx context.Context) ([]api.SigningKey, error) {
	var out api.SigningKeys
	_, err := c.do(ctx, &request{method: "GET", path: v1 + "/signing-keys"}, &out)
	return out.Keys, err
}

// Tenant returns a tenant. It needs a platform key.
func (c *Client) Tenant(ctx context.Context, tenant perdure.TenantID) (*api.Tenant, error) {
	return answer[api.Tenant](ctx, c, &request{method: "GET", path: path("/api/admin/tenants/%s", string(tenant))})
}

// A TenantFilter selects a page of tenants. The zero value is the first page with the default
// length.
type TenantFilter struct {
	Cursor string // the NextCursor of the page before
	Limit  int
}

// Tenants returns a page of tenants, in the order of their names. It needs a platform key.
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

// ChangeTenant changes settings of a tenant, and creates the tenant if it does not exist. It needs
// a platform key.
func (c *Client) ChangeTenant(
	ctx context.Context, tenant perdure.TenantID, in api.ChangeTenant, opts ...CallOptions,
) (*api.Tenant, error) {
	return answer[api.Tenant](ctx, c, &request{method: "PUT", path: path("/api/admin/tenants/%s", string(tenant)),
		body: in}, opts...)
}

// Backup writes a consistent backup of the whole store and returns its size in bytes. It needs a
// platform key. If there is an error, the written backup is incomplete.
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
		return 0, r.explain(ctx, c.explainTenant(readProblem(res, b)), false)
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

// Invariants checks the whole store. It needs a platform key.
func (c *Client) Invariants(ctx context.Context) (*api.Invariants, error) {
	return answer[api.Invariants](ctx, c, &request{method: "GET", path: "/api/admin/invariants"})
}

// A WatchdogFilter selects entries of the watchdog's log. An empty field selects all.
type WatchdogFilter struct {
	Rule   string // W1 to W15, or the name of one of them
	RunID  perdure.RunID
	Tenant perdure.TenantID
	Limit  int
	Cursor string // NextCursor of the page before
}

// Watchdog returns a page of the watchdog's log, newest first. It needs a platform key.
func (c *Client) Watchdog(ctx context.Context, f WatchdogFilter) (*api.WatchdogLog, error) {
	q := url.Values{}
	for name, text := range map[string]string{
		"rule": f.Rule, "run_id": string(f.RunID), "tenant": string(f.Tenant), "cursor": f.Cursor,
	} {
		if text != "" {
			q.Set(name, text)
		}
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return answer[api.WatchdogLog](ctx, c, &request{method: "GET", path: "/api/admin/watchdog", query: q})
}

// Policy returns the settings of the policy that are in force on the node that answers. It needs a
// platform key.
func (c *Client) Policy(ctx context.Context) (*api.Policy, error) {
	return answer[api.Policy](ctx, c, &request{method: "GET", path: "/api/admin/policy"})
}

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
	return answer[api.AuditLog](ctx, c, &request{method: "GET", path: v1 + "/audit", query: f.query()})
}

// PlatformAudit returns a page of the audit log of a tenant, newest first. With an empty tenant it
// is the log of all tenants and of the platform itself. It needs a platform key.
func (c *Client) PlatformAudit(ctx context.Context, tenant perdure.TenantID, f AuditFilter) (*api.AuditLog, error) {
	q := f.query()
	if tenant != "" {
		q.Set("tenant", string(tenant))
	}
	return answer[api.AuditLog](ctx, c, &request{method: "GET", path: "/api/admin/audit", query: q})
}

// Health asks whether the server's process is alive. The call is not retried.
func (c *Client) Health(ctx context.Context) (*api.Health, error) {
	return answer[api.Health](ctx, c, &request{method: "GET", path: "/healthz", noRetry: true})
}

// Ready asks whether the server should get traffic. A server that is not ready is an answer, not an
// error; Status and Detail say why. The call is not retried.
func (c *Client) Ready(ctx context.Context) (health *api.Health, ready bool, err error) {
	health = new(api.Health)
	r := &request{method: "GET", path: "/readyz", noRetry: true, okStatus: http.StatusServiceUnavailable}
	status, err := c.do(ctx, r, health)
	if err != nil {
		return nil, false, err
	}
	return health, status == http.StatusOK, nil
}
