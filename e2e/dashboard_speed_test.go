package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/browser"
)

// observe writes down each task of the page that takes longer than 50 ms, and how many rows of a table are put
// into the page at once.
const observe = `(() => { window.long = []; window.rows = [];
	new PerformanceObserver(list => { for (const e of list.getEntries()) long.push(Math.round(e.duration)) })
		.observe({type: 'longtask'});
	new MutationObserver(list => rows.push(list.flatMap(m => [...m.addedNodes]).filter(n => n.tagName === 'TR').length))
		.observe(document.querySelector('tbody'), {childList: true});
	return true })()`

// A list that changes 500 times a second is drawn a few rows at a time, so that no task of the page takes long.
// PERDURE_MEASURE says for how many seconds to look. How long tasks take is only told: others use the machine too.
func TestDashboardKeepsUpWithChanges(t *testing.T) {
	t.Parallel()
	seconds, _ := strconv.Atoi(os.Getenv("PERDURE_MEASURE"))
	seconds = max(seconds, 2)
	n := newNode(t)
	d := openDashboard(t, n, "", "login="+n.key)
	d.sees("h1", "Home")
	d.goes("#/runs")
	d.sees(".connection", "Live")
	// Each tenth of a second 50 changes: runs that are started, taken and ended.
	began, changes := time.Now(), 0
	round := func(i int) {
		submissions := make([]obj, 20)
		for j := range submissions {
			submissions[j] = obj{"kind": "busy", "metadata": obj{"n": fmt.Sprint(j)}}
		}
		n.insist("POST", "/api/v1/runs/batch", "", obj{"runs": submissions}, nil)
		granted := n.poll("w", 15, true, "1s")
		commits := make([]obj, 0, len(granted))
		for _, r := range granted {
			commits = append(commits, obj{"commit_id": "end", "run_id": r.RunID, "epoch": r.Epoch,
				"outcome": obj{"type": "complete", "result": i}})
		}
		n.insist("POST", "/api/v1/workers/w/commit", "", obj{"commits": commits}, nil)
		changes += len(submissions) + 2*len(granted)
	}
	round(0)
	d.sees("tbody", "busy")
	browser.Eval[bool](d.Page, observe)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	// Three rounds have more runs than a page, however long they take.
	for i := 1; i <= 3 || time.Since(began) < time.Duration(seconds)*time.Second; i++ {
		<-tick.C
		round(i)
	}
	rate := float64(changes) / time.Since(began).Seconds()
	d.until("the page has drawn the newest run", "document.querySelectorAll('tbody tr').length === 50")
	long, rows := browser.Eval[[]float64](d.Page, "long"), browser.Eval[[]int](d.Page, "rows")
	t.Logf("%.0f changes/s for %d s: %d tasks longer than 50 ms: %v", rate, seconds, len(long), long)
	if len(rows) == 0 || slices.Max(rows) > 6 {
		t.Errorf("rows that were put into the page at once = %v, want some, and at most 6", rows)
	}
}
