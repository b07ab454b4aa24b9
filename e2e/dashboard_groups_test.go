package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/perdure/perdure/internal/testkit/browser"
)

// groupsAreShown makes groups, and sees them and their runs change without a call.
func groupsAreShown(t *testing.T, d *dashboard) {
	d.goes("#/groups")
	d.sees(".empty", "POST /api/v1/groups")
	d.sees(".connection", "Live")
	var ids []string
	for range 3 {
		ids = append(ids, d.n.submit(obj{"kind": "gathered", "queue": "gathered", "max_attempts": 1}).RunID)
	}
	var all, first struct {
		ID string `json:"group_id"`
	}
	d.n.insist("POST", "/api/v1/groups", "", obj{"run_ids": ids, "timeout": "1h"}, &all)
	d.n.insist("POST", "/api/v1/groups", "", obj{"run_ids": ids, "mode": "any_ok", "on_losers": "cancel"}, &first)
	row := func(id, cells string) {
		t.Helper()
		d.until(fmt.Sprintf("the group %s is shown as %s", id, cells), fmt.Sprintf(`(() => { const r =
			document.querySelector('[aria-label=Groups] .id[title="%s"]')?.closest('tr'); return r && ['State',
			'Done', 'Unsuccessful'].map(n => r.querySelector('[data-name=' + n + ']').textContent.trim())
			.join(' ') === %q })()`, id, cells))
	}
	row(all.ID, "Open 0/3 0")
	row(first.ID, "Open 0/3 0")
	held := d.n.takes("gathered")
	d.n.commits(held, obj{"outcome": obj{"type": "fail", "retryable": false, "error": obj{"code": "broken"}}})
	row(all.ID, "Open 1/3 1")
	d.pictures("groups")
	// The page of a group shows its runs, and how each goes on.
	d.goes("#/groups/" + all.ID)
	d.sees(".figure", "1 of 3")
	d.sees("[role=tab]", "Failed1")
	d.sees("[aria-label='Runs of the group'] tr", "broken")
	d.sees(".facts", "in 59m")
	next := d.n.takes("gathered")
	d.sees("[aria-label='Runs of the group'] .state", "Running")
	// What the page asks for from here on comes of what the socket tells.
	browser.Eval[bool](d.Page, countCalls)
	browser.Eval[bool](d.Page, "window.quietSince = Date.now(), true")
	d.until("the page is quiet", `(calls.splice(0).length ? window.quietSince = Date.now() : 0,
		Date.now() - quietSince > 1500)`)
	d.n.commits(next, obj{"outcome": obj{"type": "complete", "result": 1}})
	d.sees(".figure", "3 of 3") // the other group has cancelled its loser
	d.sees(".facts .state", "Satisfied")
	d.sees("[role=tab]", "Cancelled1")
	d.pictures("group")
	d.clicks("[role=tab]", "Failed")
	d.until("the failed run alone is shown", `[...document.querySelectorAll('[aria-label="Runs of the group"] .id')]
		.map(e => e.title).join() === '`+held.RunID+`'`)
	d.clicks("[role=tab]", "Live or deleted")
	d.sees("main .card", "None.")
	d.clicks("[role=tab]", "All")
	d.clicks("[aria-label='Runs of the group'] a", held.RunID[28:])
	d.sees(".run-head", "gathered")
	d.n.insist("DELETE", "/api/v1/runs/"+held.RunID, "", nil, nil)
	d.goes("#/groups/" + all.ID)
	d.sees("[aria-label='Runs of the group'] .state", "deleted")
	// Keys lead to the list and to a group; a state selects.
	d.Press("g")
	d.Press("m")
	d.sees("h1", "Groups")
	row(first.ID, "Satisfied 2/3 1")
	d.clicks("[role=tab]", "Open")
	d.sees(".empty", "No group matches")
	d.clicks("[role=tab]", "Ended")
	row(all.ID, "Satisfied 3/3 2")
	d.Press("j")
	d.Press("\r")
	d.sees(".facts", first.ID)
	d.goes("#/groups/none")
	d.sees(".empty", "There is no such group")
	// A large one has pages.
	var batch struct {
		Results []struct {
			Run runView `json:"run"`
		} `json:"results"`
	}
	d.n.insist("POST", "/api/v1/runs/batch", "", obj{"runs": slices.Repeat([]obj{{"kind": "many"}}, 101)}, &batch)
	ids = nil
	for _, r := range batch.Results {
		ids = append(ids, r.Run.RunID)
	}
	d.n.insist("POST", "/api/v1/groups", "", obj{"run_ids": ids}, &all)
	d.goes("#/groups/" + all.ID)
	d.sees(".pager", "1 to 100 of 101")
	d.clicks(".pager a", "Next")
	d.until("the last run is shown", `[...document.querySelectorAll('[aria-label="Runs of the group"] .id')]
		.map(e => e.title).join() === '`+ids[100]+`'`)
	d.sees("[aria-label='Runs of the group'] b", "many")
}
