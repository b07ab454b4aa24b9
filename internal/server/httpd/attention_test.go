package httpd

import (
	"fmt"
	"net/url"
	"testing"
)

// Each number of what may need a person is that of its list, and another tenant has none of them.
func TestAttentionAgreesWithItsLists(t *testing.T) {
	w := newWorld(t, setup{})
	other := w.newKey("b", nil)
	for _, key := range []string{w.key, other} {
		a := w.as(key).get("/api/v1/attention").is(200)
		for _, name := range []string{"approvals", "failed", "held", "ending"} {
			if n := a[name].(obj)["count"]; n != 0.0 {
				t.Errorf("%s of an empty tenant = %v, want 0", name, n)
			}
		}
	}
	fail := func(code, more string) {
		w.commits(w.running(fmt.Sprintf(`{"kind":"k-%s","class":"agent","max_attempts":1}`, code)),
			fmt.Sprintf(`"outcome":{"type":"fail",%s,"error":{"code":"%s","message":"why"}}`, more, code))
	}
	fail("no_paper", `"retryable":false`)
	fail("no_paper", `"retryable":false`)
	fail("no_ink", `"retryable":false`)
	fail("panic", `"defect":true`)
	approval := w.running(`{"kind":"asks","class":"agent"}`)
	w.commits(approval, `"outcome":{"type":"suspend"},`+
		`"waits":[{"id":"a","type":"approval","name":"push","approval":{"title":"Push?","action":1}}]`)
	for range 3 {
		w.start(`{"kind":"lonely","queue":"nobody"}`)
	}
	v := w.view(false)
	v.say(`{"type":"watch","id":"a","of":"attention"}`)
	v.read()
	for what, a := range map[string]obj{"called": w.get("/api/v1/attention").is(200),
		"watched": v.last["a"]["items"].([]any)[0].(obj)} {
		since := url.QueryEscape(a["since"].(string))
		length := func(path, field string) float64 { return float64(len(w.get(path).is(200)[field].([]any))) }
		for name, list := range map[string][2]string{
			"approvals": {"/api/v1/approvals", "approvals"},
			"failed":    {runs + "?status=failed,timeout&finished_after=" + since, "runs"},
			"held":      {runs + "?held=true", "runs"},
			"silent":    {runs + "?class=process&seen_before=" + url.QueryEscape(a["silent_before"].(string)), "runs"},
			"ending": {runs + "?deadline_before=" + url.QueryEscape(a["ending_at"].(string)) + "&created_before=" +
				url.QueryEscape(a["ending_created"].(string)), "runs"},
		} {
			if n := a[name].(obj)["count"]; n != length(list[0], list[1]) {
				t.Errorf("%s: %s = %v, and %s has %v", what, name, n, list[0], length(list[0], list[1]))
			}
		}
		causes := a["causes"].([]any)
		if len(causes) != 2 || causes[0].(obj)["code"] != "no_paper" || causes[0].(obj)["message"] != "why" {
			t.Errorf("%s: causes = %v, want no_paper and no_ink", what, causes)
		}
		for _, c := range causes {
			c := c.(obj)
			list := fmt.Sprintf("%s?error_code=%s&finished_after=%s", runs, c["code"], since)
			if n := length(list, "runs"); n != c["count"] {
				t.Errorf("%s: %v runs ended with %s, and the list has %v", what, c["count"], c["code"], n)
			}
		}
		unserved := a["unserved"].([]any)
		if len(unserved) != 1 || unserved[0].(obj)["count"] != 3.0 || unserved[0].(obj)["queue"] != "nobody" {
			t.Errorf("%s: unserved = %v, want 3 runs of the queue nobody", what, unserved)
		}
		for name, want := range map[string]float64{"approvals": 1, "failed": 3, "held": 1, "ending": 0, "silent": 0} {
			if n := a[name].(obj)["count"]; n != want {
				t.Errorf("%s: %s = %v, want %v", what, name, n, want)
			}
		}
	}
	a := w.as(other).get("/api/v1/attention").is(200)
	if a["failed"].(obj)["count"] != 0.0 || len(a["unserved"].([]any)) > 0 {
		t.Errorf("another tenant sees %v", a)
	}
}

func TestKindStats(t *testing.T) {
	w := newWorld(t, setup{})
	for range 3 {
		w.commits(w.running(`{"kind":"job"}`), complete)
	}
	w.commits(w.running(`{"kind":"job","max_attempts":1}`),
		`"outcome":{"type":"fail","retryable":false,"error":{"code":"no_paper","message":"why"}}`)
	w.start(`{"kind":"job"}`)
	w.start(`{"kind":"other"}`)
	v := w.view(false)
	v.say(`{"type":"watch","id":"k","of":"kind_stats","filter":{"kind":"job"}}`)
	v.read()
	for what, s := range map[string]obj{"called": w.get("/api/v1/kinds/job/stats").is(200),
		"watched": v.last["k"]["items"].([]any)[0].(obj)} {
		status := s["status"].(obj)
		if s["runs"] != 5.0 || status["completed"] != 3.0 || status["failed"] != 1.0 || status["queued"] != 1.0 ||
			s["last_hour"] != 5.0 || s["causes"].([]any)[0].(obj)["code"] != "no_paper" {
			t.Errorf("%s: %v, want 5 runs, 3 completed, 1 failed with no_paper, 1 queued", what, s)
		}
	}
	if s := w.get("/api/v1/kinds/unknown/stats").is(200); s["runs"] != 0.0 {
		t.Errorf("stats of an unknown kind = %v, want no runs", s)
	}
	w.get("/api/v1/kinds/a%00b/stats").refuses(400, "invalid")
}
