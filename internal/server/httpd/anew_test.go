package httpd

import (
	"fmt"
	"strings"
	"testing"
)

// Calls for a run that went on anew name the run that goes on for it.
func TestRunThatWentOnAnewIsNamed(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.thread()
	w.do("POST", "/api/v1/threads/"+thread+"/runs", `{"kind":"keeper","input":{"n":1}}`).is(201)
	g := w.take("keeper")
	first := fmt.Sprint(g["run_id"])
	w.do("POST", runs+"/"+first+"/signals/order", `{"data":"a"}`).is(200)
	w.commits(g, `"outcome":{"type":"complete","result":"first","continue_with":{"input":{"n":2}}}`)
	next := fmt.Sprint(w.run(first)["continued_by_run_id"])
	if r := w.run(next); r["continuation_of_run_id"] != first || r["root_run_id"] != next || r["state"] != "queued" ||
		r["input"].(obj)["n"] != 2.0 {
		t.Errorf("run %s: %v, want a queued root that goes on for %s with its own input", next, r, first)
	}
	for what, p := range map[string]obj{
		"a signal":               w.do("POST", runs+"/"+first+"/signals/order", `{"data":"b"}`).is(409),
		"a report of outer work": w.outside(first, `{"job_id":"ci"}`).is(409),
	} {
		if p["code"] != "run_ended" || p["continued_by_run_id"] != next ||
			!strings.Contains(fmt.Sprint(p["detail"]), next) {
			t.Errorf("%s: %v, want run_ended that names run %s", what, p, next)
		}
	}
	w.do("POST", runs+"/"+next+"/signals/order", `{"data":"b"}`).is(200)
	got := w.take("keeper")
	if items := got["inbox"].([]any); got["run_id"] != next || len(items) != 2 ||
		items[0].(obj)["data"] != "a" || items[1].(obj)["data"] != "b" {
		t.Errorf("grant = %v, want run %s with the signals a and b", got, next)
	}
	w.commits(got, complete)
	if p := w.do("POST", runs+"/"+next+"/signals/order", `{"data":"c"}`).is(409); p["continued_by_run_id"] != nil {
		t.Errorf("a signal to run %s, which has ended: %v, want no run named", next, p)
	}
}
