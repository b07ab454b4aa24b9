package httpd

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
)

func TestThreadAndRunAreFoundByName(t *testing.T) {
	w := newWorld(t, setup{})
	for _, name := range []string{"a", "langgraph:550e8400", "with space/and slash", `back\slash`, "..", "messages",
		strings.Repeat("ü", 127)} {
		at := url.PathEscape(name)
		if strings.Trim(name, ".") == "" {
			at = strings.ReplaceAll(name, ".", "%2E")
		}
		th := w.do("POST", "/api/v1/threads", "%s", js(obj{"name": name, "metadata": obj{"n": 1}})).is(201)
		again := w.do("POST", "/api/v1/threads", "%s", js(obj{"name": name})).is(200)
		got := w.get("/api/v1/threads/by-name/" + at).is(200)
		if again["thread_id"] != th["thread_id"] || got["thread_id"] != th["thread_id"] ||
			got["names"].([]any)[0] != name || again["metadata"] == nil {
			t.Errorf("thread %q: made %v, again %v, found %v", name, th, again, got)
		}
		body := js(obj{"name": name, "kind": "job"})
		run := w.do("POST", "/api/v1/runs", "%s", body).is(201)["run_id"]
		if id := w.do("POST", "/api/v1/runs", "%s", body).is(200)["run_id"]; id != run {
			t.Errorf("the same run under %q is %v, want %v", name, id, run)
		}
		w.do("POST", "/api/v1/runs", "%s", js(obj{"name": name, "kind": "other"})).refuses(409, "name_taken")
		if got := w.get("/api/v1/runs/by-name/" + at).is(200); got["run_id"] != run || got["from_seq"] != nil {
			t.Errorf("run %q: found %v, want %v", name, got["run_id"], run)
		}
		w.do("PUT", "/api/v1/runs/"+run.(string)+"/names/2"+at, `{"from_seq":1}`).is(201)
		w.do("PUT", "/api/v1/runs/"+run.(string)+"/names/2"+at, `{"from_seq":1}`).is(200)
		w.do("PUT", "/api/v1/runs/"+run.(string)+"/names/2"+at, `{}`).refuses(409, "name_taken")
		if got := w.get("/api/v1/runs/by-name/2" + at).is(200); got["from_seq"] != 1.0 {
			t.Errorf("run 2%q begins at %v, want 1", name, got["from_seq"])
		}
	}
	list, _ := w.listed("?limit=1")
	if names, _ := list[0]["names"].([]any); len(names) != 1 {
		t.Errorf("a listed thread has the names %v, want one", names)
	}
	for _, bad := range []string{"", strings.Repeat("x", 256), "a\u0007", "a\u0085"} {
		if bad != "" {
			w.do("POST", "/api/v1/threads", "%s", js(obj{"name": bad})).refuses(400, "invalid")
			w.get("/api/v1/threads/by-name/"+url.PathEscape(bad)).refuses(404, "not_found")
			w.do("POST", "/api/v1/runs", "%s", js(obj{"name": bad, "kind": "job"})).refuses(400, "invalid")
		}
		w.get("/api/v1/threads/by-name/"+url.PathEscape(bad)).refuses(404, "not_found")
	}
	w.do("POST", "/api/v1/schedules", `{"name":"s","every":"1h","kind":"job"}`).is(201)
	w.get("/api/v1/threads/by-name/a/b").refuses(404, "not_found")
	w.do("DELETE", "/api/v1/runs/by-name/a", "").refuses(405, "method_not_allowed")
}

// A name of another tenant can't be told from one that nobody has.
func TestNameOfOtherTenantIsNotFound(t *testing.T) {
	w := newWorld(t, setup{})
	b := w.as(w.newKey("b", nil))
	b.do("POST", "/api/v1/threads", `{"name":"%s"}`, canary).is(201)
	b.do("POST", "/api/v1/runs", `{"kind":"job","name":"%s"}`, canary).is(201)
	for _, path := range []string{"/api/v1/threads/by-name/", "/api/v1/runs/by-name/"} {
		got, none := w.get(path+canary), w.get(path+strings.Repeat("x", len(canary)))
		got.refuses(404, "not_found")
		same(t, got, none)
	}
	if th := w.do("POST", "/api/v1/threads", `{"name":"%s"}`, canary).is(201); th["thread_id"] == nil {
		t.Errorf("a tenant's thread under a name that another one uses: %v", th)
	}
}

// js gives a value as JSON.
func js(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

func TestThreadMetadataAreMerged(t *testing.T) {
	w := newWorld(t, setup{})
	other := w.makeThread()
	path := "/api/v1/threads/" + w.do("POST", "/api/v1/threads", `{"metadata":{"title":"a","n":1}}`).
		is(201)["thread_id"].(string)
	w.makeThread() // something happened last on this one
	got := w.do("PATCH", path, `{"metadata":{"title":"b","n":null,"m":[2]}}`).is(200)
	if js(got["metadata"]) != `{"m":[2],"title":"b"}` {
		t.Errorf("merged metadata = %v", got["metadata"])
	}
	list, _ := w.listed("")
	if list[1]["title"] != "b" || len(list) != 3 || list[2]["thread_id"] != other {
		t.Errorf("threads = %v, want b in its place, with its new title", list)
	}
	large := `{"metadata":{"big":"` + strings.Repeat("y", 50_000) + `"}}`
	w.do("PATCH", path, "%s", large).is(200)
	if got = w.do("PATCH", path, `{"metadata":{"big":null}}`).is(200); js(got["metadata"]) != `{"m":[2],"title":"b"}` {
		t.Errorf("metadata without the large value = %v", got["metadata"])
	}
	before := w.fingerprint("")
	for _, bad := range []string{`{}`, `{"metadata":[]}`, `{"metadata":1}`, `{"metadata":null}`, `{"x":1}`} {
		w.do("PATCH", path, "%s", bad).refuses(400, "invalid")
	}
	w.do("PATCH", path, `{"metadata":{"m":[2]}}`).is(200)
	if w.fingerprint("") != before {
		t.Error("a refused change, or one that changes nothing, has changed rows")
	}
}

// The approvals of a thread and of a tree are found, also those of a run below, and no others.
func TestApprovalsOfThreadAndTree(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.makeThread()
	ask := func(name string) string {
		return `{"id":"ok","type":"approval","name":"approve_` + name + `","approval":{"title":"?","action":1}}`
	}
	w.sleeping(`{"kind":"other"}`, ask("other"))
	g, _ := w.sleeping(`{"kind":"top","thread_id":"`+thread+`"}`, ask("top"))
	for _, q := range []string{"root_run_id=" + g["run_id"].(string), "thread_id=" + thread} {
		list := w.get("/api/v1/approvals?" + q).is(200)["approvals"].([]any)
		if len(list) != 1 || list[0].(obj)["name"] != "approve_top" {
			t.Errorf("approvals with %s = %v, want that of the run on the thread", q, list)
		}
	}
	if waits, _ := w.get("/api/v1/threads/" + thread).is(200)["waits"].([]any); len(waits) != 1 ||
		waits[0].(obj)["wait_id"] != "ok" || waits[0].(obj)["type"] != "approval" {
		t.Errorf("what the thread waits for = %v, want the approval", waits)
	}
	boss := w.running(`{"kind":"boss","thread_id":"` + w.makeThread() + `"}`)
	w.commits(boss, `"children":[{"key":"kid","kind":"kid"}]`)
	kid := w.lease("w", `,"start":true,"kinds":["kid"]`)
	w.commits(kid, `"waits":[`+ask("kid")+`],"outcome":{"type":"suspend"}`)
	for _, q := range []string{"root_run_id=" + boss["run_id"].(string), "thread_id=" + boss["thread_id"].(string)} {
		list := w.get("/api/v1/approvals?" + q).is(200)["approvals"].([]any)
		if len(list) != 1 || list[0].(obj)["run_id"] != kid["run_id"] {
			t.Errorf("approvals with %s = %v, want that of the child", q, list)
		}
	}
	for _, q := range []string{"root_run_id=" + kid["run_id"].(string), "thread_id=" + unknown} {
		if list := w.get("/api/v1/approvals?" + q).is(200)["approvals"].([]any); len(list) != 0 {
			t.Errorf("approvals with %s = %v, want none", q, list)
		}
	}
}
