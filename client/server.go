package client

import (
	"context"
	"net/http"

	"github.com/perdure/perdure/api"
)

// Session returns what the server knows of this client's key: its tenant, its scopes, and whether it is
// one of the platform.
func (c *Client) Session(ctx context.Context) (*api.Session, error) {
	return answer[api.Session](ctx, c, &request{method: "GET", path: v1 + "/session"})
}

// SigningKeys lists the public keys of signatures. The one that signs new runs is first.
func (c *Client) SigningKeys(ctx context.Context) ([]api.SigningKey, error) {
	var out api.SigningKeys
	_, err := c.do(ctx, &request{method: "GET", path: v1 + "/signing-keys"}, &out)
	return out.Keys, err
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
