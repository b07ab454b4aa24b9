package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A campaignView is a view of the dashboard with what it has to show. Both sides are lists of texts.
type campaignView struct {
	// at is its address. RUN, THREAD and GROUP stand for ids.
	at string
	// shown is a function of the page that gives what it shows.
	shown string
	want  func(c *campaign, run string) []string
	run   string
}

// names are the labels of states.
var names = map[string]string{"queued": "Queued", "dispatched": "Dispatched", "running": "Running",
	"suspended": "Waiting", "deferred": "Deferred", "completed": "Completed", "failed": "Failed",
	"timeout": "Timed out", "cancelled": "Cancelled"}

// label is the label of a run as the API tells of it.
func label(run obj) string {
	if run["hold"] != nil {
		return "On hold"
	}
	return names[fmt.Sprint(run["status"])]
}

// list reads a list of the API.
func (c *campaign) list(path, field string) (rows []obj) {
	c.t.Helper()
	var body map[string]any
	if status := c.n.insist("GET", path, "", nil, &body); status != 200 {
		return nil
	}
	all, _ := body[field].([]any)
	for _, row := range all {
		rows = append(rows, row.(obj))
	}
	return rows
}

// eachAs writes each row of a list with a format.
func eachAs(rows []obj, text func(obj) string) []string {
	out := make([]string, 0, len(rows))
	for _, row := range rows {
		out = append(out, text(row))
	}
	return out
}

// cells has a view give the cells of its table with some names, a text for each row.
func cells(table string, columns ...string) string {
	return fmt.Sprintf(`() => [...document.querySelectorAll('[aria-label=%q] tbody tr')].map(r => %q.split(',')
		.map(n => r.querySelector('td[data-name="' + n + '"]')?.textContent.trim()).join(' '))`, table,
		strings.Join(columns, ","))
}

// runsView is a list of runs.
func runsView(query string) campaignView {
	return campaignView{at: "#/runs?" + query, shown: `() =>
		[...document.querySelectorAll('[aria-label=Runs] tbody tr')].map(
			r => r.querySelector('.c-id .id')?.title + ' ' + r.querySelector('.state')?.textContent.trim())`,
		want: func(c *campaign, _ string) []string {
			return eachAs(c.list("/api/v1/runs?limit=50&"+query, "runs"), func(r obj) string {
				return fmt.Sprint(r["run_id"], " ", label(r))
			})
		}}
}

// grouped writes a number as the pages do.
func grouped(n any) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

var campaignViews = []campaignView{
	runsView(""),
	{at: "#/home", shown: `() => document.querySelector('main .loading') ? ['loading'] :
		[...document.querySelectorAll('[data-need]')].map(e => e.dataset.need + ' ' +
			e.querySelector('.need-n').textContent).sort()`, want: wantNeeds},
	{at: "#/runs/RUN?form=lines", shown: `() => document.querySelector('.run-head') ? [
		document.querySelector('.run-head .state').textContent.trim(),
		[...document.querySelectorAll('[role=tab]')].map(e => e.textContent).find(t => t.startsWith('Log')),
		[...document.querySelectorAll('[role=tab]')].map(e => e.textContent).find(t => t.startsWith('Children')),
		'worker ' + ([...document.querySelectorAll('.facts dt')].find(e => e.textContent === 'Worker')
			?.nextSibling.textContent ?? '')] : [document.querySelector('.empty h2')?.textContent ?? 'nothing']`,
		want: wantRun},
	{at: "#/queues/alpha", shown: `() => ['queued', 'with a worker', 'waiting, without a worker'].map(t =>
		[...document.querySelectorAll('.figure')].find(e => e.querySelector('.sub').textContent === t)
			?.querySelector('.big').textContent)`, want: func(c *campaign, _ string) []string {
		for _, q := range c.list("/api/v1/queues?limit=200", "queues") {
			if q["name"] == "alpha" {
				return []string{grouped(q["queued"]), grouped(q["running"]), grouped(q["suspended"])}
			}
		}
		return []string{"0", "0", "0"}
	}},
	{at: "#/kinds", shown: cells("Kinds", "Kind", "Running", "Queued", "Failed"), want: wantKinds},
	{at: "#/threads/THREAD", shown: `() => [...document.querySelectorAll('[data-message]')]
		.map(e => e.dataset.message)`, want: func(c *campaign, _ string) (all []string) {
		for after := "0"; ; after = all[len(all)-1] { // a long campaign says more than a page has
			page := c.list("/api/v1/threads/"+c.chat+"/messages?limit=200&after="+after, "messages")
			all = append(all, eachAs(page, func(m obj) string { return fmt.Sprint(m["seq"]) })...)
			if len(page) == 0 {
				return all
			}
		}
	}},
	{at: "#/approvals", shown: `() => [...document.querySelectorAll('.approval h2')].map(e => e.textContent)`,
		want: func(c *campaign, _ string) []string {
			return eachAs(c.list("/api/v1/approvals?limit=100", "approvals"), func(a obj) string {
				return fmt.Sprint(a["title"])
			})
		}},
	{at: "#/dead-letters", shown: `() => [...document.querySelectorAll('[aria-label="Dead letters"] tbody tr')]
		.map(r => r.querySelector('td[data-name=Run] .id').title + ' ' +
			r.lastElementChild.textContent.includes('redriven'))`,
		want: func(c *campaign, _ string) []string {
			return eachAs(c.list("/api/v1/dlq?limit=50", "dead_letters"), func(l obj) string {
				return fmt.Sprint(l["run_id"], " ", l["redriven_by_run_id"] != nil)
			})
		}},
	runsView("status=failed"),
	{at: "#/workers", shown: cells("Queues", "Queue", "Running", "Queued"), want: func(c *campaign, _ string) []string {
		return eachAs(c.list("/api/v1/queues?limit=200", "queues"), func(q obj) string {
			return fmt.Sprint(q["name"], " ", grouped(q["running"]), " ", grouped(q["queued"]))
		})
	}},
	{at: "#/schedules", shown: cells("Schedules", "State"), want: func(c *campaign, _ string) []string {
		return eachAs(c.list("/api/v1/schedules", "schedules"), func(s obj) string {
			return map[string]string{"active": "Active", "paused": "Paused"}[fmt.Sprint(s["state"])]
		})
	}},
	{at: "#/schedules/nightly", shown: `() => [document.querySelector('.facts .state')?.textContent.trim(),
		...[...document.querySelectorAll('.figure .big')].map(e => e.textContent)]`,
		want: func(c *campaign, _ string) []string {
			s := c.list("/api/v1/schedules", "schedules")[0]
			return []string{map[string]string{"active": "Active", "paused": "Paused"}[fmt.Sprint(s["state"])],
				grouped(s["fired"]), grouped(s["missed_count"]), grouped(s["skipped"]), grouped(s["failed"])}
		}},
	{at: "#/limits", shown: cells("Limits", "State", "Leased", "Waiting"),
		want: func(c *campaign, _ string) []string {
			return eachAs(c.list("/api/v1/limits", "limits"), func(l obj) string {
				return fmt.Sprint(limitState(l), " ", grouped(l["leased"]), " ", grouped(l["waiting"]))
			})
		}},
	{at: "#/limits/narrow", shown: `() => [document.querySelector('.facts .state')?.textContent.trim(),
		...[...document.querySelectorAll('.figure .big')].map(e => e.textContent),
		...['Holders', 'Waiters'].flatMap(l => [...document.querySelectorAll('[aria-label=' + l + '] .id')]
			.map(e => e.title)),
		...[...document.querySelectorAll('[aria-label="Keys of the limit"] tbody tr')].map(r =>
			['.state', 'b', '[data-name=Waiting]'].map(at => r.querySelector(at).textContent.trim())
				.join(' '))]`, want: wantLimit},
	runsView("held=true"),
	{at: "#/groups", shown: cells("Groups", "State", "Done", "Unsuccessful"),
		want: func(c *campaign, _ string) []string {
			return eachAs(c.list("/api/v1/groups", "groups"), func(g obj) string {
				return fmt.Sprintf("%s %v/%v %v", groupNames[fmt.Sprint(g["state"])], g["ended"], g["total"],
					g["ended"].(float64)-g["completed"].(float64))
			})
		}},
	{at: "#/groups/GROUP", shown: `() => [document.querySelector('.facts .state')?.textContent.trim(),
		...[...document.querySelectorAll('.figure .big')].map(e => e.textContent),
		...[...document.querySelectorAll('[role=tab] .n')].map(e => e.textContent),
		...[...document.querySelectorAll('[aria-label="Runs of the group"] tbody tr')].map(r =>
			r.querySelector('.id').title + ' ' + r.querySelector('.state').textContent.trim())]`, want: wantGroup},
}

// groupNames are the labels of states of groups.
var groupNames = map[string]string{"open": "Open", "satisfied": "Satisfied", "timed_out": "Timed out"}

// wantGroup is what the page of a group shows.
func wantGroup(c *campaign, _ string) []string {
	var g map[string]any
	c.n.insist("GET", "/api/v1/groups/"+c.group, "", nil, &g)
	ended, completed := g["ended"].(float64), g["completed"].(float64)
	out := []string{groupNames[fmt.Sprint(g["state"])], fmt.Sprintf("%v of %v", ended, g["total"]),
		fmt.Sprint(completed), fmt.Sprint(ended - completed)}
	n := make(map[any]int)
	for _, e := range g["ended_runs"].([]any) {
		n[e.(obj)["state"]]++
	}
	ids := g["run_ids"].([]any)
	for _, some := range []int{len(ids), len(ids) - len(g["ended_runs"].([]any)), n["completed"],
		n["failed"] + n["timeout"], n["cancelled"]} {
		out = append(out, fmt.Sprint(some))
	}
	for _, id := range ids {
		var r map[string]any
		shown := "deleted"
		if c.n.insist("GET", fmt.Sprint("/api/v1/runs/", id), "", nil, &r) == 200 {
			shown = label(r)
		}
		out = append(out, fmt.Sprint(id, " ", shown))
	}
	return out
}

// limitState is the label of a limit, or of a key.
func limitState(l obj) string {
	switch {
	case l["closed_until"] != nil:
		return "Closed"
	case l["waiting"] != 0.0:
		return "Runs wait"
	}
	return "Has room"
}

// wantLimit is what the page of a limit shows.
func wantLimit(c *campaign, _ string) []string {
	var l map[string]any
	c.n.insist("GET", "/api/v1/limits/narrow", "", nil, &l)
	out := []string{limitState(l), grouped(l["leased"]), grouped(l["waiting"]), grouped(l["offered"])}
	for _, of := range []string{"holders", "waiters"} {
		runs, _ := l[of].([]any)
		for _, r := range runs {
			out = append(out, fmt.Sprint(r.(obj)["run_id"]))
		}
	}
	return append(out, eachAs(c.list("/api/v1/limits/narrow/keys", "keys"), func(k obj) string {
		return fmt.Sprint(limitState(k), " ", k["key"], " ", grouped(k["waiting"]))
	})...)
}

// wantNeeds are the lines of the home.
func wantNeeds(c *campaign, _ string) (out []string) {
	var a map[string]any
	c.n.insist("GET", "/api/v1/attention", "", nil, &a)
	add := func(id string, of any) {
		n, _ := of.(obj)
		if n == nil || n["count"] == 0.0 {
			return
		}
		more := ""
		if n["at_least"] == true {
			more = "+"
		}
		out = append(out, id+" "+grouped(n["count"])+more)
	}
	for _, id := range []string{"approvals", "failed", "held", "silent", "ending"} {
		add(id, a[id])
	}
	unserved, _ := a["unserved"].([]any)
	for _, u := range unserved {
		add(fmt.Sprint("unserved ", u.(obj)["queue"], " ", u.(obj)["kind"]), u)
	}
	slices.Sort(out)
	return out
}

// wantRun are the facts of a run.
func wantRun(c *campaign, run string) []string {
	var r map[string]any
	if status := c.n.insist("GET", "/api/v1/runs/"+run, "", nil, &r); status == 404 {
		return []string{"There is no such run"}
	}
	children := ""
	if n := len(c.list("/api/v1/runs?limit=200&parent_run_id="+run, "runs")); n > 0 {
		children = grouped(n)
	}
	worker, _ := r["worker_id"].(string)
	return []string{label(r), "Log" + grouped(r["last_seq"]), "Children" + children, "worker " + worker}
}

// wantKinds are the rows of kinds.
func wantKinds(c *campaign, _ string) (out []string) {
	var counts struct {
		Kind map[string]map[string]int `json:"kind"`
	}
	c.n.insist("GET", "/api/v1/runs/counts", "", nil, &counts)
	for kind, n := range counts.Kind {
		out = append(out, fmt.Sprint(kind, " ", grouped(n["running"]+n["dispatched"]+n["deferred"]), " ",
			grouped(n["queued"]), " ", grouped(n["failed"]+n["timeout"])))
	}
	slices.Sort(out)
	return out
}

// writeEvidence prints docs/evidence/dashboard.md, if it is asked for.
func (c *campaign) writeEvidence(took time.Duration, seed uint64) {
	at := os.Getenv("PERDURE_EVIDENCE")
	if at == "" {
		return
	}
	commit, err := exec.Command("git", "describe", "--always", "--abbrev=10", "--dirty=, with changes").Output()
	if err != nil {
		c.t.Fatalf("which commit this is: %v", err)
	}
	verdict := "No tab differed from the API for longer than is allowed, no page had an error, and no heap was " +
		"larger at the end than twice the first figure and 10 MB."
	if c.t.Failed() {
		verdict = "**The check failed.**"
	}
	late := func(of []time.Duration) string {
		slices.Sort(of)
		if len(of) == 0 {
			return "never"
		}
		return fmt.Sprintf("%d ms; half of them %d ms", of[len(of)-1].Milliseconds(), of[len(of)/2].Milliseconds())
	}
	load, _ := os.ReadFile("/proc/loadavg")
	circumstances := fmt.Sprintf("The commit is %s. It took %s, with seed %d. The machine has %d processors, and a "+
		"load of %s at the end.", strings.TrimSpace(string(commit)), took.Round(time.Second), seed, runtime.NumCPU(),
		strings.Join(strings.Fields(string(load))[:3], ", "))
	page := fmt.Sprintf(strings.ReplaceAll(campaignPage, "^", "`"), wrapped(circumstances, 100),
		c.changes, c.kills, c.compared, late(c.live), late(c.after), fmt.Sprint(c.heap[0]), fmt.Sprint(c.heap[1]),
		len(c.troubles), wrapped(verdict, 100))
	if err := os.WriteFile(filepath.Join(at, "dashboard.md"), []byte(page), 0o644); err != nil {
		c.t.Error(err)
	}
}

const campaignPage = `# The dashboard beside its API

Printed by

    PERDURE_DASHBOARD=1h PERDURE_EVIDENCE=$PWD/docs/evidence go test ./e2e -run DashboardTellsTheTruth -v -timeout 2h

with the length below in the place of 1h. ^make campaign^ runs an hour.

Four tabs of one Chromium show views that are chosen at random, while runs are submitted, taken,
held, cancelled, deleted and redriven, logs grow, queues and schedules are paused, limits are closed
and changed, and the server is killed. After every few changes each tab is compared with the API. A
difference of more than 2 s fails, unless the server was just killed, as does an error in a page or
a tab whose heap grows. On a machine with more work than processors it is longer by as much. A time
contains that of showing the view, if the tab has just gone there, and of asking the API.

%s

| | |
| --- | --- |
| changes | %d |
| kills | %d |
| comparisons of a tab with the API | %d |
| the latest agreement while the server lived | %s |
| the latest agreement after a kill | %s |
| heap of the tabs after a tenth of the time, MB | %s |
| heap of the tabs at the end, MB | %s |
| errors in the pages | %d |

%s
`
