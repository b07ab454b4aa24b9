package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// canary is a secret that must not appear anywhere. It has characters that JSON and URLs escape.
const canary = `sk-Canary/7f"+é<2`

// traces returns the forms in which a secret may appear.
func traces(secret string) map[string][]byte {
	quoted, _ := json.Marshal(secret)
	out := map[string][]byte{"plain": []byte(secret), "JSON": quoted[1 : len(quoted)-1],
		"query": []byte(url.QueryEscape(secret)), "path": []byte(url.PathEscape(secret)),
		"hex": []byte(hex.EncodeToString([]byte(secret)))}
	for i, before := range []string{"", "x", "xy"} {
		text := base64.StdEncoding.EncodeToString([]byte(before + secret + "zzz"))
		out[fmt.Sprint("base64 at ", i)] = []byte(text[4 : (len(before)+len(secret))*8/6])
	}
	return out
}

// A watch searches outputs for secrets.
type watch struct {
	t    *testing.T
	mu   sync.Mutex
	find map[string][]byte
	seen int
}

func (w *watch) look(where string, b []byte) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen += len(b)
	for form, trace := range w.find {
		if i := bytes.Index(b, trace); i >= 0 {
			w.t.Errorf("%s contains the secret (%s): %q", where, form, b[max(0, i-60):min(len(b), i+len(trace)+60)])
		}
	}
}

// lines collects the log of a process.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.b.Bytes())
}

func TestSecretAppearsNowhere(t *testing.T) {
	for name, args := range map[string]func(*testing.T) []string{
		"SQLite":     func(*testing.T) []string { return nil },
		"PostgreSQL": func(t *testing.T) []string { return []string{"--store", pgtest.New(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PERDURE_E2E_CANARY", canary)
			t.Setenv("CANARY_PASSED", passed)
			at := args(t)
			shop := &workshop{space: t.TempDir(), state: t.TempDir()}
			n := prepareNode(t, slices.Concat(at, quickProcesses, []string{"--workspace", shop.space,
				"--supervisor", chatty(t), "--secrets", "env:PERDURE_E2E_CANARY", "--webhook-allow", "127.0.0.0/8",
				"--log-level", "debug"})...)
			shop.node, shop.urls = n, "http://"+n.addr
			t.Cleanup(shop.killAll)
			log := new(lines)
			n.log = log
			n.start()
			w := &watch{t: t, find: traces(canary)}
			for form, trace := range traces(n.key) {
				w.find["the key, "+form] = trace
			}
			for form, trace := range traces(passed) {
				w.find["of the environment, "+form] = trace
			}
			c := &canaryCalls{node: n, watch: w}
			c.tellAll()
			c.tellEveryField()
			c.publishes()
			c.chats()
			c.readAll()
			c.executes(shop)
			c.passes(shop)
			c.browses()
			w.look("the log", log.bytes())

			file := filepath.Join(t.TempDir(), "backup")
			path, err := program()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(path, "backup", file, "--url", "http://"+n.addr, "--data", n.dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("perdure backup: %v: %s", err, out)
			}
			n.kill(syscall.SIGKILL)
			files, err := filepath.Glob(filepath.Join(n.dir, "*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range append(files, file) {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				if filepath.Base(f) != "admin.key" {
					w.look(filepath.Base(f), b)
				}
			}
			if len(at) > 0 {
				w.look("the database", dumped(t, at[1]))
			} else if len(files) < 4 {
				t.Errorf("files searched = %v, want at least 4", files)
			}
			if w.seen < 1<<20 {
				t.Errorf("%d bytes were searched, want at least 1 MiB", w.seen)
			}
		})
	}
}

// dumped returns everything that a PostgreSQL database contains.
func dumped(t *testing.T, url string) (all []byte) {
	s := storetest.Open(t, store.Options{URL: url})
	err := s.Audit(context.Background(), func(v *store.View) error {
		lines, err := storetest.Dump(v, "")
		all = []byte(strings.Join(lines, "\n"))
		return err
	})
	if err != nil || len(all) < 1000 {
		t.Fatalf("dump of the database: %d bytes (error %v), want at least 1000", len(all), err)
	}
	return all
}

// canaryCalls sends a secret to a server in every possible place.
type canaryCalls struct {
	*node
	*watch
	thread, run, webhook, approval string
	commits                        int
}

// ask makes a call. The answer must not contain the secret, and must have one of the statuses.
func (c *canaryCalls) ask(method, path, key string, in any, statuses ...int) obj {
	c.node.t.Helper()
	res, b, err := exchange(c.http, c.key, method, "http://"+c.addr+path, key, in)
	if err != nil {
		c.node.t.Fatal(err)
	}
	c.look(method+" "+path, b)
	for _, s := range statuses {
		if res.StatusCode == s {
			var out obj
			_ = json.Unmarshal(b, &out) // a stream is not JSON
			return out
		}
	}
	if len(statuses) > 0 {
		c.node.t.Fatalf("%s %s: status %d, want one of %v: %s", method, path, res.StatusCode, statuses, b)
	}
	return nil
}

func (c *canaryCalls) commit(g runView, commit obj, statuses ...int) {
	c.node.t.Helper()
	c.commits++
	commit["commit_id"], commit["run_id"], commit["epoch"] = fmt.Sprint("c", c.commits), g.RunID, g.Epoch
	c.ask("POST", "/api/v1/workers/w/commit", "", obj{"commits": []obj{commit}}, statuses...)
}

// tellAll sends the secret in calls that succeed.
func (c *canaryCalls) tellAll() {
	t := c.node.t
	hooked := make(chan []byte, 100)
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Echo", canary)
		w.WriteHeader(http.StatusTeapot)
		io.WriteString(w, "no, "+canary) // the answer of a receiver is stored with the attempt
		hooked <- b
	}))
	t.Cleanup(sink.Close)
	b64 := base64.StdEncoding.EncodeToString([]byte("user:" + canary))
	values := obj{"plain": canary, "in " + canary: 1, "base64": b64, "hex": hex.EncodeToString([]byte(canary)),
		"url": "https://x/?k=" + url.QueryEscape(canary), "nested": fmt.Sprintf(`{"k":%q}`, canary)}

	c.thread = c.ask("POST", "/api/v1/threads", canary, obj{"metadata": obj{"k": canary}}, 201)["thread_id"].(string)
	c.webhook = c.ask("POST", "/api/v1/webhooks", "", obj{"url": sink.URL + "/hook", "description": canary},
		201)["webhook_id"].(string)
	c.ask("POST", "/api/v1/webhooks", "", obj{"url": sink.URL + "/" + url.PathEscape(canary)}, 400)
	c.ask("POST", "/api/v1/keys", "", obj{"name": canary, "scopes": []string{"runs:read"}}, 400) // no name
	c.run = c.ask("POST", "/api/v1/threads/"+c.thread+"/runs", canary,
		obj{"kind": "agent", "input": values, "metadata": obj{"k": canary},
			"messages": []obj{{"role": "user", "content": "use " + canary, "metadata": obj{"k": canary}}}},
		201)["run_id"].(string)
	g := c.poll("w", 1, true, "5s")[0]
	c.ask("POST", "/api/v1/workers/w/heartbeat", "",
		obj{"runs": []obj{{"run_id": g.RunID, "epoch": g.Epoch, "activity": "reading " + canary, "progress": values}}},
		200)

	// A text is streamed in pieces that split the secret, within a commit and between two.
	story := "before " + canary + " after"
	for i := 0; i < len(story); i += 6 {
		piece := story[i:min(len(story), i+6)]
		c.commit(g, obj{"events": []obj{{"type": "llm:delta", "data": obj{"text": piece[:len(piece)/2], "call": 1}},
			{"type": "llm:delta", "data": obj{"text": piece[len(piece)/2:], "call": 1}},
			{"type": "x:between", "data": i}}}, 200)
	}
	for i, cut := range []int{1, 5, 9, 12} {
		c.commit(g, obj{"events": []obj{{"type": "run:progress", "data": obj{"line": canary[:cut]}}}}, 200)
		c.commit(g, obj{"events": []obj{{"type": "run:progress", "data": obj{"line": canary[cut:], "n": i}}}}, 200)
	}
	c.commit(g, obj{"journal": []obj{{"key": "step", "value": values}},
		"messages": []obj{{"role": "assistant", "content": canary}},
		"events":   []obj{{"type": "x:note", "data": values}},
		"children": []obj{{"key": "kid", "kind": "kid", "input": canary}}}, 200)
	c.commit(g, obj{"waits": []obj{{"id": "bad", "type": "approval", "name": "bad",
		"approval": obj{"title": "x", "action": obj{"run": canary}}}}}, 400, 422)
	c.commit(g, obj{"waits": []obj{{"id": "ok", "type": "approval", "name": "ok",
		"approval": obj{"title": "about " + canary, "action": obj{"run": "ls"}}},
		{"id": "word", "type": "signal", "name": "word"}, {"id": "back", "type": "callback"}},
		"outcome": obj{"type": "suspend"}}, 200)
	open := c.ask("GET", "/api/v1/approvals", "", nil, 200)["approvals"].([]any)
	c.approval = open[0].(obj)["approval_id"].(string)
	c.ask("POST", "/api/v1/runs/"+c.run+"/signals/word", canary, obj{"data": values}, 200, 201)
	c.ask("POST", "/api/v1/approvals/"+c.approval, "", obj{"decision": "approve", "comment": canary}, 200)

	kid := c.take("kid")
	c.ask("PUT", "/api/v1/runs/"+kid.RunID+"/artifacts/out.txt?epoch="+fmt.Sprint(kid.Epoch), "", nil) // without bytes
	c.put(kid)
	c.commit(kid, obj{"outcome": obj{"type": "fail", "retryable": false,
		"error": obj{"code": "broken", "message": "with " + canary + "\n at " + b64}}}, 200)
	again := c.take("agent")
	c.commit(again, obj{"outcome": obj{"type": "complete", "result": values, "summary": "said " + canary}}, 200)
	c.commit(again, obj{"outcome": obj{"type": "complete", "result": canary + " late"}}, 409)
	c.ask("POST", "/api/v1/runs/"+c.run+"/cancel", "", obj{"reason": canary}, 200, 202, 400, 409)

	for range 2 {
		select {
		case b := <-hooked:
			c.look("a webhook", b)
		case <-time.After(eventually.Within):
			t.Fatal("no webhook arrived, want one")
		}
	}
	eventually.True(t, "the receiver's answer is stored", func() bool {
		res, b, err := exchange(c.http, c.key, "GET", "http://"+c.addr+"/api/v1/webhooks/"+c.webhook+"/deliveries",
			"", nil)
		return err == nil && res.StatusCode == 200 && bytes.Contains(b, []byte(`418`))
	})
}

// take polls for a run of a kind.
func (c *canaryCalls) take(kind string) runView {
	c.node.t.Helper()
	var p polled
	if status, err := c.call("POST", "/api/v1/workers/w/poll", "",
		obj{"kinds": []string{kind}, "slots": 1, "start": true, "wait": "5s"}, &p); err != nil || status != 200 ||
		len(p.Runs) != 1 {
		c.node.t.Fatalf("poll for kind %s: status %d (error %v), %v; want one run", kind, status, err, p)
	}
	return p.Runs[0]
}

// put uploads an artifact in pieces that split the secret.
func (c *canaryCalls) put(g runView) {
	c.node.t.Helper()
	r, w := io.Pipe()
	go func() {
		io.WriteString(w, strings.Repeat("x", 100000)+canary[:7])
		io.WriteString(w, canary[7:]+" and "+base64.StdEncoding.EncodeToString([]byte(canary)))
		w.Close()
	}()
	req, err := http.NewRequest("PUT",
		"http://"+c.addr+"/api/v1/runs/"+g.RunID+"/artifacts/out.txt?epoch="+fmt.Sprint(g.Epoch), r)
	if err != nil {
		c.node.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.key)
	req.Header.Set("Content-Type", "text/plain")
	res, err := c.http.Do(req)
	if err != nil {
		c.node.t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); res.StatusCode/100 != 2 {
		c.node.t.Fatalf("upload: status %d, want 2xx: %s", res.StatusCode, b)
	}
}

// tellEveryField sends the secret in every field of every call, one field at a time and all at
// once. Most calls are refused. None of the answers may contain it.
func (c *canaryCalls) tellEveryField() {
	t := c.node.t
	doc := c.ask("GET", "/openapi.json", "", nil, 200)
	schemas := doc["components"].(obj)["schemas"].(obj)
	calls := 0
	for path, methods := range doc["paths"].(obj) {
		for method, op := range methods.(obj) {
			op, ok := op.(obj)
			if !ok || method == "get" || strings.HasSuffix(path, "/poll") {
				continue
			}
			at := strings.NewReplacer("{name}", url.PathEscape(canary), "{token}", url.PathEscape(canary), "{tenant}",
				"default", "{n}", "1", "{child}", c.run,
				"/threads/{id}", "/threads/"+c.thread, "/webhooks/{id}", "/webhooks/"+c.webhook, "/workers/{id}",
				"/workers/w", "/approvals/{id}", "/approvals/"+c.approval, "{id}", c.run).Replace(path)
			body, _ := op["requestBody"].(obj)
			content, _ := body["content"].(obj)
			media, _ := content["application/json"].(obj)
			schema, _ := media["schema"].(obj)
			all, _ := filled(schemas, schema, 0).(obj)
			for field, v := range all {
				c.ask(strings.ToUpper(method), at, canary, obj{field: v})
				calls++
			}
			if all != nil {
				c.ask(strings.ToUpper(method), at, canary, all)
			}
			c.ask(strings.ToUpper(method), at+"?x="+url.QueryEscape(canary), canary, nil)
			calls += 2
		}
	}
	if calls < 100 {
		t.Errorf("%d calls were made, want at least 100", calls)
	}
}

// filled returns a value of a schema with the secret in all its strings.
func filled(schemas, s obj, depth int) any {
	if ref, ok := s["$ref"].(string); ok {
		s = schemas[strings.TrimPrefix(ref, "#/components/schemas/")].(obj)
	}
	if depth > 6 {
		return canary
	}
	if list, ok := s["enum"].([]any); ok {
		return list[0]
	}
	kind, _ := s["type"].(string)
	switch kind {
	case "object":
		out := obj{}
		props, _ := s["properties"].(obj)
		for name, p := range props {
			out[name] = filled(schemas, p.(obj), depth+1)
		}
		if len(props) == 0 {
			out[canary] = canary
		}
		return out
	case "array":
		items, _ := s["items"].(obj)
		return []any{filled(schemas, items, depth+1)}
	case "integer", "number":
		return 1 << 20 // as the limit of a tenant it allows the other calls
	case "boolean":
		return false
	}
	return canary
}

// readAll reads everything that can be read.
func (c *canaryCalls) readAll() {
	t := c.node.t
	for _, path := range []string{"/runs", "/runs/" + c.run, "/runs/" + c.run + "/events",
		"/runs/" + c.run + "/stream", "/runs/" + c.run + "/tree", "/runs/" + c.run + "/deliverable",
		"/runs/" + c.run + "/activity", "/runs/" + c.run + "/artifacts", "/threads/" + c.thread,
		"/threads/" + c.thread + "/messages", "/approvals", "/workers", "/queues", "/dlq", "/webhooks",
		"/webhooks/" + c.webhook + "/deliveries", "/keys"} {
		c.ask("GET", "/api/v1"+path, "", nil, 200)
	}
	for _, path := range []string{"/metrics", "/api/admin/invariants", "/api/admin/watchdog", "/healthz", "/readyz"} {
		c.ask("GET", path, "", nil, 200)
	}
	_, b, err := exchange(c.http, c.key, "GET", "http://"+c.addr+"/api/v1/runs/"+c.run+"/events?limit=1000", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var log struct {
		Events []struct {
			Type string
			Data json.RawMessage
		}
	}
	if err := json.Unmarshal(b, &log); err != nil {
		t.Fatal(err)
	}
	story, progress := "", ""
	for _, e := range log.Events {
		var d struct{ Text, Line string }
		_ = json.Unmarshal(e.Data, &d) // other events have other data
		switch e.Type {
		case "llm:delta":
			story += d.Text
		case "run:progress":
			progress += d.Line
		}
	}
	c.look("the deltas put together", []byte(story))
	c.look("the lines of progress put together", []byte(progress))
	// A possible beginning of a secret is shown up to its second byte at most.
	if short := strings.Replace(strings.Replace(story, "sk[", "[", 1), "s[", "[",
		1); short != "before [redacted] after" {
		t.Errorf("text of the deltas = %q, want the secret redacted", story)
	}
	ctx, cancel := context.WithTimeout(context.Background(), eventually.Left(t))
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws://"+c.addr+"/api/v1/ws",
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + c.key}}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	conn.SetReadLimit(16 << 20)
	_, first, err := conn.Read(ctx)
	if err != nil || !bytes.Contains(first, []byte(c.run)) {
		t.Fatalf("first message of the WebSocket = %s (error %v), want run %s in it", first, err, c.run)
	}
	c.look("the socket", first)
	c.submit(obj{"kind": "seen", "input": canary, "metadata": obj{"k": canary}})
	if _, next, err := conn.Read(ctx); err != nil {
		t.Fatal(err)
	} else {
		c.look("the socket", next)
	}
}
