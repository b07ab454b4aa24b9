package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/testkit/browser"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A dashboard is the dashboard of a node, in a browser.
type dashboard struct {
	*browser.Page
	t *testing.T
	n *node
}

// openDashboard opens the page of a node. query is what its address has between ? and #.
func openDashboard(t *testing.T, n *node, query, hash string) *dashboard {
	t.Helper()
	return &dashboard{browser.Open(t, "http://"+n.addr+"/ui/"+query+"#"+hash), t, n}
}

// texts finds elements by a selector and their text. The text may be a part.
const texts = `((css, text) => [...document.querySelectorAll(css)].filter(e => e.checkVisibility() &&
	(e.textContent + ' ' + (e.getAttribute('aria-label') ?? '')).includes(text)))(%s, %s)`

func find(css, text string) string {
	quote := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	return fmt.Sprintf(texts, quote(css), quote(text))
}

// until waits until an expression of the page is true.
func (d *dashboard) until(what, expression string) {
	d.t.Helper()
	d.Until(what, expression)
}

// sees waits until an element with a text is shown.
func (d *dashboard) sees(css, text string) {
	d.t.Helper()
	d.until(fmt.Sprintf("the page shows %q in %s", text, css), find(css, text)+".length > 0")
}

// clicks clicks on the first element with a text, once it can be used.
func (d *dashboard) clicks(css, text string) {
	d.t.Helper()
	d.until(fmt.Sprintf("the page has %q in %s to click on", text, css), `(() => {
		const e = `+find(css, text)+`.find(e => !e.disabled); if (e) e.click(); return Boolean(e) })()`)
}

// unfolds clicks on a button in a part of the page until a text is there. A page that draws itself anew
// meanwhile folds it again.
func (d *dashboard) unfolds(css, button, want string) {
	d.t.Helper()
	d.until(fmt.Sprintf("%s shows %q after clicks on %q", css, want, button), `(() => {
		const e = `+find(css+" button", button)+`.find(e => !e.disabled); if (e) e.click();
		return [...document.querySelectorAll('`+css+`')].some(e => e.textContent.includes('`+want+`')) })()`)
}

// types fills in a field.
func (d *dashboard) types(css, text string) {
	d.t.Helper()
	b, _ := json.Marshal(text)
	d.sees(css, "")
	browser.Eval[bool](d.Page, `(() => { const e = document.querySelector('`+css+`'); e.focus(); e.value = `+
		string(b)+`;
		e.dispatchEvent(new Event('input', {bubbles: true})); e.dispatchEvent(new Event('change', {bubbles: true}));
		return true })()`)
}

// goes shows another view. The one before is gone when it returns, so that nothing in it is clicked on.
func (d *dashboard) goes(hash string) {
	d.t.Helper()
	browser.Eval[bool](d.Page, fmt.Sprintf(`new Promise(done => {
		const before = location.href;
		addEventListener('hashchange', () => setTimeout(() => done(true)), {once: true});
		location.hash = %q;
		if (location.href === before) done(true) })`, hash))
}

// reloads loads the page again.
func (d *dashboard) reloads() {
	d.t.Helper()
	browser.Eval[bool](d.Page, "window.before = true; location.reload(); true")
	d.until("the page is another one", "!window.before && document.readyState === 'complete'")
}

// asksForApproval takes a new run and has it ask for an approval.
func asksForApproval(n *node, title string) runView {
	n.t.Helper()
	n.submit(obj{"kind": "deploy"})
	r := n.poll("deployer", 1, true, "10s")[0]
	status := n.insist("POST", "/api/v1/workers/deployer/commit", "", obj{"commits": []obj{{"commit_id": "ask",
		"run_id": r.RunID, "epoch": r.Epoch, "waits": []obj{{"id": "push", "type": "approval", "name": "approve_push",
			"approval": obj{"title": title, "action": obj{"amount": json.Number("12345678901234567890")},
				"form": []obj{{"name": "region", "type": "choice", "options": []string{"eu", "us"},
					"required": true}}}}},
		"outcome": obj{"type": "suspend"}}}}, nil)
	if status != 200 {
		n.t.Fatalf("the commit that asks = %d, want 200", status)
	}
	return r
}

// puts stores an artifact of a run.
func (n *node) puts(r runView, name, media, content string) {
	n.t.Helper()
	req, err := http.NewRequest("PUT", fmt.Sprintf("http://%s/api/v1/runs/%s/artifacts/%s?epoch=%d", n.addr, r.RunID,
		name, r.Epoch), strings.NewReader(content))
	if err != nil {
		n.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+n.key)
	req.Header.Set("Content-Type", media)
	res, err := n.http.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 201 {
		n.t.Fatalf("storing %s = %d, want 201", name, res.StatusCode)
	}
}

// fullRun is a run that has recorded a step, has a child, an output and a signal, and is at work.
func fullRun(n *node) runView {
	n.t.Helper()
	n.submit(obj{"kind": "full", "queue": "full", "class": "process"})
	var p polled
	n.insist("POST", "/api/v1/workers/w/poll", "", obj{"slots": 1, "start": true, "queues": []string{"full"}}, &p)
	if len(p.Runs) != 1 {
		n.t.Fatalf("a poll of the queue full = %d runs, want 1", len(p.Runs))
	}
	r := p.Runs[0]
	n.insist("POST", "/api/v1/runs/"+r.RunID+"/signals/hurry", "", obj{"data": "please"}, nil)
	if status := n.insist("POST", "/api/v1/workers/w/commit", "", obj{"commits": []obj{{"commit_id": "step",
		"run_id": r.RunID, "epoch": r.Epoch, "journal": []obj{{"key": "plan", "value": obj{"pages": 7}}},
		"events":   []obj{{"type": "x:output", "data": obj{"text": "/dev/sda1 42%"}}},
		"children": []obj{{"key": "kid", "kind": "kid"}}}}}, nil); status != 200 {
		n.t.Fatalf("the commit of a full run = %d, want 200", status)
	}
	return r
}

// A person approves an exact action, cancels several runs and redrives a dead letter. The server is
// killed in between.
func TestDashboardActs(t *testing.T) {
	t.Parallel()
	n := newNode(t, short...)
	asked := asksForApproval(n, "Push to main?")
	d := openDashboard(t, n, "", "login="+n.key)
	d.sees("h1", "Home")
	if at := browser.Eval[string](d.Page, "location.href"); strings.Contains(at, n.key) {
		t.Errorf("the address after the one-time link = %s, want it without the key", at)
	}

	d.goes("#/approvals")
	d.sees(".approval", "12345678901234567890") // not rounded
	d.types(`select[name="f:region"]`, "eu")
	d.clicks(".approval button", "Approve")
	d.clicks("dialog button", "Approve")
	d.sees(".empty", "Nothing waits for you")
	var decided struct {
		Approvals []struct {
			Answer obj `json:"answer"`
		} `json:"approvals"`
	}
	n.insist("GET", "/api/v1/approvals?state=approved", "", nil, &decided)
	if len(decided.Approvals) != 1 || decided.Approvals[0].Answer["region"] != "eu" {
		t.Errorf("approved = %+v, want one with the region eu", decided.Approvals)
	}
	if r := n.get(asked.RunID); r.State != "queued" {
		t.Errorf("run %s that was approved: state = %s, want queued", r.RunID, r.State)
	}

	for range 4 {
		n.submit(obj{"kind": "sleep", "metadata": obj{"batch": "seven"}})
	}
	d.goes("#/runs?metadata.batch=seven")
	d.until("the list has four runs", "document.querySelectorAll('tbody tr').length === 4")
	d.clicks("thead input", "Select all")
	d.sees(".bulk", "4 selected")
	d.clicks("tbody input", "")
	d.clicks(".bulk button", "Cancel 3")
	d.clicks("dialog button", "Cancel 3")
	d.clicks("tbody input", "") // selected while the others are cancelled, it stays so
	d.until("the list shows three cancelled runs", find("tbody .state", "Cancelled")+".length === 3")
	d.sees(".bulk", "1 selected")

	// All that match are cancelled, not only those that are shown.
	many := make([]obj, 120)
	for i := range many {
		many[i] = obj{"kind": "sleep", "metadata": obj{"batch": "eight"}}
	}
	n.insist("POST", "/api/v1/runs/batch", "", obj{"runs": many}, nil)
	d.goes("#/runs?metadata.batch=eight")
	d.sees(".chip", "eight")
	d.until("the list has a page of runs", "document.querySelectorAll('tbody tr').length === 50")
	d.clicks("tbody input", "")
	d.clicks(".bulk button", "Select all that match")
	d.clicks(".bulk button", "Cancel 120")
	d.clicks("dialog button", "Cancel 120")
	eventually.True(t, "120 runs are cancelled", func() bool {
		var c struct {
			Status map[string]int `json:"status"`
		}
		n.insist("GET", "/api/v1/runs/counts?metadata.batch=eight", "", nil, &c)
		return c.Status["cancelled"] == 120
	})

	n.submit(obj{"kind": "fails", "max_attempts": 1, "queue": "bad"})
	var p polled
	n.insist("POST", "/api/v1/workers/w/poll", "", obj{"slots": 1, "start": true, "queues": []string{"bad"}}, &p)
	dead := p.Runs[0]
	n.insist("POST", "/api/v1/workers/w/commit", "", obj{"commits": []obj{{"commit_id": "end", "run_id": dead.RunID,
		"epoch": dead.Epoch, "outcome": obj{"type": "fail",
			"error": obj{"code": "disk_broken", "message": "of no use"}}}}},
		nil)
	d.goes("#/dead-letters")
	d.sees(".cause", "disk_broken")
	n.kill(syscall.SIGKILL)
	d.sees(".connection", "Polling")
	n.start()
	d.clicks(".cause button", "Redrive it")
	d.clicks("dialog button", "Redrive 1")
	d.sees("tbody td", "redriven")

	// A run is followed through a restart. Its journal and its inbox are shown while it runs, and when it
	// has ended.
	r := n.submit(obj{"kind": "follow", "queue": "follow"})
	d.goes("#/runs/" + r.RunID)
	d.sees(".run-head", "Queued")
	d.clicks("[role=tab]", "Journal")
	d.sees(".empty", "Nothing recorded yet")
	n.kill(syscall.SIGKILL)
	n.start()
	n.insist("POST", "/api/v1/runs/"+r.RunID+"/signals/hurry", "", obj{"data": "please"}, nil)
	n.insist("POST", "/api/v1/workers/w/poll", "", obj{"slots": 1, "start": true, "queues": []string{"follow"}}, &p)
	n.insist("POST", "/api/v1/workers/w/commit", "", obj{"commits": []obj{{"commit_id": "step", "run_id": r.RunID,
		"epoch": p.Runs[0].Epoch, "journal": []obj{{"key": "plan", "value": obj{"pages": 7}},
			{"key": "draft", "value": strings.Repeat("<b>word</b> ", 1000) + "the end"}}}}}, nil)
	d.sees(".run-head", "Running")
	n.insist("POST", "/api/v1/workers/w/commit", "", complete(p.Runs[0], "done"), nil)
	d.sees(".run-head", "Completed")
	d.sees("[data-row]", "plan")
	d.clicks("[data-row] button", "show all")
	d.sees("[data-row]", "the end")
	d.clicks("[role=tab]", "Inbox")
	d.sees("[data-row]", "please")
	d.clicks("[role=tab]", "Log")
	d.sees(".step", "Completed")

	// The rules of the watchdog have the settings that this server was started with.
	d.goes("#/watchdog")
	d.sees(".in-force", "lease 2s set")
	d.sees(".in-force", "queued_alert 5m")

	// A queued run says why it waits, and says it anew by itself.
	n.insist("POST", "/api/v1/runs", "", obj{"kind": "later", "queue": "idle"}, &r)
	d.goes("#/runs/" + r.RunID)
	d.sees("[data-waiting=unserved]", "No worker polls for kind later")
	n.insist("POST", "/api/v1/queues/idle/pause", "", obj{}, nil)
	d.sees("[data-waiting=queue_paused]", "Queue idle was paused")
	n.insist("POST", "/api/v1/queues/idle/resume", "", obj{}, nil)
	d.sees("[data-waiting=unserved]", "No worker polls for kind later")

	// A paused queue says who paused it and why, and goes on when it is resumed.
	d.goes("#/workers")
	d.clicks("tbody button", "Pause")
	d.types("dialog input[name=reason]", "a bad deploy")
	d.clicks("dialog button", "Pause the queue")
	d.sees("tbody", "by the platform")
	d.sees("tbody", "a bad deploy")
	d.clicks("tbody button", "Resume")
	d.clicks("dialog button", "Resume the queue")
	d.until("no queue is paused", find("tbody button", "Resume")+".length === 0")
}

// A tenant sees nothing of another one, a key for looking can change nothing, and a revoked key leads
// to the login page.
func TestDashboardKeepsTenantsApart(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.submit(obj{"kind": "secret-plan"})
	var key struct {
		KeyID  string `json:"key_id"`
		Secret string `json:"secret"`
	}
	if status := n.insist("POST", "/api/admin/tenants/acme/keys", "", obj{"name": "ada",
		"scopes": []string{"runs:read"}}, &key); status != 201 {
		t.Fatalf("making a key = %d, want 201", status)
	}
	d := openDashboard(t, n, "", "login="+key.Secret)
	d.sees(".all-clear", "All clear")
	d.goes("#/runs")
	d.sees(".empty", "No runs yet")
	if browser.Eval[int](d.Page, find("body", "secret-plan")+".length") > 0 {
		t.Error("a tenant sees a run of another one")
	}
	if browser.Eval[int](d.Page, "document.querySelectorAll('.pick-tenant').length") > 0 {
		t.Error("a key of a tenant has a choice of tenants")
	}
	n.insist("POST", "/api/v1/runs?tenant=acme", "", obj{"kind": "theirs"}, nil)
	d.sees("tbody", "theirs")

	// A key of the platform sees its own tenant, another one, or all.
	all := openDashboard(t, n, "", "login="+n.key)
	all.sees("h1", "Home")
	all.goes("#/runs")
	all.sees("tbody", "secret-plan")
	all.types(".pick-tenant select", "acme")
	all.sees("tbody", "theirs")
	if browser.Eval[int](all.Page, find("tbody", "secret-plan")+".length") > 0 {
		t.Error("the runs of another tenant than the chosen one are shown")
	}
	all.types(".pick-tenant select", "*")
	all.sees("tbody", "secret-plan")
	all.clicks("tbody a", "theirs")
	all.sees("h1", "theirs")
	all.sees(".facts", "Queued")
	if got := browser.Eval[string](all.Page, "document.querySelector('.pick-tenant select').value"); got != "acme" {
		t.Errorf("the tenant of a run that was opened from all = %q, want acme", got)
	}
	if status := n.insist("DELETE", "/api/admin/tenants/acme/keys/"+key.KeyID, "", nil, nil); status != 200 &&
		status != 204 {
		t.Fatalf("revoking the key = %d", status)
	}
	d.sees("[role=alert]", "Your login has expired")
}
