package client

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// CreateWebhook creates a webhook. The secret is only in the answer.
func (c *Client) CreateWebhook(
	ctx context.Context, in api.CreateWebhook, opts ...CallOptions,
) (*api.NewWebhook, error) {
	return answer[api.NewWebhook](ctx, c, &request{method: "POST", path: v1 + "/webhooks", body: in}, opts...)
}

// Webhooks lists the webhooks of the tenant and of threads, without those that were given with a
// run.
func (c *Client) Webhooks(ctx context.Context) ([]api.Webhook, error) {
	return pages(ctx, c, v1+"/webhooks", func(p *api.Webhooks) ([]api.Webhook, string) {
		return p.Webhooks, p.NextCursor
	})
}

// Webhook returns a webhook.
func (c *Client) Webhook(ctx context.Context, id perdure.WebhookID) (*api.Webhook, error) {
	return answer[api.Webhook](ctx, c, &request{method: "GET", path: path(v1+"/webhooks/%s", string(id))})
}

// ChangeWebhook changes the given fields of a webhook. A disabled webhook gets nothing, and its
// pending deliveries are given up. They can be redelivered after it is enabled again.
func (c *Client) ChangeWebhook(
	ctx context.Context, id perdure.WebhookID, in api.ChangeWebhook, opts ...CallOptions,
) (*api.Webhook, error) {
	r := &request{method: "PATCH", path: path(v1+"/webhooks/%s", string(id)), body: in}
	return answer[api.Webhook](ctx, c, r, opts...)
}

// DeleteWebhook deletes a webhook. Its deliveries can still be read.
func (c *Client) DeleteWebhook(ctx context.Context, id perdure.WebhookID, opts ...CallOptions) error {
	_, err := c.do(ctx, &request{method: "DELETE", path: path(v1+"/webhooks/%s", string(id))}, nil, opts...)
	return err
}

// RotateWebhook gives a webhook a new secret. For a day, messages are signed with the old one as
// well.
func (c *Client) RotateWebhook(
	ctx context.Context, id perdure.WebhookID, opts ...CallOptions,
) (*api.NewWebhook, error) {
	r := &request{method: "POST", path: path(v1+"/webhooks/%s/rotate", string(id))}
	return answer[api.NewWebhook](ctx, c, r, opts...)
}

// TestWebhook sends a test message to a webhook and returns the result. If the answer is lost, the
// message is sent again with the same id.
func (c *Client) TestWebhook(
	ctx context.Context, id perdure.WebhookID, opts ...CallOptions,
) (*api.WebhookTested, error) {
	r := &request{method: "POST", path: path(v1+"/webhooks/%s/test", string(id)), wait: 15 * time.Second}
	return answer[api.WebhookTested](ctx, c, r, opts...)
}

// DeliveryFilter selects deliveries.
type DeliveryFilter struct {
	State  string // "pending", "delivered", "dead" or "dropped"
	Limit  int    // entries of a page; default 50
	Cursor string // NextCursor of the page before
}

// Deliveries returns a page of a webhook's deliveries, newest first.
func (c *Client) Deliveries(ctx context.Context, id perdure.WebhookID, f DeliveryFilter) (*api.Deliveries, error) {
	q := url.Values{}
	for name, v := range map[string]string{"state": f.State, "cursor": f.Cursor} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if f.Limit != 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	at := path(v1+"/webhooks/%s/deliveries", string(id))
	return answer[api.Deliveries](ctx, c, &request{method: "GET", path: at, query: q})
}

// Delivery returns a delivery with all its attempts.
func (c *Client) Delivery(ctx context.Context, id string) (*api.DeliveryHistory, error) {
	return answer[api.DeliveryHistory](ctx, c, &request{method: "GET", path: path(v1+"/deliveries/%s", id)})
}

// Redeliver sends a delivery again at once, with the same id and the same body.
func (c *Client) Redeliver(ctx context.Context, id string, opts ...CallOptions) (*api.Delivery, error) {
	r := &request{method: "POST", path: path(v1+"/deliveries/%s/redeliver", id)}
	return answer[api.Delivery](ctx, c, r, opts...)
}
