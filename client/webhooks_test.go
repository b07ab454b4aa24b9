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
	"github.com/perdure/perdure/internal/eventually"
	"github.com/perdure/perdure/internal/storetest"
)

func TestAWebhookFromItsBeginningToItsEnd(t *testing.T) {
	srv, err := embedded.Open(embedded.Options{Store: storetest.Address(t), WebhookAllow: []string{"127.0.0.0/8"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	ctx := context.Background()
	lossy := &wire{onlyPaths: "/webhooks/"}
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: lossy.wrap(srv.Transport())})

	var status atomic.Int64
	status.Store(410)
	var secret atomic.Pointer[standard.Webhook]
	letters := make(chan *http.Request, 10)
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if err := secret.Load().Verify(body, r.Header); err != nil {
			t.Error(err)
		}
		w.WriteHeader(int(status.Load()))
		letters <- r
	}))
	t.Cleanup(sink.Close)

	made := ok[*api.NewWebhook](t)(c.CreateWebhook(ctx, api.CreateWebhook{URL: sink.URL, Events: []string{"run:created"}, Description: "mine"}))
	id := made.WebhookID
	secret.Store(ok[*standard.Webhook](t)(standard.NewWebhook(made.Secret)))
	if list := ok[[]api.Webhook](t)(c.Webhooks(ctx)); len(list) != 1 || list[0].WebhookID != id || list[0].Description != "mine" {
		t.Errorf("%+v", list)
	}
	if r := ok[*api.WebhookTested](t)(c.TestWebhook(ctx, id)); r.Delivered || r.Status != 410 {
		t.Errorf("%+v", r)
	}
	<-letters
	ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job"}))
	<-letters
	var dead *api.Deliveries
	eventually.True(t, "it is given up", func() bool {
		dead = ok[*api.Deliveries](t)(c.Deliveries(ctx, id, client.DeliveryFilter{State: "dead", Limit: 5}))
		return len(dead.Deliveries) == 1
	})
	if h := ok[*api.Webhook](t)(c.Webhook(ctx, id)); !h.Disabled {
		t.Errorf("%+v", h)
	}
	status.Store(204)
	no, url := false, sink.URL+"/other"
	if h := ok[*api.Webhook](t)(c.ChangeWebhook(ctx, id, api.ChangeWebhook{Disabled: &no, URL: &url})); h.Disabled || h.URL != url || len(h.Events) != 1 {
		t.Errorf("%+v", h)
	}
	if d := ok[*api.Delivery](t)(c.Redeliver(ctx, dead.Deliveries[0].DeliveryID)); d.State != "pending" {
		t.Errorf("%+v", d)
	}
	<-letters
	eventually.True(t, "it is delivered", func() bool {
		d := ok[*api.DeliveryHistory](t)(c.Delivery(ctx, dead.Deliveries[0].DeliveryID))
		return d.State == "delivered" && len(d.History) == 2 && d.History[1].Status == 204
	})
	if r := ok[*api.NewWebhook](t)(c.RotateWebhook(ctx, id)); r.Secret == made.Secret || r.WebhookID != id {
		t.Errorf("%+v", r)
	}
	lossy.loseNext.Store(1) // it is deleted, and the answer is lost
	if err := c.DeleteWebhook(ctx, id); err != nil {
		t.Error(err)
	}
	if err := c.DeleteWebhook(ctx, id); client.CodeOf(err) != perdure.CodeNotFound {
		t.Error(err)
	}
	if _, err := c.CreateWebhook(ctx, api.CreateWebhook{URL: "https://10.0.0.1/"}); client.CodeOf(err) != perdure.CodeURLRefused {
		t.Error(err)
	}
}
