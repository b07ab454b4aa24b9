package client

import (
	"context"
	"fmt"
	"net/http"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// DeadLetters gives a page of the runs that can't go on without a person; cursor is NextCursor of the page
// before.
func (c *Client) DeadLetters(ctx context.Context, cursor string) (*api.DeadLetters, error) {
	return answer[api.DeadLetters](ctx, c, &request{method: "GET", path: v1 + "/dlq", query: cursorQuery(cursor)})
}

// DeadLetter looks at one.
func (c *Client) DeadLetter(ctx context.Context, id perdure.RunID) (*perdure.DeadLetter, error) {
	return answer[perdure.DeadLetter](ctx, c, &request{method: "GET", path: path(v1+"/dlq/%s", string(id))})
}

// Redrive makes a new run of a dead letter. Asking again gives the same run.
func (c *Client) Redrive(ctx context.Context, id perdure.RunID) (*api.Run, error) {
	return c.act(ctx, path(v1+"/dlq/%s/redrive", string(id)))
}

// DropDeadLetter discards a dead letter.
func (c *Client) DropDeadLetter(ctx context.Context, id perdure.RunID) error {
	_, err := c.do(ctx, &request{method: "DELETE", path: path(v1+"/dlq/%s", string(id))}, nil)
	return err
}

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
	var out api.Keys
	_, err := c.do(ctx, &request{method: "GET", path: v1 + "/keys"}, &out)
	return out.Keys, err
}

// RevokeKey ends a key at once.
func (c *Client) RevokeKey(ctx context.Context, id string) (*perdure.Key, error) {
	return answer[perdure.Key](ctx, c, &request{method: "DELETE", path: path(v1+"/keys/%s", id)})
}

// RevokeTenantKey ends a key of any tenant at once. It takes a key of the platform.
func (c *Client) RevokeTenantKey(ctx context.Context, tenant perdure.TenantID, id string) (*perdure.Key, error) {
	return answer[perdure.Key](ctx, c, &request{method: "DELETE", path: path("/api/admin/tenants/%s/keys/%s", string(tenant), id)})
}

// Invariants checks the whole store. It takes a key of the platform.
func (c *Client) Invariants(ctx context.Context) (*api.Invariants, error) {
	return answer[api.Invariants](ctx, c, &request{method: "GET", path: "/api/admin/invariants"})
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
