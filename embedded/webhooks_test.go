package embedded_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

func TestWebhookLinksBeginWithPublicURL(t *testing.T) {
	for public, want := range map[string]string{"": "/api/v1/runs/",
		"https://perdure.example.com/there/": "https://perdure.example.com/there/api/v1/runs/"} {
		got := make(chan string, 1)
		receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			var message struct {
				Data struct {
					StatusURL string `json:"status_url"`
				}
			}
			if err := json.NewDecoder(r.Body).Decode(&message); err != nil {
				t.Error(err)
			}
			got <- message.Data.StatusURL
		}))
		defer receiver.Close()
		s := open(t, embedded.Options{Store: storetest.Address(t), PublicURL: public,
			WebhookAllow: []string{"127.0.0.0/8"}})
		_, run := call(t, s, "POST", "/api/v1/runs", `{"kind":"job","webhook":"`+receiver.URL+
			`","webhook_events":["run:created"]}`)
		select {
		case link := <-got:
			if link != want+run["run_id"].(string) {
				t.Errorf("with %q: %s", public, link)
			}
		case <-time.After(eventually.Within):
			t.Fatal("nothing was sent")
		}
	}
}

func TestInvalidPublicURLIsRefused(t *testing.T) {
	for _, good := range []string{"", "https://perdure.example.com", "http://10.0.0.1:7373/",
		"https://example.com/perdure", "https://[2001:db8::1]:8443"} {
		if err := (embedded.Options{PublicURL: good}).Validate(); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"perdure.example.com", "ftp://example.com", "https://", "https:///path",
		"https://example.com?a=b", "https://example.com#a", "https://example.com?",
		"https://me:hunter2@example.com", "https://exa mple.com", "https://example.com/a\nb", "/api"} {
		err := embedded.Options{PublicURL: bad}.Validate()
		if err == nil || !strings.Contains(err.Error(), "public_url: ") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
