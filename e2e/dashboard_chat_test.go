package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/browser"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
)

// gatedModel writes the configuration of a supervisor that has a worker look at the disk. Its model
// answers nothing before open is called.
func gatedModel(t *testing.T) (config string, open func()) {
	t.Helper()
	h, err := mockmodel.New(mockmodel.Script{Rules: []mockmodel.Rule{
		{Match: mockmodel.Match{Offers: "spawn_worker", Role: "user"}, Answer: mockmodel.Answer{
			ToolCalls: []mockmodel.Call{{Name: "spawn_worker",
				Arguments: obj{"task": "Check the disk space.", "wait": 60}}}}},
		{Match: mockmodel.Match{Tool: "spawn_worker"}, Answer: mockmodel.Answer{Text: "I had a worker look. {{last}}"}},
		{Answer: mockmodel.Answer{Text: "df says: 42%"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, open := context.WithCancel(t.Context())
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-ctx.Done()
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(model.Close)
	config = filepath.Join(t.TempDir(), "supervisor.toml")
	text := fmt.Sprintf("[[model]]\nbase_url = %q\nmodel = \"m\"\nfirst_token = \"10m\"\n", model.URL+"/v1")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config, open
}

// A person logs in, asks something, does not wait for the answer, loads the page again, comes back to
// the run and gets the answer.
func TestDashboardChatDefersAndReattaches(t *testing.T) {
	t.Parallel()
	config, answer := gatedModel(t)
	n := newNode(t, "--supervisor", config)
	d := openDashboard(t, n, "?patience=200ms", "/threads")
	d.types("input[name=key]", "prd_wrong")
	d.clicks("button", "Log in")
	d.sees("[role=alert]", "This key is not valid")
	d.types("input[name=key]", n.key)
	d.clicks("button", "Log in")
	d.types("#say", "check disk space")
	d.clicks("button", "Send")
	d.sees(".message.by-user", "check disk space")
	d.sees(".message", "Re-attach")
	d.reloads()
	d.sees(".message.by-user", "check disk space")
	d.clicks(".message button", "Re-attach")
	var list struct {
		Runs []runView `json:"runs"`
	}
	n.insist("GET", "/api/v1/runs?kind=supervisor", "", nil, &list)
	if len(list.Runs) != 1 {
		t.Fatalf("runs of the supervisor = %d, want 1", len(list.Runs))
	}
	eventually.True(t, "the run is deferred and re-attached", func() bool {
		seen := n.counts(list.Runs[0].RunID)
		return seen["run:deferred"] > 0 && seen["run:reattached"] > 0
	})
	answer()
	d.sees(".message.by-assistant", "df says")
	// The threads of workers are hidden among those of people, and marked.
	d.sees(".thread-list a", "check disk space")
	if tags := browser.Eval[int](d.Page, "document.querySelectorAll('.thread-list .tag').length"); tags != 0 {
		t.Errorf("the list of conversations has %d threads of workers, want none", tags)
	}
	d.clicks(".thread-list input", "")
	d.sees(".thread-list .tag", "worker")
	d.sees(".thread-list a", "check disk space")
	if bad := browser.Eval[string](d.Page, "location.href"); strings.Contains(bad, n.key) {
		t.Errorf("the address has the key: %s", bad)
	}
}
