package e2e

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/browser"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// The page of a run shows its steps, what is selected, its life, and what may be done next. The parts share one
// server and one browser, one after the other.
func TestDashboardShowsARun(t *testing.T) {
	n := newNode(t)
	d := openDashboard(t, n, "", "login="+n.key)
	d.sees(".connection", "Live")
	for _, part := range []struct {
		name string
		test func(*testing.T, *dashboard)
	}{
		{"steps, and a link to one", stepsAndALink},
		{"a long life", longLife},
		{"what to do about a hold", holdIsEndedOrGivenUp},
		{"where a retry begins", retryBeginsBeforeAStep},
		{"what a run waits for is answered on its page", waitsAreAnswered},
		{"what holds up a queued run", queuedRunIsHelped},
		{"a terminal", terminalShowsOutput},
		{"a conversation while its workers work", workersOfAConversation},
		{"two runs beside each other", runsAreCompared},
		{"a run as one file", runAsOneFile},
	} {
		t.Run(part.name, func(t *testing.T) {
			n.t = t
			part.test(t, &dashboard{d.For(t), t, n})
		})
	}
	n.t = t
}

// number is how many elements with a text are shown.
func (d *dashboard) number(css, text string) int {
	d.t.Helper()
	return browser.Eval[int](d.Page, find(css, text)+".length")
}

// sees none of an element.
func (d *dashboard) lacks(css, text string) {
	d.t.Helper()
	if n := d.number(css, text); n > 0 {
		d.t.Errorf("the page has %q in %s %d times, want it nowhere", text, css, n)
	}
}

// steps is a run of an agent with steps, a call of a model, tools, children and a wait.
func (n *node) steps(queue string) runView {
	n.t.Helper()
	r := n.grants(obj{"kind": "research", "queue": queue, "class": "agent"})
	n.commits(r, obj{"journal": []obj{{"key": "plan#1", "value": obj{"ok": obj{"pages": 7}}}}})
	n.commits(r, obj{"events": []obj{{"type": "llm:delta", "data": obj{"step": "model#1", "try": 1, "text": "I loo"}},
		{"type": "llm:delta", "data": obj{"step": "model#1", "try": 2, "text": "I look it up."}}}})
	n.commits(r, obj{"journal": []obj{{"key": "model#1", "value": obj{"ok": obj{"response": obj{
		"message": obj{"role": "assistant", "content": "I look it up."},
		"usage":   obj{"input": 1200, "output": 34, "cost": 0.0123}}}}}},
		"events": []obj{{"type": "worker:tool_started", "data": obj{"id": "c1", "name": "search",
			"input": "{\"q\":\"x\"}"}}}})
	n.commits(r, obj{"events": []obj{
		{"type": "worker:tool_completed", "data": obj{"id": "c1", "name": "search", "output": "3 pages"}},
		{"type": "worker:tool_started", "data": obj{"id": "c2", "name": "fetch"}},
		{"type": "worker:tool_failed", "data": obj{"id": "c2", "name": "fetch", "error": "no such host"}}}})
	n.commits(r, obj{"journal": []obj{{"key": "fetch#1/0", "value": obj{"ok": 1, "aside": true}},
		{"key": "fetch#1/1", "value": obj{"ok": 2, "aside": true}},
		{"key": "store#1", "value": obj{"error": obj{"code": "disk_full", "message": "<b>no room</b>"}}},
		{"key": "_frame:1.1", "value": obj{"v": 1}}}})
	children := make([]obj, 6)
	for i := range children {
		children[i] = obj{"key": fmt.Sprint("k", i), "kind": "scan-logs", "queue": queue + "-kids"}
	}
	n.commits(r, obj{"children": children})
	return r
}

func stepsAndALink(t *testing.T, d *dashboard) {
	r := d.n.steps("steps")
	d.showsLive(r, ".step", "plan")
	for _, want := range []string{"1,234 tokens · $0.01", "2 tries", "no such host", "disk_full: <b>no room</b>",
		"6 × scan-logs",
		"2 × fetch", "3 pages"} {
		d.sees(".step", want)
	}
	// Items of a step that are executed beside something else are one row too.
	const apart = `import('./steps.js').then(m => { const item = n => ({ kind: 'step', id: n, name: n,
		state: 'completed', from: 1, to: 2, entry: { key: 'copy#1/' + n } });
		const rows = [item(0), { kind: 'tool', id: 't', name: 'df' }, item(1)];
		window.folds = m.folded(rows).map(r => r.name + r.n).join() })`
	browser.Eval[bool](d.Page, apart+", true")
	eventually.True(t, "the items of a step become one row", func() bool {
		return browser.Eval[string](d.Page, "window.folds ?? ''") == "copy2,dfundefined"
	})
	d.lacks(".step", "_frame")
	d.sees(".facts", "1,234 tokens")
	// A step that is recorded now is shown without a call.
	browser.Eval[bool](d.Page, countCalls)
	d.n.commits(r, obj{"journal": []obj{{"key": "proofread#1", "value": obj{"ok": "fine"}}}})
	d.sees(".step", "proofread")
	if calls := d.madeCalls(); len(calls) > 0 {
		t.Errorf("a step that was recorded cost %d HTTP calls, want none: %v", len(calls), calls)
	}
	// The selection is in the address, and the address leads to it.
	d.clicks(".step", "model")
	d.sees(".pane", "1,234 tokens")
	link := browser.Eval[string](d.Page, "location.hash")
	if !strings.Contains(link, "sel=step") {
		t.Errorf("the address of a step = %s, want the step in it", link)
	}
	d.clicks(".pane button", "Close")
	d.gone(".pane", "model")
	d.goes("#/runs")
	d.sees("h1", "Runs")
	d.goes(link)
	d.sees(".pane", "I look it up.")
	d.sees(".step.chosen", "model")
	// A group unfolds, and the lines are the second form.
	d.clicks(".step", "6 × scan-logs")
	eventually.True(t, "the group has its runs", func() bool { return d.number(".step.inner", "scan-logs") == 6 })
	d.pictures("steps")
	d.clicks(".forms button", "Lines")
	d.sees(".log-row", "run:started")
	d.clicks(".log-row", "worker:tool_failed")
	d.sees(".pane", "no such host")
	d.clicks(".forms button", "Steps")
	d.sees(".step.chosen", "fetch")
	d.n.commits(r, obj{"outcome": obj{"type": "complete", "result": "done"}})
	d.sees(".step", "Completed")
}

func longLife(t *testing.T, d *dashboard) {
	r := d.n.steps("life")
	// The labels of the timeline have one lane for equal children, which opens.
	d.showsLive(r, ".timeline-label", "6 × scan-logs")
	d.clicks(".timeline-label button", "6 × scan-logs")
	eventually.True(t, "each child has a lane", func() bool { return d.number(".timeline-label a", "scan-logs") == 6 })
	d.clicks(".timeline button", "Fold equal runs")
	d.sees(".timeline-label", "6 × scan-logs")
	// Zoom is in the address.
	d.clicks(".timeline button", "Zoom in")
	eventually.True(t, "the part that is shown is in the address", func() bool {
		return strings.Contains(browser.Eval[string](d.Page, "location.hash"), "zoom=")
	})
	d.sees(".timeline-map", "")
	d.reloads()
	d.sees(".timeline-map", "")
	d.clicks(".timeline button", "All")
	d.gone(".timeline-map", "")
	// A double click on a lane shows its life.
	browser.Eval[bool](d.Page, `(() => { const c = document.querySelector('.timeline canvas:not(.timeline-map)');
		const r = c.getBoundingClientRect();
		c.dispatchEvent(new MouseEvent('dblclick', {clientX: r.x + r.width / 2, clientY: r.y + r.height - 17,
			bubbles: true})); return true })()`)
	eventually.True(t, "the lane is fitted", func() bool {
		return strings.Contains(browser.Eval[string](d.Page, "location.hash"), "zoom=")
	})
	// The model, without a drawing: eight seconds of work in 45 minutes have most of the width.
	browser.Eval[float64](d.Page, `(window.warped = null, import('./timeline/warp.js').then(({ warpOf }) => {
		const work = (from, to) => ({from, to, phase: 'running'});
		const lanes = [{from: 0, to: 2.7e6, phases: [work(1e3, 5e3), {from: 5e3, to: 2.69e6, phase: 'suspended'},
			work(2.69e6, 2.694e6)], spans: [], marks: []}];
		const w = warpOf(lanes, 0, 2.7e6), all = w.u(2.7e6);
		const back = [0, 4e3, 1e6, 2.69e6, 2.7e6].every(t => Math.abs(w.t(w.u(t)) - t) < 1);
		const flat = warpOf(lanes, 0, 2.7e6, true);
		window.warped = back && flat.u(2.7e6) === 2.7e6 ? (w.u(5e3) - w.u(1e3) + w.u(2.694e6) - w.u(2.69e6)) / all : -1;
	}), 0)`)
	d.until("the times are mapped", "window.warped !== null")
	if got := browser.Eval[float64](d.Page, "window.warped"); got < 0.3 {
		t.Errorf("eight seconds of work in 45 minutes have %.3f of the width, want at least 0.3", got)
	}
}

func holdIsEndedOrGivenUp(t *testing.T, d *dashboard) {
	hold := func(r runView) {
		d.n.commits(r, obj{"outcome": obj{"type": "fail", "defect": true,
			"error": obj{"code": "panic", "message": "a nil map"}}})
	}
	r := d.n.grants(obj{"kind": "held", "queue": "held-run"})
	hold(r)
	d.showsLive(r, ".next", "a nil map")
	d.sees(".next", "It is tried again")
	d.pictures("held")
	d.clicks(".next button", "End its hold")
	d.gone(".next", "a nil map")
	hold(d.n.takes("held-run"))
	d.clicks(".next button", "Give it up")
	d.clicks("dialog button", "Give it up")
	d.sees(".run-head", "Failed")
	d.sees(".actions button", "Redrive")
}

func retryBeginsBeforeAStep(t *testing.T, d *dashboard) {
	r := d.n.steps("retry")
	d.n.commits(r, obj{"outcome": obj{"type": "fail", "retryable": false,
		"error": obj{"code": "broken", "message": "of no use", "cause_key": "store#1"}}})
	d.showsLive(r, ".actions button", "Retry")
	// Where the journal has the failure, a retry of all of it is refused, and not offered.
	d.clicks(".actions button", "Retry")
	d.sees("dialog", "It begins")
	options := browser.Eval[string](d.Page, "document.querySelector('dialog select').textContent")
	if !strings.Contains(options, "before store#1, which has failed") || !strings.Contains(options, "before plan#1") ||
		strings.Contains(options, "no recorded step is repeated") || strings.Contains(options, "_frame") {
		t.Errorf("a retry may begin %q, want the cause and the steps, and nothing that is refused", options)
	}
	d.clicks("dialog button", "Cancel")
	d.clicks(".step", "plan")
	d.clicks(".pane button", "Retry from here")
	d.sees("dialog", "It begins")
	if at := browser.Eval[string](d.Page, "document.querySelector('dialog select').value"); at != "plan#1" {
		t.Errorf("a retry from the step plan begins at %q, want plan#1", at)
	}
	d.clicks("dialog button", "Retry")
	d.sees(".facts dt", "Retry of")
	d.lacks(".actions .primary", "Retry")
	// A process begins at its start: nothing is asked.
	p := d.n.grants(obj{"kind": "proc", "queue": "retry-proc", "class": "process"})
	d.n.commits(p, obj{"outcome": obj{"type": "fail", "retryable": false, "error": obj{"code": "exit_1",
		"message": "no"}}})
	d.showsLive(p, ".actions button", "Retry")
	d.clicks(".actions button", "Retry")
	d.sees("dialog", "new run with the same input")
	d.lacks("dialog", "It begins")
	d.clicks("dialog button", "Cancel")
}

func waitsAreAnswered(t *testing.T, d *dashboard) {
	r := d.n.grants(obj{"kind": "waits", "queue": "waits-run"})
	d.n.commits(r, obj{"waits": []obj{{"id": "go", "type": "signal", "name": "start_task"}},
		"outcome": obj{"type": "suspend"}})
	d.showsLive(r, ".next", "It waits for the signal")
	d.types(".next textarea", "{no")
	d.clicks(".next button", "Send the signal")
	d.sees(".next .trouble", "no JSON")
	d.types(".next textarea", `{"go": true}`)
	d.clicks(".next button", "Send the signal")
	d.gone(".next", "It waits for the signal")
	d.sees(".step", "signal start_task")
	asked := asksForApproval(d.n, "Push it?")
	d.showsLive(asked, ".next .approval", "Push it?")
	d.types(`.next select[name="f:region"]`, "eu")
	d.clicks(".next button", "Approve")
	d.clicks("dialog button", "Approve")
	d.gone(".next .approval", "Push it?")
	d.sees(".step", "approve by")
	// Of a parent that waits for children, these are shown.
	p := d.n.grants(obj{"kind": "parent", "queue": "waits-parent"})
	d.n.commits(p, obj{"children": []obj{{"key": "a", "kind": "slow-kid", "queue": "nobody"}},
		"waits":   []obj{{"id": "all", "type": "children", "mode": "all", "keys": []string{"a"}}},
		"outcome": obj{"type": "suspend"}})
	d.showsLive(p, ".next", "0 of 1")
	d.sees(".next-runs", "slow-kid")
}

func queuedRunIsHelped(t *testing.T, d *dashboard) {
	r := d.n.submit(obj{"kind": "waits", "queue": "paused-run"})
	d.n.insist("POST", "/api/v1/queues/paused-run/pause", "", obj{}, nil)
	d.showsLive(r, "[data-waiting=queue_paused]", "was paused")
	d.clicks(".next button", "Resume the queue")
	d.sees("[data-waiting=unserved]", "No worker polls")
	d.lacks(".next button", "Resume")
}

func terminalShowsOutput(t *testing.T, d *dashboard) {
	r := d.n.grants(obj{"kind": "exec", "queue": "term", "class": "process",
		"input": obj{"command": []string{"make", "all now"}}})
	var size int64
	out := func(text string) {
		size += int64(len(text))
		d.n.commits(r, obj{"events": []obj{{"type": "x:output", "data": obj{"stream": "stdout", "text": text}}}})
	}
	out("\x1b[32mok\x1b[0m done\n10%\r50%\r100% \x1b[Kready\nab\bc\n")
	out("\x1b]0;a title\x07\x1b]52;c;aGVsbG8=\x07\x1b[6n\x1b[?1049h<img src=x onerror=alert(1)>\u202eevil\n\x1b[3")
	out("1mred\x1b[m\x1b[1;38;5;196mbright\x1b[m\nuno\ndue\n\x1b[2A\x1b[2KUNO\n\x1b[1B\n")
	d.n.commits(r, obj{"events": []obj{{"type": "x:output", "data": obj{"stream": "stdout",
		"base64": base64.StdEncoding.EncodeToString([]byte("caf\xc3"))}}, {"type": "x:output",
		"data": obj{"stream": "stdout",
			"base64": base64.StdEncoding.EncodeToString([]byte("\xa9\n"))}}}})
	d.goes("#/runs/" + r.RunID + "?tab=output")
	d.sees(".terminal-card h2", "make 'all now'")
	for _, want := range []string{"ok done", "100% ready", "ac", "<img src=x onerror=alert(1)>U+202Eevil", "redbright",
		"UNO",
		"café"} {
		d.sees(".term-line", want)
	}
	for _, bad := range []string{"a title", "aGVsbG8", "uno", "10%", "\x1b"} {
		d.lacks(".term-line", bad)
	}
	d.goes("#/runs?kind=exec")
	d.sees("tbody .command", "make 'all now'")
	d.goes("#/runs/" + r.RunID + "?tab=output")
	d.sees(".term-line .f-1", "red")
	d.sees(".term-line .f-2", "ok")
	d.pictures("terminal")
	// Many lines: few of them are in the page, the newest are in sight, and one is found.
	var long strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&long, "line %d of the output\n", i)
	}
	for text := long.String(); text != ""; {
		part := text[:min(len(text), 40_000)]
		text = text[len(part):]
		out(part)
	}
	d.sees(".term-line", "line 3999 of")
	if n := browser.Eval[int](d.Page, "document.querySelectorAll('.term-line').length"); n > 400 {
		t.Errorf("the page has %d lines of a long output, want few", n)
	}
	d.types(".terminal-card input", "line 1234 of")
	d.sees(".term-line.at", "line 1234 of")
	d.sees(".terminal-card [role=status]", "1 of 1")
	d.clicks(".terminal-card button", "Download")
	eventually.True(t, "all output is saved", func() bool {
		return d.Downloaded(r.RunID+".log", size+int64(len("café\n")))
	})
}
