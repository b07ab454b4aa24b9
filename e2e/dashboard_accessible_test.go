package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/perdure/perdure/internal/testkit/browser"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

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

// axeFinds gives the serious and critical findings of axe-core on the page as it is now: on all of it, or on what the
// frame around the views does not have, which is the same in all of them. Contrast is two thirds of what axe-core does,
// so that rule is executed for pages that have texts whose colours, with those behind them, it has not seen yet. The
// elements are the same in each form of a page: for a second one the other rules are left out.
func (d *dashboard) axeFinds(whole, rules, contrast bool) []string {
	d.t.Helper()
	part, only := "document.querySelector('dialog[open]') ?? document.querySelector('main')", ""
	if whole {
		part = "document"
	}
	if !rules {
		only = ", runOnly: ['color-contrast']"
	}
	off := axeLeavesOut
	if !contrast {
		off += ",color-contrast"
	}
	browser.Eval[bool](d.Page, `window.axeFound = null;
		axe.run(`+part+`, {resultTypes: ['violations'], preload: false, selectors: false, rules: Object.fromEntries(
			'`+off+`'.split(',').map(rule => [rule, {enabled: false}]))`+only+`}).then(r => {
		window.axeFound = r.violations.filter(v => ['serious', 'critical'].includes(v.impact)).flatMap(v =>
			v.nodes.slice(0, 5).map(n => v.impact + ' ' + v.id + ': ' + v.help + ': ' + n.html.slice(0, 200))) },
		e => { window.axeFound = [String(e)] }); true`)
	d.until("axe-core has looked at the page", "window.axeFound !== null")
	return browser.Eval[[]string](d.Page, "axeFound")
}

// axeLeavesOut are rules whose findings are not serious.
const axeLeavesOut = "region,landmark-unique,landmark-one-main,landmark-no-duplicate-banner,heading-order," +
	"landmark-no-duplicate-contentinfo,landmark-no-duplicate-main,landmark-banner-is-top-level," +
	"landmark-contentinfo-is-top-level,landmark-main-is-top-level,page-has-heading-one,skip-link," +
	"landmark-complementary-is-top-level,empty-heading,empty-table-header,image-redundant-alt," +
	"presentation-role-conflict,scope-attr-valid,table-duplicate-name,meta-viewport-large,aria-allowed-role"

// newColours tells whether the page has texts with colours that are not in seen, and adds them.
func (d *dashboard) newColours(seen map[string]bool) (some bool) {
	d.t.Helper()
	for _, c := range browser.Eval[[]string](d.Page, "[...textColours]") {
		if !seen[c] {
			seen[c], some = true, true
		}
	}
	return some
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
		d.until("the dialog of "+text+" has the focus",
			`document.querySelector('dialog[open]')?.contains(document.activeElement)`)
	}
	closed := func(how string) {
		d.t.Helper()
		d.until("after "+how+" the dialog of "+text+" is gone, and the focus where it was",
			`!document.querySelector('dialog') && document.activeElement === opener_`)
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

// A form is how a page is looked at. axe is what axe-core does: "all" is the rules of elements and of their colours.
type form struct {
	width int64
	theme string
	axe   string
}

// forms gives three forms of a page that have both themes, the width of a desktop and that of a phone or of a window at
// 200 %: for the next page others. All are looked at with PERDURE_TEST_FULL=1 ("make campaign") and for pictures.
func forms(page int) []form {
	if os.Getenv("PERDURE_TEST_FULL") != "" || os.Getenv("PERDURE_PICTURES") != "" {
		return []form{{1280, "light", "all"}, {1280, "dark", "all"}, {390, "light", "all"}, {390, "dark", "all"},
			{doubled, "light", "all"}, {820, "dark", "all"}, {1920, "light", ""}, {2560, "dark", ""}}
	}
	themes := []string{"light", "dark"}
	narrow := []int64{390, doubled}
	return []form{{1280, themes[page%2], "all"}, {narrow[page/2%2], themes[(page+1)%2], "colours"},
		{narrow[(page/2+1)%2], themes[page%2], ""}}
}

// doubled is the width of a window of 1280 pixels at 200 %.
const doubled = 640

// Each view and each dialog, light and dark, at the width of a desktop, of a phone and at 200 %, has names, an order of
// focus and contrast. With PERDURE_PICTURES=FOLDER it also makes pictures of them.
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
	n.insist("PUT", "/api/v1/limits/shop", "", obj{"concurrency": 5, "per_key": true,
		"rate": obj{"count": 500, "per": "1m"}, "description": "What the shop allows"}, nil)
	n.insist("PUT", "/api/v1/limits/shop/keys/acme", "", obj{"concurrency": 20}, nil)
	n.insist("POST", "/api/v1/limits/shop/close", "", obj{"key": "acme", "for": "1h", "reason": "429"}, nil)
	n.insist("POST", "/api/v1/runs", "", obj{"kind": "buys", "limits": []string{"shop"}, "limit_key": "acme"}, nil)
	var thread struct {
		ThreadID string `json:"thread_id"`
	}
	n.insist("POST", "/api/v1/threads", "", obj{"metadata": obj{"title": "A title"}}, &thread)
	n.insist("POST", "/api/v1/threads/"+thread.ThreadID+"/messages", "", obj{"role": "user", "content": "hello"}, nil)
	n.insist("POST", "/api/admin/tenants/acme/keys", "", obj{"name": "ada", "scopes": []string{"runs:read"}}, nil)
	var group struct {
		ID string `json:"group_id"`
	}
	n.insist("POST", "/api/v1/groups", "", obj{"run_ids": []string{asked.RunID}, "timeout": "1h"}, &group)
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
	page, seen := 0, make(map[string]bool)
	whole := true // the first page is looked at with its frame
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
			d.picture(strings.NewReplacer(asked.RunID, "run", group.ID, "group").Replace(what), f.theme, f.width)
			if !axe || f.axe == "" {
				continue
			}
			if contrast := d.newColours(seen); contrast || f.axe == "all" {
				if found := d.axeFinds(whole, f.axe == "all", contrast); len(found) > 0 {
					t.Errorf("%s, %s, %d wide: axe-core has found\n%s", what, f.theme, f.width,
						strings.Join(found, "\n"))
				}
			}
		}
		page++
		whole = false
		d.Resize(1280, 844)
	}
	show := func(view string) {
		t.Helper()
		d.goes("#" + view)
		d.sees("h1", "")
		d.until(view+" is loaded", "!document.querySelector('main .loading')")
	}
	for _, view := range []string{"/home", "/kinds", "/kinds/deploy", "/queues/default", "/workers/deployer", "/runs",
		"/runs/" + asked.RunID, "/runs/" + asked.RunID + "?tab=data",
		"/runs/" + asked.RunID + "?tab=waits", "/threads", "/threads/" + thread.ThreadID, "/approvals", "/dead-letters",
		"/start", "/workers", "/schedules", "/schedules/nightly", "/limits", "/limits/shop", "/groups",
		"/groups/" + group.ID, "/webhooks", "/health", "/watchdog", "/recovery", "/keys"} {
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
	show("/limits/shop")
	d.dialog(".actions button", "Change", "\r", "Cancel", look)
	d.dialog("[aria-label='Keys of the limit'] button", "Set", "\r", "Cancel", look)
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
	whole = true
	look("a field for tenants")
	d.Resize(390, 844)
	d.clicks(".burger", "Menu")
	d.sees(".pick-tenant input", "")
	whole = true
	look("the menu of a phone")
	d.clicks("button", "Log out")
	d.sees("h1", "Perdure")
	d.sees(".login", "perdure dashboard")
	whole = true
	look("the login")
	d.types("input[name=key]", "prd_wrong")
	d.clicks("button", "Log in")
	d.sees("[role=alert]", "This key is not valid")
	whole = true
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
