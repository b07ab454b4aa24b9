package embedded_test

import (
	"encoding/json"
	"io"
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

// A webhook gets what its format tells of, whether or not the door of that name is on: the run's own, and
// that of the tenant, which OpenAI's format tells of the runs of its door alone. Each attempt has the same body.
func TestWebhookHasTheFormOfADoor(t *testing.T) {
	type message struct{ path, id, body string }
	got := make(chan message, 9)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- message{r.URL.Path, r.Header.Get("webhook-id"), string(b)}
	}))
	defer receiver.Close()
	s := open(t, embedded.Options{Store: storetest.Address(t), WebhookAllow: []string{"127.0.0.0/8"}})
	next := func() message {
		t.Helper()
		select {
		case m := <-got:
			return m
		case <-time.After(eventually.Within):
			t.Fatal("nothing was sent")
			return message{}
		}
	}
	created, hook := call(t, s, "POST", "/api/v1/webhooks", `{"url":"`+receiver.URL+`/all","format":"openai"}`)
	if created != 201 || hook["format"] != "openai" || len(hook["events"].([]any)) != 7 {
		t.Fatalf("the webhook = %d %v, want one of the format with its events", created, hook)
	}
	cancelled := func(body string) string {
		t.Helper()
		_, run := call(t, s, "POST", "/api/v1/runs", body)
		id, _ := run["run_id"].(string)
		if status, out := call(t, s, "POST", "/api/v1/runs/"+id+"/cancel", `{}`); status > 202 {
			t.Fatalf("cancel = %d %v", status, out)
		}
		return id
	}
	cancelled(`{"kind":"job"}`) // of no door
	id := cancelled(`{"kind":"job","metadata":{"door.openai":"{}"}}`)
	m := next()
	want := `"type":"response.cancelled","data":{"id":"resp_` + strings.ReplaceAll(id, "-", "") + `"}}`
	if m.path != "/all" || !strings.HasSuffix(m.body, want) {
		t.Errorf("the webhook got %v, want the end of the door's run alone: %s", m, want)
	}
	call(t, s, "POST", "/api/v1/deliveries/"+m.id+"/redeliver", "")
	if again := next(); again != m {
		t.Errorf("a message that is sent again = %v, want %v", again, m)
	}
	id = cancelled(`{"kind":"job","webhook":"` + receiver.URL + `/one","webhook_format":"langgraph"}`)
	if m = next(); m.path != "/one" || !strings.Contains(m.body, `"run_id":"`+id+`"`) ||
		!strings.Contains(m.body, `"status":"interrupted"`) || !strings.Contains(m.body, `"values":{}`) {
		t.Errorf("a run's webhook got %v, want the run %s in LangGraph's form", m, id)
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
