package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/browser"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// countCalls has the page write down every HTTP call that it makes from now on.
const countCalls = `(() => { window.calls ??= (() => { const all = [];
	new PerformanceObserver(list => { for (const e of list.getEntries()) all.push(e.name) })
		.observe({type: 'resource'});
	return all })(); calls.length = 0; return true })()`

// madeCalls gives the calls that the page has made since they were counted last.
func (d *dashboard) madeCalls() []string {
	d.t.Helper()
	return browser.Eval[[]string](d.Page, "calls.splice(0)")
}

// showsLive shows a run, and waits until the page is loaded and live.
func (d *dashboard) showsLive(r runView, css, text string) {
	d.t.Helper()
	at := "#/runs/" + r.RunID
	if css == ".log-row" {
		at += "?form=lines"
	}
	d.goes(at)
	d.sees(".ids", r.RunID)
	d.sees(css, text)
	d.sees(".connection", "Live")
}

// grants starts a run and has a worker take it.
func (n *node) grants(run obj) runView {
	n.t.Helper()
	queue, _ := run["queue"].(string)
	if queue == "" {
		queue = fmt.Sprint("q", time.Now().UnixNano())
		run["queue"] = queue
	}
	n.submit(run)
	return n.takes(queue)
}

// takes has a worker take the next run of a queue.
func (n *node) takes(queue string) runView {
	n.t.Helper()
	var p polled
	n.insist("POST", "/api/v1/workers/w/poll", "", obj{"slots": 1, "start": true, "queues": []string{queue},
		"wait": "10s"}, &p)
	if len(p.Runs) != 1 {
		n.t.Fatalf("a poll of queue %s = %d runs, want 1", queue, len(p.Runs))
	}
	return p.Runs[0]
}

// commits makes a commit of a run.
func (n *node) commits(r runView, commit obj) {
	n.t.Helper()
	commit["run_id"], commit["epoch"] = r.RunID, r.Epoch
	commit["commit_id"] = fmt.Sprint("c", time.Now().UnixNano())
	if status := n.insist("POST", "/api/v1/workers/w/commit", "", obj{"commits": []obj{commit}}, nil); status != 200 {
		n.t.Fatalf("a commit of run %s = %d, want 200", r.RunID, status)
	}
}

// The pages of runs show what is true now. Changes arrive over the socket, and no page asks for them. The parts
// share one server and one browser, one after the other.
func TestDashboardShowsWhatIsTrueNow(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := openDashboard(t, n, "", "login="+n.key)
	d.sees(".connection", "Live")
	for _, part := range []struct {
		name string
		test func(*testing.T, *dashboard)
	}{
		{"an open run page asks for nothing", runPageAsksForNothing},
		{"a refused watch is not called live", refusedWatchIsPolling},
		{"a quiet page asks for nothing", quietPagesAskForNothing},
		{"facts that end leave the page", factsThatEndLeave},
		{"a parent with 300 children", parentOfMany},
		{"the newest lines of a long log", newestLinesFirst},
		{"columns go by the width of the list", columnsGoByWidth},
		{"redrive is offered where there is a letter", redriveNeedsALetter},
		{"a one-time link in an open tab", linkInAnOpenTab},
		{"views after an outage", viewsAfterAnOutage},
	} {
		t.Run(part.name, func(t *testing.T) {
			n.t = t
			part.test(t, &dashboard{d.For(t), t, n})
		})
	}
	n.t = t
}

func runPageAsksForNothing(t *testing.T, d *dashboard) {
	r := d.n.grants(obj{"kind": "streams"})
	d.showsLive(r, ".log-row", "run:started")
	browser.Eval[bool](d.Page, countCalls)
	var slowest time.Duration
	for i := range 12 {
		token := fmt.Sprintf("token-%d.", i)
		d.n.commits(r, obj{"events": []obj{{"type": "llm:delta", "data": obj{"text": token}}}})
		at := time.Now()
		d.sees(".log-row", token)
		slowest = max(slowest, time.Since(at))
	}
	browser.Eval[bool](d.Page, "window.streamed = performance.now(), true")
	d.until("two polls would have been made", "performance.now() - streamed > 4500")
	// How long a token takes is told and not tested: others use the machine too.
	t.Logf("the slowest token was shown %d ms after its commit", slowest.Milliseconds())
	d.n.commits(r, obj{"outcome": obj{"type": "complete", "result": "done"}})
	d.sees(".run-head", "Completed")
	if calls := d.madeCalls(); len(calls) > 0 {
		t.Errorf("the open page of a run made %d HTTP calls, want none: %v", len(calls), calls)
	}

	// Why a queued run waits changes without a change of the run, and arrives over the socket as well.
	queued := d.n.submit(obj{"kind": "waits", "queue": "idle-live"})
	d.showsLive(queued, "[data-waiting=unserved]", "No worker polls for kind waits")
	browser.Eval[bool](d.Page, countCalls)
	d.n.insist("POST", "/api/v1/queues/idle-live/pause", "", obj{}, nil)
	d.sees("[data-waiting=queue_paused]", "was paused")
	if calls := d.madeCalls(); len(calls) > 0 {
		t.Errorf("the open page of a queued run made %d HTTP calls, want none: %v", len(calls), calls)
	}
}

// fastClock has the clock of the page, and the timers that it starts from now on, run twenty times as fast.
const fastClock = `(() => { if (window.slowNow) return true;
	const began = Date.now(), slowTimeout = setTimeout, slowInterval = setInterval;
	window.slowNow = Date.now.bind(Date);
	Date.now = () => began + 20 * (slowNow() - began);
	window.setTimeout = (f, ms, ...with_) => slowTimeout(f, ms / 20, ...with_);
	window.setInterval = (f, ms, ...with_) => slowInterval(f, ms / 20, ...with_);
	return true })()`

// quietPagesAskForNothing looks at views that read something beside the socket: they read it again when the socket
// tells of a change, and not by a clock.
func quietPagesAskForNothing(t *testing.T, d *dashboard) {
	var group struct {
		ID string `json:"group_id"`
	}
	d.n.insist("POST", "/api/v1/groups", "", obj{"run_ids": []string{d.n.submit(obj{"kind": "member"}).RunID}}, &group)
	for _, x := range []struct{ view, css, text string }{
		{"/groups", "[aria-label=Groups] .state", "Open"},
		{"/groups/" + group.ID, "[aria-label='Runs of the group'] .state", "Queued"},
		{"/groups/none", ".empty", "There is no such group"},
		{"/health", ".number", "this node"}, {"/kinds", "h1", "Kinds"}, {"/threads", "h1", "Chat"},
		{"/dead-letters", "h1", "Dead letters"}, {"/schedules", "h1", "Schedules"},
		{"/limits", "h1", "Limits"}, {"/limits/none", ".empty", "There is no such limit"},
		{"/queues/idle-live", "[data-reason=queue_paused]", "paused"},
	} {
		browser.Eval[bool](d.Page, fastClock)
		d.goes("#" + x.view)
		d.sees(x.css, x.text)
		d.sees(".connection", "Live")
		browser.Eval[bool](d.Page, countCalls)
		// A call may be on its way when the first message comes. After that, no call is made in five polls.
		browser.Eval[bool](d.Page, "window.quietSince = Date.now(), true")
		d.until(x.view+" makes no call for ten seconds of the page",
			`(calls.splice(0).length ? window.quietSince = Date.now() : 0, Date.now() - quietSince > 10_000)`)
	}
	d.reloads()
	d.sees(".connection", "Live")
}

func refusedWatchIsPolling(t *testing.T, d *dashboard) {
	d.goes("#/runs")
	d.sees(".connection", "Live")
	browser.Eval[bool](d.Page, `window.polls = 0; import('./live.js').then(m => { window.stopWatch = m.watch({
		of: 'nothing', poll: async () => { polls++; return [] }, on() {}}) }); true`)
	d.sees(".connection", "Polling")
	d.until("what the server refuses is polled", "polls > 1")
	if browser.Eval[int](d.Page, find(".connection", "Live")+".length") > 0 {
		t.Error("the page says that it is live while a part of it is polled")
	}
	browser.Eval[bool](d.Page, "stopWatch(), true")
	d.sees(".connection", "Live")
}

// gone waits until no element with a text is shown.
func (d *dashboard) gone(css, text string) {
	d.t.Helper()
	d.until(fmt.Sprintf("the page no longer shows %q in %s", text, css), find(css, text)+".length === 0")
}

func factsThatEndLeave(t *testing.T, d *dashboard) {
	r := d.n.grants(obj{"kind": "held", "queue": "held-live"})
	d.showsLive(r, ".facts dt", "Worker")
	d.n.commits(r, obj{"outcome": obj{"type": "fail", "defect": true,
		"error": obj{"code": "panic", "message": "a nil map"}}})
	d.sees(".trouble", "On hold since")
	d.gone(".facts dt", "Worker")
	d.n.insist("POST", "/api/v1/runs/"+r.RunID+"/release-hold", "", obj{}, nil)
	d.gone(".trouble", "On hold since")
	d.sees(".step", "hold released")
	d.gone(".state", "On hold")
	d.n.insist("POST", "/api/v1/runs/"+r.RunID+"/defer", "", obj{}, nil)
	d.sees(".facts", "nobody")
	r = d.n.takes("held-live")
	d.sees(".facts dt", "Worker")
	d.n.commits(r, obj{"outcome": obj{"type": "complete", "result": "done"}})
	d.sees(".run-head", "Completed")
	d.gone(".facts", "nobody")
	// A run that was deleted is not asked for any more.
	d.n.insist("DELETE", "/api/v1/runs/"+r.RunID, "", nil, nil)
	d.sees(".empty", "There is no such run")
}

func parentOfMany(t *testing.T, d *dashboard) {
	r := d.n.grants(obj{"kind": "parent"})
	children := make([]obj, 300)
	for i := range children {
		children[i] = obj{"key": fmt.Sprint("k", i), "kind": "kid", "queue": "kids"}
	}
	d.n.commits(r, obj{"children": children})
	d.showsLive(r, "[role=tab]", "Children300")
	d.sees(".timeline-label", "parent")
	d.sees(".timeline-label", "300 × kid")
	// The page of the parent goes on: its own lines, and those of its newest child.
	d.n.commits(r, obj{"events": []obj{{"type": "x:note", "data": obj{"text": "still here"}}}})
	d.sees(".step", "still here")
	d.pictures("a parent of 300")
	d.goes("#/runs/" + r.RunID + "?tab=children")
	d.until("the tree has 300 children", "document.querySelectorAll('.tree .one').length === 300")
}

func newestLinesFirst(t *testing.T, d *dashboard) {
	r := d.n.grants(obj{"kind": "talks"})
	for i := range 24 {
		lines := make([]obj, 1000)
		for j := range lines {
			lines[j] = obj{"type": "x:n", "data": i*1000 + j}
		}
		d.n.commits(r, obj{"events": lines})
	}
	d.showsLive(r, ".log-row", "23999")
	// The watchdog may write lines of its own, on a machine that is busy.
	all := func() string {
		var run struct {
			Last int `json:"last_seq"`
		}
		d.n.insist("GET", "/api/v1/runs/"+r.RunID, "", nil, &run)
		return fmt.Sprintf("%d,%03d", run.Last/1000, run.Last%1000)
	}
	eventually.True(t, "the page has as many lines as it keeps", func() bool {
		text := fmt.Sprintf("20,000 of 20,000 lines, of %s in all", all())
		return d.Becomes(find(".sub", text)+".length > 0", 200*time.Millisecond)
	})
	d.n.commits(r, obj{"events": []obj{{"type": "x:note", "data": obj{"text": "the newest"}}}})
	d.clicks("button", "Follow")
	d.sees(".log-row", "the newest")
	d.clicks("button", "Follow")
	// Older lines come when the log is scrolled to where they would be.
	d.until("the log is scrolled back to its beginning",
		"(document.querySelector('.log').scrollTop = 0, "+find(".log-row", "run:created")+".length > 0)")
	eventually.True(t, "the page has all lines", func() bool {
		n := all()
		return d.Becomes(find(".sub", n+" of "+n+" lines")+".length > 0", 200*time.Millisecond)
	})
}

func columnsGoByWidth(t *testing.T, d *dashboard) {
	d.n.submit(obj{"kind": "a-kind-with-a-long-name"})
	d.goes("#/runs")
	d.sees("tbody", "a-kind-with-a-long-name")
	for _, width := range []int64{761, 820, 960, 1280, 1920} {
		d.Resize(width, 844)
		d.until(fmt.Sprintf("at %d the kind has 150 px, and no header is cut", width), `(() => {
				const all = [...document.querySelectorAll('thead th')].filter(e => e.checkVisibility());
				return all.find(e => e.textContent === 'Kind').getBoundingClientRect().width >= 150 &&
					all.every(e => e.scrollWidth <= e.clientWidth + 1) })()`)
	}
	d.Resize(1280, 844)
	d.pictures("runs")
}

func redriveNeedsALetter(t *testing.T, d *dashboard) {
	fails := func(kind string) runView {
		r := d.n.grants(obj{"kind": kind, "max_attempts": 1, "metadata": obj{"part": "redrive"}})
		d.n.commits(r, obj{"outcome": obj{"type": "fail", "error": obj{"code": "broken", "message": "of no use"}}})
		return r
	}
	dropped, kept := fails("without-letter"), fails("with-letter")
	if status := d.n.insist("DELETE", "/api/v1/dlq/"+dropped.RunID, "", nil, nil); status >= 300 {
		t.Fatalf("discarding a letter = %d, want it done", status)
	}
	d.goes("#/runs/" + kept.RunID)
	d.sees(".actions button", "Redrive")
	d.goes("#/runs/" + dropped.RunID)
	d.sees(".ids", dropped.RunID)
	d.sees(".actions button", "Retry")
	d.sees(".step", "dead lettered")
	if browser.Eval[int](d.Page, find(".actions button", "Redrive")+".length") > 0 {
		t.Errorf("run %s: redrive is offered although its letter was discarded", dropped.RunID)
	}
	d.goes("#/runs?metadata.part=redrive")
	d.until("the list has both runs", "document.querySelectorAll('tbody tr').length === 2")
	d.clicks("thead input", "Select all")
	d.sees(".bulk button", "Retry 2")
	d.sees(".bulk button", "Redrive 1")
}

func linkInAnOpenTab(t *testing.T, d *dashboard) {
	var link struct {
		Path string `json:"path"`
	}
	if status := d.n.insist("POST", "/api/v1/session/links", "", obj{"read_only": true}, &link); status >= 300 {
		t.Fatalf("making a link = %d, want it made", status)
	}
	_, hash, _ := strings.Cut(link.Path, "#")
	for _, want := range []string{".who", ".toasts"} {
		d.goes("#" + hash)
		d.until("the secret has left the address", "!location.href.includes('login=')")
		d.sees(want, map[string]string{".who": "read only", ".toasts": "used before"}[want])
	}
	d.sees(".connection", "Live")
	d.goes("#login=" + d.n.key)
	d.gone(".who", "read only")
}

func viewsAfterAnOutage(t *testing.T, d *dashboard) {
	d.goes("#/approvals")
	d.sees(".connection", "Live")
	d.sees("h1", "Approvals")
	d.n.kill(syscall.SIGKILL)
	d.sees(".connection", "Polling")
	d.goes("#/recovery") // not loaded before
	d.sees(".empty", "could not be loaded")
	d.goes("#/approvals")
	d.sees("h1", "Approvals")
	d.gone(".empty", "could not be loaded")
	d.goes("#/recovery")
	d.n.start()
	d.gone(".empty", "could not be loaded")
	d.sees("h1", "Recovery")
	d.sees(".connection", "Polling") // the socket does not carry what this view shows
	d.goes("#/approvals")
	d.sees(".connection", "Live")
}

// pictures saves how the page looks at widths of a phone, a tablet, a laptop and a large screen, in the folder that
// PERDURE_PICTURES names, if it names one.
func (d *dashboard) pictures(what string) {
	d.t.Helper()
	if os.Getenv("PERDURE_PICTURES") == "" {
		return
	}
	for _, width := range []int64{390, 820, 1280, 1920, 2560} {
		d.Resize(width, 1000)
		d.picture(strings.ReplaceAll(what, " ", "-"), "light", width)
	}
	d.Resize(1280, 844)
}
