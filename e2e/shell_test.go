package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// A model does whatever the user says. Users of a tenant, with a second key that may approve, try to have
// the server's machine used: its shell, and an MCP server that all tenants share. The platform's own
// tenant has a shell, whose commands can't read what is the server's.
func TestNoTenantBecomesThePlatformThroughTheShell(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { t.Parallel(); shellAttacked(t) })
	t.Run("PostgreSQL", func(t *testing.T) { t.Parallel(); shellAttacked(t, "--store", pgtest.New(t)) })
}

// A caller makes calls with a key.
type caller struct {
	n   *node
	key string
}

// call makes a call, and returns the status and the answer.
func (c caller) call(method, path string, in any) (int, string) {
	c.n.t.Helper()
	res, body, err := exchange(c.n.http, c.key, method, "http://"+c.n.addr+path, "", in)
	if err != nil {
		c.n.t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// begin starts a conversation, and returns its thread.
func (c caller) begin(text string) (thread string) {
	c.n.t.Helper()
	var asked struct {
		ThreadID string `json:"thread_id"`
	}
	status, body := c.call("POST", "/api/v1/chat", obj{"message": text})
	if err := json.Unmarshal([]byte(body), &asked); err != nil || status != http.StatusCreated {
		c.n.t.Fatalf("chat = %d %s", status, body)
	}
	return asked.ThreadID
}

// answer waits for the answer on a thread, and checks that the server's key is not in it.
func (c caller) answer(thread, want string) {
	c.n.t.Helper()
	var messages string
	eventually.True(c.n.t, "the conversation has an answer", func() bool {
		_, messages = c.call("GET", "/api/v1/threads/"+thread+"/messages", nil)
		return strings.Contains(messages, "It says: ")
	})
	if !strings.Contains(messages, want) {
		c.n.t.Errorf("the thread has %s, want %q", messages, want)
	}
	c.safe(messages)
}

// safe fails the test if a text has a part of the server's key.
func (c caller) safe(text string) {
	c.n.t.Helper()
	if secret := c.n.key; strings.Contains(text, secret) || strings.Contains(text, secret[20:50]) {
		c.n.t.Errorf("the answer has the key of the platform: %s", text)
	}
}

// newCaller makes a key of a tenant.
func newCaller(n *node, tenant string, scopes ...string) caller {
	n.t.Helper()
	var made struct {
		Secret string `json:"secret"`
	}
	if status := n.insist("POST", "/api/admin/tenants/"+tenant+"/keys", "", obj{"name": "test", "scopes": scopes},
		&made); status != http.StatusCreated {
		n.t.Fatalf("making a key of %s: %d", tenant, status)
	}
	return caller{n, made.Secret}
}

// An asking is an open approval, as the platform sees it.
type asking struct {
	ID        string `json:"approval_id"`
	RunID     string `json:"run_id"`
	Name      string `json:"name"`
	Tenant    string `json:"tenant"`
	Approvers string `json:"approvers"`
}

// asked waits for the one open approval that the platform decides about.
func asked(n *node) (a asking) {
	n.t.Helper()
	eventually.True(n.t, "the platform is asked", func() bool {
		var page struct {
			Approvals []asking `json:"approvals"`
		}
		n.insist("GET", "/api/v1/approvals?tenant=*", "", nil, &page)
		if len(page.Approvals) == 1 {
			a = page.Approvals[0]
		}
		return len(page.Approvals) == 1
	})
	return a
}

// refused tries to decide with the key of a tenant, in every way that there is.
func (c caller) refused(a asking) {
	c.n.t.Helper()
	for path, in := range map[string]obj{
		"/api/v1/approvals/" + a.ID:                            {"decision": "approve"},
		"/api/v1/runs/" + a.RunID + "/signals/" + a.Name:       {"decision": "approve"},
		"/api/v1/runs/" + a.RunID + "/signals/" + a.Name + "?": {"data": obj{"decision": "approve"}},
	} {
		status, body := c.call("POST", path, in)
		if status != http.StatusForbidden || !strings.Contains(body, `"platform_decides"`) {
			c.n.t.Errorf("POST %s with a key of the tenant = %d %s, want 403 platform_decides", path, status, body)
		}
	}
	if status, body := c.call("GET", "/api/v1/approvals/"+a.ID, nil); status != http.StatusOK ||
		!strings.Contains(body, `"approvers":"platform"`) {
		c.n.t.Errorf("the tenant sees %d %s, want its approval with who decides", status, body)
	}
	if status, body := c.call("GET", "/api/v1/approvals?tenant=*", nil); status != http.StatusBadRequest {
		c.n.t.Errorf("approvals of all tenants with a key of a tenant = %d %s, want 400", status, body)
	}
}

func shellAttacked(t *testing.T, args ...string) {
	dir := t.TempDir()
	model := startModel(t, dir, mockmodel.Script{Rules: []mockmodel.Rule{
		{Match: mockmodel.Match{Role: "user", Regexp: `^run (\S+) (\S+)$`}, Answer: mockmodel.Answer{
			ToolCalls: []mockmodel.Call{{Name: "shell", Arguments: obj{"program": "{{1}}", "args": []any{"{{2}}"}}}}}},
		{Match: mockmodel.Match{Role: "user", Last: "pay"}, Answer: mockmodel.Answer{
			ToolCalls: []mockmodel.Call{{Name: "box_pay", Arguments: obj{}}}}},
		{Match: mockmodel.Match{Role: "tool"}, Answer: mockmodel.Answer{Text: "It says: {{last}}"}},
	}})
	paid := filepath.Join(dir, "paid")
	if err := os.WriteFile(paid+".go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	as := ""
	if os.Geteuid() == 0 {
		as = "user = \"nobody\"\n"
	}
	text := fmt.Sprintf("[[model]]\nbase_url = %q\nmodel = \"m\"\n"+
		"[shell]\nallow = [[\"df\", \"-h\"], [\"uptime\"]]\n%s"+
		"[[mcp]]\nname = \"box\"\ncommand = %q\nenv = [%q]\napprove = \"always\"\n", model, as, exe, mcpVar+"="+paid)
	config := filepath.Join(dir, "supervisor.toml")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, append(append([]string{"--supervisor", config}, short...), args...)...)
	file := filepath.Join(n.dir, "admin.key")

	eve := newCaller(n, "evil", "runs:create", "runs:read")
	hers := newCaller(n, "evil", "runs:read", "runs:approve", "runs:control")
	for _, line := range []string{"run du --files0-from=" + file, "run cat " + file, "run df -h"} {
		eve.answer(eve.begin(line), `there is no tool \"shell\"`)
	}
	status, body := eve.call("POST", "/api/v1/runs", obj{"kind": "supervisor.worker", "wait": "30s",
		"input": obj{"task": "run cat " + file}})
	if status != http.StatusOK || !strings.Contains(body, `there is no tool`) {
		t.Errorf("a worker that was started by hand = %d %s, want that it has no shell", status, body)
	}
	eve.safe(body)

	thread := eve.begin("pay")
	a := asked(n)
	if a.Tenant != "evil" || a.Approvers != "platform" {
		t.Errorf("the platform is asked %+v, want by the tenant evil", a)
	}
	hers.refused(a)
	// A platform key that may approve and see every tenant needs nothing else.
	var made struct {
		Secret string `json:"secret"`
	}
	n.insist("POST", "/api/admin/keys", "", obj{"name": "guard",
		"scopes": []string{"runs:read", "runs:approve", "platform:read"}}, &made)
	guard := caller{n, made.Secret}
	status, body = guard.call("POST", "/api/v1/approvals/"+a.ID+"?tenant=evil", obj{"decision": "approve"})
	if status != http.StatusOK {
		t.Errorf("the platform's decision = %d %s", status, body)
	}
	eve.answer(thread, "pay is done")
	// The approval was for one call. A retry with the journal of that call asks anew, or does nothing.
	status, body = eve.call("POST", "/api/v1/runs/"+a.RunID+"/retry", obj{"from": "begin#1"})
	var again runView
	if err := json.Unmarshal([]byte(body), &again); err != nil || status != http.StatusCreated {
		t.Fatalf("retry = %d %s", status, body)
	}
	status, body = eve.call("GET", "/api/v1/runs/"+again.RunID+"/join?timeout=30s", nil)
	if status != http.StatusOK || !strings.Contains(body, `"mcp_not_allowed"`) {
		t.Errorf("the retry = %d %s, want failed with mcp_not_allowed", status, body)
	}
	if calls, _ := os.ReadFile(paid); strings.Count(string(calls), "pay") != 1 {
		t.Errorf("calls of the MCP server: %q, want one", calls)
	}

	ann := newCaller(n, "default", "runs:create", "runs:read")
	annsBoss := newCaller(n, "default", "runs:read", "runs:approve", "runs:control")
	ann.answer(ann.begin("run df -h"), "Filesystem")
	for _, line := range []string{"run du --files0-from=" + file, "run cat " + file} {
		thread := ann.begin(line)
		a := asked(n)
		annsBoss.refused(a)
		if status := n.insist("POST", "/api/v1/approvals/"+a.ID, "", obj{"decision": "approve"}, nil); status !=
			http.StatusOK {
			t.Errorf("the platform's decision = %d", status)
		}
		ann.answer(thread, "Permission denied")
	}
}
