package client_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

func TestWebhookFromCreationToDeletion(t *testing.T) {
	srv := servertest.Open(t, embedded.Options{Store: storetest.Address(t), WebhookAllow: []string{"127.0.0.0/8"}})
	ctx := context.Background()
	lossy := &servertest.Wire{Only: "/webhooks/"}
	c := srv.Client(lossy.Wrap)

	var status atomic.Int64
	status.Store(410)
	var secret atomic.Pointer[standard.Webhook]
	letters := make(chan *http.Request, 10)
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if err := secret.Load().Verify(body, r.Header); err != nil {
			t.Errorf("signature of a received message: %v", err)
		}
		w.WriteHeader(int(status.Load()))
		letters <- r
	}))
	t.Cleanup(sink.Close)

	in := api.CreateWebhook{URL: sink.URL, Events: []string{"run:created"}, Description: "mine"}
	made := ok[*api.NewWebhook](t)(c.CreateWebhook(ctx, in))
	id := made.WebhookID
	secret.Store(ok[*standard.Webhook](t)(standard.NewWebhook(made.Secret)))
	list := ok[[]api.Webhook](t)(c.Webhooks(ctx))
	if len(list) != 1 || list[0].WebhookID != id || list[0].Description != "mine" {
		t.Errorf("webhooks: %+v, want %s", list, id)
	}
	if r := ok[*api.WebhookTested](t)(c.TestWebhook(ctx, id)); r.Delivered || r.Status != 410 {
		t.Errorf("test message: %+v, want status 410 and not delivered", r)
	}
	<-letters
	ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job"}))
	<-letters
	var dead *api.Deliveries
	eventually.True(t, "the delivery is dead", func() bool {
		dead = ok[*api.Deliveries](t)(c.Deliveries(ctx, id, client.DeliveryFilter{State: "dead", Limit: 5}))
		return len(dead.Deliveries) == 1
	})
	if h := ok[*api.Webhook](t)(c.Webhook(ctx, id)); !h.Disabled {
		t.Errorf("webhook after a 410: %+v, want it disabled", h)
	}
	status.Store(204)
	no, url := false, sink.URL+"/other"
	h := ok[*api.Webhook](t)(c.ChangeWebhook(ctx, id, api.ChangeWebhook{Disabled: &no, URL: &url}))
	if h.Disabled || h.URL != url || len(h.Events) != 1 {
		t.Errorf("changed webhook: %+v, want it enabled with the new URL and its event", h)
	}
	if d := ok[*api.Delivery](t)(c.Redeliver(ctx, dead.Deliveries[0].DeliveryID)); d.State != "pending" {
		t.Errorf("redelivery: %+v, want it pending", d)
	}
	<-letters
	eventually.True(t, "the delivery succeeds at the second attempt", func() bool {
		d := ok[*api.DeliveryHistory](t)(c.Delivery(ctx, dead.Deliveries[0].DeliveryID))
		return d.State == "delivered" && len(d.History) == 2 && d.History[1].Status == 204
	})
	if r := ok[*api.NewWebhook](t)(c.RotateWebhook(ctx, id)); r.Secret == made.Secret || r.WebhookID != id {
		t.Errorf("rotated webhook: %+v, want a new secret of %s", r, id)
	}
	lossy.Lose.Store(1) // the webhook is deleted, and the answer is lost
	if err := c.DeleteWebhook(ctx, id); err != nil {
		t.Errorf("DeleteWebhook with a lost answer: %v", err)
	}
	if err := c.DeleteWebhook(ctx, id); client.CodeOf(err) != perdure.CodeNotFound {
		t.Errorf("the second DeleteWebhook: %v, want %s", err, perdure.CodeNotFound)
	}
	if _, err := c.CreateWebhook(ctx,
		api.CreateWebhook{URL: "https://10.0.0.1/"}); client.CodeOf(err) != perdure.CodeURLRefused {
		t.Errorf("a webhook with a private address: %v, want %s", err, perdure.CodeURLRefused)
	}
}
