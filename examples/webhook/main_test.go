package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
)

func Example() {
	if err := run(context.Background(), os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// told: run:completed of a greet, with "Hello, world"
	// forged: 401 Unauthorized
}

func TestPythonReceiverVerifiesSignature(t *testing.T) {
	ctx := t.Context()
	srv, err := embedded.Open(embedded.Options{WebhookAllow: []string{"127.0.0.0/8"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	hook, err := c.CreateWebhook(ctx, api.CreateWebhook{URL: "http://127.0.0.1:1/", Events: []string{"run:created"}})
	if err != nil {
		t.Fatal(err)
	}

	cmd := exec.CommandContext(ctx, "python3", "receiver.py", "0")
	cmd.Env = append(os.Environ(), "PERDURE_WEBHOOK_SECRET="+hook.Secret)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: install Python 3.9 or newer, on Debian: apt-get install python3", err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	next := func() string {
		if !lines.Scan() {
			t.Fatalf("the receiver printed nothing: %v", lines.Err())
		}
		return lines.Text()
	}
	var port int
	if _, err := fmt.Sscanf(next(), "listening on %d", &port); err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	if _, err := c.ChangeWebhook(ctx, hook.WebhookID, api.ChangeWebhook{URL: &url}); err != nil {
		t.Fatal(err)
	}
	forged, err := http.Post(url, "application/json", strings.NewReader(`{"type":"forged"}`))
	if err != nil {
		t.Fatal(err)
	}
	forged.Body.Close()
	if forged.StatusCode != http.StatusUnauthorized {
		t.Errorf("answer to a forged message = %s, want 401", forged.Status)
	}
	r, err := c.Start(ctx, perdure.Submission{Kind: "job"})
	if err != nil {
		t.Fatal(err)
	}
	if got := next(); got != "run:created "+string(r.RunID) {
		t.Errorf("receiver printed %q, want the creation of run %s", got, r.RunID)
	}
	// During a rotation a message has two signatures. This receiver has only the old secret.
	if _, err := c.RotateWebhook(ctx, hook.WebhookID); err != nil {
		t.Fatal(err)
	}
	if tested, err := c.TestWebhook(ctx, hook.WebhookID); err != nil || !tested.Delivered {
		t.Errorf("test delivery after the rotation = %+v (error %v), want success", tested, err)
	}
	if got := next(); got != "webhook:test " {
		t.Errorf("receiver printed %q, want the test message", got)
	}
}
