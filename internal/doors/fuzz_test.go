package doors_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/langgraph"
	"github.com/perdure/perdure/internal/doors/openai"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/worker"
)

// A fuzzed door has the words that the bodies of its calls are made of.
type fuzzed struct {
	door   *doors.Door
	fields []string
	// usual are values of fields that are mostly there.
	usual map[string][]string
	words []string
	// lists are patterns of routes whose body is a list of bodies.
	lists []string
	// header makes the door answer with its headers at once.
	header [2]string
}

// odd are values that no field takes, or few.
var odd = []string{`null`, `1`, `-1`, `0`, `1e99`, `"x"`, `""`, `[]`, `{}`, `[1]`, `{"a":[{}]}`, `true`, `"\ud800"`,
	`"\u0000"`, `[[[[[[]]]]]]`, `{"a":"b"}`, `{"":1}`, `{"a":"\u0000"}`, `{"door.x":"y","b":null}`, `"mine"`,
	`["mine"]`}

var fuzzedDoors = []fuzzed{
	{door: langgraph.Door(langgraph.Options{}),
		fields: []string{"input", "command", "config", "metadata", "stream_mode", "multitask_strategy", "after_seconds",
			"checkpoint", "webhook", "limit", "offset", "before", "ids", "status", "values", "thread_id", "if_exists",
			"supersteps", "run_ids", "graph_id", "if_not_exists", "strict_resume", "on_disconnect", "select", "name"},
		usual: map[string][]string{"assistant_id": {`"idle"`, `"idle"`, `"idle"`, `"nobody"`, `7`, `null`, `"\u0000"`},
			"if_not_exists": {`"create"`, `"create"`, `"reject"`, `7`},
			"input": {`{"messages":[{"role":"user","content":"hi"}]}`, `{"messages":[7]}`, `{"messages":"hi"}`,
				`"\u0000"`,
				`{"messages":{"content":{}}}`, `{"messages":[{"type":"human","content":"hi"},7]}`,
				`{"messages":[],"x":1}`}},
		words: []string{`{"decisions":[{}]}`, `{"messages":[{"type":"human","content":"hi"}]}`,
			`{"messages":[{"type":"human","content":"hi"},{"type":"ai","content":"\u0000"}]}`,
			`{"messages":[{"type":"human","content":"hi"},{"type":"ai","content":{"a":"\u0000"},"id":"\ud800"}]}`,
			`{"resume":true}`, `{"resume":"edit"}`, `{"resume":{"apv_1":true}}`, `"create"`, `"do_nothing"`, `"values"`,
			`["values","updates",7]`, `"enqueue"`, `"rollback"`, `"cancel"`, `"all"`, `"busy"`,
			`"http://127.0.0.1:1/x"`,
			`"/path"`, `"http://10.0.0.1/x"`, `"http://[::1"`},
		lists: []string{"/runs/batch"}},
	{door: openai.Door(),
		fields: []string{"instructions", "metadata", "background", "stream", "previous_response_id", "conversation",
			"stream_options", "tools", "text", "include", "temperature"},
		usual: map[string][]string{"model": {`"idle"`, `"idle"`, `"idle"`, `"nobody"`, `7`, `null`, `"\u0000"`},
			"input": {`"hi"`, `[{"role":"user","content":"hi"}]`, `[{"role":"user","content":[{"type":"input_text",` +
				`"text":"x"},{"type":"input_text","text":"\u0000"}]}]`, `[{"type":"mcp_approval_response"}]`, `[7]`,
				`[{"content":{"a":"\u0000"}}]`, `[{"role":7}]`, `"\u0000"`, `{}`},
			"messages": {`[{"role":"user","content":"hi"}]`, `[{"role":"user"}]`, `[7]`, `"hi"`, `[]`,
				`[{"role":"assistant","content":"\u0000"}]`, `[{"role":"x","content":[{"type":"text","text":7}]}]`}},
		words: []string{`"resp_0"`, `"conv_0"`, `{"id":"conv_0"}`, `false`, `{"include_usage":true}`,
			`"conv_00000000000000000000000000000000"`, `{"a":"b","c":"d"}`},
		header: [2]string{"X-Stainless-Retry-Count", "2"}},
}

// A fuzzWorld is a server with a few runs and threads, which refused calls leave as they are.
type fuzzWorld struct {
	*servertest.Server
	url   string
	dice  *rand.Rand
	asks  *api.Run // it waits for an approval
	ended perdure.RunID
	state string
}

func newFuzzWorld(t *testing.T, f *fuzzed) *fuzzWorld {
	t.Helper()
	w := &fuzzWorld{dice: rand.New(rand.NewPCG(1, 2)), Server: servertest.Open(t, embedded.Options{
		Doors: []string{f.door.Name}, WebhookAllow: []string{"127.0.0.0/8"}})}
	front := httptest.NewServer(w.Handler())
	t.Cleanup(front.Close)
	t.Cleanup(front.CloseClientConnections)
	w.url = front.URL + doors.Prefix + f.door.Name
	idle := worker.New(w.C, worker.Options{})
	worker.Handle(idle, "idle", func(context.Context, any) (any, error) { return nil, nil })
	stop := w.Work(idle)
	for {
		if _, err := w.C.Kind(w.Ctx, "idle"); err == nil {
			break
		} else if w.Ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	stop() // runs of the kind stay in the queue from now on
	asks := worker.New(w.C, worker.Options{DrainTimeout: -1})
	worker.Agent(asks, "asks", func(ctx *agent.Context, _ any) (string, error) {
		_, err := agent.Approve(ctx, agent.Approval{Name: "pay", Title: "Pay?"})
		return "", err
	})
	w.Work(asks)
	w.reset()
	return w
}

// must stops the test if something of its own fails.
func (w *fuzzWorld) must(err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

// reset removes all runs and threads, and makes those of the test.
func (w *fuzzWorld) reset() {
	w.T.Helper()
	for r, err := range w.C.All(w.Ctx, client.Filter{}) {
		w.must(err)
		_, err = w.C.Cancel(w.Ctx, r.RunID, "", w.Patience)
		w.must(err)
		w.must(w.C.Delete(w.Ctx, r.RunID))
	}
	for _, th := range w.threads() {
		w.must(w.C.DeleteThread(w.Ctx, th.ThreadID))
	}
	mine, err := w.C.CreateNamedThread(w.Ctx, "langgraph:mine", json.RawMessage(`{"a":"b"}`))
	w.must(err)
	_, err = w.C.AppendMessage(w.Ctx, mine.ThreadID, perdure.Message{Role: perdure.RoleUser,
		Content: json.RawMessage(`"hi"`)})
	w.must(err)
	asking, err := w.C.CreateNamedThread(w.Ctx, "langgraph:asking", nil)
	w.must(err)
	asks := w.Start(perdure.Submission{Kind: "asks", ThreadID: asking.ThreadID})
	w.ended = w.Start(perdure.Submission{Kind: "idle"})
	_, err = w.C.Cancel(w.Ctx, w.ended, "", w.Patience)
	w.must(err)
	for w.asks == nil || w.asks.RunID != asks || w.asks.State != perdure.Suspended {
		w.asks, err = w.C.Get(w.Ctx, asks)
		w.must(err)
	}
	w.state = w.now()
}

func (w *fuzzWorld) threads() []api.ListedThread {
	w.T.Helper()
	page, err := w.C.Threads(w.Ctx, client.ThreadFilter{Limit: 100})
	w.must(err)
	if page.NextCursor != "" {
		w.T.Fatal("there are more than 100 threads: a call made many")
	}
	return page.Threads
}

// now is what calls could change: runs, threads, messages, metadata and decisions.
func (w *fuzzWorld) now() string {
	w.T.Helper()
	var b strings.Builder
	for r, err := range w.C.All(w.Ctx, client.Filter{}) {
		w.must(err)
		fmt.Fprintln(&b, "run", r.RunID, r.Kind, r.State, r.Metadata, r.Cancel != nil)
	}
	for _, th := range w.threads() {
		full, err := w.C.Thread(w.Ctx, th.ThreadID)
		w.must(err)
		fmt.Fprintln(&b, "thread", th.ThreadID, full.Names, full.LastSeq, string(full.Metadata))
	}
	return b.String()
}

// body makes a body of a call.
func (f *fuzzed) body(dice *rand.Rand) string {
	parts := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(f.usual)) { // the same bodies each time
		values := f.usual[name]
		if dice.IntN(8) > 0 {
			parts[name] = values[dice.IntN(len(values))]
		}
	}
	words := append(odd[:len(odd):len(odd)], f.words...)
	for range dice.IntN(5) {
		parts[f.fields[dice.IntN(len(f.fields))]] = words[dice.IntN(len(words))]
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		list = append(list, fmt.Sprintf("%q:%s", name, parts[name]))
	}
	return "{" + strings.Join(list, ",") + "}"
}

// spoil changes some bytes of a body.
func spoil(b []byte, dice *rand.Rand) []byte {
	for range 1 + dice.IntN(4) {
		if len(b) == 0 {
			return []byte("{")
		}
		at := dice.IntN(len(b))
		switch dice.IntN(4) {
		case 0:
			b[at] = byte(dice.Uint32())
		case 1:
			b = append(b[:at], b[min(len(b), at+1+dice.IntN(20)):]...)
		case 2:
			b = append(b[:at:at], append([]byte(`[{"":null,1e99]`)[:dice.IntN(15)], b[at:]...)...)
		case 3:
			b = append(b[:at:at], append(bytes.Repeat([]byte{b[at]}, dice.IntN(100)), b[at:]...)...)
		}
	}
	return b
}

// path puts words in place of the parameters of a route: ids that there are, and others.
func (w *fuzzWorld) path(r *doors.Route) string {
	response := responseOf(w.asks.RunID)
	words := map[string][]string{"{thread}": {"mine", "mine", "asking", string(w.asks.ThreadID), "nothing"},
		"{run}": {string(w.asks.RunID), string(w.ended), "nothing"}, "{assistant}": {"idle", "nobody"},
		"{id}": {response, response + "p7", "resp_0"}}
	parts := strings.Split(r.Pattern, "/")
	for i, part := range parts {
		if list := words[part]; list != nil {
			parts[i] = list[w.dice.IntN(len(list))]
		} else if strings.HasPrefix(part, "{") {
			parts[i] = "x"
		}
	}
	return strings.Join(parts, "/")
}

// try makes a call with a body of any shape.
func (w *fuzzWorld) try(f *fuzzed, r *doors.Route) {
	w.T.Helper()
	sent := f.body(w.dice)
	if slices.Contains(f.lists, r.Pattern) {
		list := []string{sent, f.body(w.dice), f.body(w.dice)}
		sent = "[" + strings.Join(list[:w.dice.IntN(4)], ",") + "]"
	}
	if w.dice.IntN(4) == 0 {
		sent = string(spoil([]byte(sent), w.dice))
	}
	w.send(f, r.Method, w.path(r), sent)
}

// send makes a call. A refusal is none of the server's, and leaves everything as it was.
func (w *fuzzWorld) send(f *fuzzed, method, path, sent string) (status int) {
	w.T.Helper()
	req, err := http.NewRequestWithContext(w.Ctx, method, w.url+path, strings.NewReader(sent))
	w.must(err)
	req.Header.Set("Authorization", "Bearer "+w.Key())
	if f.header[0] != "" {
		req.Header.Set(f.header[0], f.header[1])
	}
	res, err := http.DefaultClient.Do(req)
	w.must(err)
	defer res.Body.Close() // an answer that stays open is not read
	call := fmt.Sprintf("%s %s with %q = %d", method, path, sent, res.StatusCode)
	if res.StatusCode >= 500 || res.StatusCode == http.StatusTooManyRequests {
		text, _ := io.ReadAll(res.Body)
		w.T.Errorf("%s %s, want an answer or a refusal", call, text)
	}
	now := w.now()
	if now == w.state {
		return res.StatusCode
	}
	if res.StatusCode >= 400 {
		text, _ := io.ReadAll(res.Body)
		w.T.Errorf("%s %s, and it has changed\n%sto\n%s", call, text, w.state, now)
	}
	w.reset()
	return res.StatusCode
}

// bodies are the routes of a door that take a body.
func (f *fuzzed) bodies() (list []*doors.Route) {
	for i := range f.door.Routes {
		if r := &f.door.Routes[i]; r.Method != http.MethodGet && r.Method != http.MethodDelete {
			list = append(list, r)
		}
	}
	return list
}

// Fuzzed bodies reach every route of each door that takes one: 1 000 a door, or 1 000 a route with PERDURE_TEST_FULL.
func TestFuzzedBodiesChangeNothing(t *testing.T) {
	for i := range fuzzedDoors {
		f := &fuzzedDoors[i]
		t.Run(f.door.Name, func(t *testing.T) {
			w, routes := newFuzzWorld(t, f), f.bodies()
			most := 1000
			if os.Getenv("PERDURE_TEST_FULL") != "" {
				most *= len(routes)
			}
			for n := range most {
				w.try(f, routes[n%len(routes)])
			}
		})
	}
}

// A call that is refused late has done nothing before.
func TestRefusedCallsChangeNothing(t *testing.T) {
	const nul = `"\u0000"`
	rows := map[string][]struct{ method, path, body string }{
		"langgraph": {
			{"POST", "/runs/batch", `[{"assistant_id":"idle"},{"assistant_id":"nobody"}]`},
			{"POST", "/runs/batch", `[{"assistant_id":"idle"},{"assistant_id":"idle","input":` + nul + `}]`},
			{"POST", "/threads/new/runs", `{"assistant_id":"idle","if_not_exists":"create","after_seconds":-1}`},
			{"POST", "/threads/new/runs", `{"assistant_id":"idle","if_not_exists":"create","input":` + nul + `}`},
			{"POST", "/threads/new/runs", `{"assistant_id":"idle","if_not_exists":"create","command":{"resume":true}}`},
			{"POST", "/threads/mine/state", `{"values":{"messages":["hi",{"role":"user","content":` + nul + `}]}}`},
		},
		"openai": {
			{"POST", "/v1/responses", `{"model":"idle","input":` + nul + `}`},
			{"POST", "/v1/chat/completions", `{"model":"idle","messages":[{"role":"user","content":` + nul + `}]}`},
			{"POST", "/v1/responses/{id}p7/cancel", ""},
			{"DELETE", "/v1/responses/{ended}p7", ""},
		},
	}
	for i := range fuzzedDoors {
		f := &fuzzedDoors[i]
		t.Run(f.door.Name, func(t *testing.T) {
			w := newFuzzWorld(t, f)
			for _, row := range rows[f.door.Name] {
				path := strings.NewReplacer("{id}", responseOf(w.asks.RunID), "{ended}", responseOf(w.ended)).
					Replace(row.path)
				if status := w.send(f, row.method, path, row.body); status < 400 {
					t.Errorf("%s %s with %s = %d, want a refusal", row.method, path, row.body, status)
				}
			}
		})
	}
}

// responseOf is the id of the response of a run.
func responseOf(id perdure.RunID) string { return "resp_" + strings.ReplaceAll(string(id), "-", "") }
