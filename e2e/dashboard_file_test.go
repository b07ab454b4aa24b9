package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/testkit/browser"
)

func runsAreCompared(t *testing.T, d *dashboard) {
	r := d.n.steps("compared")
	d.n.commits(r, obj{"outcome": obj{"type": "fail", "retryable": false, "error": obj{"code": "broken",
		"message": "no"}}})
	var made runView
	if status := d.n.insist("POST", "/api/v1/runs/"+r.RunID+"/retry", "", obj{"from": "start"}, &made); status >= 300 {
		t.Fatalf("the retry = %d, want it made", status)
	}
	again := d.n.takes("compared")
	d.n.commits(again, obj{"journal": []obj{{"key": "plan#1", "value": obj{"ok": obj{"pages": 7}}},
		{"key": "store#1", "value": obj{"ok": "stored"}}, {"key": "extra#1", "value": obj{"ok": 1}}}})
	d.n.commits(again, obj{"outcome": obj{"type": "complete", "result": "done"}})
	d.showsLive(again, ".actions a", "Compare")
	d.clicks(".actions a", "Compare")
	for _, want := range []string{"store", "extra", "only in the second", "only in the first", "state, error"} {
		d.sees("[aria-label='Steps that differ'] tr", want)
	}
	if n := d.number("[aria-label='Steps that differ'] tr", "plan"); n > 0 {
		t.Error("the step plan is the same in both runs, want it not among those that differ")
	}
	d.sees("[aria-label='The two runs'] tr.differs", "Outcome")
	d.pictures("compare")
	d.clicks(".card-head button", "Show")
	d.sees("[aria-label='Steps that are the same'] tr", "plan")
	d.clicks("[aria-label='Steps that differ'] tr:nth-child(1) a.pair", "")
	d.sees(".pane", "")
}

// hostile is a text that would end a script, or a line of one.
const hostile = "</script><script>window.evil = 1</script><!--\u2028\u2029 ${evil} `x` </SCRIPT "

func runAsOneFile(t *testing.T, d *dashboard) {
	r := d.n.steps("file")
	d.n.commits(r, obj{"journal": []obj{{"key": "large#1", "value": obj{"ok": strings.Repeat("word ", 3000) +
		"the end of it"}},
		{"key": "hostile#1", "value": obj{"ok": hostile}}},
		"events": []obj{{"type": "x:note", "data": obj{"text": hostile}}}})
	d.n.commits(r, obj{"outcome": obj{"type": "complete",
		"result": obj{"number": json.Number("12345678901234567890")}}})
	d.showsLive(r, ".run-head", "Completed")
	browser.Eval[bool](d.Page, "window.file = '', import('./export.js').then(m => m.exported('"+r.RunID+
		"')).then(f => { file = f }, e => { file = 'failed: ' + e }), true")
	d.until("the file is made", "file.length > 0")
	text := browser.Eval[string](d.Page, "file")
	if !strings.HasPrefix(text, "<!doctype html>") || strings.Contains(text, "window.evil = 1</script>") {
		t.Fatalf("the file begins with %.80q, want a page in which no text of a run ends a script", text)
	}
	path := filepath.Join(t.TempDir(), "run.html")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// It opens from disk, in a browser that was never logged in, with the server gone.
	d.n.kill(syscall.SIGKILL)
	defer d.n.start()
	f := &dashboard{browser.Open(t, "file://"+path), t, d.n}
	f.sees(".still-note", "A copy of")
	f.sees(".run-head", "Completed")
	for _, want := range []string{"plan", "hostile", "6 × scan-logs", "no such host"} {
		f.sees(".step", want)
	}
	browser.Eval[bool](f.Page, `(() => { window.refused = []; document.addEventListener('securitypolicyviolation', e =>
		refused.push(e.violatedDirective + ' ' + e.blockedURI)); return true })()`)
	f.clicks(".step", "hostile")
	f.sees(".pane", "</script><script>window.evil = 1</script>")
	f.clicks(".step", "large")
	f.unfolds(".pane", "show all", "the end of it")
	f.lacks(".page-head .actions button", "")
	f.lacks("button", "Retry")
	f.clicks("[role=tab]", "Input and result")
	f.sees(".json", "12345678901234567890")
	f.clicks("[role=tab]", "Children")
	f.sees(".tree", "scan-logs")
	f.clicks("[role=tab]", "Log")
	f.clicks(".forms button", "Lines")
	f.sees(".log-row", "run:completed")
	asked := browser.Eval[[]string](f.Page, `performance.getEntriesByType('resource').map(e => e.name)
		.filter(n => !n.startsWith('data:')).concat(refused)`)
	if len(asked) > 0 || browser.Eval[bool](f.Page, "'evil' in window") {
		t.Errorf("the file has asked for %v, want nothing asked for and no text executed", asked)
	}
	if d.n.key != "" && strings.Contains(text, d.n.key) {
		t.Error("the file has the key of who made it")
	}
}

func workersOfAConversation(t *testing.T, d *dashboard) {
	var thread struct {
		ThreadID string `json:"thread_id"`
	}
	d.n.insist("POST", "/api/v1/threads", "", obj{"metadata": obj{"title": "Steering"}}, &thread)
	at := "/api/v1/threads/" + thread.ThreadID
	for i := range 30 {
		d.n.insist("POST", at+"/messages", "", obj{"role": "assistant",
			"content": fmt.Sprintf("Message %d.\n\n```go\nfmt.Println(%d)\n```", i, i)}, nil)
	}
	d.n.insist("POST", at+"/runs", "", obj{"kind": "talker", "queue": "talk"}, nil)
	r := d.n.takes("talk")
	d.n.commits(r, obj{"events": []obj{{"type": "llm:delta", "data": obj{"text": "I hand it on."}}},
		"children": []obj{{"key": "k", "kind": "helper", "queue": "talk-helpers"}}})
	d.goes("#/threads/" + thread.ThreadID)
	d.sees(".message.is-live", "I hand it on.")
	helper := d.n.takes("talk-helpers")
	d.n.commits(helper, obj{"events": []obj{{"type": "worker:tool_started", "data": obj{"id": "t", "name": "df"}},
		{"type": "worker:tool_completed", "data": obj{"id": "t", "name": "df", "output": "42% used"}}}})
	d.clicks(".worker summary", "helper")
	d.sees(".worker-log", "42% used")
	// A worker's question is answered here.
	d.n.commits(helper, obj{"waits": []obj{{"id": "ok", "type": "approval", "name": "clean",
		"approval": obj{"title": "Clean it?", "action": obj{"rm": "cache"}}}}, "outcome": obj{"type": "suspend"}})
	d.sees(".message .approval", "Clean it?")
	d.clicks(".message .approval button", "Approve")
	d.clicks("dialog button", "Approve")
	d.gone(".message .approval", "Clean it?")
	if steer := browser.Eval[string](d.Page, "document.querySelector('#say').placeholder"); !strings.Contains(steer,
		"next step") {
		t.Errorf("the field for a message while the agent works says %q, want that it steers", steer)
	}
	// A link leads to a message, and code is copied.
	d.goes("#/threads/" + thread.ThreadID + "?message=3")
	d.sees(".message.is-led", "Message 2.")
	const inSight = `(() => { const e = document.querySelector('.is-led').getBoundingClientRect(),
		box = document.querySelector('.messages').getBoundingClientRect();
		return e.top >= Math.max(0, box.top) && e.bottom <= Math.min(innerHeight, box.bottom) })()`
	staysInSight := func(when string) {
		t.Helper()
		d.until(when+": the message of a link is in sight", inSight)
	}
	if !browser.Eval[bool](d.Page, inSight) {
		t.Error("the message of a link is shown and not in sight")
	}
	// Lines above it and below it leave it in sight, also in a browser that does not anchor what it scrolls.
	browser.Eval[bool](d.Page, `(() => { document.querySelector('.messages').style.overflowAnchor = 'none';
		const e = document.createElement('p'); e.id = 'late'; e.style.height = '900px';
		e.style.flex = 'none'; document.querySelector('.messages').prepend(e); return true })()`)
	staysInSight("with content above that came late")
	browser.Eval[bool](d.Page, "document.querySelector('#late').remove(), true")
	d.n.insist("POST", at+"/messages", "", obj{"role": "assistant", "content": "One more."}, nil)
	d.n.commits(r, obj{"events": []obj{{"type": "llm:delta", "data": obj{"text": " And more."}}}})
	d.sees(".message.is-live", "And more.")
	staysInSight("with a new message")
	d.sees(".is-led .code button", "Copy the code")
	d.pictures("conversation")
	d.n.commits(r, obj{"outcome": obj{"type": "complete", "result": "done"}})
	d.gone(".message.is-live", "I hand it on.")
}
