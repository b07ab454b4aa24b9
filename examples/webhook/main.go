// Webhook: a receiver gets a signed message when a run has ended. Receiver, server and worker are
// in one process. The receiver verifies the message, and refuses a forged one.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A message has the fields that this receiver needs.
type message struct {
	Type string
	Data struct {
		Kind  string
		Event struct {
			Data struct{ Result json.RawMessage }
		}
	}
}

// receiver accepts messages that are signed with its secret. It answers at once, because a message
// that is not answered within 15 s is sent again.
type receiver struct {
	verifier atomic.Pointer[standardwebhooks.Webhook]
	messages chan message
	seen     sync.Map // by webhook-id: a message may come twice. Keep it where a restart finds it
}

func (rc *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
	if err != nil {
		http.Error(w, "too large", http.StatusRequestEntityTooLarge)
		return
	}
	if v := rc.verifier.Load(); v == nil || v.Verify(body, r.Header) != nil {
		http.Error(w, "not signed by Perdure", http.StatusUnauthorized)
		return
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if _, again := rc.seen.LoadOrStore(r.Header.Get("webhook-id"), true); !again {
		rc.messages <- m
	}
	w.WriteHeader(http.StatusNoContent)
}

func run(ctx context.Context, out io.Writer) error {
	rc := &receiver{messages: make(chan message, 10)}
	listening := httptest.NewServer(rc)
	defer listening.Close()

	// without this, only public addresses by https
	srv, err := embedded.Open(embedded.Options{WebhookAllow: []string{"127.0.0.0/8"}})
	if err != nil {
		return err
	}
	defer srv.Close()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	hook, err := c.CreateWebhook(ctx, api.CreateWebhook{URL: listening.URL})
	if err != nil {
		return err
	}
	verifier, err := standardwebhooks.NewWebhook(hook.Secret) // which is shown this once
	if err != nil {
		return err
	}
	rc.verifier.Store(verifier)

	w := worker.New(c, worker.Options{})
	worker.Handle(w, "greet", func(_ context.Context, name string) (string, error) { return "Hello, " + name, nil })
	working, stop := context.WithCancel(ctx)
	defer stop()
	drained := make(chan error, 1)
	go func() { drained <- w.Run(working) }()

	if _, err := c.Start(ctx, perdure.Submission{Kind: "greet", Input: client.JSON("world")}); err != nil {
		return err
	}
	m := <-rc.messages
	fmt.Fprintf(out, "told: %s of a %s, with %s\n", m.Type, m.Data.Kind, m.Data.Event.Data.Result)

	forged, err := http.Post(listening.URL, "application/json", strings.NewReader(`{"type":"run:completed"}`))
	if err != nil {
		return err
	}
	forged.Body.Close()
	fmt.Fprintln(out, "forged:", forged.Status)
	stop()
	return <-drained
}
