package httpd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/testkit/stage"
)

func TestTooMuchMetadataIsRefused(t *testing.T) {
	w := newWorld(t, setup{})
	entries := make([]string, 64)
	for i := range entries {
		entries[i] = fmt.Sprintf(`"k%02d":"%s"`, i, strings.Repeat("x", 4096))
	}
	for n, want := range map[int]string{64: "has 64 entries; a run takes 16",
		16: "has 65584 bytes of keys and values; a run takes 16384"} {
		p := w.do("POST", "/api/v1/runs", `{"kind":"job","metadata":{%s}}`, strings.Join(entries[:n], ",")).refuses(413,
			"too_large")
		if p["field"] != "metadata" || p["detail"] != want {
			t.Errorf("%d entries of 4 KiB: %v, want the field metadata and %q", n, p, want)
		}
	}
	w.do("POST", "/api/v1/runs", `{"kind":"job","metadata":{%s}}`, strings.Join(entries[:3], ",")).is(201)
}

// follow reads a list to its end, and gives the size of its largest answer and its entries by their id.
func (w *world) follow(path, list, id string) (largest int, seen []string) {
	w.t.Helper()
	for cursor := ""; ; {
		a := w.get(path + cursor)
		page := a.is(200)
		largest = max(largest, len(a.body))
		for _, x := range page[list].([]any) {
			seen = append(seen, fmt.Sprint(x.(obj)[id]))
		}
		next, more := page["next_cursor"].(string)
		if !more {
			return largest, seen
		}
		cursor = "&cursor=" + next
	}
}

func TestPagesOfLargeRunsAreBounded(t *testing.T) {
	stage.NoRace(t)
	w := newWorld(t, setup{})
	const runs, pageBytes = 600, 8 << 20
	metadata := map[string]string{"team": "red"}
	for i := range 15 {
		metadata[fmt.Sprintf("k%02d", i)] = strings.Repeat("x", 1085)
	}
	ops := make([]kernel.Op, runs)
	for i := range ops {
		ops[i] = &life.Submit{Tenant: "a", Submission: perdure.Submission{Kind: "job", Metadata: metadata}}
	}
	for from := 0; from < runs; from += 100 {
		for _, err := range w.e.DoAll(t.Context(), ops[from:from+100]...) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, path := range []string{"/api/v1/runs?limit=1000", "/api/v1/runs?limit=1000&kind=job",
		"/api/v1/runs?limit=1000&metadata.team=red", "/api/v1/runs?limit=1000&state=queued"} {
		largest, seen := w.follow(path, "runs", "run_id")
		if largest > pageBytes {
			t.Errorf("%s: an answer has %d bytes, want at most %d", path, largest, pageBytes)
		}
		once := make(map[string]bool)
		for _, id := range seen {
			once[id] = true
		}
		if len(seen) != runs || len(once) != runs {
			t.Errorf("%s: %d runs, %d of them different; want each of %d once", path, len(seen), len(once), runs)
		}
	}
}

func TestListsTakeLimitAndCursor(t *testing.T) {
	w := newWorld(t, setup{})
	for i := range 5 {
		w.start(fmt.Sprintf(`{"kind":"job","queue":"q%d"}`, i))
		w.do("POST", fmt.Sprintf("/api/v1/workers/w%d/poll", i), `{"slots":1,"wait":"0s","queues":["none"]}`).is(200)
	}
	for path, c := range map[string]struct {
		list, id string
		n        int
	}{"workers": {"workers", "worker_id", 5}, "queues": {"queues", "name", 5}, "keys": {"keys", "key_id", 1}} {
		_, seen := w.follow("/api/v1/"+path+"?limit=2", c.list, c.id)
		if len(seen) < c.n {
			t.Errorf("%s, 2 a page: %v, want %d", path, seen, c.n)
		}
		w.get("/api/v1/"+path+"?limit=1001").refuses(400, "invalid")
		w.get("/api/v1/"+path+"?cursor="+strings.Repeat("x", 300)).refuses(400, "invalid")
	}
}

func TestWebhooksArePaged(t *testing.T) {
	w := newWorld(t, setup{})
	for i := range 5 {
		if err := w.e.Do(t.Context(), &outbox.CreateWebhook{Tenant: "a",
			URL: fmt.Sprintf("https://example.com/%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	first := w.get("/api/v1/webhooks?limit=2").is(200)
	if n := len(first["webhooks"].([]any)); n != 2 || first["next_cursor"] == nil {
		t.Errorf("the first page has %d webhooks and the cursor %v, want 2 and one", n, first["next_cursor"])
	}
	if _, seen := w.follow("/api/v1/webhooks?limit=2", "webhooks", "webhook_id"); len(seen) != 5 {
		t.Errorf("webhooks, 2 a page: %v, want 5", seen)
	}
	if all := w.get("/api/v1/webhooks").is(200); len(all["webhooks"].([]any)) != 5 || all["next_cursor"] != nil {
		t.Errorf("webhooks without a limit: %v, want 5 and no cursor", all)
	}
	w.get("/api/v1/webhooks?limit=1001").refuses(400, "invalid")
}

func TestLateResultsOfRunWithoutAny(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job"}`)
	if got := w.get("/api/v1/runs/" + id + "/late-results?limit=1").is(200); len(got["late_results"].([]any)) != 0 {
		t.Errorf("late results of a new run: %v, want none", got)
	}
	w.get("/api/v1/runs/"+id+"/late-results?cursor=x").refuses(400, "invalid")
}
