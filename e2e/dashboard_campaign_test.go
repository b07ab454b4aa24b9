package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/browser"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/stage"
)

// A campaign drives a dashboard in four tabs while runs begin, wait, fail and end, and the server is killed. At random
// moments it compares a tab with the API.
type campaign struct {
	t    *testing.T
	n    *node
	rand *rand.Rand
	tabs []*campaignTab
	long bool
	// open are runs that a worker holds, known the others that may be looked at.
	open  []runView
	known []string
	chat  string
	group string // of the first runs
	// parked says that the queue is paused.
	parked bool

	steps, changes, kills, compared int
	// live and after are how long tabs took to agree with the API, while the server lived and after a kill.
	live, after []time.Duration
	troubles    []string
	heap        [2][]int // of each tab, in MB, after a tenth of the time and at its end
}

// A campaignTab is a tab of the browser, with the view that it shows.
type campaignTab struct {
	*dashboard
	view campaignView
}

// stale is how long a tab may differ from the API while the server lives. Only a long campaign demands it. In a short
// one it is enough that they agree.
const stale = 2 * time.Second

// patience is stale, and longer by as much as the machine has more work than processors.
func patience() time.Duration {
	text, _ := os.ReadFile("/proc/loadavg")
	load := 0.0
	_, _ = fmt.Sscan(string(text), &load)
	return time.Duration(float64(stale) * max(1, load/float64(runtime.NumCPU())))
}

// listens has a tab write down its errors.
const listens = `(() => { if (window.troubles) return true;
	window.troubles = [];
	addEventListener('error', e => troubles.push(String(e.message)));
	addEventListener('unhandledrejection', e => troubles.push(String(e.reason?.stack ?? e.reason)));
	const tell = console.error;
	console.error = (...all) => { troubles.push(all.join(' ')); tell(...all) };
	return true })()`

// The tabs show true facts under load, kills and restarts. PERDURE_DASHBOARD=1h makes it a campaign of an hour.
func TestDashboardTellsTheTruth(t *testing.T) {
	stage.Long(t)
	t.Parallel()
	length, _ := time.ParseDuration(os.Getenv("PERDURE_DASHBOARD"))
	seed := number("PERDURE_SEED", uint64(time.Now().UnixNano()))
	t.Logf("seed %d", seed)
	n := newNode(t)
	c := &campaign{t: t, n: n, rand: rand.New(rand.NewPCG(seed, 0)), long: length > 0}
	var thread struct {
		ThreadID string `json:"thread_id"`
	}
	n.insist("POST", "/api/v1/threads", "", obj{"metadata": obj{"title": "Campaign"}}, &thread)
	c.chat = thread.ThreadID
	n.insist("PUT", "/api/v1/schedules/nightly", "", obj{"cron": "30 2 * * *", "kind": "report"}, nil)
	n.insist("PUT", "/api/v1/limits/narrow", "", obj{"concurrency": 2, "per_key": true}, nil)
	c.submit()
	var group struct {
		ID string `json:"group_id"`
	}
	n.insist("POST", "/api/v1/groups", "", obj{"run_ids": c.known}, &group)
	c.group = group.ID
	first := openDashboard(t, n, "", "login="+n.key)
	first.sees("h1", "Home")
	for i := range 4 {
		d := first
		if i > 0 {
			d = &dashboard{first.Tab("http://" + n.addr + "/ui/"), t, n}
			d.sees("h1", "Home")
		}
		browser.Eval[bool](d.Page, listens)
		c.tabs = append(c.tabs, &campaignTab{dashboard: d})
		c.moves(c.tabs[i], i*3)
	}
	// A short one has as many steps as every view needs, and a kill in their middle.
	began, most := time.Now(), len(campaignViews)*2
	for c.steps = 0; c.long && time.Since(began) < length || !c.long && c.steps < most; c.steps++ {
		for range 1 + c.rand.IntN(4) {
			c.acts()
		}
		if c.steps%40 == most/2 {
			n.kill(syscall.SIGKILL)
			n.start()
			c.kills++
		}
		for i, tab := range c.tabs {
			if c.steps%len(c.tabs) == i {
				c.moves(tab, c.steps)
			}
			c.compares(tab, c.steps%40 == most/2)
		}
		if c.heap[0] == nil && time.Since(began) > length/10 {
			c.heap[0] = c.memory()
		}
	}
	c.heap[1] = c.memory()
	c.verdict(time.Since(began), seed)
}

// moves shows a view in a tab.
func (c *campaign) moves(tab *campaignTab, i int) {
	v := campaignViews[i%len(campaignViews)]
	if !c.long {
		tab.view = v
	} else {
		tab.view = campaignViews[c.rand.IntN(len(campaignViews))]
	}
	tab.view.run = c.pick()
	tab.goes(strings.NewReplacer("RUN", tab.view.run, "THREAD", c.chat, "GROUP", c.group).Replace(tab.view.at))
}

// compares waits until a tab shows what the API says.
func (c *campaign) compares(tab *campaignTab, killed bool) {
	c.t.Helper()
	var shown, want []string
	began, agreed := time.Now(), false
	defer func() {
		if !agreed {
			c.t.Logf("%s shows\n%s\nwant\n%s", tab.view.at, strings.Join(shown, "\n"), strings.Join(want, "\n"))
		}
	}()
	eventually.True(c.t, tab.view.at+" agrees with the API", func() bool {
		want = tab.view.want(c, tab.view.run)
		// The page is given a moment to change before the API is asked again.
		text, _ := json.Marshal(want)
		tab.Becomes(fmt.Sprintf("JSON.stringify((%s)()) === JSON.stringify(%s)", tab.view.shown, text),
			200*time.Millisecond)
		shown = browser.Eval[[]string](tab.Page, "("+tab.view.shown+")()")
		return slices.Equal(shown, want)
	})
	took := time.Since(began)
	agreed = true
	if killed {
		c.after = append(c.after, took)
	} else {
		c.live = append(c.live, took)
		if most := patience(); c.long && took > most {
			c.t.Errorf("%s differed from the API for %s, want at most %s\n%s", tab.view.at,
				took.Round(time.Millisecond), most, strings.Join(want, "\n"))
		}
	}
	c.compared++
	for _, bad := range browser.Eval[[]string](tab.Page, "troubles.splice(0)") {
		c.troubles = append(c.troubles, tab.view.at+": "+bad)
	}
}

// memory is how much each tab uses, in MB.
func (c *campaign) memory() (all []int) {
	for _, tab := range c.tabs {
		all = append(all, browser.Eval[int](tab.Page, "(gc(), Math.round(performance.memory.usedJSHeapSize / 1e6))"))
	}
	return all
}

// verdict fails the test for errors and growth, and writes the page of evidence of a long campaign.
func (c *campaign) verdict(took time.Duration, seed uint64) {
	for _, bad := range c.troubles {
		c.t.Errorf("an error in the page: %s", bad)
	}
	for i, now := range c.heap[1] {
		if before := c.heap[0][i]; c.long && now > 2*before+10 {
			c.t.Errorf("tab %d uses %d MB at the end and %d MB in the beginning, want it flat", i+1, now, before)
		}
	}
	c.t.Logf("%d changes, %d kills, %d comparisons; a tab agreed after %s at the latest, after a kill %s; heap %v MB",
		c.changes, c.kills, c.compared, longest(c.live), longest(c.after), c.heap)
	if c.long {
		c.writeEvidence(took, seed)
	}
}

// pick is a run to look at.
func (c *campaign) pick() string { return c.known[c.rand.IntN(len(c.known))] }

// submit starts some runs.
func (c *campaign) submit() {
	runs := make([]obj, 1+c.rand.IntN(12))
	for i := range runs {
		queue := []string{"alpha", "beta", "nobody"}[c.rand.IntN(3)]
		runs[i] = obj{"kind": fmt.Sprint("kind-", c.rand.IntN(6)), "queue": queue, "max_attempts": 1}
		if c.rand.IntN(4) == 0 {
			runs[i]["limits"], runs[i]["limit_key"] = []string{"narrow"}, fmt.Sprint("key-", c.rand.IntN(3))
		}
	}
	var made struct {
		Results []struct {
			Run runView `json:"run"`
		} `json:"results"`
	}
	c.n.insist("POST", "/api/v1/runs/batch", "", obj{"runs": runs}, &made)
	for _, r := range made.Results {
		c.known = append(c.known, r.Run.RunID)
	}
	c.known = c.known[max(0, len(c.known)-400):]
	c.changes += len(runs)
}

// take has a worker take runs.
func (c *campaign) take() {
	var p polled
	c.n.insist("POST", "/api/v1/workers/w/poll", "", obj{"slots": 1 + c.rand.IntN(8), "start": true,
		"queues": []string{"alpha", "beta"}, "wait": "1ms"}, &p)
	c.open = append(c.open, p.Runs...)
	c.changes += len(p.Runs)
}

// commit has a worker say something about a run that it holds.
func (c *campaign) commit(commit obj, ends bool) {
	if len(c.open) == 0 {
		c.take()
		return
	}
	i := c.rand.IntN(len(c.open))
	r := c.open[i]
	commit["run_id"], commit["epoch"], commit["commit_id"] = r.RunID, r.Epoch, fmt.Sprint("c", c.changes)
	c.n.insist("POST", "/api/v1/workers/w/commit", "", obj{"commits": []obj{commit}}, nil)
	c.changes++
	if ends {
		c.open = slices.Delete(c.open, i, i+1)
	}
}

// post makes a call that the server may refuse: what it is about may have ended.
func (c *campaign) post(method, path string, body obj) {
	c.n.insist(method, path, "", body, nil)
	c.changes++
}

// acts does one thing of those that happen to runs.
func (c *campaign) acts() {
	fail := func(defect bool) obj {
		return obj{"outcome": obj{"type": "fail", "defect": defect,
			"error": obj{"code": fmt.Sprint("code_", c.rand.IntN(3)), "message": "why"}}}
	}
	switch c.rand.IntN(18) {
	case 0, 1:
		c.submit()
	case 2, 3:
		c.take()
	case 4, 5:
		c.commit(obj{"outcome": obj{"type": "complete", "result": c.changes}}, true)
	case 6:
		c.commit(fail(false), true)
	case 7:
		c.commit(fail(true), true)
	case 8:
		lines := make([]obj, 1+c.rand.IntN(300))
		for i := range lines {
			lines[i] = obj{"type": "x:note", "data": obj{"n": i}}
		}
		c.commit(obj{"events": lines}, false)
	case 9:
		c.commit(obj{"children": []obj{{"key": fmt.Sprint("k", c.changes), "kind": "kid", "queue": "alpha"}}}, false)
	case 10:
		c.commit(obj{"waits": []obj{{"id": "ok", "type": "approval", "name": "push", "approval": obj{
			"title": fmt.Sprint("Push ", c.changes, "?"), "action": obj{"n": 1}}}},
			"outcome": obj{"type": "suspend"}}, true)
	case 11:
		c.post("POST", "/api/v1/runs/"+c.pick()+"/release-hold", obj{})
		c.post("POST", "/api/v1/runs/"+c.pick()+"/cancel", obj{})
	case 12:
		c.post("DELETE", "/api/v1/runs/"+c.pick(), nil)
		c.post("POST", "/api/v1/dlq/"+c.pick()+"/redrive", obj{})
	case 13:
		c.parked = !c.parked
		c.post("POST", "/api/v1/queues/beta/"+map[bool]string{true: "pause", false: "resume"}[c.parked], obj{})
	case 14:
		c.post("POST", "/api/v1/threads/"+c.chat+"/messages", obj{"role": "user", "content": fmt.Sprint("Message ",
			c.changes)})
	case 15:
		c.post("POST", "/api/v1/schedules/nightly/"+[]string{"pause", "resume", "trigger"}[c.rand.IntN(3)], obj{})
	case 17:
		c.post("POST", "/api/v1/groups", obj{"run_ids": []string{c.pick(), c.pick()}, "mode": "any",
			"on_losers": []string{"continue", "cancel"}[c.rand.IntN(2)]})
	case 16:
		switch key := fmt.Sprint("key-", c.rand.IntN(3)); c.rand.IntN(4) {
		case 0:
			c.post("POST", "/api/v1/limits/narrow/close", obj{"for": "5s"})
		case 1:
			c.post("POST", "/api/v1/limits/narrow/close", obj{"for": "1h", "key": key})
		case 2:
			c.post("POST", "/api/v1/limits/narrow/open", obj{"key": key})
		case 3:
			c.post("PUT", "/api/v1/limits/narrow/keys/"+key, obj{"concurrency": 1 + c.rand.IntN(9)})
		}
	}
}
