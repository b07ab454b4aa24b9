package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/testkit/browser"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// The dashboard says what needs a person, finds runs by what pages show of them, and has a page for each kind, queue
// and worker. The parts share one server and one browser, one after the other.
func TestDashboardFinds(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := openDashboard(t, n, "", "login="+n.key)
	d.sees("h1", "Home")
	for _, part := range []struct {
		name string
		test func(*testing.T, *dashboard)
	}{
		{"the home agrees with its lists", homeAgreesWithItsLists},
		{"the search finds", searchFinds},
		{"back comes to the same place", backKeepsThePlace},
		{"columns and order are in the address", columnsAreInTheAddress},
		{"a form is made of the schema", formOfTheSchema},
		{"pages of a queue and a worker", queueAndWorker},
		{"schedules", schedulesAreShown},
		{"limits", limitsAreShown},
		{"groups", groupsAreShown},
	} {
		t.Run(part.name, func(t *testing.T) {
			n.t = t
			part.test(t, &dashboard{d.For(t), t, n})
		})
	}
	n.t = t
}

// fails has a worker end a new run with an error.
func (n *node) fails(kind, code string) runView {
	n.t.Helper()
	r := n.grants(obj{"kind": kind, "max_attempts": 1})
	n.commits(r, obj{"outcome": obj{"type": "fail", "retryable": false, "error": obj{"code": code, "message": "why"}}})
	return r
}

// rows waits until the list of runs has so many rows.
func (d *dashboard) rows(what string, want int) {
	d.t.Helper()
	d.until(fmt.Sprintf("%s: the list has %d rows", what, want),
		fmt.Sprintf("document.querySelectorAll('[aria-label=Runs] tbody tr').length === %d", want))
}

func homeAgreesWithItsLists(t *testing.T, d *dashboard) {
	d.sees(".all-clear", "All clear")
	d.n.fails("mail", "no_paper")
	d.n.fails("mail", "no_paper")
	d.n.fails("report", "no_ink")
	held := d.n.grants(obj{"kind": "agent", "class": "agent"})
	d.n.commits(held, obj{"outcome": obj{"type": "fail", "defect": true,
		"error": obj{"code": "panic", "message": "m"}}})
	asksForApproval(d.n, "Push?")
	for range 3 {
		d.n.submit(obj{"kind": "lonely", "queue": "nobody"})
	}
	for need, want := range map[string]int{"failed": 3, "held": 1, "unserved nobody lonely": 3, "approvals": 1} {
		line := fmt.Sprintf("[data-need='%s']", need)
		d.goes("#/home")
		d.sees(line+" .need-n", fmt.Sprint(want))
		d.clicks(line, "")
		if need == "approvals" {
			d.sees(".approval", "Push?")
			continue
		}
		d.rows(need, want)
	}
	d.goes("#/home")
	d.sees("[data-cause=no_paper] b", "2")
	d.clicks("[data-cause=no_paper]", "")
	d.rows("no_paper", 2)
	d.sees(".chip", "no_paper")
	d.sees("nav .n", "4 need attention") // failures and the hold, beside Runs
	d.sees("nav .n", "1 need attention") // the approval
}

// finds types into the search of the list.
func (d *dashboard) finds(text string) {
	d.t.Helper()
	d.goes("#/runs")
	d.sees("h1", "Runs")
	d.sees("[role=tab] .n", "") // the counts, which know the kinds
	d.types("input[type=search]", text)
	d.Press("\r")
}

func searchFinds(t *testing.T, d *dashboard) {
	worker := d.n.grants(obj{"kind": "invoice.daily", "metadata": obj{"host": "cube"}})
	d.n.submit(obj{"kind": "invoice.weekly", "queue": "nobody", "metadata": obj{"team": "cube"}})
	d.finds(worker.RunID[28:])
	d.sees(".ids", worker.RunID) // the only one, so it is opened
	for text, want := range map[string]int{
		"invoice": 2, "kind:invoice*": 2, "kind:invoice.daily host=cube": 1, "any:cube": 2, "cube invoice.w": 1,
		"is:held": 1, "code:no_paper since:1h": 2, "worker:w kind:invoice.daily": 1, "code:nothing": 0,
	} {
		d.finds(text)
		d.rows(text, want)
	}
	d.finds("code:nothing")
	d.sees(".empty", "No run matches")
	d.finds("colour:red")
	d.sees(".toasts", "There is no field colour")
	d.goes("#/runs")
	d.sees("[aria-label=Runs] tbody", "invoice")
	d.types("input[type=search]", "invo")
	d.sees(".suggestions", "kind:invoice.weekly")
}

// signal sends a signal to the server.
func (n *node) signal(sig syscall.Signal) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.cmd.Process.Signal(sig); err != nil {
		n.t.Fatal(err)
	}
}

// slowFrames makes each frame of the page take 150 ms, and has the browser know the new length of the page at once.
const slowFrames = `(() => {
	window.fastFrame = requestAnimationFrame;
	requestAnimationFrame = f => fastFrame(t => {
		for (const until = performance.now() + 150; performance.now() < until;);
		f(t);
	});
	window.early = new MutationObserver(() => document.body.offsetHeight);
	early.observe(document.querySelector('#main'), { childList: true, subtree: true });
	return true;
})()`

// rowInSight is the number of the row of the list that is in the middle of the window, or 0.
const rowInSight = `document.elementFromPoint(innerWidth / 2, innerHeight / 2)?.closest('[aria-label=Runs] tbody tr')
	?.rowIndex ?? 0`

func backKeepsThePlace(t *testing.T, d *dashboard) {
	runs := make([]obj, 120)
	for i := range runs {
		runs[i] = obj{"kind": "many", "queue": "nobody"}
	}
	d.n.insist("POST", "/api/v1/runs/batch", "", obj{"runs": runs}, nil)
	d.goes("#/runs?kind=many")
	d.rows("the first page", 50)
	d.clicks(".pager button", "Show more")
	d.rows("all that are shown", 100)
	browser.Eval[bool](d.Page, `scrollTo(0, 2400), true`)
	d.until("the place is remembered", "history.state?.y === 2400")
	before := browser.Eval[int](d.Page, rowInSight)
	back := func(when string) {
		t.Helper()
		eventually.True(t, when+": the same row is in sight", func() bool {
			now := browser.Eval[int](d.Page, rowInSight)
			return before > 1 && before-1 <= now && now <= before+1
		})
	}
	d.clicks("[aria-label=Runs] tbody tr:nth-child(60) a", "many")
	d.sees(".ids", "")
	browser.Eval[bool](d.Page, "history.back(), true")
	d.rows("after Back", 100)
	back("after Back")

	// On a slow machine the page is short, and at its top, before it knows of the place; and the rows come late.
	browser.Eval[bool](d.Page, slowFrames)
	d.clicks("[aria-label=Runs] tbody tr:nth-child(60) a", "many")
	d.sees(".ids", "")
	d.n.signal(syscall.SIGSTOP)
	browser.Eval[bool](d.Page, "scrollTo(0, 300), history.back(), true")
	d.sees("main .loading", "")
	d.until("the page is shorter, and nothing of that is remembered",
		`(window.late ??= performance.now()) + 300 < performance.now() &&
			scrollY < 2400 && history.state.y === 2400`)
	d.n.signal(syscall.SIGCONT)
	browser.Eval[bool](d.Page, "requestAnimationFrame = fastFrame, early.disconnect(), true")
	d.rows("after Back with late rows", 100)
	back("after Back with late rows")
}

func columnsAreInTheAddress(t *testing.T, d *dashboard) {
	d.Resize(1600, 900) // chosen columns go by the width of the list too
	d.goes("#/runs?cols=Worker,Age&sort=Kind&kind=invoice.daily")
	d.sees("thead th", "Worker")
	d.gone("thead th", "Queue")
	d.goes("#/runs?metadata_value=cube&sort=Kind")
	d.sees("th[aria-sort=ascending]", "Kind")
	first := func() string {
		return browser.Eval[string](d.Page,
			`document.querySelector('[aria-label=Runs] tbody .kind a')?.textContent ?? ''`)
	}
	eventually.True(t, "the first kind is first", func() bool { return strings.TrimSpace(first()) == "invoice.daily" })
	d.clicks("th button", "Kind")
	eventually.True(t, "the last kind is first", func() bool { return strings.TrimSpace(first()) == "invoice.weekly" })
	d.sees("th[aria-sort=descending]", "Kind")
}

func formOfTheSchema(t *testing.T, d *dashboard) {
	d.n.insist("PUT", "/api/v1/kinds/printed", "", obj{"description": "Prints", "build": "b1", "input_schema": obj{
		"type": "object", "required": []string{"host"}, "properties": obj{"host": obj{"type": "string"},
			"copies": obj{"type": "integer", "maximum": 9}, "format": obj{"enum": []string{"pdf", "html"}}}}}, nil)
	d.goes("#/kinds")
	d.clicks("tbody a", "printed")
	d.sees("h1", "printed")
	d.types(`[name="in:copies"]`, "12")
	d.clicks("form.start button", "Start")
	d.sees("small.bad", "It is required")
	d.sees("small.bad", "Give at most 9")
	d.types(`[name="in:host"]`, "cube")
	d.types(`[name="in:copies"]`, "3")
	d.clicks("form.start button", "Start")
	d.sees(".run-head", "printed")
	var list struct {
		Runs []struct {
			RunID string `json:"run_id"`
		} `json:"runs"`
	}
	d.n.insist("GET", "/api/v1/runs?kind=printed", "", nil, &list)
	var run struct {
		Input obj `json:"input"`
	}
	d.n.insist("GET", "/api/v1/runs/"+list.Runs[0].RunID, "", nil, &run)
	if run.Input["host"] != "cube" || run.Input["copies"] != 3.0 {
		t.Errorf("the input of the run = %v, want host cube and copies 3", run.Input)
	}
	d.goes("#/kinds/mail")
	d.sees(".figure", "started in the last hour")
	d.sees(".causes", "no_paper")
}

func queueAndWorker(t *testing.T, d *dashboard) {
	d.goes("#/queues/nobody")
	d.sees("[data-reason=unserved]", "polls for kind many")
	d.n.insist("POST", "/api/v1/queues/nobody/pause", "", obj{}, nil)
	d.sees("[data-reason=queue_paused]", "paused")
	d.n.insist("POST", "/api/v1/queues/nobody/resume", "", obj{}, nil)
	// The worker has a run now. Its earlier lease may have been lost: a lease is a minute, and this test may be slow.
	d.n.grants(obj{"kind": "print.now"})
	d.goes("#/workers/w")
	d.sees(".plain", "print.now")
	d.sees("[data-why]", "slots are taken")
}

func schedulesAreShown(t *testing.T, d *dashboard) {
	d.goes("#/schedules")
	d.sees(".empty", "perdure schedules add")
	put := func(name string, body obj) {
		body["kind"] = "scheduled"
		if status := d.n.insist("PUT", "/api/v1/schedules/"+name, "", body, nil); status >= 300 {
			t.Fatalf("making schedule %s = %d, want it made", name, status)
		}
	}
	put("nightly", obj{"cron": "30 2 * * mon-fri", "timezone": "Europe/Berlin", "queue": "nobody",
		"input": obj{"n": 7}})
	put("often", obj{"every": "1h", "overlap": "queue"})
	// They arrive over the socket, as does all that is done to them.
	d.sees("[aria-label=Schedules] tr", "30 2 * * mon-fri, Europe/Berlin")
	d.sees("[aria-label=Schedules] tr", "every 1h")
	d.sees("[aria-label=Schedules] tr", "never")
	d.sees(".connection", "Live")
	d.clicks("[aria-label=Schedules] a", "nightly")
	d.sees(".facts", "one run for the latest of them")
	eventually.True(t, "the next eight instants are shown", func() bool {
		return d.number("[aria-label='Next instants'] tbody tr", "02:30") == 8
	})
	d.sees(".j-key", "queue")
	d.clicks(".actions button", "Pause")
	d.clicks("dialog button", "Pause the schedule")
	d.sees(".facts .state", "Paused")
	d.clicks(".actions button", "Resume")
	d.sees("dialog", "The latest of the missed instants starts a run.")
	d.clicks("dialog button", "Resume the schedule")
	d.sees(".facts .state", "Active")
	d.clicks(".actions button", "Run now")
	d.clicks("dialog button", "Start it")
	d.sees(".run-head", "scheduled")
	d.sees(".facts", "nightly")
	d.goes("#/schedules/nightly")
	d.sees(".facts dt", "Its run")
	d.pictures("schedule")
	d.clicks(".actions button", "Delete")
	d.clicks("dialog button", "Delete")
	d.sees("[aria-label=Schedules] tr", "often")
	d.gone("[aria-label=Schedules] tr", "nightly")
}

// limitsAreShown makes a limit with keys, closes and opens it, and looks at who holds it and who waits.
func limitsAreShown(t *testing.T, d *dashboard) {
	d.goes("#/limits")
	d.sees(".empty", "perdure limits set")
	d.clicks("button", "Make a limit")
	d.types("dialog input[name=name]", "shop")
	d.clicks("dialog button", "Make it")
	d.sees("dialog .trouble", "") // neither a number of runs nor a rate
	d.types("dialog input[name=concurrency]", "1")
	d.types("dialog input[name=count]", "500")
	d.types("dialog input[name=per]", "1m")
	d.types("dialog select[name=each]", "yes")
	d.types("dialog input[name=description]", "<b>the shop</b>")
	d.clicks("dialog button", "Make it")
	d.sees("h1", "shop")
	d.sees(".page-title .sub", "<b>the shop</b>")
	d.sees(".facts", "1 at once; 500 each 1m")
	// Changes arrive over the socket.
	d.sees(".connection", "Live")
	first := d.n.submit(obj{"kind": "buys", "queue": "shop", "limits": []string{"shop"}, "limit_key": "acme"})
	second := d.n.submit(obj{"kind": "buys", "queue": "shop", "limits": []string{"shop"}, "limit_key": "acme"})
	held := d.n.takes("shop")
	if held.RunID != first.RunID {
		t.Fatalf("a poll of queue shop = run %s, want %s", held.RunID, first.RunID)
	}
	d.sees("[aria-label=Holders] td", first.RunID[28:])
	d.sees("[aria-label=Waiters] td", second.RunID[28:])
	d.sees("[aria-label='Keys of the limit'] tr", "acme")
	d.pictures("limit")
	d.goes("#/runs/" + second.RunID)
	d.sees("[data-waiting=limit]", "It waits at limit shop (key acme)")
	d.clicks("[data-waiting=limit] a", "shop")
	// A key has a value of its own, and is closed by itself.
	d.clicks("[aria-label='Keys of the limit'] button", "Set")
	d.types("dialog input[name=concurrency]", "none")
	d.clicks("dialog button", "Set them")
	d.sees("dialog .trouble", "")
	d.types("dialog input[name=concurrency]", "2")
	d.clicks("dialog button", "Set them")
	d.sees("[aria-label='Keys of the limit'] tr", "2 at once")
	d.gone("[aria-label=Waiters] td", second.RunID[28:])
	d.clicks("[aria-label='Keys of the limit'] button", "Close")
	d.clicks("dialog button", "Close it")
	d.sees("[aria-label='Keys of the limit'] .state", "Closed")
	d.goes("#/limits")
	d.sees("[aria-label=Limits] .state", "Has room")
	d.clicks("[aria-label=Limits] button", "Close")
	d.types("dialog input[name=for]", "1h")
	d.types("dialog input[name=reason]", "429")
	d.clicks("dialog button", "Close it")
	d.sees("[aria-label=Limits] tr", "opens in")
	d.sees("[aria-label=Limits] tr", "429")
	d.pictures("limits")
	d.clicks("[aria-label=Limits] button", "Open")
	d.clicks("dialog button", "Open it")
	d.gone("[aria-label=Limits] .state", "Closed")
	d.goes("#/limits/shop")
	d.clicks(".actions button", "Delete")
	d.clicks("dialog button", "Delete")
	d.sees(".empty", "perdure limits set")
}
