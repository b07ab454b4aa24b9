package httpd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
)

const kindsPath = "/api/v1/kinds"

func TestKinds(t *testing.T) {
	w := newWorld(t, setup{})
	if got := w.get(kindsPath).is(200); len(got["kinds"].([]any)) != 0 {
		t.Errorf("kinds of an empty registry = %v, want none", got)
	}
	const def = `{"description":"finds out","class":"agent","timeout":"1h","retry":{"max_attempts":4,
"not_retried":["nonsense"]},
		"hold_timeout":"2h","hold_defects":false,"input_schema":{"type":"object"},"output_schema":{"type":"string"},
"build":"b1"}`
	a := w.do("PUT", kindsPath+"/re%2Fsearch", def).is(200)
	if a["kind"] != "re/search" || a["build"] != "b1" || a["counts"] != true || a["first_seen_at"] == nil {
		t.Errorf("announced: %v, want kind re/search, build b1, counts", a)
	}
	again := w.do("PUT", kindsPath+"/re%2Fsearch", def).is(200)
	if again["first_seen_at"] != a["first_seen_at"] {
		t.Errorf("announced again: first seen %v, want %v", again["first_seen_at"], a["first_seen_at"])
	}
	k := w.get(kindsPath + "/re%2Fsearch").is(200)
	if k["class"] != "agent" || k["timeout"] != "1h0m0s" || k["hold_defects"] != false || k["served"] != false ||
		k["retry"].(obj)["max_attempts"] != 4.0 || k["input_schema"].(obj)["type"] != "object" || k["build"] != "b1" {
		t.Errorf("kind = %v, want what was announced", k)
	}
	run := w.do("POST", runs, `{"kind":"re/search"}`).is(201)
	if run["class"] != "agent" || run["max_attempts"] != 4.0 {
		t.Errorf("run = %v, want class and attempts of its kind", run)
	}

	// The operator's layer: single fields, and null takes them away.
	k = w.do("PATCH", kindsPath+"/re%2Fsearch", `{"timeout":"5m","retry":{"max_attempts":2,"not_retried":[]}}`).is(200)
	if k["timeout"] != "5m0s" || k["retry"].(obj)["max_attempts"] != 2.0 || k["class"] != "agent" {
		t.Errorf("overridden: %v, want a timeout of 5m, 2 attempts and the announced class", k)
	}
	if s := k["sources"].(obj); s["timeout"] != "operator" || s["class"] != "worker" ||
		s["retry.max_attempts"] != "operator" {
		t.Errorf("sources = %v, want operator for timeout and attempts, worker for class", s)
	}
	k = w.do("PATCH", kindsPath+"/re%2Fsearch", `{"timeout":null,"retry":{"max_attempts":null}}`).is(200)
	if k["timeout"] != "1h0m0s" || k["retry"].(obj)["max_attempts"] != 4.0 ||
		len(k["retry"].(obj)["not_retried"].([]any)) != 0 {
		t.Errorf("overrides removed: %v, want the announced timeout and attempts, and no code that is not retried", k)
	}

	w.do("POST", "/api/v1/workers/w/poll", `{"slots":1,"kinds":["re/search"],"wait":"0s"}`).is(200)
	list := w.get(kindsPath).is(200)["kinds"].([]any)
	if len(list) != 1 || list[0].(obj)["served"] != true || list[0].(obj)["last_polled_at"] == nil {
		t.Errorf("kinds = %v, want one that is served", list)
	}
	w.do("DELETE", kindsPath+"/re%2Fsearch", "").is(200)
	w.get(kindsPath+"/re%2Fsearch").refuses(404, "not_found")
	w.do("DELETE", kindsPath+"/re%2Fsearch", "").refuses(404, "not_found")
	w.do("PATCH", kindsPath+"/re%2Fsearch", `{"timeout":"5m"}`).refuses(404, "not_found")
}

func TestKindRefusesBadInput(t *testing.T) {
	w := newWorld(t, setup{})
	w.do("PUT", kindsPath+"/job", `{}`).is(200)
	for body, field := range map[string]string{
		`{"class":"sprint"}`:              "class",
		`{"timeout":"0s"}`:                "timeout",
		`{"timeout":"never"}`:             "timeout",
		`{"retry":{"max_attempts":0}}`:    "retry.max_attempts",
		`{"retry":{"max_attempts":1001}}`: "retry.max_attempts",
		`{"retry":{"backoff":"-1s"}}`:     "retry.backoff",
		`{"retry":{"not_retried":[""]}}`:  "retry.not_retried",
		`{"retry":{"tries":1}}`:           "retry.tries",
		`{"input_schema":"string"}`:       "input_schema",
		`{"output_schema":[1]}`:           "output_schema",
		`{"colour":"red"}`:                "colour",
		`{"hold_timeout":"0s"}`:           "hold_timeout",
	} {
		for _, method := range []string{"PUT", "PATCH"} {
			if p := w.do(method, kindsPath+"/job", "%s", body).problem(); p["status"] != 400.0 || p["field"] != field {
				t.Errorf("%s %s: %v %v %v, want 400 for %s", method, body, p["status"], p["field"], p["detail"], field)
			}
		}
	}
	w.do("PUT", kindsPath+"/job", `{"build":"%s"}`, strings.Repeat("b", 201)).refuses(400, "invalid")
	w.do("PATCH", kindsPath+"/job", `{"build":"b"}`).refuses(400, "invalid")
	w.do("PUT", kindsPath+"/%20", `{}`).refuses(400, "invalid")
	w.do("PUT", kindsPath+"/job", `{"input_schema":{"x":"%s"}}`, strings.Repeat("x", 64<<10)).refuses(422, "over_bound")
	codes := strings.Repeat(`"c",`, perdure.MaxNotRetried) + `"c"`
	w.do("PUT", kindsPath+"/job", `{"retry":{"not_retried":[%s]}}`, codes).refuses(422, "over_bound")
	w.do("DELETE", kindsPath+"/job?platform=perhaps", "").refuses(400, "invalid")
	// A field that is null in an announcement is not given.
	w.do("PUT", kindsPath+"/job", `{"timeout":null,"retry":null,"input_schema":null}`).is(200)
}

func TestKindsOfTenantsAreApart(t *testing.T) {
	w := newWorld(t, setup{})
	b := w.as(w.newKey("b", nil))
	b.do("PUT", kindsPath+"/secret", `{"description":"%s"}`, canary).is(200)
	b.do("PUT", kindsPath+"/shared", `{"description":"%s","timeout":"9m"}`, canary).is(200)
	w.do("PUT", kindsPath+"/shared", `{"timeout":"1m"}`).is(200)
	w.get(kindsPath+"/secret").refuses(404, "not_found")
	w.do("PATCH", kindsPath+"/secret", `{"timeout":"1m"}`).refuses(404, "not_found")
	w.do("DELETE", kindsPath+"/secret", "").refuses(404, "not_found")
	w.do("PATCH", kindsPath+"/shared", `{"timeout":"2m"}`).is(200)
	w.do("DELETE", kindsPath+"/shared", "").is(200)
	if a := w.get(kindsPath); strings.Contains(string(a.body), canary) || strings.Contains(string(a.body), "secret") {
		t.Errorf("kinds of a = %s, want nothing of b", a.body)
	}
	if k := b.get(kindsPath + "/shared").is(200); k["timeout"] != "9m0s" || k["description"] != canary {
		t.Errorf("b's kind = %v, want it as b announced it", k)
	}

	// Only the platform announces for all.
	b.do("PUT", kindsPath+"/common", `{"all_tenants":true}`).refuses(403, "forbidden")
	b.do("DELETE", kindsPath+"/common?platform=true", "").refuses(403, "forbidden")
	admin := w.as(w.admin)
	admin.do("PUT", kindsPath+"/common", `{"all_tenants":true,"class":"agent","build":"p"}`).is(200)
	k := b.get(kindsPath + "/common").is(200)
	if k["class"] != "agent" || k["sources"].(obj)["class"] != "platform" ||
		k["builds"].([]any)[0].(obj)["platform"] != true {
		t.Errorf("b sees %v, want the platform's kind", k)
	}
	b.do("DELETE", kindsPath+"/common", "").refuses(404, "not_found")
	b.do("PATCH", kindsPath+"/common", `{"class":"task"}`).is(200)
	if k := w.get(kindsPath + "/common").is(200); k["class"] != "agent" {
		t.Errorf("a sees class %v, want the platform's: b's override is b's", k["class"])
	}
	admin.do("DELETE", kindsPath+"/common?platform=true", "").is(200)
	w.get(kindsPath+"/common").refuses(404, "not_found")
}

func TestKindScopes(t *testing.T) {
	w := newWorld(t, setup{})
	with := func(scopes ...perdure.Scope) *world {
		return w.as(w.newKey("a", func(op *access.CreateKey) { op.Scopes = scopes }))
	}
	works, reads, admin := with(perdure.ScopePoll), with(perdure.ScopeRead), with(perdure.ScopeKinds)
	works.do("PUT", kindsPath+"/job", `{}`).is(200)
	works.do("PATCH", kindsPath+"/job", `{"timeout":"1m"}`).refuses(403, "forbidden")
	works.get(kindsPath).refuses(403, "forbidden")
	reads.get(kindsPath).is(200)
	reads.do("PUT", kindsPath+"/job", `{}`).refuses(403, "forbidden")
	admin.do("PATCH", kindsPath+"/job", `{"timeout":"1m"}`).is(200)
	admin.do("DELETE", kindsPath+"/job", "").is(200)
	log := w.get("/api/v1/audit").is(200)["entries"].([]any)
	if text := fmt.Sprint(log); !strings.Contains(text, "kind.change") || !strings.Contains(text, "kind.delete") {
		t.Errorf("audit log = %v, want the change and the deletion", log)
	}
}

func TestKindsArePaged(t *testing.T) {
	w := newWorld(t, setup{})
	for i := range 5 {
		w.do("PUT", fmt.Sprintf("%s/k%d", kindsPath, i), `{}`).is(200)
	}
	w.as(w.admin).do("PUT", kindsPath+"/k2", `{"all_tenants":true}`).is(200)
	var names []string
	for cursor := ""; ; {
		page := w.get(kindsPath + "?limit=2&cursor=" + cursor).is(200)
		for _, k := range page["kinds"].([]any) {
			names = append(names, k.(obj)["kind"].(string))
		}
		if cursor, _ = page["next_cursor"].(string); cursor == "" {
			break
		}
	}
	if got := strings.Join(names, " "); got != "k0 k1 k2 k3 k4" {
		t.Errorf("kinds of all pages = %s, want each once", got)
	}
}

// A queued run says why it waits: itself, in a list, and in its activity.
func TestQueuedRunSaysWhyItWaits(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job","queue":"slow"}`)
	is := func(want string) {
		t.Helper()
		list := w.get(runs + "?limit=1").is(200)["runs"].([]any)
		for where, of := range map[string]obj{"run": w.get(runs + "/" + id).is(200), "list": list[0].(obj),
			"activity": w.get(runs + "/" + id + "/activity").is(200)} {
			why, _ := of["waiting_for"].(obj)
			if got, _ := why["reason"].(string); got != want || want != "" && why["text"] == "" {
				t.Errorf("the %s waits for %v, want %q", where, why, want)
			}
		}
	}
	is("unserved")
	w.do("POST", "/api/v1/queues/slow/pause", `{"for":"1h"}`).is(200)
	is("queue_paused")
	why := w.get(runs + "/" + id).is(200)["waiting_for"].(obj)
	if why["since"] == nil || why["until"] == nil {
		t.Errorf("the pause of an hour is shown as %v, want its beginning and its end", why)
	}
	w.do("POST", "/api/v1/queues/slow/resume", `{}`).is(200)
	is("unserved")
	w.do("POST", "/api/v1/workers/w/poll", `{"slots":1,"queues":["slow"],"wait":"0s","start":true}`).is(200)
	is("")
}

func TestUnservedRunIsSaid(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job","queue":"slow"}`)
	a := w.get(runs + "/" + id + "/activity").is(200)
	if u, _ := a["unserved"].(obj); u["queue"] != "slow" || u["last_polled_at"] != nil {
		t.Errorf("unserved = %v, want the queue slow and no poll", a["unserved"])
	}
	w.do("POST", "/api/v1/workers/w/poll", `{"slots":1,"kinds":["job"],"wait":"0s"}`).is(200)
	if a := w.get(runs + "/" + id + "/activity").is(200); a["unserved"] == nil {
		t.Error("a poll on another queue serves the run")
	}
	w.do("POST", "/api/v1/workers/w/poll", `{"slots":1,"kinds":["other"],"queues":["slow"],"wait":"0s"}`).is(200)
	w.do("POST", "/api/v1/workers/v/poll",
		`{"slots":1,"kinds":["job"],"queues":["slow"],"wait":"0s","start":true}`).is(200)
	other := w.start(`{"kind":"job","queue":"slow"}`)
	if a := w.get(runs + "/" + other + "/activity").is(200); a["unserved"] != nil {
		t.Errorf("unserved = %v, want none: a worker polls for it", a["unserved"])
	}
}
