package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coder/websocket"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
)

// chatty writes the configuration of a supervisor whose model says the secret.
func chatty(t *testing.T) (file string) {
	t.Helper()
	dir := t.TempDir()
	model := startModel(t, dir, mockmodel.Script{Rules: []mockmodel.Rule{{Answer: mockmodel.Answer{
		Text: "The key is " + canary + ", and you said: {{last}}"}}}})
	file = filepath.Join(dir, "supervisor.toml")
	text := fmt.Sprintf("[[model]]\nbase_url = %q\nmodel = \"m\"\n", model)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// chats tells the secret to a model, which says it too.
func (c *canaryCalls) chats() {
	t := c.node.t
	asked := c.ask("POST", "/api/v1/chat", "chat "+canary, obj{"message": "my key is " + canary, "wait": "30s"}, 200)
	thread, run := asked["thread_id"].(string), asked["run_id"].(string)
	if text := fmt.Sprint(asked["answer"]); !strings.Contains(text, "The key is [redacted]") {
		t.Errorf("answer = %s, want what the model says without the secret", text)
	}
	if said := fmt.Sprint(c.said(thread, "user")); said != "[my key is [redacted]]" {
		t.Errorf("messages of the user = %s, want the secret redacted", said)
	}
	for _, path := range []string{"/threads/" + thread + "/messages", "/threads", "/runs/" + run,
		"/runs/" + run + "/events?limit=1000", "/runs/" + run + "/stream", "/runs/" + run + "/deliverable",
		"/runs/" + run + "/journal/entries", "/runs/" + run + "/activity", "/runs/" + run + "/artifacts",
		"/runs/" + run + "/views"} {
		c.ask("GET", "/api/v1"+path, "", nil, 200)
	}
	c.look("the deltas of the model put together", []byte(c.deltas(run)))
}

// deltas returns the text that a run has streamed.
func (c *canaryCalls) deltas(run string) (text string) {
	var page struct {
		Events []struct {
			Type string
			Data json.RawMessage
		}
	}
	c.insist("GET", "/api/v1/runs/"+run+"/events?limit=1000", "", nil, &page)
	for _, e := range page.Events {
		var d struct{ Text string }
		_ = json.Unmarshal(e.Data, &d) // other events have other data
		if e.Type == "llm:delta" {
			text += d.Text
		}
	}
	return text
}

// publishes shows the secret in views.
func (c *canaryCalls) publishes() {
	run := c.submit(obj{"kind": "shows"}).RunID
	g := c.take("shows")
	c.commit(g, obj{"views": []obj{{"name": "plan", "value": obj{"key": canary, canary: 1}}}}, 200)
	c.commit(g, obj{"views": []obj{{"name": "in " + canary, "value": 1}}})
	c.ask("GET", "/api/v1/runs/"+run+"/views", "", nil, 200)
	view := c.ask("GET", "/api/v1/runs/"+run+"/views/plan", "", nil, 200)
	if !strings.Contains(fmt.Sprint(view["value"]), "[redacted]") {
		c.node.t.Errorf("view = %v, want the secret redacted", view)
	}
	c.commit(g, obj{"outcome": obj{"type": "complete"}}, 200)
}

// passed is a secret that commands get in their environment, and that no configuration names. Nobody but
// the command may have it.
const passed = "sk-Passed-only-to-commands-93b1"

// passes gives commands a secret in their environment: inherited, by --env, and by a pool. They use it, and
// don't print it.
func (c *canaryCalls) passes(w *workshop) {
	t := c.node.t
	uses := `test -n "$CANARY_PASSED" && echo "has ${#CANARY_PASSED} bytes"; exit 3`
	secrets := filepath.Join(t.TempDir(), "secrets")
	if err := os.WriteFile(secrets, []byte("token="+passed+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ids := []string{strings.TrimSpace(w.perdure("exec", "-d", "--", "sh", "-c", uses)),
		strings.TrimSpace(w.perdure("exec", "-d", "--env", "CANARY_PASSED", "--pty", "--", "sh", "-c", uses))}
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	pool := exec.Command(path, "runner", "--queue", "builds", "--secrets", secrets)
	log := new(lines)
	pool.Env, pool.Stdout, pool.Stderr = w.env(), log, log
	if err := pool.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		pool.Process.Signal(syscall.SIGTERM)
		pool.Wait()
		c.look("the log of the pool", log.bytes())
	}()
	ids = append(ids, c.submit(obj{"kind": "exec", "class": "process", "queue": "builds", "max_attempts": 1,
		"input": obj{"command": []string{"sh", "-c", uses}, "secrets": obj{"CANARY_PASSED": "token"}}}).RunID)
	for _, id := range ids {
		w.ends(id, "failed")
		if want := fmt.Sprintf("has %d bytes", len(passed)); !strings.Contains(w.output(id), want) {
			t.Errorf("run %s: output = %q, want %q: the command has the secret", id, w.output(id), want)
		}
		for _, path := range []string{"", "/events?limit=1000", "/deliverable", "/activity", "/views", "/views/process",
			"/views/output", "/stream"} {
			c.ask("GET", "/api/v1/runs/"+id+path, "", nil, 200)
		}
		for _, path := range []string{"/api/admin/jobs/" + id + "/health", "/api/v1/dlq/causes",
			"/api/admin/recovery/jobs/sentinels", "/api/v1/runs?limit=1000"} {
			c.ask("GET", path, "", nil, 200)
		}
		files, err := os.ReadDir(filepath.Join(w.space, "jobs", id))
		if err != nil || len(files) < 5 {
			t.Fatalf("files of run %s: %v (error %v), want output, log, lock, sentinel and result", id, files, err)
		}
		for _, f := range files {
			if !f.Type().IsRegular() { // the pipe of a terminal
				continue
			}
			b, err := os.ReadFile(filepath.Join(w.space, "jobs", id, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			c.look("the file "+f.Name()+" of a process", b)
		}
	}
}

// executes has processes print the secret: while the server listens, and while it is away.
func (c *canaryCalls) executes(w *workshop) {
	t := c.node.t
	half, away := newGate(t), newGate(t)
	const cut = 9
	script := fmt.Sprintf(`printf 'argument %%s\n' "$1"; printf 'variable %%s\n' "$PERDURE_E2E_CANARY"; `+
		`printf '%%s' "$2"; %s; printf '%%s and\n' "$3"; `+
		`printf 'error %%s\n' "$1" >&2; %s; printf 'adopted %%s\n' "$1"; printf '\377 %%s\n' "$1"; `+
		`i=0; while [ $i -lt 3000 ]; do echo "line $i of $1"; i=$((i+1)); done; exit 1`, half.wait(), away.wait())
	id := strings.TrimSpace(w.perdure("exec", "-d", "--", "sh", "-c", script, "sh", canary, canary[:cut],
		canary[cut:]))
	eventually.True(t, "the first output is in the log", func() bool {
		return strings.Contains(w.output(id), "variable ")
	})
	half.open(t)
	eventually.True(t, "the second output is in the log", func() bool {
		return strings.Contains(w.output(id), " and\n")
	})
	w.kill(syscall.SIGKILL)
	away.open(t)
	eventually.True(t, "the command has ended", func() bool { return w.hasResult(id) })
	w.start()
	w.ends(id, "failed")
	eventually.True(t, "the output is adopted", func() bool { return strings.Contains(w.output(id), "line 2999 of") })
	out := w.output(id)
	c.look("the output put together", []byte(out))
	for _, want := range []string{"argument [redacted]\n", "line 2999 of [redacted]\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("output = %.300q, want %q in it", out, want)
		}
	}
	for after, more := 0, true; more; {
		page := c.ask("GET", fmt.Sprintf("/api/v1/runs/%s/events?limit=1000&after=%d", id, after), "", nil, 200)
		after = int(page["next_after"].(float64))
		more = len(page["events"].([]any)) > 0
	}
	for _, path := range []string{"", "/deliverable", "/activity", "/artifacts", "/views", "/late-results",
		"/stream"} {
		c.ask("GET", "/api/v1/runs/"+id+path, "", nil, 200)
	}
	var list struct {
		Artifacts []struct{ Name string }
	}
	c.insist("GET", "/api/v1/runs/"+id+"/artifacts", "", nil, &list)
	for _, a := range list.Artifacts {
		c.ask("GET", "/api/v1/runs/"+id+"/artifacts/"+a.Name, "", nil, 200)
	}
	for _, path := range []string{"/api/admin/startup-log", "/api/admin/recovery/jobs/status",
		"/api/admin/recovery/jobs/heartbeats", "/api/admin/recovery/jobs/sentinels",
		"/api/admin/recovery/jobs/failed", "/api/admin/jobs/" + id + "/health"} {
		c.ask("GET", path, "", nil, 200)
	}
}

// browses looks at what the dashboard shows: its pages, and its socket with all lists.
func (c *canaryCalls) browses() {
	t := c.node.t
	res, b, err := exchange(c.http, c.key, "POST", "http://"+c.addr+"/api/v1/session", "", obj{})
	if err != nil || res.StatusCode != 201 {
		t.Fatalf("login: %v (error %v): %s", res, err, b)
	}
	c.look("POST /api/v1/session", b)
	var cookies []string
	for _, k := range res.Cookies() {
		cookies = append(cookies, k.Name+"="+k.Value)
	}
	origin := "http://" + c.addr
	header := http.Header{"Cookie": {strings.Join(cookies, "; ")}, "Origin": {origin}, "X-Perdure": {"1"}}
	for _, path := range []string{"/ui/", "/api/v1/session", "/api/v1/runs?limit=1000", "/api/v1/history",
		"/api/v1/audit", "/api/v1/dlq/causes", "/api/v1/kinds", "/api/v1/threads", "/api/v1/runs/counts"} {
		req, err := http.NewRequest("GET", origin+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header.Clone()
		res, err := c.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var page bytes.Buffer
		_, err = page.ReadFrom(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != 200 {
			t.Errorf("GET %s with the cookie: %d (error %v), want 200", path, res.StatusCode, err)
		}
		c.look("the dashboard's GET "+path, page.Bytes())
	}
	ctx, cancel := context.WithTimeout(context.Background(), eventually.Left(t))
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws://"+c.addr+"/api/v1/ws?watch=none",
		&websocket.DialOptions{HTTPHeader: header})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	conn.SetReadLimit(64 << 20)
	waiting := map[string]bool{}
	for id, watch := range map[string]obj{"runs": {"of": "runs", "events": true, "limit": 200},
		"one":    {"of": "runs", "ids": []string{c.run}, "events": true, "after": obj{c.run: 0}},
		"counts": {"of": "counts"}, "workers": {"of": "workers"}, "queues": {"of": "queues"},
		"approvals": {"of": "approvals"},
		"dead":      {"of": "dead_letters"}, "hooks": {"of": "webhooks"}, "history": {"of": "history"},
		"deliveries": {"of": "deliveries", "filter": obj{"webhook_id": c.webhook}}, "watchdog": {"of": "watchdog"}} {
		watch["type"], watch["id"] = "watch", id
		text, err := json.Marshal(watch)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Write(ctx, websocket.MessageText, text); err != nil {
			t.Fatal(err)
		}
		waiting[id] = true
	}
	for len(waiting) > 0 {
		_, text, err := conn.Read(ctx)
		if err != nil {
			t.Fatalf("the dashboard's socket: %v; without a message: %v", err, waiting)
		}
		c.look("the dashboard's socket", text)
		var m struct{ ID, Type string }
		if err := json.Unmarshal(text, &m); err != nil || m.Type == "error" {
			t.Errorf("the dashboard's socket says %.300s (error %v)", text, err)
		}
		delete(waiting, m.ID)
	}
}
