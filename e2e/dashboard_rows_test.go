package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/browser"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// The dashboard says why something fails, its numbers agree with its lists, what is typed stays, and pages can be told
// apart. The parts share one server and one browser, one after the other.
func TestDashboardExplains(t *testing.T) {
	t.Parallel()
	n := newNode(t, nearby...)
	d := openDashboard(t, n, "", "login="+n.key)
	d.sees("h1", "Home")
	for _, part := range []struct {
		name string
		test func(*testing.T, *dashboard)
	}{
		{"why a webhook fails", webhookSaysWhy},
		{"numbers of health are those of the lists", healthAgrees},
		{"why runs failed", failuresSayWhy},
		{"causes that were redriven leave", causesLeave},
		{"what was typed stays", typedStays},
		{"a new key", newKeyIsCopied},
		{"pages have their own titles", pagesHaveTitles},
		{"the audit log has pages", auditHasPages},
		{"all tenants", allTenants},
	} {
		t.Run(part.name, func(t *testing.T) {
			n.t = t
			part.test(t, &dashboard{d.For(t), t, n})
		})
	}
	n.t = t
}

// webhookSaysWhy has an endpoint refuse a delivery. Newer ones, which wait behind it, hide it from the first page.
func webhookSaysWhy(t *testing.T, d *dashboard) {
	asked := make(chan struct{}, 1000)
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the printer is on fire", http.StatusServiceUnavailable)
		select {
		case asked <- struct{}{}:
		default:
		}
	}))
	t.Cleanup(endpoint.Close)
	var hook struct {
		ID string `json:"webhook_id"`
	}
	if status := d.n.insist("POST", "/api/v1/webhooks", "", obj{"url": endpoint.URL, "events": []string{"run:*"}},
		&hook); status != 201 {
		t.Fatalf("registering a webhook = %d, want 201", status)
	}
	d.n.submit(obj{"kind": "told", "queue": "nobody"})
	<-asked
	many := make([]obj, 60)
	for i := range many {
		many[i] = obj{"kind": "told", "queue": "nobody"}
	}
	d.n.insist("POST", "/api/v1/runs/batch", "", obj{"runs": many}, nil)
	d.goes("#/home")
	d.clicks("[data-need=webhooks]", "")
	d.sees(".state", "Failing")
	d.sees(".facts dd", "503")
	// The list has a filter and pages, which lead to the oldest delivery: the one that was tried.
	d.clicks("[role=tab]", "Pending")
	d.clicks(".pager a", "Older")
	d.sees("[aria-label=Deliveries] .why", "503")
	d.clicks("[aria-label=Deliveries] td", "503")
	d.sees("[aria-label=Attempts]", "the printer is on fire")
	d.n.insist("DELETE", "/api/v1/webhooks/"+hook.ID, "", nil, nil)
}

// healthAgrees compares each number of Health with the list that it leads to. Runs on hold are queued as well.
func healthAgrees(t *testing.T, d *dashboard) {
	held := d.n.grants(obj{"kind": "held"})
	d.n.commits(held, obj{"outcome": obj{"type": "fail", "defect": true, "error": obj{"code": "panic",
		"message": "m"}}})
	d.n.grants(obj{"kind": "works"})
	deferred := d.n.grants(obj{"kind": "works"})
	d.n.insist("POST", "/api/v1/runs/"+deferred.RunID+"/defer", "", obj{}, nil)
	for _, state := range []string{"running", "queued"} {
		d.goes("#/health")
		number := fmt.Sprintf(`document.querySelector('.number .text-%s')?.closest('.number').querySelector('a')`,
			state)
		var list struct {
			State map[string]int `json:"state"`
		}
		d.n.insist("GET", "/api/v1/runs/counts", "", nil, &list)
		eventually.True(t, "health has the number of runs that are "+state, func() bool {
			return browser.Eval[string](d.Page, number+"?.textContent ?? ''") == fmt.Sprint(list.State[state])
		})
		browser.Eval[bool](d.Page, number+".click(), true")
		d.rows(state, min(50, list.State[state]))
	}
}

// failuresSayWhy looks at the list of what failed: its reason has room, on a laptop and on a large screen.
func failuresSayWhy(t *testing.T, d *dashboard) {
	d.n.fails("prints", "no_paper")
	for _, width := range []int64{1280, 1920} {
		d.Resize(width, 844)
		d.goes("#/runs?status=failed")
		d.sees("tbody .why", "no_paper")
		d.until(fmt.Sprintf("at %d the reason is not cut, and no tab is", width),
			`(() => { const e = document.querySelector('tbody .why');
				return e.getBoundingClientRect().width > 80 && e.scrollWidth <= e.clientWidth + 1 &&
					[...document.querySelectorAll('[role=tab]')].every(e => e.scrollWidth <= e.clientWidth + 1 &&
						e.getBoundingClientRect().right <= innerWidth) })()`)
	}
	d.Resize(1280, 844)
}

func causesLeave(t *testing.T, d *dashboard) {
	r := d.n.grants(obj{"kind": "tears", "max_attempts": 1})
	d.n.commits(r, obj{"outcome": obj{"type": "fail", "error": obj{"code": "no_glue", "message": "why"}}})
	d.goes("#/dead-letters")
	d.sees(".cause", "no_glue")
	d.n.insist("POST", "/api/v1/dlq/"+r.RunID+"/redrive", "", obj{}, nil)
	d.gone(".cause", "no_glue")
	d.sees("tbody", "redriven")
}

func typedStays(t *testing.T, d *dashboard) {
	d.goes("#/queues/nobody")
	d.clicks(".actions button", "Pause")
	d.types("dialog input[name=reason]", "a bad deploy")
	d.types("dialog input[name=for]", "soon")
	d.clicks("dialog button", "Pause the queue")
	d.sees("dialog .trouble", "")
	if got := browser.Eval[string](d.Page, "document.querySelector('dialog input[name=reason]').value"); got !=
		"a bad deploy" {
		t.Errorf("the reason after a refusal = %q, want what was typed", got)
	}
	d.types("dialog input[name=for]", "30m")
	d.clicks("dialog button", "Pause the queue")
	d.sees(".why", "a bad deploy")
	d.n.insist("POST", "/api/v1/queues/nobody/resume", "", obj{}, nil)
}

// newKeyIsCopied makes a key: scopes are chosen, and its secret is not given away by Enter.
func newKeyIsCopied(t *testing.T, d *dashboard) {
	d.goes("#/keys")
	d.clicks("button", "Make a key")
	d.types("dialog input[name=name]", "ada")
	d.clicks("dialog input[value='runs:approve']", "")
	d.clicks("dialog button", "Make it")
	d.sees("dialog .secret", "prd_")
	d.sees("dialog button", "Copy the secret")
	d.lacks("dialog button", "Cancel")
	if at := browser.Eval[string](d.Page, "document.activeElement.getAttribute('aria-label') ?? ''"); at !=
		"Copy the secret" {
		t.Errorf("the focus of the dialog with a secret is on %q, want on the button that copies it", at)
	}
	d.clicks("dialog button", "I have kept it")
	// A platform key changes what a tenant may take.
	d.clicks("[aria-label=Tenants] button", "Change")
	d.types("dialog input[name=max_live_runs]", "many")
	d.clicks("dialog button", "Change them")
	d.sees("dialog .trouble", "")
	d.types("dialog input[name=max_live_runs]", "5000")
	d.clicks("dialog button", "Change them")
	d.sees("[aria-label=Tenants] td", "5,000")
	d.sees("[aria-label=Keys] tr", "runs:read, runs:approve")
}

// pagesHaveTitles compares the titles of two pages of runs, and shows an emoji that is made of several characters.
func pagesHaveTitles(t *testing.T, d *dashboard) {
	astronaut := "\U0001F469\u200D\U0001F680"
	titles := map[string]bool{}
	for range 2 {
		r := d.n.submit(obj{"kind": "told", "queue": "nobody", "metadata": obj{"by": astronaut}})
		d.goes("#/runs/" + r.RunID)
		d.sees(".ids", r.RunID)
		title := ""
		eventually.True(t, "the title has the end of the id and the state of run "+r.RunID, func() bool {
			title = browser.Eval[string](d.Page, "document.title")
			return strings.Contains(title, r.RunID[28:]) && strings.Contains(title, "Queued")
		})
		titles[title] = true
	}
	if len(titles) != 2 {
		t.Errorf("the titles of two runs = %v, want two", titles)
	}
	d.sees(".metas .meta", astronaut)
	d.lacks(".metas", "U+200D")
}

func auditHasPages(t *testing.T, d *dashboard) {
	for range 26 {
		d.n.insist("POST", "/api/v1/queues/nobody/pause", "", obj{}, nil)
		d.n.insist("POST", "/api/v1/queues/nobody/resume", "", obj{}, nil)
	}
	d.goes("#/keys")
	d.sees("[aria-label='Audit log'] tr", "queue.resume")
	d.clicks(".pager a", "Older")
	d.sees("[aria-label='Audit log'] tr", "key.create")
	d.clicks(".pager a", "Newest")
	d.gone("[aria-label='Audit log'] tr", "key.create")
}

// allTenants looks at what is shown with all tenants together: a view of one says whose it is, and what the watchdog
// did leads to the run of another tenant.
func allTenants(t *testing.T, d *dashboard) {
	d.n.insist("PUT", "/api/admin/tenants/acme", "", obj{}, nil)
	d.n.insist("POST", "/api/v1/runs?tenant=acme", "", obj{"kind": "theirs", "queue": "nobody", "timeout": "1s"}, nil)
	d.goes("#/watchdog")
	d.sees("[aria-label='Actions of the watchdog'] tr", "acme")
	d.clicks("[aria-label='Actions of the watchdog'] tr a.id", "")
	d.sees(".run-head", "theirs")
	d.types(".pick-tenant select", "*")
	d.goes("#/workers")
	d.sees(".banner", "does not show all tenants together")
	d.types(".pick-tenant select", "")
	d.gone(".banner", "all tenants")
}
