package client

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// CreateWebhook registers a receiver. Its secret is in the answer, and nowhere else.
func (c *Client) CreateWebhook(ctx context.Context, in api.CreateWebhook, opts ...CallOption) (*api.NewWebhook, error) {
	return answer[api.NewWebhook](ctx, c, &request{method: "POST", path: v1 + "/webhooks", body: in}, opts...)
}

// Webhooks lists the registered receivers. Those that came with a run are not among them.
func (c *Client) Webhooks(ctx context.Context) ([]api.Webhook, error) {
	return pages(ctx, c, v1+"/webhooks", func(p *api.Webhooks) ([]api.Webhook, string) { return p.Webhooks, p.NextCursor })
}

// Webhook looks at one.
func (c *Client) Webhook(ctx context.Context, id perdure.WebhookID) (*api.Webhook, error) {
	return answer[api.Webhook](ctx, c, &request{method: "GET", path: path(v1+"/webhooks/%s", string(id))})
}

// ChangeWebhook changes what is given of a webhook. One that is disabled is sent nothing, and what was on its way to it is
// given up; that can be redelivered when it is enabled again.
func (c *Client) ChangeWebhook(ctx context.Context, id perdure.WebhookID, in api.ChangeWebhook) (*api.Webhook, error) {
	return answer[api.Webhook](ctx, c, &request{method: "PATCH", path: path(v1+"/webhooks/%s", string(id)), body: in})
}

// DeleteWebhook has a webhook forgotten. What it was told can still be looked at.
func (c *Client) DeleteWebhook(ctx context.Context, id perdure.WebhookID) error {
	_, err := c.do(ctx, &request{method: "DELETE", path: path(v1+"/webhooks/%s", string(id))}, nil)
	return err
}

// RotateWebhook gives a webhook a new secret. For a day messages are signed with the one before as well.
func (c *Client) RotateWebhook(ctx context.Context, id perdure.WebhookID) (*api.NewWebhook, error) {
	return answer[api.NewWebhook](ctx, c, &request{method: "POST", path: path(v1+"/webhooks/%s/rotate", string(id))})
}

// TestWebhook sends a webhook a message that is about nothing, and says what came of it. When that answer is lost the
// message is sent again, under the same id.
func (c *Client) TestWebhook(ctx context.Context, id perdure.WebhookID) (*api.WebhookTested, error) {
	return answer[api.WebhookTested](ctx, c, &request{method: "POST", path: path(v1+"/webhooks/%s/test", string(id)), wait: 15 * time.Second})
}

// DeliveryFilter narrows a list of deliveries.
type DeliveryFilter struct {
	State  string // "pending", "delivered", "dead" or "dropped"
	Limit  int    // of a page; default 50
	Cursor string // where a page begins: NextCursor of the one before
}

// Deliveries gives a page of what a webhook was told, newest first.
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
	return answer[api.Deliveries](ctx, c, &request{method: "GET", path: path(v1+"/webhooks/%s/deliveries", string(id)), query: q})
}

// Delivery looks at a delivery, with every attempt that was made.
func (c *Client) Delivery(ctx context.Context, id string) (*api.DeliveryHistory, error) {
	return answer[api.DeliveryHistory](ctx, c, &request{method: "GET", path: path(v1+"/deliveries/%s", id)})
}

// Redeliver has a delivery sent again, now: with the same id and the same body.
func (c *Client) Redeliver(ctx context.Context, id string) (*api.Delivery, error) {
	return answer[api.Delivery](ctx, c, &request{method: "POST", path: path(v1+"/deliveries/%s/redeliver", id)})
}
