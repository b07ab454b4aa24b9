package httpd

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/httpd/stream"
	"github.com/perdure/perdure/internal/server/webhook"
)

func showWebhook(w *perdure.Webhook) *api.Webhook {
	out := &api.Webhook{WebhookID: w.ID, URL: w.URL, Scope: w.Scope, ThreadID: w.ThreadID, Events: w.Events,
		Format: w.Format, Description: w.Description, Disabled: w.DisabledAt != 0, DisabledAt: w.DisabledAt,
		DisabledReason: w.DisabledReason, FailingAt: w.FailingAt, RotatedAt: w.RotatedAt, CreatedAt: w.CreatedAt}
	if len(w.Events) == 0 && w.Scope != perdure.OfRun {
		for _, line := range perdure.NotifiedLines {
			out.Events = append(out.Events, string(line))
		}
	}
	return out
}

func createWebhook(c *call, in *api.CreateWebhook) (int, *api.NewWebhook, error) {
	if err := checkURL(c, "url", in.URL); err != nil {
		return 0, nil, err
	}
	if in.ThreadID != "" {
		if _, _, err := c.s.engine.Threads.Get(c.Context(), c.tenant(), in.ThreadID, 0, 1); err != nil {
			return 0, nil, err
		}
	}
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &outbox.CreateWebhook{Tenant: c.tenant(), URL: in.URL, ThreadID: in.ThreadID, Events: in.Events,
		Format: in.Format, Description: in.Description, Key: key}
	if err := settle(c, op); err != nil {
		return 0, nil, err
	}
	return createdStatus(op.Created), &api.NewWebhook{Webhook: *showWebhook(&op.Webhook), Secret: op.Secret}, nil
}

func listWebhooks(c *call, _ *none) (int, *api.Webhooks, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.Webhooks.Page(c.Context(), c.tenant(), page)
	return 0, &api.Webhooks{Webhooks: showWebhooks(list), NextCursor: next}, err
}

func showWebhooks(list []perdure.Webhook) []api.Webhook {
	out := make([]api.Webhook, 0, len(list))
	for i := range list {
		out = append(out, *showWebhook(&list[i]))
	}
	return out
}

func webhookID(c *call) perdure.WebhookID { return perdure.WebhookID(c.PathValue("id")) }

// pathWebhook reads the webhook of the path.
func pathWebhook(c *call) (perdure.Webhook, error) {
	return c.s.engine.Webhooks.Get(c.Context(), c.tenant(), webhookID(c))
}

func getWebhook(c *call, _ *none) (int, *api.Webhook, error) {
	w, err := pathWebhook(c)
	if err != nil {
		return 0, nil, err
	}
	return 0, showWebhook(&w), nil
}

func changeWebhook(c *call, in *api.ChangeWebhook) (int, *api.Webhook, error) {
	if _, err := pathWebhook(c); err != nil {
		return 0, nil, err
	}
	if in.URL != nil {
		if err := checkURL(c, "url", *in.URL); err != nil {
			return 0, nil, err
		}
	}
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &outbox.UpdateWebhook{Tenant: c.tenant(), ID: webhookID(c), URL: in.URL, Events: in.Events,
		Format: in.Format, Description: in.Description, Disabled: in.Disabled, Reason: "disabled by hand", Key: key}
	if err := settle(c, op); err != nil {
		return 0, nil, err
	}
	return 0, showWebhook(&op.Webhook), nil
}

func deleteWebhook(c *call, _ *none) (int, *none, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	return 0, &none{}, settle(c, &outbox.DeleteWebhook{Tenant: c.tenant(), ID: webhookID(c), Key: key})
}

func rotateWebhook(c *call, _ *none) (int, *api.NewWebhook, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &outbox.RotateWebhook{Tenant: c.tenant(), ID: webhookID(c), Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return 0, &api.NewWebhook{Webhook: *showWebhook(&op.Webhook), Secret: op.Secret}, nil
}

// settle runs an operation that changes webhooks, and waits until every node uses the change. The
// operation is committed before the wait, so it holds even if the caller goes away.
func settle(c *call, op kernel.Op) error {
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return err
	}
	_ = webhook.Settle(c.Context(), c.s.engine)
	return nil
}

// testWebhook sends a test message once and shows the outcome. It is not a delivery, and nothing is
// stored. A repeated call with the same Idempotency-Key sends a message with the same id, as a
// repeated delivery does.
func testWebhook(c *call, _ *none) (int, *api.WebhookTested, error) {
	w, err := pathWebhook(c)
	if err != nil {
		return 0, nil, err
	}
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	id := "test_" + rand.Text()
	if key != "" {
		sum := sha256.Sum256([]byte(string(c.tenant()) + "\x00" + string(w.ID) + "\x00" + key))
		id = fmt.Sprintf("test_%x", sum[:13])
	}
	now := c.s.engine.Now()
	body, err := json.Marshal(map[string]any{"type": "webhook:test", "timestamp": now,
		"data": map[string]any{"webhook_id": w.ID}})
	if err != nil {
		return 0, nil, err
	}
	if err := block(c, stream.Wait); err != nil { // the receiver may be slow
		return 0, nil, err
	}
	defer c.share.unblock()
	r := c.s.opt.Sender.Send(c.Context(), webhook.Message{ID: id, URL: w.URL,
		Secrets: c.s.engine.Webhooks.Secrets(&w, now), Body: body})
	return 0, &api.WebhookTested{Delivered: r.Status >= 200 && r.Status < 300, Status: r.Status, Error: r.Err,
		Response: r.Response, TookMS: r.Took.Milliseconds()}, nil
}

// ---- deliveries

func showDelivery(n *perdure.Notification) api.Delivery {
	return api.Delivery{DeliveryID: n.ID(), WebhookID: n.Webhook, RunID: n.RunID, Seq: n.Seq, Type: n.Type,
		State: n.State, Attempts: n.Attempts, CreatedAt: n.CreatedAt,
		NextAttemptAt: n.AlarmAt, LastStatus: n.Status, LastError: n.Error}
}

// webhookDeliveries lists the deliveries of a webhook, also of a deleted one.
func webhookDeliveries(c *call, _ *none) (int, *api.Deliveries, error) {
	limit, err := c.intParam("limit", 50, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	q := c.URL.Query()
	list, err := c.s.engine.Webhooks.Deliveries(c.Context(), c.tenant(), webhookID(c),
		q.Get("state"), q.Get("cursor"), int(limit))
	out := &api.Deliveries{}
	out.Deliveries, out.NextCursor = showDeliveries(list, int(limit))
	return 0, out, err
}

// showDeliveries returns a page of deliveries as the API shows it, with its cursor.
func showDeliveries(list []perdure.Notification, limit int) (out []api.Delivery, next string) {
	out = make([]api.Delivery, 0, len(list))
	for i := range list {
		out = append(out, showDelivery(&list[i]))
	}
	if n := len(list); n == limit {
		next = out[n-1].DeliveryID
	}
	return out, next
}

func getDelivery(c *call, _ *none) (int, *api.DeliveryHistory, error) {
	n, tries, err := c.s.engine.Webhooks.Delivery(c.Context(), c.tenant(), c.PathValue("id"))
	out := &api.DeliveryHistory{Delivery: showDelivery(&n), History: []api.DeliveryAttempt{}}
	for _, a := range tries {
		out.History = append(out.History, api.DeliveryAttempt{N: a.N, At: a.At, TookMS: a.Took.Milliseconds(),
			Status: a.Status, Error: a.Error, Response: a.Response})
	}
	return 0, out, err
}

func redeliver(c *call, _ *none) (int, *api.Delivery, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &outbox.Redeliver{Tenant: c.tenant(), DeliveryID: c.PathValue("id"), Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	out := showDelivery(&op.Notification)
	return 0, &out, nil
}

// checkURL refuses a URL that the guard does not allow.
func checkURL(c *call, field, url string) error {
	err := c.s.goodURLs.check(c.Context(), c.s.opt.Webhooks, url)
	var e *perdure.Error
	if errors.As(err, &e) {
		return &perdure.Error{Code: e.Code, Field: field, Message: e.Message}
	}
	return err
}
