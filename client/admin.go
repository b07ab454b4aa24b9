package client

import (
	"context"
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
	r := &request{method: "DELETE", path: path(v1+"/dlq/%s", string(id))}
	again := false
	r.fresh = func() { again = true }
	_, err := c.do(ctx, r, nil)
	if again && CodeOf(err) == perdure.CodeNotFound {
		return nil // an earlier sending did it, and its answer was lost
	}
	return err
}

// CreateKey makes a key of this key's tenant. Its secret is in the answer, and nowhere else.
func (c *Client) CreateKey(ctx context.Context, in api.CreateKey) (*api.NewKey, error) {
	return answer[api.NewKey](ctx, c, &request{method: "POST", path: v1 + "/keys", body: in, once: true})
}

// CreateTenantKey makes a key of any tenant, and the tenant if there is none of that name. It takes a key of the
// platform.
func (c *Client) CreateTenantKey(ctx context.Context, tenant perdure.TenantID, in api.CreateKey) (*api.NewKey, error) {
	return answer[api.NewKey](ctx, c, &request{method: "POST", path: path("/api/admin/tenants/%s/keys", string(tenant)), body: in, once: true})
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
