package openai_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/worker"
)

// A world is a server with the door, and a worker whose kinds are in newWorld.
type world struct {
	*servertest.Server
	key string
	// executed counts executions of handlers. gate lets those of "gated" go on.
	executed atomic.Int64
	gate     chan struct{}
}

type asked struct {
	Input    json.RawMessage `json:"input"`
	Messages json.RawMessage `json:"messages"`
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Server: servertest.Listen(t, embedded.Options{Doors: []string{"openai"}}), gate: make(chan struct{})}
	w.key = w.Key()
	wk := worker.New(w.C, worker.Options{Slots: 8})
	worker.Handle(wk, "talk", func(ctx context.Context, in asked) (string, error) {
		w.executed.Add(1)
		for _, piece := range []string{"Hel", "lo ", "you"} {
			if err := errors.Join(worker.Delta(ctx, piece), worker.Emit(ctx, "x:step", piece)); err != nil {
				return "", err
			}
		}
		return "Hello you", nil
	})
	worker.Handle(wk, "gated", func(ctx context.Context, in asked) (string, error) {
		n := w.executed.Add(1)
		select {
		case <-w.gate:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		return fmt.Sprint("answer ", n), nil
	})
	worker.Handle(wk, "fails", func(ctx context.Context, in asked) (string, error) {
		return "", perdure.Permanent(worker.Fail("no_luck", "it did not work"))
	})
	worker.Agent(wk, "pays", func(ctx *agent.Context, in asked) (string, error) {
		said := ""
		for _, who := range []string{"Ada", "Bob"} {
			v, err := agent.Approve(ctx, agent.Approval{Name: "pay_" + who, Title: "Pay?",
				Action: map[string]string{"to": who}})
			if err != nil {
				return "", err
			}
			said += fmt.Sprintf("%s %v %s. ", who, v.Approved, v.Comment)
		}
		return said, nil
	})
	w.Work(wk)
	t.Cleanup(func() { close(w.gate) })
	eventuallyServed(w)
	return w
}

// eventuallyServed waits until the worker has announced its kinds.
func eventuallyServed(w *world) {
	for _, kind := range []string{"talk", "gated", "fails", "pays"} {
		for {
			if _, err := w.C.Kind(w.Ctx, kind); err == nil {
				break
			} else if w.Ctx.Err() != nil {
				w.T.Fatal(err)
			}
		}
	}
}

type obj = map[string]any

// do makes a call of the door. Headers are given as name and value in turn.
func (w *world) do(method, path, body string, headers ...string) (status int, text string, h http.Header) {
	w.T.Helper()
	req, err := http.NewRequestWithContext(w.Ctx, method, w.URL+"/doors/openai/v1"+path, strings.NewReader(body))
	if err != nil {
		w.T.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.key)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.T.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.T.Fatalf("%s %s: the answer broke off: %v", method, path, err)
	}
	return res.StatusCode, string(b), res.Header
}

// is makes a call that succeeds, and returns its answer.
func (w *world) is(method, path, body string, headers ...string) obj {
	w.T.Helper()
	status, text, _ := w.do(method, path, body, headers...)
	out := obj{}
	if err := json.Unmarshal([]byte(text), &out); status != 200 || err != nil {
		w.T.Fatalf("%s %s %s = %d %s, want 200", method, path, body, status, text)
	}
	return out
}

// outputText is the text of all messages of a response.
func outputText(r obj) (text string) {
	for _, x := range r["output"].([]any) {
		x := x.(obj)
		if x["type"] == "message" {
			for _, p := range x["content"].([]any) {
				text += p.(obj)["text"].(string)
			}
		}
	}
	return text
}

// events parses a stream.
func events(t *testing.T, text string) (out []obj) {
	t.Helper()
	for frame := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		_, data, ok := strings.Cut(frame, "data: ")
		e := obj{}
		if err := json.Unmarshal([]byte(data), &e); !ok || err != nil {
			t.Fatalf("frame %q: %v", frame, err)
		}
		out = append(out, e)
	}
	return out
}

// runOf is the run of a response.
func runOf(id any) perdure.RunID {
	h := strings.TrimPrefix(id.(string), "resp_")[:32]
	return perdure.RunID(h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:])
}

// A response waits for its run, and repeats what the request said.
func TestResponseWaitsForRun(t *testing.T) {
	w := newWorld(t)
	r := w.is("POST", "/responses", `{"model":"talk","input":"hi","instructions":"be brief","metadata":{"a":"b"},
		"temperature":1,"tools":[{"type":"x"}],"whatever":[1]}`)
	if outputText(r) != "Hello you" || r["status"] != "completed" || r["instructions"] != "be brief" ||
		r["metadata"].(obj)["a"] != "b" || r["model"] != "talk" {
		t.Errorf("response = %v", r)
	}
	run, err := w.C.Get(w.Ctx, runOf(r["id"]))
	if err != nil || run.Metadata["door.ignored"] != "temperature tools" || run.Metadata["a"] != "b" {
		t.Errorf("run = %+v, %v, want the ignored fields and the caller's metadata in its metadata", run, err)
	}
	again := w.is("GET", "/responses/"+r["id"].(string), "")
	if fmt.Sprint(again) != fmt.Sprint(r) {
		t.Errorf("retrieved = %v, want %v", again, r)
	}
	next := w.is("POST", "/responses",
		`{"model":"talk","input":[{"role":"user","content":[{"type":"input_text","text":"and"}]}],
		"previous_response_id":"`+r["id"].(string)+`"}`)
	if next["conversation"].(obj)["id"] != r["conversation"].(obj)["id"] || next["previous_response_id"] != r["id"] {
		t.Errorf("the next response = %v, want it on the thread of %v", next, r["id"])
	}
	talk := w.is("POST", "/responses", `{"model":"talk","input":"3","conversation":"`+
		next["conversation"].(obj)["id"].(string)+`"}`)
	run, err = w.C.Get(w.Ctx, runOf(talk["id"]))
	if err != nil {
		t.Fatal(err)
	}
	page, err := w.C.Messages(w.Ctx, run.ThreadID, 0)
	if err != nil {
		t.Fatal(err)
	}
	said := ""
	for _, m := range page.Messages {
		said += fmt.Sprintf("%s:%s ", m.Role, m.Content)
	}
	if said != `system:"be brief" user:"hi" user:"and" user:"3" ` {
		t.Errorf("the thread has %s", said)
	}
	if list := w.is("GET", "/responses/"+r["id"].(string)+"/input_items", "")["data"].([]any); len(list) != 1 {
		t.Errorf("input items = %v, want one", list)
	}
	models := w.is("GET", "/models", "")["data"].([]any)
	if len(models) != 4 || w.is("GET", "/models/talk", "")["id"] != "talk" {
		t.Errorf("models = %v, want the four kinds", models)
	}
	w.is("DELETE", "/responses/"+r["id"].(string), "")
	if status, _, _ := w.do("GET", "/responses/"+r["id"].(string), ""); status != 404 {
		t.Errorf("a deleted response = %d, want 404", status)
	}
}

// The events of a stream are the same on each replay, and a stream that begins after any of them has
// the rest.
func TestStreamIsFunctionOfLog(t *testing.T) {
	w := newWorld(t)
	status, live, _ := w.do("POST", "/responses", `{"model":"talk","input":"hi","stream":true}`)
	list := events(t, live)
	id := list[0]["response"].(obj)["id"].(string)
	last := list[len(list)-1]
	if status != 200 || last["type"] != "response.completed" || outputText(last["response"].(obj)) != "Hello you" {
		t.Fatalf("stream = %d %s", status, live)
	}
	at := "/responses/" + id + "?stream=true"
	if _, again, _ := w.do("GET", at, ""); again != live {
		t.Errorf("replayed = %s, want %s", again, live)
	}
	frames := strings.SplitAfter(live, "\n\n")
	before := 0.0
	for i, e := range list {
		n := e["sequence_number"].(float64)
		if n <= before {
			t.Errorf("event %d has the number %v after %v", i, n, before)
		}
		before = n
		_, rest, _ := w.do("GET", fmt.Sprintf("%s&starting_after=%d", at, int64(n)), "")
		if want := strings.Join(frames[i+1:], ""); rest != want {
			t.Errorf("after %v came %q, want %q", n, rest, want)
		}
	}
}

// A retry gets the run of its first call, also one that overtakes it. A first call always starts a run.
func TestRetryStartsNoSecondRun(t *testing.T) {
	w := newWorld(t)
	post := func(n int, input string) string {
		r := w.is("POST", "/responses", `{"model":"gated","background":true,"input":"`+input+`"}`,
			"X-Stainless-Retry-Count", fmt.Sprint(n))
		return r["id"].(string)
	}
	first := post(0, "a")
	if again := post(1, "a"); again != first {
		t.Errorf("a retry = %s, want %s of its first call", again, first)
	}
	second := post(0, "a")
	if second == first {
		t.Errorf("a second first call got %s of the one before", first)
	}
	if again := post(2, "a"); again != second {
		t.Errorf("a retry after two first calls = %s, want the newest, %s", again, second)
	}
	early := post(1, "b")
	if late := post(0, "b"); late != early {
		t.Errorf("a first call that was overtaken = %s, want %s of its retry", late, early)
	}
	for round := range 5 { // a first call and its retries at once
		input, ids := fmt.Sprint("c", round), sync.Map{}
		var wg sync.WaitGroup
		for n := range 4 {
			wg.Go(func() { ids.Store(post(n, input), true) })
		}
		wg.Wait()
		count := 0
		ids.Range(func(_, _ any) bool { count++; return true })
		if count != 1 {
			t.Errorf("a first call with three retries at once made %d runs, want 1", count)
		}
	}
	var wg sync.WaitGroup
	firsts := sync.Map{}
	const callers = 64 // who say the same at once
	for range callers {
		wg.Go(func() { firsts.Store(post(0, "d"), true) })
	}
	wg.Wait()
	count := 0
	firsts.Range(func(_, _ any) bool { count++; return true })
	if count != callers {
		t.Errorf("%d first calls at once made %d runs, want one each", callers, count)
	}
	keyed := func() any {
		return w.is("POST", "/responses", `{"model":"gated","background":true,"input":"k"}`, "Idempotency-Key",
			"mine")["id"]
	}
	if a, b := keyed(), keyed(); a != b {
		t.Errorf("two calls with the same key are %v and %v, want one", a, b)
	}
}

// An approval ends the response. The answer to it gives the response for what follows.
func TestApprovalEndsResponse(t *testing.T) {
	w := newWorld(t)
	r := w.is("POST", "/responses", `{"model":"pays","input":"go"}`)
	for i, who := range []string{"Ada", "Bob"} {
		list := r["output"].([]any)
		ask := list[len(list)-1].(obj)
		if ask["type"] != "mcp_approval_request" || ask["name"] != "pay_"+who ||
			ask["arguments"] != `{"to":"`+who+`"}` || r["status"] != "completed" {
			t.Fatalf("response = %v, want a request for %s", r, who)
		}
		body := func(previous any, more string) string {
			return fmt.Sprintf(`{"model":"pays","previous_response_id":%q,"input":[{"type":"mcp_approval_response",
				"approval_request_id":%q,"approve":%v,"reason":"r%d"}%s]}`, previous, ask["id"], i == 0, i, more)
		}
		for _, bad := range []string{body(r["id"], `,{"role":"user","content":"x"}`), body("", ""),
			strings.Replace(body(r["id"], ""), ask["id"].(string), "mcpr_x", 1)} {
			if status, text, h := w.do("POST", "/responses", bad); status != 400 || h.Get("X-Should-Retry") != "false" {
				t.Errorf("%s = %d %s, want 400", bad, status, text)
			}
		}
		weak := w.newKey(perdure.ScopeCreate, perdure.ScopeRead)
		if status, text, _ := w.do("POST", "/responses", body(r["id"], ""), "Authorization",
			"Bearer "+weak); status != 403 {
			t.Errorf("a decision without runs:approve = %d %s, want 403", status, text)
		}
		before := r
		r = w.is("POST", "/responses", body(before["id"], ""))
		if r["id"] == before["id"] || runOf(r["id"]) != runOf(before["id"]) {
			t.Errorf("the part after %v is %v", before["id"], r["id"])
		}
		if again := w.is("POST", "/responses", body(before["id"], "")); fmt.Sprint(again) != fmt.Sprint(r) {
			t.Errorf("the same answer again = %v, want %v", again, r)
		}
		if got := w.is("GET", "/responses/"+before["id"].(string), ""); fmt.Sprint(got) != fmt.Sprint(before) {
			t.Errorf("the part before has become %v, want %v", got, before)
		}
	}
	if outputText(r) != "Ada true r0. Bob false r1. " || len(r["output"].([]any)) != 1 {
		t.Errorf("the last part = %v", r)
	}
	for _, end := range []string{"p1", "p999", "p0", "px"} {
		id := "resp_" + strings.ReplaceAll(string(runOf(r["id"])), "-", "") + end
		if status, text, _ := w.do("GET", "/responses/"+id, ""); status != 404 {
			t.Errorf("part %s = %d %s, want 404", end, status, text)
		}
	}
}

// newKey makes a key of another tenant, or of the usual one with some scopes.
func (w *world) newKey(scopes ...perdure.Scope) string { return w.keyOf("default", scopes...) }

func (w *world) keyOf(tenant perdure.TenantID, scopes ...perdure.Scope) string {
	w.T.Helper()
	if len(scopes) == 0 {
		scopes = []perdure.Scope{perdure.ScopeCreate, perdure.ScopeRead, perdure.ScopeControl, perdure.ScopeApprove}
	}
	names := []string{}
	for _, s := range scopes {
		names = append(names, string(s))
	}
	k, err := admin.New(w.C).CreateTenantKey(w.Ctx, tenant, api.CreateKey{Name: "k", Scopes: names})
	if err != nil {
		w.T.Fatal(err)
	}
	return k.Secret
}

// Refusals have OpenAI's shape, and no status that a client retries.
func TestRefusalsAreNotRetried(t *testing.T) {
	w := newWorld(t)
	live := w.is("POST", "/responses", `{"model":"gated","background":true,"input":"x"}`)["id"].(string)
	for _, x := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"POST", "/responses", `{"model":"nobody","input":"x"}`, 404, "model_not_found"},
		{"POST", "/responses", `{"input":"x"}`, 404, "model_not_found"}, // no supervisor here
		{"POST", "/responses", `{"model":"talk"}`, 400, "invalid"},
		{"POST", "/responses", `{"model":"talk","input":" "}`, 400, "invalid"},
		{"POST", "/responses", `{"model":"talk","input":{}}`, 400, "invalid"},
		{"POST", "/responses", `{"model":7,"input":"x"}`, 400, "invalid"},
		{"POST", "/responses", `{"model":"talk","input":"x","metadata":{"a":1}}`, 400, "invalid"},
		{"POST", "/responses", `{"model":"talk","input":"a\u0000b"}`, 400, "invalid"},
		{"POST", "/responses", `{"model":"talk","input":"x","previous_response_id":"resp_x"}`, 404, "not_found"},
		{"POST", "/responses", `{"model":"talk","input":"x","conversation":"conv_x"}`, 404, "not_found"},
		{"GET", "/responses/resp_x", "", 404, "not_found"},
		{"GET", "/responses/" + live + "?stream=true&starting_after=x", "", 400, "invalid"},
		{"DELETE", "/responses/" + live, "", 400, "wrong_state"},
		{"PUT", "/responses", `{}`, 404, "method_not_allowed"},
		{"GET", "/nothing", "", 404, "not_found"},
		{"GET", "/models/nobody", "", 404, "model_not_found"},
		{"POST", "/chat/completions", `{"model":"talk"}`, 400, "invalid"},
	} {
		status, text, h := w.do(x.method, x.path, x.body)
		var out struct {
			Error struct{ Message, Type, Code string }
		}
		if err := json.Unmarshal([]byte(text), &out); err != nil || status != x.status || out.Error.Code != x.code ||
			out.Error.Message == "" || h.Get("X-Should-Retry") != "false" {
			t.Errorf("%s %s %s = %d %s, want %d %s, not to be retried", x.method, x.path, x.body, status, text,
				x.status,
				x.code)
		}
	}
	if r := w.is("POST", "/responses/"+live+"/cancel", ""); r["id"] != live {
		t.Errorf("cancel = %v", r)
	}
	if run := w.End(runOf(live)); run.State != perdure.Cancelled {
		t.Errorf("the run is %s, want cancelled", run.State)
	}
	if r := w.is("POST", "/responses/"+live+"/cancel", ""); r["status"] != "cancelled" {
		t.Errorf("cancel of a cancelled response = %v", r)
	}
	log, err := admin.New(w.C).Audit(w.Ctx, admin.AuditFilter{})
	if err != nil || len(log.Entries) == 0 {
		t.Fatal(log, err)
	}
	for _, e := range log.Entries {
		if strings.Contains(e.Action, "cancel") && !strings.HasPrefix(e.Remote, "127.0.0.1") {
			t.Errorf("the audit log has the address %q of a call by the door, want the caller's", e.Remote)
		}
	}
	if r := w.is("POST", "/responses", `{"model":"fails","input":"x"}`); r["status"] != "failed" ||
		r["error"].(obj)["code"] != "no_luck" {
		t.Errorf("a run that failed = %v", r)
	}
}

// An id of another tenant can't be told from one that nobody has.
func TestOtherTenantsResponseIsUnknown(t *testing.T) {
	w := newWorld(t)
	theirs := w.is("POST", "/responses", `{"model":"talk","input":"x"}`)
	none := "resp_" + strings.Repeat("0", 32)
	foreign := w.keyOf("other")
	for _, x := range []struct{ method, path, body string }{
		{"GET", "/responses/%s", ""}, {"GET", "/responses/%s?stream=true", ""}, {"DELETE", "/responses/%s", ""},
		{"POST", "/responses/%s/cancel", ""}, {"GET", "/responses/%s/input_items", ""},
		{"POST", "/responses", `{"model":"m","input":[{"type":"mcp_approval_response"}],"previous_response_id":"%s"}`},
	} {
		ask := func(id string) string {
			body, path := x.body, x.path
			if body != "" {
				body = fmt.Sprintf(body, id)
			} else {
				path = fmt.Sprintf(path, id)
			}
			status, text, _ := w.do(x.method, path, body, "Authorization", "Bearer "+foreign)
			return fmt.Sprint(status, strings.ReplaceAll(text, id, "ID"))
		}
		a, b := ask(theirs["id"].(string)), ask(none)
		if a = strings.ReplaceAll(a, string(runOf(theirs["id"])), "RUN"); a != strings.ReplaceAll(b,
			string(runOf(none)), "RUN") ||
			!strings.HasPrefix(a, "404") {
			t.Errorf("%s %s of another tenant = %s, of an unknown id %s", x.method, x.path, a, b)
		}
	}
}

// Programs that speak nothing but chat completions get a run, too.
func TestChatCompletion(t *testing.T) {
	w := newWorld(t)
	body := `{"model":"talk","messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"}]%s}`
	status, text, h := w.do("POST", "/chat/completions", fmt.Sprintf(body, ""))
	if status != 200 || !strings.Contains(text, `"content":"Hello you"`) || h.Get("X-Perdure-Run-Id") == "" {
		t.Errorf("completion = %d %s", status, text)
	}
	again, _, h2 := w.do("POST", "/chat/completions", fmt.Sprintf(body, ""), "X-Stainless-Retry-Count", "1")
	if again != 200 || h2.Get("X-Perdure-Run-Id") != h.Get("X-Perdure-Run-Id") {
		t.Errorf("a retry made the run %s, want %s", h2.Get("X-Perdure-Run-Id"), h.Get("X-Perdure-Run-Id"))
	}
	_, text, _ = w.do("POST", "/chat/completions", fmt.Sprintf(body, `,"stream":true`))
	said := ""
	for frame := range strings.SplitSeq(strings.TrimSuffix(text, "data: [DONE]\n\n"), "\n\n") {
		var c struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if data, ok := strings.CutPrefix(frame, "data: "); ok {
			if err := json.Unmarshal([]byte(data), &c); err != nil {
				t.Fatal(frame, err)
			}
			said += c.Choices[0].Delta.Content
		}
	}
	if said != "Hello you" || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Errorf("streamed completion %q in %s", said, text)
	}
	if _, text, _ = w.do("POST", "/chat/completions",
		`{"model":"fails","stream":true,"messages":[{"role":"user","content":"x"}]}`); !strings.Contains(text,
		"no_luck") {
		t.Errorf("a run that failed = %s", text)
	}
}
