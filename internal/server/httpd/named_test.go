package httpd

import (
	"fmt"
	"strings"
	"testing"
)

// pollFor polls for runs by their ids.
func (w *world) pollFor(ids ...string) []any {
	w.t.Helper()
	body := `{"slots":3,"start":true,"run_ids":["` + strings.Join(ids, `","`) + `"]}`
	return w.do("POST", "/api/v1/workers/me/poll", body).is(200)["runs"].([]any)
}

func TestPollByIDLeasesOnlyTheRunsItNames(t *testing.T) {
	w := newWorld(t, setup{})
	other := w.start(`{"kind":"exec","queue":"exec","class":"process"}`)
	id := w.start(`{"kind":"exec","queue":"exec","class":"process"}`)
	late := w.start(`{"kind":"exec","queue":"exec","class":"process","delay":"1h"}`)

	got := w.pollFor(id, late, id)
	if len(got) != 1 {
		t.Fatalf("granted %v, want run %s once", got, id)
	}
	g := got[0].(obj)
	if g["run_id"] != id || g["state"] != "running" || g["tenant"] != "a" || len(fmt.Sprint(g["result_token"])) < 40 {
		t.Errorf("grant %v, want run %s running, with its tenant and its result_token", g, id)
	}
	if again := w.pollFor(id); len(again) != 0 {
		t.Errorf("a second poll for run %s was granted %v, want nothing", id, again)
	}
	if run := w.get(runs + "/" + other).is(200); run["state"] != "queued" {
		t.Errorf("run %s, which no poll names, is %v, want it queued", other, run["state"])
	}
	w.commits(g, `"outcome":{"type":"complete"}`)
	if ended := w.pollFor(id); len(ended) != 0 {
		t.Errorf("a poll for the ended run %s was granted %v, want nothing", id, ended)
	}
}

func TestResultTokenDiffersByRunAndEpoch(t *testing.T) {
	w := newWorld(t, setup{})
	seen := map[any]string{}
	for range 2 {
		id := w.start(`{"kind":"exec","queue":"exec","class":"process","max_attempts":3}`)
		for epoch := 0; epoch < 2; epoch++ {
			g := w.pollFor(id)[0].(obj)
			if of, known := seen[g["result_token"]]; known {
				t.Errorf("run %s, epoch %v has the token of %s", id, g["epoch"], of)
			}
			seen[g["result_token"]] = fmt.Sprintf("run %s, epoch %v", id, g["epoch"])
			w.do("POST", "/api/v1/workers/me/release", `{"runs":[{"run_id":%q,"epoch":%v}]}`, id, g["epoch"]).is(200)
		}
	}
	w.start(`{"kind":"plain"}`)
	if g := w.lease("w", ""); g["result_token"] != nil || g["tenant"] != nil {
		t.Errorf("the grant of a task has a result_token or a tenant: %v", g)
	}
}

func TestPollByIDRefusesWhatItCannotMean(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"exec","class":"process"}`)
	many := `"` + strings.Repeat(id+`","`, 100) + id + `"`
	for body, code := range map[string]string{
		`{"slots":1,"run_ids":["` + id + `"],"queues":["default"]}`: "invalid",
		`{"slots":1,"run_ids":["` + id + `"],"kinds":["exec"]}`:     "invalid",
		`{"slots":1,"run_ids":[` + many + `]}`:                      "invalid",
	} {
		w.do("POST", "/api/v1/workers/me/poll", "%s", body).refuses(400, code)
	}
	w.do("POST", "/api/v1/workers/me/poll", `{"slots":1,"run_ids":["nobody"]}`).refuses(404, "not_found")
	stranger := w.as(w.newKey("stranger", nil))
	stranger.do("POST", "/api/v1/workers/me/poll", `{"slots":1,"run_ids":[%q]}`, id).refuses(404, "not_found")
	if run := w.get(runs + "/" + id).is(200); run["state"] != "queued" {
		t.Errorf("run %s is %v after refused polls, want it queued", id, run["state"])
	}
}
