package outbox

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Page reads a page of a tenant's endpoints by id.
func (q Webhooks) Page(
	ctx context.Context, t perdure.TenantID, p kernel.Page,
) (list []perdure.Webhook, next string, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		list, next, err = v.Webhooks.Page(t, p)
		return err
	})
	return list, next, err
}

// Get reads an endpoint that is not deleted.
func (q Webhooks) Get(ctx context.Context, t perdure.TenantID, id perdure.WebhookID) (w perdure.Webhook, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		var ok bool
		if w, ok, err = v.Webhooks.Get(t, id); err == nil && (!ok || w.DeletedAt != 0) {
			err = kernel.NotFound("webhook")
		}
		return err
	})
	return w, err
}

// Deliveries lists notifications of an endpoint, even of a deleted one, before a cursor.
func (q Webhooks) Deliveries(
	ctx context.Context, t perdure.TenantID, id perdure.WebhookID, state, before string, limit int,
) (list []perdure.Notification, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		if _, ok, err := v.Webhooks.Get(t, id); err != nil {
			return err
		} else if !ok {
			return kernel.NotFound("webhook")
		}
		list, err = v.Outbox.Deliveries(t, id, state, before, limit)
		return err
	})
	return list, err
}

// Delivery reads a notification and its attempts.
func (q Webhooks) Delivery(
	ctx context.Context, t perdure.TenantID, id string,
) (n perdure.Notification, tries []perdure.WebhookAttempt, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		var ok bool
		if n, ok, err = v.Outbox.Delivery(t, id); err != nil {
			return err
		}
		if !ok {
			return kernel.NotFound("delivery")
		}
		tries, err = v.Outbox.Attempts(&n)
		return err
	})
	return n, tries, err
}

// Webhooks reads webhooks and their deliveries, and derives their secrets.
type Webhooks struct{ e *kernel.Engine }

// WebhooksOf gives the webhooks of an engine.
func WebhooksOf(e *kernel.Engine) Webhooks { return Webhooks{e} }
