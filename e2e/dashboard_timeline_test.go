package e2e

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/perdure/perdure/internal/testkit/browser"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

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
		d.until("sixty frames were drawn", "frames_.length >= 60")
		median := browser.Eval[float64](d.Page, "frames_.sort((a, b) => a - b)[30]")
		t.Logf("median frame %.1f ms, slowest %.1f ms", median, browser.Eval[float64](d.Page, "frames_[59]"))
		return median <= 100 // 17 on an idle machine
	})
	if rows := browser.Eval[int](d.Page, "document.querySelectorAll('.log-row').length"); rows > 400 {
		t.Errorf("the page has %d rows of the log, want only those near the window", rows)
	}
	silences(t, d)
}

// A printed log has its lines, not only those that were in sight, and none of the page's buttons.
func TestDashboardPrintsAWholeLog(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.submit(obj{"kind": "long"})
	r := n.poll("w", 1, true, "10s")[0]
	var events []obj
	for i := range 600 {
		events = append(events, obj{"type": "x:note", "data": obj{"n": i}})
	}
	n.commits(r, obj{"events": events})
	d := openDashboard(t, n, "", "login="+n.key)
	d.goes("#/runs/" + r.RunID + "?form=lines")
	d.sees(".sub", "of 60")
	if rows := browser.Eval[int](d.Page, "document.querySelectorAll('.log-row').length"); rows > 300 {
		t.Fatalf("the page has %d rows of the log before it is printed, want those near the window", rows)
	}
	browser.Eval[bool](d.Page, `addEventListener('beforeprint', () => { // after the page's own
		printed_ = document.querySelectorAll('.log-row').length; }); window.printed_ = 0; true`)
	if pages := bytes.Count(d.Paper(), []byte("/Type /Page\n")); pages < 10 || pages > 60 {
		t.Errorf("600 lines are printed on %d pages, want 10 to 60", pages)
	}
	if rows := browser.Eval[int](d.Page, "printed_"); rows < 600 {
		t.Errorf("%d lines are printed, want 600", rows)
	}
	d.until("the page is as before", "document.querySelectorAll('.log-row').length < 300")
}

// What is drawn on a canvas has the colours of the theme, also after somebody has changed it.
func TestDashboardDrawsInTheColoursOfTheTheme(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.submit(obj{"kind": "short"})
	r := n.poll("w", 1, true, "10s")[0]
	n.completes(r)
	d := openDashboard(t, n, "", "login="+n.key)
	for _, view := range []string{"#/health", "#/runs/" + r.RunID} {
		d.goes(view)
		drawn := make(map[string]string)
		for _, theme := range []string{"light", "dark", "light"} {
			browser.Eval[string](d.Page, fmt.Sprintf(`(() => {
				const s = document.querySelector('.pick-theme select');
				s.value = %q; s.dispatchEvent(new Event('change', {bubbles: true})); return '' })()`, theme))
			other := drawn["light"]
			if theme == "light" {
				other = drawn["dark"]
			}
			eventually.True(t, view+" is drawn in the colours of "+theme, func() bool {
				drawn[theme] = browser.Eval[string](d.Page, `(() => {
					const c = document.querySelector('.plot canvas, .timeline canvas');
					return c && c.width > 10 ? c.toDataURL() : '' })()`)
				return drawn[theme] != "" && drawn[theme] != other
			})
		}
	}
}

// silences checks the gaps of a timeline: those that the watchdog has told of, not those between lines of the log,
// where heartbeats that say nothing new have none.
func silences(t *testing.T, d *dashboard) {
	t.Helper()
	browser.Eval[bool](d.Page, "import('./timeline/model.js').then(m => { window.model_ = m }); true")
	d.until("the model is loaded", "!!window.model_")
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
