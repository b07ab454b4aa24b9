package langgraph_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/worker"
)

type object = map[string]any

// A world is a server with the door, and a worker with agents.
type world struct {
	*servertest.Server
	url, key string
	http     *http.Client
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, embedded.Options{})
}

func newWorldOn(t *testing.T, opt embedded.Options) *world {
	t.Helper()
	opt.Doors, opt.WebhookAllow = []string{"langgraph"}, []string{"127.0.0.0/8"}
	w := &world{Server: servertest.Open(t, opt)}
	front := httptest.NewServer(w.Live().Handler())
	t.Cleanup(front.Close)
	t.Cleanup(front.CloseClientConnections)
	w.url, w.key, w.http = front.URL, w.Live().Key(), http.DefaultClient
	w.work()
	return w
}

// work runs a worker with agents until the test ends.
func (w *world) work() {
	w.T.Helper()
	wk := worker.New(w.Client(), worker.Options{DrainTimeout: -1})
	worker.Agent(wk, "echo", func(ctx *agent.Context, _ map[string]any) (map[string]any, error) {
		for _, piece := range []string{"hel", "lo"} {
			if err := agent.Delta(ctx, piece); err != nil {
				return nil, err
			}
		}
		if err := agent.Emit(ctx, "x:note", map[string]int{"n": 1}); err != nil {
			return nil, err
		}
		return map[string]any{"answer": 42}, agent.Message(ctx, perdure.RoleAssistant, "hello")
	})
	ask := func(ctx *agent.Context) (string, error) {
		v, err := agent.Approve(ctx, agent.Approval{Name: "shell", Title: "execute rm",
			Action: map[string]string{"program": "rm"}})
		return fmt.Sprintf("approved: %t", v.Approved), err
	}
	worker.Agent(wk, "asker", func(ctx *agent.Context, _ map[string]any) (string, error) {
		text, err := ask(ctx)
		if err == nil {
			err = agent.Message(ctx, perdure.RoleAssistant, text)
		}
		return text, err
	})
	worker.Agent(wk, "low", func(ctx *agent.Context, _ any) (string, error) { return ask(ctx) })
	worker.Agent(wk, "middle", func(ctx *agent.Context, _ any) (string, error) {
		return agent.Spawn[string](ctx, "low", nil, agent.Options{Class: perdure.Agent}).Join(ctx)
	})
	worker.Agent(wk, "boss", func(ctx *agent.Context, _ map[string]any) (string, error) {
		text, err := agent.Spawn[string](ctx, "middle", nil, agent.Options{Class: perdure.Agent}).Join(ctx)
		if err == nil {
			err = agent.Message(ctx, perdure.RoleAssistant, text)
		}
		return text, err
	})
	worker.Handle(wk, "plain", func(context.Context, any) (map[string]int, error) {
		return map[string]int{"answer": 42}, nil
	})
	worker.Agent(wk, "broken", func(*agent.Context, map[string]any) (string, error) {
		return "", perdure.Permanent(fmt.Errorf("it broke"))
	})
	worker.Agent(wk, "signals", func(ctx *agent.Context, _ map[string]any) (map[string]string, error) {
		a, b := agent.OnSignal[string](ctx, "a"), agent.OnSignal[string](ctx, "b")
		both := []agent.Awaitable{a, b}
		first, err := agent.Select(ctx, both...)
		if err == nil {
			_, err = agent.Select(ctx, both[1-first])
		}
		if err != nil {
			return nil, err
		}
		said, err := a.Result()
		if err != nil {
			return nil, err
		}
		more, err := b.Result()
		return map[string]string{"a": said, "b": more}, err
	})
	worker.Agent(wk, "sleeper", func(ctx *agent.Context, _ map[string]any) (string, error) {
		return "woken", agent.Sleep(ctx, 1<<50)
	})
	worker.Agent(wk, "asks later", func(ctx *agent.Context, _ map[string]any) (string, error) {
		if err := agent.Sleep(ctx, 3*time.Second); err != nil {
			return "", err
		}
		return ask(ctx)
	})
	w.Work(wk)
}

// do makes a call. A body that is no text is sent as JSON.
func (w *world) do(method, path string, body any, headers ...string) (status int, text string, h http.Header) {
	w.T.Helper()
	raw, is := body.(string)
	if !is && body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			w.T.Fatal(err)
		}
		raw = string(b)
	}
	res := w.open(method, path, raw, headers...)
	defer res.Body.Close()
	return res.StatusCode, w.read(res), res.Header
}

// open makes a call, and returns when the answer begins.
func (w *world) open(method, path, body string, headers ...string) *http.Response {
	w.T.Helper()
	req, err := http.NewRequestWithContext(w.Ctx, method, w.url+"/doors/langgraph"+path, strings.NewReader(body))
	if err != nil {
		w.T.Fatal(err)
	}
	req.Header.Set("X-Api-Key", w.key)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := w.http.Do(req)
	if err != nil {
		w.T.Fatal(err)
	}
	return res
}

// read reads an answer to its end.
func (w *world) read(res *http.Response) string {
	w.T.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.T.Fatalf("%s %s: the answer broke off: %v", res.Request.Method, res.Request.URL.Path, err)
	}
	return string(b)
}

// get makes a call that has to succeed, and reads its answer.
func (w *world) get(method, path string, body any) (out map[string]any) {
	w.T.Helper()
	status, text, _ := w.do(method, path, body)
	if status != 200 {
		w.T.Fatalf("%s %s = %d %s, want 200", method, path, status, text)
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		w.T.Fatalf("%s %s = %s: %v", method, path, text, err)
	}
	return out
}

// thread creates a thread, and returns its id.
func (w *world) thread() string {
	w.T.Helper()
	return w.get("POST", "/threads", object{})["thread_id"].(string)
}

func (w *world) kinds() {
	w.T.Helper()
	// The worker announces them as it starts.
	for _, kind := range []string{"echo", "asker", "boss", "broken", "sleeper", "signals", "plain", "asks later"} {
		for {
			if _, err := w.Client().Kind(w.Ctx, kind); err == nil {
				break
			} else if w.Ctx.Err() != nil {
				w.T.Fatal(err)
			}
		}
	}
}

func hello(kind string, more ...object) object {
	out := object{"assistant_id": kind,
		"input": object{"messages": []object{{"role": "user", "content": "hi", "id": "m1"}}}}
	for _, m := range more {
		for name, v := range m {
			out[name] = v
		}
	}
	return out
}

// A sentEvent is a frame as it arrived.
type sentEvent struct{ id, event, data string }

func events(text string) (out []sentEvent) {
	var e sentEvent
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case strings.HasPrefix(line, "id: "):
			e.id = line[4:]
		case strings.HasPrefix(line, "event: "):
			e.event = line[7:]
		case strings.HasPrefix(line, "data: "):
			e.data = line[6:]
		case line == "" && e.event != "":
			out, e = append(out, e), sentEvent{}
		}
	}
	return out
}

// A client streams a run, attaches again after each frame, and gets the rest of the same bytes. The state
// and the history of the thread have the values.
func TestRunIsStreamedAndResumedAtEveryFrame(t *testing.T) {
	w := newWorld(t)
	w.kinds()
	th := w.thread()
	all := []string{"values", "updates", "messages", "messages-tuple", "custom"}
	status, whole, h := w.do("POST", "/threads/"+th+"/runs/stream", hello("echo", object{"stream_mode": all,
		"metadata": object{"a": 1, "deep": object{"b": []int{1}}}, "on_disconnect": "cancel", "unknown": 1,
		"webhook": "http://127.0.0.1:9/"}))
	if status != 200 {
		t.Fatalf("stream = %d %s", status, whole)
	}
	run := strings.TrimPrefix(h.Get("Content-Location"), "/threads/"+th+"/runs/")
	query := "?stream_mode=custom&stream_mode=messages&stream_mode=messages-tuple&stream_mode=updates" +
		"&stream_mode=values"
	if h.Get("Location") != "/threads/"+th+"/runs/"+run+"/stream"+query || len(run) != 36 {
		t.Errorf("Content-Location = %q, Location = %q", h.Get("Content-Location"), h.Get("Location"))
	}
	list := events(whole)
	var names []string
	for _, e := range list {
		names = append(names, e.event)
	}
	got := strings.Join(names, " ")
	for _, want := range []string{"metadata ", " messages ", "messages/metadata", "messages/partial", "custom",
		"updates", "messages/complete"} {
		if !strings.Contains(got, want) {
			t.Errorf("events = %s, want %s among them", got, want)
		}
	}
	last := list[len(list)-1]
	for _, want := range []string{`"type":"human"`, `"id":"m1"`, `"content":"hello"`, `"answer":42`} {
		if last.event != "values" || !strings.Contains(last.data, want) {
			t.Errorf("the last frame = %s %s, want values with %s", last.event, last.data, want)
		}
	}
	for i, e := range list {
		_, rest, _ := w.do("GET", h.Get("Location"), nil, "Last-Event-ID", e.id)
		if want := list[i+1:]; fmt.Sprint(events(rest)) != fmt.Sprint(want) {
			t.Errorf("after frame %s: %v, want %v", e.id, events(rest), want)
		}
	}
	shown := w.get("GET", "/threads/"+th+"/runs/"+run, nil)
	if fmt.Sprint(shown["metadata"]) != "map[a:1 deep:map[b:[1]]]" || shown["status"] != "success" {
		t.Errorf("run = %v, want its metadata as sent, and success", shown)
	}
	r, err := w.Client().Get(w.Ctx, perdure.RunID(run))
	if err != nil || r.Metadata["door.ignored"] != "on_disconnect" || r.Metadata["a"] != "1" {
		t.Errorf("metadata of the run = %v (%v), want on_disconnect ignored", r.Metadata, err)
	}
	if want := perdure.RunWebhookID("default", "http://127.0.0.1:9/", perdure.FormatLangGraph); r.WebhookID != want {
		t.Errorf("webhook of the run = %s, want %s, which has the form of LangGraph", r.WebhookID, want)
	}
	state := w.get("GET", "/threads/"+th+"/state", nil)
	if fmt.Sprint(state["values"].(object)["answer"]) != "42" || len(state["next"].([]any)) != 0 {
		t.Errorf("state = %v", state)
	}
	state = w.get("GET", "/threads/"+th+"/state?select=values.messages&select=next&select=none", nil)
	if values := state["values"].(object); len(state) != 2 || len(values) != 1 || len(values["messages"].([]any)) != 2 {
		t.Errorf("selected state = %v, want its messages and next alone", state)
	}
	if state = w.get("GET", "/threads/"+th+"/state?select=%5B%22checkpoint%22%5D", nil); len(state) != 1 {
		t.Errorf("selected state = %v, want the checkpoint alone", state)
	}
	for path, want := range map[string]string{"/threads/" + th + "/history": `[{"values":{"answer":42}}]`,
		"/threads/search": `[{"status":"idle"}]`} {
		names := []string{"values.answer"}
		if path == "/threads/search" {
			names = []string{"status"}
		}
		if _, got, _ := w.do("POST", path, object{"select": names}); strings.TrimSpace(got) != want {
			t.Errorf("%s with select %v = %s, want %s", path, names, got, want)
		}
	}
	if _, got, _ := w.do("GET", "/threads/"+th+"/runs?select=status", nil); strings.TrimSpace(got) !=
		`[{"status":"success"}]` {
		t.Errorf("runs with select = %s, want their status alone", got)
	}
	_, text, _ := w.do("POST", "/threads/"+th+"/history", object{"limit": 5})
	if !strings.Contains(text, `"checkpoint_id":"`+run+`"`) || !strings.Contains(text, `"answer":42`) {
		t.Errorf("history = %s", text)
	}
}

// A caller waits for a run and gets its values, its error, or what it asks.
func TestWaitAnswersWithValuesOrError(t *testing.T) {
	w := newWorld(t)
	w.kinds()
	got := w.get("POST", "/threads/"+w.thread()+"/runs/wait", hello("echo"))
	if fmt.Sprint(got["answer"]) != "42" || len(got["messages"].([]any)) != 2 {
		t.Errorf("wait = %v, want the answer and two messages", got)
	}
	got = w.get("POST", "/runs/wait", hello("broken"))
	if !strings.Contains(fmt.Sprint(got["__error__"]), "it broke") {
		t.Errorf("wait for a broken run = %v", got)
	}
	got = w.get("POST", "/runs/wait", hello("plain", object{"input": nil}))
	if fmt.Sprint(got["answer"]) != "42" {
		t.Errorf("stateless wait = %v", got)
	}
}

// A run that asks, itself or two levels below, ends its stream with the interrupt. A resume takes the
// scope of approvals, and is a run of its own, which has the rest.
func TestInterruptIsAnsweredByResume(t *testing.T) {
	w := newWorld(t)
	w.kinds()
	platform := w.key
	weak := w.tenantKey(perdure.ScopeCreate, perdure.ScopeRead)
	strong := w.tenantKey(perdure.ScopeCreate, perdure.ScopeRead, perdure.ScopeApprove, perdure.ScopeControl)
	for _, kind := range []string{"asker", "boss"} {
		w.key = platform
		th := w.thread()
		_, text, h := w.do("POST", "/threads/"+th+"/runs/stream", hello(kind))
		list := events(text)
		last := list[len(list)-1]
		if !strings.Contains(last.data, `"__interrupt__":[{"id":"apv_`) || !strings.Contains(last.data, "execute rm") {
			t.Fatalf("%s: the last frame = %s %s, want the interrupt", kind, last.event, last.data)
		}
		first := h.Get("Content-Location")
		if got := w.get("GET", first, nil)["status"]; got != "interrupted" {
			t.Errorf("%s: status = %s, want interrupted", kind, got)
		}
		state := fmt.Sprint(w.get("GET", "/threads/"+th+"/state", nil)["tasks"])
		got := w.get("GET", "/threads/"+th, nil)["status"]
		if got != "interrupted" || !strings.Contains(state, "execute rm") {
			t.Errorf("%s: thread = %s, tasks = %s", kind, got, state)
		}
		if _, found, _ := w.do("POST", "/threads/search", `{"status":"interrupted"}`); !strings.Contains(found, th) {
			t.Errorf("%s: interrupted threads = %s, want %s among them", kind, found, th)
		}
		yes := object{"assistant_id": kind, "command": object{"resume": true}}
		w.key = weak
		if status, text, _ := w.do("POST", "/threads/"+th+"/runs/wait", yes); status != 403 {
			t.Errorf("%s: a resume without the scope = %d %s, want 403", kind, status, text)
		}
		w.key = strong
		unknown := object{"assistant_id": kind, "strict_resume": true,
			"command": object{"resume": object{"apv_x": true}}}
		if status, text, _ := w.do("POST", "/threads/"+th+"/runs/wait", unknown); status != 422 ||
			!strings.Contains(text, "UnknownInterruptError") {
			t.Errorf("%s: an answer to nothing = %d %s, want 422", kind, status, text)
		}
		status, text, h := w.do("POST", "/threads/"+th+"/runs/stream", yes)
		rest := events(text)
		if status != 200 || len(rest) == 0 || !strings.Contains(rest[len(rest)-1].data, "approved: true") {
			t.Fatalf("%s: the resumed stream = %d %s", kind, status, text)
		}
		part := h.Get("Content-Location")
		if part == first || !strings.Contains(rest[0].data, part[strings.LastIndex(part, "/")+1:]) {
			t.Errorf("%s: the part is %s, and its first frame %s", kind, part, rest[0].data)
		}
		if _, again, _ := w.do("GET", part+"/stream", nil); again != text {
			t.Errorf("%s: the part again = %s, want %s", kind, again, text)
		}
		if got := w.get("GET", part+"/join", nil); !strings.Contains(fmt.Sprint(got["messages"]), "approved: true") {
			t.Errorf("%s: join of the part = %v", kind, got)
		}
	}
}

// tenantKey makes a key of the tenant with some scopes.
func (w *world) tenantKey(scopes ...perdure.Scope) string {
	w.T.Helper()
	var words []string
	for _, s := range scopes {
		words = append(words, string(s))
	}
	k, err := admin.New(w.Client()).CreateTenantKey(w.Ctx, embedded.DefaultTenant,
		api.CreateKey{Name: "k", Scopes: words})
	if err != nil {
		w.T.Fatal(err)
	}
	return k.Secret
}

// Cancelling has the statuses of the protocol, and a thread takes one run at a time.
func TestCancelAndBusyThread(t *testing.T) {
	w := newWorld(t)
	w.kinds()
	for i, how := range []struct {
		query  string
		status int
	}{{"?wait=0", 202}, {"?wait=1&action=rollback", 204}, {"?wait=1&reason=taken", 204}, {"?wait=x", 400},
		{"?action=x", 400}} {
		th := w.thread()
		run := w.get("POST", "/threads/"+th+"/runs", hello("sleeper"))["run_id"].(string)
		if i == 0 {
			if status, text, _ := w.do("POST", "/threads/"+th+"/runs", hello("sleeper")); status != 422 {
				t.Errorf("a second run = %d %s, want 422", status, text)
			}
		}
		if status, text, _ := w.do("POST", "/threads/"+th+"/runs/"+run+"/cancel"+how.query, nil); status != how.status {
			t.Errorf("cancel%s = %d %s, want %d", how.query, status, text, how.status)
		}
		if how.status == 204 {
			got := w.get("GET", "/threads/"+th+"/runs/"+run, nil)
			taken := how.query == "?wait=1&reason=taken"
			if got["status"] != "interrupted" || taken && got["cancel_reason"] != "taken:interrupt" {
				t.Errorf("after cancel%s: %v", how.query, got)
			}
		}
	}
}

// Threads are created under the caller's ids, found, changed and removed.
func TestThreadsAndAssistants(t *testing.T) {
	w := newWorld(t)
	w.kinds()
	const id = "0b2f9a52-6a58-4d43-9d2c-0a4d6a1f3c11"
	in := object{"thread_id": id, "metadata": object{"user": "ada"}}
	if got := w.get("POST", "/threads", in); got["thread_id"] != id || got["status"] != "idle" {
		t.Errorf("thread = %v", got)
	}
	if status, _, _ := w.do("POST", "/threads", in); status != 409 {
		t.Errorf("the same again = %d, want 409", status)
	}
	in["if_exists"] = "do_nothing"
	if got := w.get("POST", "/threads", in); got["thread_id"] != id {
		t.Errorf("do_nothing = %v", got)
	}
	if got := w.get("PATCH", "/threads/"+id, object{"metadata": object{"b": 2}}); fmt.Sprint(got["metadata"]) !=
		"map[b:2 user:ada]" {
		t.Errorf("changed = %v", got["metadata"])
	}
	for search, want := range map[string]int{`{"metadata":{"user":"ada"}}`: 1, `{"metadata":{"user":"bob"}}`: 0,
		`{"status":"idle"}`: 1, `{"status":"busy"}`: 0, `{"ids":["` + id + `","x"]}`: 1,
		`{"status":"idle","metadata":{"b":2,"user":"ada"}}`: 1, `{"metadata":{"b":"2"}}`: 0,
		`{"metadata":{"b":2,"deep":{}}}`: 0} {
		_, text, _ := w.do("POST", "/threads/search", search)
		if strings.Count(text, `"thread_id"`) != want {
			t.Errorf("search %s = %s, want %d", search, text, want)
		}
	}
	if status, text, _ := w.do("POST", "/threads/search", `{"status":"asleep"}`); status != 422 {
		t.Errorf("search by an unknown status = %d %s, want 422", status, text)
	}
	if status, text, _ := w.do("POST", "/threads/"+id+"/state", object{"values": object{"messages": []object{
		{"type": "human", "content": "by state"}}}}); status != 200 {
		t.Errorf("state = %d %s", status, text)
	}
	if status, _, _ := w.do("POST", "/threads/"+id+"/state", object{"values": object{"x": 1}}); status != 422 {
		t.Errorf("other values = %d, want 422", status)
	}
	if got := fmt.Sprint(w.get("GET", "/threads/"+id, nil)["values"]); !strings.Contains(got, "by state") {
		t.Errorf("values = %s", got)
	}
	copied := w.get("POST", "/threads/"+id+"/copy", nil)
	if got := w.get("GET", "/threads/"+copied["thread_id"].(string), nil); copied["thread_id"] == id ||
		!strings.Contains(fmt.Sprint(got["values"]), "by state") || fmt.Sprint(got["metadata"]) != "map[b:2 user:ada]" {
		t.Errorf("the copy = %v, want a thread of its own with the message and the metadata", got)
	}
	if status, text, _ := w.do("DELETE", "/threads/"+id, nil); status != 204 || text != "" {
		t.Errorf("delete = %d %s", status, text)
	}
	if status, _, _ := w.do("GET", "/threads/"+id, nil); status != 404 {
		t.Errorf("after it: %d, want 404", status)
	}
	for path, want := range map[string]string{"/runs/crons": "schedule", "/store/items/search": "database of yours"} {
		if status, text, _ := w.do("POST", path, "{}"); status != 404 || !strings.Contains(text, want) {
			t.Errorf("POST %s = %d %s, want 404 and a word about %q", path, status, text, want)
		}
	}
	a := w.get("GET", "/assistants/echo", nil)
	b := w.get("GET", "/assistants/046b5dc7-2108-582c-9c6c-31d556d138f0", nil)
	if a["assistant_id"] != b["assistant_id"] || a["graph_id"] != "echo" {
		t.Errorf("by name %v, by id %v", a, b)
	}
}

// The ids of another tenant are answered like unknown ids, byte for byte.
func TestAnotherTenantSeesNothing(t *testing.T) {
	w := newWorld(t)
	w.kinds()
	const mine = "0b2f9a52-6a58-4d43-9d2c-0a4d6a1f3c12"
	w.get("POST", "/threads", object{"thread_id": mine})
	th := w.thread()
	run := w.get("POST", "/threads/"+th+"/runs", hello("sleeper"))["run_id"].(string)
	k, err := admin.New(w.Client()).CreateTenantKey(context.Background(), "other", api.CreateKey{Name: "o",
		Scopes: []string{"runs:create", "runs:read", "runs:control", "runs:approve"}})
	if err != nil {
		t.Fatal(err)
	}
	w.key = k.Secret
	const none = "0b2f9a52-6a58-4d43-9d2c-0a4d6a1f3c13"
	for _, x := range []struct{ method, foreign, unknown string }{
		{"GET", "/threads/" + mine, "/threads/" + none},
		{"GET", "/threads/" + th, "/threads/" + none},
		{"GET", "/threads/" + th + "/state", "/threads/" + none + "/state"},
		{"DELETE", "/threads/" + th, "/threads/" + none},
		{"PATCH", "/threads/" + mine, "/threads/" + none},
		{"GET", "/threads/" + mine + "/stream", "/threads/" + none + "/stream"},
		{"GET", "/threads/" + th + "/stream", "/threads/" + none + "/stream"},
		{"POST", "/threads/" + mine + "/history", "/threads/" + none + "/history"},
		{"POST", "/threads/" + mine + "/state", "/threads/" + none + "/state"},
		{"GET", "/threads/" + th + "/runs", "/threads/" + none + "/runs"},
		{"GET", "/threads/" + th + "/runs/" + run, "/threads/" + none + "/runs/" + none},
		{"DELETE", "/threads/" + th + "/runs/" + run, "/threads/" + none + "/runs/" + none},
		{"POST", "/threads/" + mine + "/copy", "/threads/" + none + "/copy"},
		{"GET", "/runs/" + run, "/runs/" + none},
		{"GET", "/threads/" + th + "/runs/" + run + "/stream", "/threads/" + none + "/runs/" + none + "/stream"},
		{"POST", "/runs/" + run + "/cancel", "/runs/" + none + "/cancel"},
		{"GET", "/runs/" + run + "/join", "/runs/" + none + "/join"},
	} {
		s1, a, _ := w.do(x.method, x.foreign, nil)
		s2, b, _ := w.do(x.method, x.unknown, nil)
		if s1 != 404 || s1 != s2 || a != b {
			t.Errorf("%s %s = %d %s, of nothing %d %s", x.method, x.foreign, s1, a, s2, b)
		}
	}
}
