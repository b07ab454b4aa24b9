package httpd

import (
	"fmt"
	"strings"
	"testing"
)

// failedAgent makes an agent's run that has failed after the steps a and b, with b as the cause.
func (w *world) failedAgent() string {
	w.t.Helper()
	g := w.running(`{"kind":"job","class":"agent"}`)
	w.commits(g, `"journal":[{"key":"a","value":1},{"key":"b","value":2}],`+
		`"outcome":{"type":"fail","error":{"code":"broken","message":"no","cause_key":"b"},"retryable":false}`)
	return g["run_id"].(string)
}

func TestRetryBeginsWhereItIsToldTo(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.failedAgent()
	path := "/api/v1/runs/" + id
	if e := w.get(path).is(200)["error"].(obj); e["cause_key"] != "b" {
		t.Errorf("error = %v, want cause_key b", e)
	}
	for _, x := range []struct {
		from, code string
		status     int
	}{{"journal", "would_repeat", 409}, {"c", "from_invalid", 422}, {"-", "invalid", 400}} {
		if p := w.do("POST", path+"/retry", `{"from":"%s"}`, x.from).refuses(x.status, x.code); x.status == 422 &&
			p["field"] != "from" {
			t.Errorf("from %s: %v, want the field from", x.from, p)
		}
	}
	w.do("POST", path+"/retry", `{"from":1}`).refuses(400, "invalid")
	w.do("POST", path+"/retry", `{"form":"start"}`).refuses(400, "invalid")
	for _, x := range []struct{ body, keys string }{{"", "a"}, {`{}`, "a"}, {`{"from":"b"}`, "a"},
		{`{"from":"start"}`, ""}} {
		run := w.do("POST", path+"/retry", x.body).is(201)
		if run["origin_run_id"] != id || run["retry_of_run_id"] != id {
			t.Errorf("retry = %v, want origin_run_id and retry_of_run_id %s", run, id)
		}
		g := w.lease("w", `,"start":true`)
		var keys []string
		for _, e := range g["journal"].([]any) {
			keys = append(keys, e.(obj)["key"].(string))
		}
		if g["run_id"] != run["run_id"] || strings.Join(keys, " ") != x.keys || g["origin_run_id"] != id ||
			(g["first_epoch"] != nil) != (x.keys != "") {
			t.Errorf("with %s: grant = %v, want the journal %q and origin_run_id %s", x.body, g, x.keys, id)
		}
		w.commits(g, `"outcome":{"type":"complete"}`)
	}
}

func TestManyRunsAreRetriedEachByItself(t *testing.T) {
	w := newWorld(t, setup{})
	good, live := w.failedAgent(), w.start(`{"kind":"other"}`)
	const path = "/api/v1/runs/retry"
	out := w.do("POST", path, `{"run_ids":["%s","%s","%s"]}`, good, live, unknown).is(200)
	results := out["results"].([]any)
	code := func(n int) any { return results[n].(obj)["error"].(obj)["code"] }
	if out["done"] != 1.0 || results[0].(obj)["ok"] != true || code(1) != "wrong_state" || code(2) != "not_found" {
		t.Fatalf("results = %v, want one retry, wrong_state and not_found", out)
	}
	if r := w.get(fmt.Sprintf("/api/v1/runs/%v",
		results[0].(obj)["retried_by_run_id"])).is(200); r["retry_of_run_id"] != good {
		t.Errorf("the retry = %v, want retry_of_run_id %s", r, good)
	}
	w.do("POST", path, `{"run_ids":[]}`).refuses(400, "invalid")
	w.do("POST", path, `{"run_ids":["%s","%s"]}`, good, good).refuses(400, "invalid")
	w.do("POST", path, `{"run_ids":["%s"],"from":"-"}`, good).refuses(400, "invalid")
	w.do("POST", path, `{"run_ids":["%s"]}`, strings.Repeat(good+`","`, 1000)+good).refuses(413, "too_large")
}
