package httpd

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/access"
)

// batch sends entries of a batch, and returns its results.
func (w *world) batch(key string, entries ...string) []api.StartResult {
	w.t.Helper()
	a := ask{method: "POST", path: "/api/v1/runs/batch", key: w.key,
		body: `{"runs":[` + strings.Join(entries, ",") + `]}`}
	if key != "" {
		a.header = http.Header{"Idempotency-Key": {key}}
	}
	answer := w.send(a)
	answer.is(200)
	var out api.StartedMany
	if err := json.Unmarshal(answer.body, &out); err != nil {
		w.t.Fatal(err)
	}
	if len(out.Results) != len(entries) {
		w.t.Fatalf("results of %d entries = %s, want one for each", len(entries), answer.body)
	}
	for i, r := range out.Results {
		if r.Index != i || (r.Run == nil) == (r.Error == nil) {
			w.t.Errorf("result %d = %+v, want its index, and a run or an error", i, r)
		}
	}
	return out.Results
}

// codes returns the codes of results, "ok" for a new run and "same" for a known one.
func codes(results []api.StartResult) (out []string) {
	for _, r := range results {
		switch {
		case r.Error != nil:
			out = append(out, string(r.Error.Code)+" "+r.Error.Field)
		case r.Duplicate:
			out = append(out, "same")
		default:
			out = append(out, "ok")
		}
	}
	return out
}

func wantCodes(t *testing.T, results []api.StartResult, want ...string) {
	t.Helper()
	if got := codes(results); !reflect.DeepEqual(got, want) {
		t.Errorf("results = %q, want %q", got, want)
	}
}

func TestBatchStartsRunsInBackground(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.makeThread()
	results := w.batch("", `{"kind":"a","input":{"n":1},"queue":"q","priority":3,"metadata":{"k":"v"}}`,
		`{"kind":"b","thread_id":"`+thread+`","messages":[{"role":"user","content":"hi"}]}`,
		`{"kind":"c","delay":"1h"}`)
	wantCodes(t, results, "ok", "ok", "ok")
	for i, kind := range []string{"a", "b", "c"} {
		r := results[i].Run
		if r.Status != "queued" || r.State != perdure.Queued {
			t.Errorf("run %d = %+v, want it queued", i, r)
		}
		if run := w.get("/api/v1/runs/" + string(r.RunID)).is(200); run["kind"] != kind || run["status"] != "queued" {
			t.Errorf("run %d = %v, want the kind %s and the status queued", i, run, kind)
		}
	}
	if string(results[1].Run.ThreadID) != thread {
		t.Errorf("thread of run 1 = %q, want %s", results[1].Run.ThreadID, thread)
	}
	if g := w.lease("w", `,"queues":["q"]`); g["run_id"] != string(results[0].Run.RunID) ||
		g["input"].(obj)["n"] != 1.0 {
		t.Errorf("grant = %v, want run %s and its input", g, results[0].Run.RunID)
	}
}

func TestRefusedEntryOfBatchHurtsNoOther(t *testing.T) {
	w := newWorld(t, setup{})
	deep := strings.Repeat("[", 65) + strings.Repeat("]", 65)
	rows := []struct{ entry, want string }{
		{`{"kind":"good"}`, "ok"},
		{`{}`, "invalid kind"},
		{`{"kind":"a","colour":"red"}`, "invalid colour"},
		{`{"kind":"a","Queue":"q"}`, "invalid Queue"},
		{`{"kind":7}`, "invalid kind"},
		{`{"kind":"a","kind":"b"}`, "invalid kind"},
		{`{"kind":"a","input":{"x":1,"x":2}}`, "invalid input"},
		{`{"kind":"a\u0000"}`, "invalid "},
		{`{"kind":"a","input":"\u0000"}`, "invalid input"},
		{`{"kind":"a","input":"\ud800"}`, "invalid input"},
		{`{"kind":"a","input":` + deep + `}`, "invalid input"},
		{`{"kind":"a","input":1e999}`, "invalid input"},
		{`{"kind":"a","input":"` + strings.Repeat("x", 1<<20) + `"}`, "too_large input"},
		{`{"kind":"a","timeout":"0s"}`, "invalid timeout"},
		{`{"kind":"a","max_attempts":0}`, "invalid max_attempts"},
		{`{"kind":"a","priority":101}`, "invalid priority"},
		{`{"kind":"a","wait":"1s"}`, "invalid wait"},
		{`{"kind":"a","foreground":true}`, "invalid foreground"},
		{`{"kind":"a","thread_id":"` + unknown + `"}`, "not_found "},
		{`{"kind":"a","webhook":"http://127.0.0.1/"}`, "url_refused webhook"},
		{`{"kind":"a","idempotency_key":""}`, "invalid idempotency_key"},
		{`{"kind":"a","idempotency_key":"` + strings.Repeat("k", 256) + `"}`, "invalid idempotency_key"},
		{`{"kind":"a","idempotency_key":"\u0000"}`, "invalid "},
		{`{"kind":"a","idempotency_key":7}`, "invalid idempotency_key"},
		{`[]`, "invalid "}, {`null`, "invalid "}, {`"a"`, "invalid "}, {`7`, "invalid "},
		{`{"kind":"good","idempotency_key":"` + strings.Repeat("k", 255) + `"}`, "ok"},
	}
	var entries, want []string
	for _, r := range rows {
		entries, want = append(entries, r.entry), append(want, r.want)
	}
	results := w.batch("", entries...)
	for i, got := range codes(results) {
		if got != want[i] {
			t.Errorf("entry %.60s = %q, want %q: %+v", entries[i], got, want[i], results[i].Error)
		}
	}
	if runs := w.get("/api/v1/runs").is(200)["runs"].([]any); len(runs) != 2 {
		t.Errorf("%d runs, want the 2 good ones", len(runs))
	}
	// Both say why.
	for _, i := range []int{16, 17} {
		if !strings.Contains(results[i].Error.Detail, "in the background") {
			t.Errorf("refusal of %s = %+v, want it to name the background", entries[i], results[i].Error)
		}
	}
}

func TestBatchCountsOncePerKey(t *testing.T) {
	w := newWorld(t, setup{})
	single := w.send(ask{method: "POST", path: "/api/v1/runs", key: w.key, body: `{"kind":"a"}`,
		header: http.Header{"Idempotency-Key": {"single"}}}).is(201)["run_id"]
	entries := []string{`{"kind":"a","idempotency_key":"mine"}`, `{"kind":"b"}`,
		`{"kind":"a","idempotency_key":"mine"}`,
		`{"kind":"c","idempotency_key":"mine"}`, `{"kind":"a","idempotency_key":"single"}`, `{"kind":""}`}
	first := w.batch("whole", entries...)
	wantCodes(t, first, "ok", "ok", "same", "key_reused ", "same", "invalid kind")
	if first[2].Run.RunID != first[0].Run.RunID || string(first[4].Run.RunID) != single {
		t.Errorf("runs of known keys = %s and %s, want %s and %s", first[2].Run.RunID, first[4].Run.RunID,
			first[0].Run.RunID, single)
	}
	stored := w.fingerprint("")
	again := w.batch("whole", entries...)
	wantCodes(t, again, "same", "same", "same", "key_reused ", "same", "invalid kind")
	for i := range first {
		if first[i].Run != nil && first[i].Run.RunID != again[i].Run.RunID {
			t.Errorf("run of entry %d = %s, then %s, want the same", i, first[i].Run.RunID, again[i].Run.RunID)
		}
	}
	if w.fingerprint("") != stored {
		t.Error("the second call stored something")
	}
	// The key of the call, a slash and the index are the key of an entry without one.
	other := w.batch("", `{"kind":"b","idempotency_key":"whole/1"}`)
	if wantCodes(t, other, "same"); other[0].Run.RunID != first[1].Run.RunID {
		t.Errorf("run of the key whole/1 = %s, want %s", other[0].Run.RunID, first[1].Run.RunID)
	}
	wantCodes(t, w.batch("whole", `{"kind":"a"}`, `{"kind":"other"}`), "ok", "key_reused ")
	// Without any key, a call counts each time.
	wantCodes(t, w.batch("", `{"kind":"a"}`, `{"kind":"a"}`), "ok", "ok")
}

func TestBatchIsWrittenInParts(t *testing.T) {
	w := newWorld(t, setup{})
	entries := make([]string, perdure.MaxList)
	for i := range entries {
		entries[i] = fmt.Sprintf(`{"kind":"a","input":%d}`, i)
	}
	entries[500] = `{"kind":"a","input":` // its place is taken by a good one below
	w.do("POST", "/api/v1/runs/batch", `{"runs":[`+strings.Join(entries, ",")+`]}`).refuses(400, "invalid")
	entries[500] = `{"kind":"a","input":500}`
	before := w.writes.Load()
	results := w.batch("k", entries...)
	seen := make(map[perdure.RunID]bool)
	for i, r := range results {
		if r.Run == nil || seen[r.Run.RunID] {
			t.Fatalf("result %d = %+v, want a run of its own", i, r)
		}
		seen[r.Run.RunID] = true
	}
	if n := w.writes.Load() - before; n != 4 {
		t.Errorf("%d runs were written in %d batches, want 4", len(entries), n)
	}
	// Large values make smaller parts.
	large := strings.Repeat("x", 400<<10)
	before = w.writes.Load()
	entry := func(n string) string { return `{"kind":"a","input":"` + large + n + `"}` }
	w.batch("l", entry("1"), entry("2"), entry("3"))
	if n := w.writes.Load() - before; n != 2 {
		t.Errorf("3 runs of 400 KiB were written in %d batches, want 2", n)
	}
}

func TestEntriesOverQuotaAreRefusedEach(t *testing.T) {
	w := newWorld(t, setup{})
	w.as(w.admin).do("PUT", "/api/admin/tenants/a", `{"limits":{"max_live_runs":3}}`).is(200)
	results := w.batch("k", `{"kind":"a"}`, `{"kind":"a"}`, `{"kind":""}`, `{"kind":"a"}`, `{"kind":"a"}`,
		`{"kind":"a"}`)
	wantCodes(t, results, "ok", "ok", "invalid kind", "ok", "quota_exceeded ", "quota_exceeded ")
	// Those that were accepted are still answered, and another tenant does not notice.
	wantCodes(t, w.batch("k", `{"kind":"a"}`, `{"kind":"a"}`, `{"kind":"b"}`), "same", "same", "quota_exceeded ")
	wantCodes(t, w.as(w.newKey("b", nil)).batch("k", `{"kind":"a"}`), "ok")
}

func TestWebhooksOfABatch(t *testing.T) {
	w := newWorld(t, toLoopback)
	entry := func(n int) string { return fmt.Sprintf(`{"kind":"a","webhook":"http://127.0.0.1:%d/"}`, n+1) }
	results := w.batch("k", entry(0), entry(0), entry(1))
	if wantCodes(t, results, "ok", "ok", "ok"); results[0].Run.WebhookSecret == "" ||
		results[1].Run.WebhookSecret != "" ||
		results[0].Run.WebhookID == "" || results[1].Run.WebhookID != results[0].Run.WebhookID {
		t.Errorf("webhooks = %+v and %+v, want the same, and its secret once", results[0].Run, results[1].Run)
	}
	if again := w.batch("k", entry(0)); again[0].Run.WebhookSecret != results[0].Run.WebhookSecret {
		t.Errorf("secret of the repeated call = %q, want that of the first", again[0].Run.WebhookSecret)
	}
	var many []string
	for i := range maxBatchHooks + 1 {
		many = append(many, entry(i), entry(i))
	}
	for i, got := range codes(w.batch("", many...)) {
		want := "ok"
		if i >= 2*maxBatchHooks {
			want = "over_bound webhook"
		}
		if got != want {
			t.Errorf("entry %d = %q, want %q", i, got, want)
		}
	}
}

func TestBatchOfOtherTenantIsNotSeen(t *testing.T) {
	w := newWorld(t, setup{})
	mine := w.batch("k", `{"kind":"a"}`)
	theirs := w.as(w.newKey("b", nil)).batch("k", `{"kind":"a"}`)
	if wantCodes(t, theirs, "ok"); theirs[0].Run.RunID == mine[0].Run.RunID {
		t.Errorf("the run of another tenant's key = %s, want another one", theirs[0].Run.RunID)
	}
	reader := w.newKey("a", func(op *access.CreateKey) { op.Scopes = []perdure.Scope{perdure.ScopeRead} })
	w.as(reader).do("POST", "/api/v1/runs/batch", `{"runs":[{"kind":"a"}]}`).refuses(403, "forbidden")
}
