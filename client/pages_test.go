package client_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
)

// The server reads a limited number of rows for a page, so a page with a cursor can be empty.
func TestClientSkipsEmptyPages(t *testing.T) {
	answers := map[string]string{
		"/api/v1/runs":           `{"runs":[],"next_cursor":"b"}`,
		"/api/v1/runs?cursor=b":  `{"runs":[],"next_cursor":"c"}`,
		"/api/v1/runs?cursor=c":  `{"runs":[{"run_id":"r1"}],"next_cursor":"d"}`,
		"/api/v1/runs?cursor=d":  `{"runs":[]}`,
		"/api/v1/keys":           `{"keys":[{"key_id":"k1"}],"next_cursor":"k1"}`,
		"/api/v1/keys?cursor=k1": `{"keys":[{"key_id":"k2"}]}`,

		"/api/v1/webhooks":           `{"webhooks":[{"webhook_id":"h1"}],"next_cursor":"h1"}`,
		"/api/v1/webhooks?cursor=h1": `{"webhooks":[{"webhook_id":"h2"}]}`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, answers[r.URL.RequestURI()])
	}))
	defer s.Close()
	c := client.New(s.URL, "k", client.Options{})
	defer c.Close()
	page, err := c.List(t.Context(), client.Filter{})
	if err != nil || len(page.Runs) != 1 || page.NextCursor != "d" {
		t.Errorf("the first page that has runs: %+v, %v; want r1 and the cursor d", page, err)
	}
	n := 0
	for r, err := range c.All(t.Context(), client.Filter{}) {
		if n++; err != nil || r.RunID != "r1" {
			t.Errorf("a run of all pages: %s, %v; want r1", r.RunID, err)
		}
	}
	if n != 1 {
		t.Errorf("%d runs on all pages, want 1", n)
	}
	if keys, err := admin.New(c).Keys(t.Context()); err != nil || len(keys) != 2 {
		t.Errorf("keys of two pages: %v, %v; want 2", keys, err)
	}
	if hooks, err := c.Webhooks(t.Context()); err != nil || len(hooks) != 2 {
		t.Errorf("webhooks of two pages: %v, %v; want 2", hooks, err)
	}
}
