package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/coder/websocket"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/browser"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
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

// sees waits until an element with a text is shown.
func (d *dashboard) sees(css, text string) {
	d.t.Helper()
	eventually.True(d.t, fmt.Sprintf("the page shows %q in %s", text, css), func() bool {
		return browser.Eval[int](d.Page, find(css, text)+".length") > 0
	})
}

// clicks clicks on the first element with a text, once it can be used.
func (d *dashboard) clicks(css, text string) {
	d.t.Helper()
	eventually.True(d.t, fmt.Sprintf("the page has %q in %s to click on", text, css), func() bool {
		return browser.Eval[bool](d.Page, `(() => { const e = `+find(css, text)+`.find(e => !e.disabled);
			if (e) e.click(); return Boolean(e) })()`)
	})
}

// unfolds clicks on a button in a part of the page until a text is there. A page that draws itself anew
// meanwhile folds it again.
func (d *dashboard) unfolds(css, button, want string) {
	d.t.Helper()
	eventually.True(d.t, fmt.Sprintf("%s shows %q after clicks on %q", css, want, button), func() bool {
		return browser.Eval[bool](d.Page, `(() => {
			const e = `+find(css+" button", button)+`.find(e => !e.disabled); if (e) e.click();
			return [...document.querySelectorAll('`+css+`')].some(e => e.textContent.includes('`+want+`')) })()`)
	})
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

// goes shows another view.
func (d *dashboard) goes(hash string) {
	d.t.Helper()
	browser.Eval[string](d.Page, fmt.Sprintf("location.hash = %q", hash))
}

// reloads loads the page again.
func (d *dashboard) reloads() {
	d.t.Helper()
	browser.Eval[bool](d.Page, "window.before = true; location.reload(); true")
	eventually.True(d.t, "the page is another one", func() bool {
		return browser.Eval[bool](d.Page, "!window.before && document.readyState === 'complete'")
	})
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
	eventually.True(t, "the list has four runs", func() bool {
		return browser.Eval[int](d.Page, "document.querySelectorAll('tbody tr').length") == 4
	})
	d.clicks("thead input", "Select all")
	d.sees(".bulk", "4 selected")
	d.clicks("tbody input", "")
	d.clicks(".bulk button", "Cancel 3")
	d.clicks("dialog button", "Cancel 3")
	d.clicks("tbody input", "") // selected while the others are cancelled, it stays so
	eventually.True(t, "the list shows three cancelled runs", func() bool {
		return browser.Eval[int](d.Page, find("tbody .state", "Cancelled")+".length") == 3
	})
	d.sees(".bulk", "1 selected")

	// All that match are cancelled, not only those that are shown.
	many := make([]obj, 120)
	for i := range many {
		many[i] = obj{"kind": "sleep", "metadata": obj{"batch": "eight"}}
	}
	n.insist("POST", "/api/v1/runs/batch", "", obj{"runs": many}, nil)
	d.goes("#/runs?metadata.batch=eight")
	d.sees(".chip", "eight")
	eventually.True(t, "the list has a page of runs", func() bool {
		return browser.Eval[int](d.Page, "document.querySelectorAll('tbody tr').length") == 50
	})
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
	eventually.True(t, "no queue is paused", func() bool {
		return browser.Eval[int](d.Page, find("tbody button", "Resume")+".length") == 0
	})
}

// Text of an agent is shown as text, with any content and of any length: values as large as the server takes them,
// and an output of 5 MB in one line. No view of it freezes the page, and neither do the views beside it.
func TestDashboardShowsHostileTextAsText(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const bad = `<script>window.owned = 1</script><img src=x onerror="window.owned = 2"> [x](javascript:owned=3) ` +
		"\x1b[31mred\x1b[0m \x1b]0;title\x07 pay\u202etxt.exe\u202c \u200b"
	quoted, _ := json.Marshal(bad)
	room := perdure.MaxValue - len(quoted) - len(`{"text":""}`)
	long := bad + strings.Repeat("y", room)
	numbers := "[1234567890123456789" + strings.Repeat(",1", (perdure.MaxValue-21)/2) + "]"
	r := n.submit(obj{"kind": "hostile", "input": obj{"text": long}, "metadata": obj{"note": bad}})
	n.submit(obj{"kind": "neighbour"})
	var thread struct {
		ThreadID string `json:"thread_id"`
	}
	n.insist("POST", "/api/v1/threads", "", obj{"metadata": obj{"title": bad}}, &thread)
	said := "/api/v1/threads/" + thread.ThreadID + "/messages"
	n.insist("POST", said, "", obj{"role": "assistant", "content": bad}, nil)
	if status := n.insist("POST", said, "", obj{"role": "assistant", "content": long}, nil); status >= 300 {
		t.Fatalf("the largest message = %d, want it taken", status)
	}
	grant := n.poll("w", 1, true, "10s")[0]
	// 5 MB of output in one line without an end: in as many lines of the log as a process would need, and in the
	// five largest ones, which the log keeps apart.
	lines := []obj{{"type": "llm:delta", "data": obj{"text": bad}}, {"type": "x:note", "data": obj{"text": long}}}
	for range 4 {
		lines = append(lines, obj{"type": "x:output", "data": obj{"text": long}})
	}
	n.insist("POST", "/api/v1/workers/w/commit", "", obj{"commits": []obj{{"commit_id": "large", "run_id": grant.RunID,
		"epoch": grant.Epoch, "events": lines}}}, nil)
	lines = nil
	for range 640 {
		lines = append(lines, obj{"type": "x:output", "data": obj{"text": long[len(long)-8000:]}})
	}
	attack := "window.owned = 4; //" + `<svg xmlns="http://www.w3.org/2000/svg"><script>` +
		`(parent ?? opener).owned = 5; fetch("/api/v1/keys")</script></svg>`
	files := []struct{ name, media, content string }{{"page.html", "text/html", attack},
		{"picture.svg", "image/svg+xml", attack}, {"code.js", "text/javascript", attack},
		{"large.txt", "text/plain", strings.Repeat(bad, 5<<20/len(bad))}}
	for _, f := range files {
		n.puts(grant, f.name, f.media, f.content)
	}
	commit := obj{"commit_id": "end", "run_id": grant.RunID, "epoch": grant.Epoch, "events": lines,
		"outcome": obj{"type": "complete", "result": json.RawMessage(numbers)}}
	if status := n.insist("POST", "/api/v1/workers/w/commit", "", obj{"commits": []obj{commit}}, nil); status != 200 {
		t.Fatalf("a commit of the largest lines = %d, want 200", status)
	}

	d := openDashboard(t, n, "", "login="+n.key)
	d.sees("h1", "Home")
	d.goes("#/runs")
	d.sees("tbody", "neighbour")
	d.sees("tbody", "<script>window.owned")
	browser.Eval[bool](d.Page, `window.long = []; new PerformanceObserver(list => {
		for (const e of list.getEntries()) long.push(Math.round(e.duration)) }).observe({type: 'longtask'}); true`)
	for _, view := range []struct{ at, css, text string }{
		{"/runs/" + r.RunID + "?tab=data", ".json", "<script>window.owned"},
		{"/runs/" + r.RunID + "?tab=data", "button", "show all"},
		{"/runs/" + r.RunID + "?tab=data", ".json", "1234567890123456789"},
		{"/runs/" + grant.RunID + "?tab=data", "td a", "large.txt"},
		{"/runs/" + grant.RunID + "?form=lines", ".log-row", "U+202E"},
		{"/runs/" + grant.RunID + "?tab=output", ".term-line", "yyyy"},
		{"/threads/" + thread.ThreadID, ".message", "<script>window.owned"},
		{"/threads/" + thread.ThreadID, ".message", "U+202E"},
		{"/threads/" + thread.ThreadID, ".message button", "show all"},
		{"/runs", "tbody", "neighbour"},
	} {
		began := time.Now()
		d.goes("#" + view.at)
		d.sees(view.css, view.text)
		t.Logf("%s shows %q after %d ms; tasks longer than 50 ms: %v", view.at, view.text,
			time.Since(began).Milliseconds(), browser.Eval[[]float64](d.Page, "long.splice(0)"))
		if owned := browser.Eval[bool](d.Page, "window.owned !== undefined"); owned {
			t.Errorf("%s: a script of an agent was executed", view.at)
		}
		made := browser.Eval[int](d.Page, `document.querySelectorAll('main img, main script, '+
			'main a[href^="javascript"]').length`)
		if made != 0 {
			t.Errorf("%s: the text of an agent became %d elements, want none", view.at, made)
		}
		if chars := browser.Eval[int](d.Page, "document.body.textContent.length"); chars > 400_000 {
			t.Errorf("%s has %d characters, want the page to show a part of so long a text", view.at, chars)
		}
	}

	// Artifacts are saved, and neither shown nor executed: not by a click, not as a page, and not by a script, an
	// import, a frame or a picture that somebody got into the dashboard.
	d.goes("#/runs/" + grant.RunID + "?tab=data")
	for _, f := range files {
		d.sees("td a", f.name)
		browser.Eval[bool](d.Page, find("td a", f.name)+"[0].focus(), true")
		d.Press("\r") // without a person's key or click a page may save one file
		eventually.True(t, "the browser saves "+f.name, func() bool {
			return d.Downloaded(f.name, int64(len(f.content)))
		})
		browser.Eval[bool](d.Page, `(() => { const at = `+find("td a", f.name)+`[0].href; window.tried = [];
			const tries = (e, attribute) => { e[attribute] = at; document.body.append(e);
				e.onload = e.onerror = () => tried.push(e.tagName) };
			tries(document.createElement('script'), 'src');
			tries(Object.assign(document.createElement('script'), {type: 'module'}), 'src');
			tries(document.createElement('iframe'), 'src'); tries(document.createElement('object'), 'data');
			tries(document.createElement('img'), 'src');
			import(at).catch(() => {}).finally(() => tried.push('import')); return true })()`)
		eventually.True(t, "the page has tried to load "+f.name, func() bool {
			return browser.Eval[int](d.Page, "tried.length") >= 5
		})
		if owned := browser.Eval[any](d.Page, "window.owned ?? null"); owned != nil {
			t.Errorf("%s: script %v of an artifact was executed", f.name, owned)
		}
	}
	browser.Eval[bool](d.Page, "location.href = "+find("td a", "page.html")+"[0].href, true")
	d.goes("#/runs")
	d.sees("tbody", "neighbour")
	if at := browser.Eval[string](d.Page, "location.pathname"); at != "/ui/" {
		t.Errorf("the page that is shown after the artifacts is %s, want the dashboard", at)
	}
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

// loadsAxe puts axe-core into the page, if npm has brought it ("make ui-packages").
func (d *dashboard) loadsAxe() bool {
	d.t.Helper()
	source, err := os.ReadFile("../ui/node_modules/axe-core/axe.min.js")
	if err != nil {
		d.t.Log("axe-core is not here: the check of ours looks at the pages alone")
		return false
	}
	return browser.Eval[bool](d.Page, string(source)+"; typeof axe === 'object'")
}

// axeFinds gives the serious and critical findings of axe-core on the page as it is now.
func (d *dashboard) axeFinds() []string {
	d.t.Helper()
	browser.Eval[bool](d.Page, `window.axeFound = null;
		axe.run(document, {resultTypes: ['violations']}).then(r => {
		window.axeFound = r.violations.filter(v => ['serious', 'critical'].includes(v.impact)).flatMap(v =>
			v.nodes.slice(0, 5).map(n => v.impact + ' ' + v.id + ': ' + v.help + ': ' + n.html.slice(0, 200))) },
		e => { window.axeFound = [String(e)] }); true`)
	eventually.True(d.t, "axe-core has looked at the page", func() bool {
		return browser.Eval[bool](d.Page, "window.axeFound !== null")
	})
	return browser.Eval[[]string](d.Page, "axeFound")
}

// dialog opens a dialog with the keyboard and looks at it. The dialog takes the focus, keeps it, and gives it back
// when it is closed: with Escape, and with its first button that does nothing else.
func (d *dashboard) dialog(css, text, key, closing string, look func(string)) {
	d.t.Helper()
	open := func() {
		d.t.Helper()
		if strings.HasPrefix(css, ".menu") {
			d.sees(".menu", "")
			browser.Eval[bool](d.Page, `document.querySelector('.menu').setAttribute('open', ''), true`)
		}
		d.sees(css, text)
		browser.Eval[bool](d.Page, `(() => { const e = `+find(css, text)+`[0];
			e.focus(); window.opener_ = e.closest('.menu')?.querySelector('summary') ?? e; return true })()`)
		d.Press(key)
		eventually.True(d.t, "the dialog of "+text+" has the focus", func() bool {
			return browser.Eval[bool](d.Page,
				`Boolean(document.querySelector('dialog[open]')?.contains(document.activeElement))`)
		})
	}
	closed := func(how string) {
		d.t.Helper()
		eventually.True(d.t, "after "+how+" the dialog of "+text+" is gone, and the focus where it was", func() bool {
			return browser.Eval[bool](d.Page, `!document.querySelector('dialog') && document.activeElement === opener_`)
		})
	}
	open()
	look("the dialog of " + text)
	for range 12 {
		d.Press("\t")
		if at := browser.Eval[string](d.Page, `(e => e === document.body || e.closest('dialog') ? '' : e.outerHTML)(
			document.activeElement)`); at != "" {
			d.t.Errorf("Tab in the dialog of %s leads out of it, to %s", text, at)
		}
	}
	d.Press("\x1b")
	closed("Escape")
	open()
	browser.Eval[bool](d.Page, find("dialog button", closing)+"[0].focus(), true")
	d.Press("\r")
	closed(closing)
}

// picture saves how the page looks in the folder that PERDURE_PICTURES names, if it names one.
func (d *dashboard) picture(what, theme string, width int64) {
	d.t.Helper()
	folder := os.Getenv("PERDURE_PICTURES")
	if folder == "" {
		return
	}
	words := strings.FieldsFunc(what, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	file := fmt.Sprintf("%s-%s-%d.png", strings.Join(words, "-"), theme, width)
	if err := errors.Join(os.MkdirAll(folder, 0o755),
		os.WriteFile(filepath.Join(folder, file), d.Screenshot(), 0o644)); err != nil {
		d.t.Fatal(err)
	}
}

// A form is how a page is looked at.
type form struct {
	width int64
	theme string
}

// forms gives two forms of a page that have both widths and both themes: for the next page the two others. All four
// are looked at with PERDURE_TEST_FULL=1 ("make campaign") and for pictures.
func forms(page int) []form {
	if os.Getenv("PERDURE_TEST_FULL") != "" || os.Getenv("PERDURE_PICTURES") != "" {
		return []form{{1280, "light"}, {1280, "dark"}, {390, "light"}, {390, "dark"}}
	}
	if page%2 == 0 {
		return []form{{1280, "light"}, {390, "dark"}}
	}
	return []form{{1280, "dark"}, {390, "light"}}
}

// Each view and each dialog, light and dark, at the width of a desktop and of a phone, has names, an order of focus
// and contrast. With PERDURE_PICTURES=FOLDER it also makes pictures of them.
func TestDashboardIsAccessible(t *testing.T) {
	t.Parallel()
	check, err := os.ReadFile("testdata/accessible.js")
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	asked := asksForApproval(n, "Push to main?")
	n.submit(obj{"kind": "waits", "metadata": obj{"team": "platform"}})
	n.insist("POST", "/api/v1/webhooks", "", obj{"url": "https://hooks.example.com/x"}, nil)
	n.insist("PUT", "/api/v1/schedules/nightly", "", obj{"cron": "30 2 * * *", "kind": "report"}, nil)
	var thread struct {
		ThreadID string `json:"thread_id"`
	}
	n.insist("POST", "/api/v1/threads", "", obj{"metadata": obj{"title": "A title"}}, &thread)
	n.insist("POST", "/api/v1/threads/"+thread.ThreadID+"/messages", "", obj{"role": "user", "content": "hello"}, nil)
	n.insist("POST", "/api/admin/tenants/acme/keys", "", obj{"name": "ada", "scopes": []string{"runs:read"}}, nil)
	full := fullRun(n)
	d := openDashboard(t, n, "", "login="+n.key)
	d.sees("h1", "Home")
	axe := d.loadsAxe()
	var found []string
	defer func() {
		if t.Failed() {
			t.Logf("the check has found %v", found)
		}
	}()
	page := 0
	look := func(what string) {
		t.Helper()
		for _, f := range forms(page) {
			d.Resize(f.width, 844)
			browser.Eval[string](d.Page, fmt.Sprintf("document.documentElement.dataset.theme = %q", f.theme))
			// The page takes a moment to draw itself for a new width.
			eventually.True(t, fmt.Sprintf("%s, %s, %d wide, is accessible", what, f.theme, f.width), func() bool {
				found = browser.Eval[[]string](d.Page, "("+string(check)+")()")
				return len(found) == 0
			})
			d.picture(strings.ReplaceAll(what, asked.RunID, "run"), f.theme, f.width)
			if axe {
				if found := d.axeFinds(); len(found) > 0 {
					t.Errorf("%s, %s, %d wide: axe-core has found\n%s", what, f.theme, f.width,
						strings.Join(found, "\n"))
				}
			}
		}
		page++
		d.Resize(1280, 844)
	}
	show := func(view string) {
		t.Helper()
		d.goes("#" + view)
		d.sees("h1", "")
		eventually.True(t, view+" is loaded", func() bool {
			return browser.Eval[int](d.Page, "document.querySelectorAll('main .loading').length") == 0
		})
	}
	for _, view := range []string{"/home", "/kinds", "/kinds/deploy", "/queues/default", "/workers/deployer", "/runs",
		"/runs/" + asked.RunID, "/runs/" + asked.RunID + "?tab=data",
		"/runs/" + asked.RunID + "?tab=waits", "/threads", "/threads/" + thread.ThreadID, "/approvals", "/dead-letters",
		"/start", "/workers", "/schedules", "/schedules/nightly", "/webhooks", "/health",
		"/watchdog", "/recovery", "/keys"} {
		show(view)
		look(view)
	}
	for _, x := range []struct{ tab, text string }{
		{"journal", "plan"}, {"inbox", "hurry"}, {"children", "kid"}, {"output", "42%"},
	} {
		show("/runs/" + full.RunID + "?tab=" + x.tab)
		d.sees("main .card", x.text)
		look("the tab " + x.tab)
	}
	// A run that is at work records one more step: its journal shows that without a reload.
	show("/runs/" + full.RunID + "?tab=journal")
	d.sees("[data-row]", "plan")
	n.insist("POST", "/api/v1/workers/w/commit", "", obj{"commits": []obj{{"commit_id": "next", "run_id": full.RunID,
		"epoch": full.Epoch, "journal": []obj{{"key": "proofread", "value": "no mistakes"}}}}}, nil)
	d.sees("[data-row]", "proofread")
	if state := n.get(full.RunID).State; state != "running" {
		t.Errorf("run %s: state while its journal is shown = %s, want running", full.RunID, state)
	}
	d.dialog("button", "Cancel", "\r", "Cancel", look) // a form
	d.dialog(".menu button", "Send a signal", "\r", "Cancel", look)
	show("/webhooks")
	d.dialog(".menu button", "Delete", "\r", "Cancel", look) // a question
	show("/runs?kind=waits")
	d.dialog("button", "Save this view", "\r", "Cancel", look)
	d.dialog("nav a", "Workers", "?", "Close", look) // the keys
	// The choice of tenants is a list, and with many of them a field to search in.
	d.sees(".pick-tenant select", "acme")
	for i := range 20 {
		n.insist("PUT", fmt.Sprintf("/api/admin/tenants/tenant-%d", i), "", obj{}, nil)
	}
	d.reloads()
	d.sees(".pick-tenant input", "")
	axe = d.loadsAxe()
	look("a field for tenants")
	d.Resize(390, 844)
	d.clicks(".burger", "Menu")
	d.sees(".pick-tenant input", "")
	look("the menu of a phone")
	d.clicks("button", "Log out")
	d.sees("h1", "Perdure")
	d.sees(".login", "perdure dashboard")
	look("the login")
	d.types("input[name=key]", "prd_wrong")
	d.clicks("button", "Log in")
	d.sees("[role=alert]", "This key is not valid")
	look("a login that was refused")
	// The check finds what is wrong: a button without a name, grey on grey, a second title, a wide line.
	browser.Eval[bool](d.Page, `(() => { const e = document.createElement('div'); e.id = 'bad'; e.append(
		document.createElement('button'), Object.assign(document.createElement('h1'), {textContent: 'x'}),
		Object.assign(document.createElement('p'), {textContent: 'grey'}));
		e.style.color = '#888'; e.style.background = '#777'; e.style.width = '5000px';
		document.querySelector('main').append(e); return true })()`)
	bad := strings.Join(browser.Eval[[]string](d.Page, "("+string(check)+")()"), "\n")
	for _, want := range []string{"no name", "contrast", "not one h1", "the page is"} {
		if !strings.Contains(bad, want) {
			t.Errorf("the check of a bad page finds %q, want %q in it", bad, want)
		}
	}
}

// mute passes everything on to a node but its sockets: those are accepted and read, and nothing is said.
func mute(t *testing.T, n *node, read func(message []byte)) string {
	t.Helper()
	to, err := url.Parse("http://" + n.addr)
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(to)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/ws" {
			pass.ServeHTTP(w, r)
			return
		}
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		for {
			_, message, err := c.Read(r.Context())
			if err != nil {
				return
			}
			read(message)
		}
	}))
	t.Cleanup(front.Close)
	return front.URL
}

// A live connection that says nothing is given up: the page asks instead, and says so.
func TestDashboardPollsWhenItsSocketIsSilent(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	front := mute(t, n, func([]byte) {})
	d := &dashboard{browser.Open(t, front+"/ui/?silence=1500#login="+n.key), t, n}
	d.sees("h1", "Home")
	d.goes("#/runs")
	d.sees(".banner", "The live connection was silent")
	n.submit(obj{"kind": "meanwhile"})
	d.sees("tbody", "meanwhile")
}

// A view that is opened after the socket has opened, and before it has said anything, is watched all the same.
// Such a view would be polled once and then stay as it is, below a page that says that it is live.
func TestDashboardWatchesBeforeTheFirstMessage(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	watched := make(chan string, 100)
	front := mute(t, n, func(message []byte) {
		var m struct {
			Of string `json:"of"`
		}
		if json.Unmarshal(message, &m) == nil {
			select {
			case watched <- m.Of:
			default:
			}
		}
	})
	d := &dashboard{browser.Open(t, front+"/ui/#login="+n.key), t, n}
	wait := func(of string) {
		eventually.True(t, "the socket is told to watch "+of, func() bool {
			select {
			case got := <-watched:
				return got == of
			default:
				return false
			}
		})
	}
	wait("counts")
	d.sees("h1", "Home")
	d.goes("#/workers")
	wait("workers")
	n.insist("POST", "/api/v1/webhooks", "", obj{"url": "https://hooks.example.com/x"}, nil)
	d.goes("#/webhooks")
	wait("webhooks")
	d.sees("tbody", "hooks.example.com") // polled, because the socket says nothing
	wait("deliveries")
}

// A log of 10 000 lines can be looked at like a short one.
func TestDashboardTimelineOfTenThousandLines(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.submit(obj{"kind": "long"})
	r := n.poll("w", 1, true, "10s")[0]
	for i := range 10 {
		events := make([]obj, 0, 990)
		for j := range 330 {
			key := fmt.Sprintf("%d-%d", i, j)
			events = append(events, obj{"type": "worker:tool_started", "data": obj{"tool": "grep", "key": key}},
				obj{"type": "x:note", "data": obj{"n": j}},
				obj{"type": "worker:tool_completed", "data": obj{"tool": "grep", "key": key}})
		}
		if status := n.insist("POST", "/api/v1/workers/w/commit", "", obj{"commits": []obj{{"commit_id": fmt.Sprint(i),
			"run_id": r.RunID, "epoch": r.Epoch, "events": events}}}, nil); status != 200 {
			t.Fatalf("commit %d = %d, want 200", i, status)
		}
	}
	d := openDashboard(t, n, "", "login="+n.key)
	d.sees("h1", "Home")
	d.goes("#/runs/" + r.RunID + "?form=lines")
	d.sees(".sub", "of 9,9")
	// Zooms and moves, a step a frame, and measures the frames: again while others take the processors.
	eventually.True(t, "a frame of a timeline of 10 000 lines takes 100 ms at most", func() bool {
		browser.Eval[bool](d.Page, `(() => {
			const c = document.querySelector('.timeline canvas');
			const keys = ['+', 'ArrowLeft', '+', 'ArrowRight', '-', '0'];
			const times = window.frames_ = []; let last = performance.now(), i = 0;
			const step = now => { if (i > 0) times.push(now - last); last = now; if (i++ >= 60) return;
				c.dispatchEvent(new KeyboardEvent('keydown', {key: keys[i % keys.length], bubbles: true}));
				requestAnimationFrame(step); };
			requestAnimationFrame(step); return true })()`)
		eventually.True(t, "sixty frames were drawn", func() bool {
			return browser.Eval[int](d.Page, "frames_.length") >= 60
		})
		median := browser.Eval[float64](d.Page, "frames_.sort((a, b) => a - b)[30]")
		t.Logf("median frame %.1f ms, slowest %.1f ms", median, browser.Eval[float64](d.Page, "frames_[59]"))
		return median <= 100 // 17 on an idle machine
	})
	if rows := browser.Eval[int](d.Page, "document.querySelectorAll('.log-row').length"); rows > 400 {
		t.Errorf("the page has %d rows of the log, want only those near the window", rows)
	}
	silences(t, d)
}

// silences checks the gaps of a timeline: those that the watchdog has told of, not those between lines of the log,
// where heartbeats that say nothing new have none.
func silences(t *testing.T, d *dashboard) {
	t.Helper()
	browser.Eval[bool](d.Page, "import('./timeline/model.js').then(m => { window.model_ = m }); true")
	eventually.True(t, "the model is loaded", func() bool { return browser.Eval[bool](d.Page, "!!window.model_") })
	for _, x := range []struct{ name, seen, more, want string }{
		{"a minute without a new line", "59", "", ""},
		{"silent now", "20", "", "20-60"},
		{"silent and heard again", "59", "['run:slow', 40, {reason: 'silent', seen_at: at(10)}], ['run:progress', 50]",
			"10-50"},
		{"silent and heard again, without a line", "59", "['run:slow', 40, {reason: 'silent', seen_at: at(10)}]",
			"10-59"},
		{"a lost lease", "10", "['run:slow', 40, {reason: 'silent', seen_at: at(10)}], " +
			"['run:reclaimed', 55, {reason: 'lease_lost'}]", ""},
		{"no progress is no silence", "59", "['run:slow', 40, {reason: 'no_progress', seen_at: at(39)}]", ""},
	} {
		got := browser.Eval[string](d.Page, fmt.Sprintf(`(() => {
			const at = s => new Date(s * 1000).toISOString();
			const lines = [['run:created', 0], ['run:started', 1, {}], ['run:heartbeat', 2], %s];
			const events = lines.map(([type, s, data], i) => ({seq: i + 1, type, at: at(s), attempt: 1, data}));
			const run = {state: 'running', created_at: at(0), seen_at: at(%s)};
			return model_.lane(run, events, 60_000).gaps.map(g => g.from / 1000 + '-' + g.to / 1000).join() })()`,
			x.more, x.seen))
		if got != x.want {
			t.Errorf("%s: gaps = %q, want %q", x.name, got, x.want)
		}
	}
}
