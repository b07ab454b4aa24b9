package httpd

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

const askPush = `{"id":"ok","type":"approval","name":"approve_push","approval":{"title":"Push?",
"action":{"push":"main"},
	"form":[{"name":"where","type":"choice","options":["eu","us"],"required":true}],"default":"reject"}}`

func TestApprovalsOverHTTP(t *testing.T) {
	w := newWorld(t, setup{})
	ada := w.as(w.approver())
	if list := w.get("/api/v1/approvals").is(200)["approvals"].([]any); len(list) != 0 {
		t.Errorf("list = %v, want 0 entries", list)
	}
	g, _ := w.sleeping(`{"kind":"deploy"}`, askPush)
	id := g["run_id"].(string)
	list := w.get("/api/v1/approvals").is(200)["approvals"].([]any)
	if len(list) != 1 {
		t.Fatalf("list = %v, want 1 entry", list)
	}
	a := list[0].(obj)
	at := "/api/v1/approvals/" + a["approval_id"].(string)
	hash, _ := perdure.ActionHash([]byte(`{"push":"main"}`))
	if a["run_id"] != id || a["kind"] != "deploy" || a["name"] != "approve_push" || a["title"] != "Push?" ||
		fmt.Sprint(a["action"]) != "map[push:main]" || a["action_hash"] != hash ||
		a["state"] != "open" || a["default"] != "reject" || a["expires_at"] == nil || a["expires_by"] == nil ||
		a["decided_by"] != nil || len(a["form"].([]any)) != 1 {
		t.Errorf("approval = %v, want it open with its action, default, expiry and form", a)
	}
	if got := w.get(at).is(200); fmt.Sprint(got) != fmt.Sprint(a) {
		t.Errorf("%v is not %v", got, a)
	}
	said := fmt.Sprintf(`{"decision":"approve","comment":"fine","answer":{"where":"eu"},"action_hash":"%s"}`, hash)
	a = ada.do("POST", at, said).is(200)
	by, _ := a["decided_by"].(obj)
	if a["state"] != "approved" || by["name"] != "ada" || by["key_id"] == "" || a["decided_at"] == nil ||
		a["comment"] != "fine" || fmt.Sprint(a["answer"]) != "map[where:eu]" {
		t.Errorf("approval = %v, want it approved by ada with comment and answer", a)
	}
	before := w.fingerprint("")
	w.as(w.admin).get(at).refuses(404, "not_found")
	ada.do("POST", at, said).is(200)
	ada.do("POST", at, `{"decision":"reject"}`).refuses(409, "already_decided")
	if w.fingerprint("") != before {
		t.Error("it counts twice")
	}
	g = w.lease("w", `,"start":true`)
	item := g["inbox"].([]any)[0].(obj)
	data := item["data"].(obj)
	if item["type"] != "approval" || item["wait_id"] != "ok" || item["name"] != "approve_push" ||
		item["outcome"] != "satisfied" || data["decision"] != "approve" ||
		data["approval_id"] != a["approval_id"] || data["comment"] != "fine" ||
		fmt.Sprint(data["answer"]) != "map[where:eu]" || data["by"].(obj)["name"] != "ada" ||
		data["at"] != a["decided_at"] || data["action_hash"] != hash {
		t.Errorf("inbox item = %v, want the decision with its time and action hash", item)
	}
	if n := len(w.get("/api/v1/approvals").is(200)["approvals"].([]any)); n != 0 {
		t.Errorf("%d are open", n)
	}

	// A signal of its name is a decision, too, and says which it was.
	w.commits(g, `"waits":[`+strings.Replace(askPush, `"ok"`, `"again"`, 1)+`],"outcome":{"type":"suspend"}`)
	// After an earlier approval of the same name, a decision has to name its action_hash.
	for _, blind := range []string{`{"decision":"approve","answer":{"where":"eu"}}`,
		`{"data":{"decision":"approve","answer":{"where":"eu"}}}`} {
		if p := ada.do("POST", "/api/v1/runs/"+id+"/signals/approve_push", blind).refuses(409,
			"action_changed"); p["field"] != "action_hash" {
			t.Errorf("p = %v, want field = action_hash", p)
		}
	}
	sent := ada.do("POST", "/api/v1/runs/"+id+"/signals/approve_push",
		fmt.Sprintf(`{"decision":"reject","comment":"no","action_hash":"%s"}`, hash)).is(200)
	if got := w.get("/api/v1/approvals/" + sent["approval_id"].(string)).is(200); got["state"] != "rejected" ||
		got["comment"] != "no" {
		t.Errorf("got = %v, want state = rejected, comment = no", got)
	}
	// Pages, oldest first.
	first := w.get("/api/v1/approvals?state=all&limit=1").is(200)
	second := w.get("/api/v1/approvals?state=all&limit=1&cursor=" + first["next_cursor"].(string)).is(200)
	if second["next_cursor"] != nil || second["approvals"].([]any)[0].(obj)["approval_id"] != sent["approval_id"] {
		t.Errorf("%v %v", first, second)
	}
	for query, n := range map[string]int{"state=approved": 1, "state=rejected": 1, "state=timed_out": 0,
		"state=all&run_id=" + id: 2, "state=all&run_id=" + unknown: 0} {
		if got := w.get("/api/v1/approvals?" + query).is(200)["approvals"].([]any); len(got) != n {
			t.Errorf("%s: %d, not %d", query, len(got), n)
		}
	}
}

// A key can't hand on what it could not do itself: it would approve by a key of its own making.
func TestWorkerKeyCantMakeKeyThatApproves(t *testing.T) {
	w := newWorld(t, setup{})
	w.do("POST", "/api/v1/keys", `{"name":"x","scopes":["runs:approve"]}`).refuses(403, "forbidden")
	// decides no more than who made it
	w.do("POST", "/api/v1/keys", `{"name":"x","scopes":["runs:approve","worker:poll"]}`).is(201)
	lead := w.as(w.newKey("a", func(op *access.CreateKey) {
		op.Scopes = []perdure.Scope{perdure.ScopeApprove, perdure.ScopeKeys}
	}))
	lead.do("POST", "/api/v1/keys", `{"name":"x","scopes":["runs:approve"]}`).is(201)
	w.as(w.admin).do("POST", "/api/admin/tenants/a/keys", `{"name":"x","scopes":["runs:approve"]}`).is(201)
}

// A cursor of another tenant's is none.
func TestApprovalOfOtherTenantIsNoCursor(t *testing.T) {
	w := newWorld(t, setup{})
	other := w.as(w.newKey("b", nil))
	other.sleeping(`{"kind":"deploy"}`, askPush)
	theirs := other.get("/api/v1/approvals").is(200)["approvals"].([]any)[0].(obj)["approval_id"].(string)
	same(t, w.get("/api/v1/approvals?cursor="+theirs), w.get("/api/v1/approvals?cursor="+like(theirs)))
}

// A wait without an answer times out, and an answer after that is refused.
func TestWaitForApprovalTimesOut(t *testing.T) {
	w := newWorld(t, setup{watchdog: true})
	short := strings.Replace(askPush, `"ok"`, `"ok","timeout":"30ms"`, 1)
	_, done := w.sleeping(`{"kind":"deploy"}`, short+`,{"id":"cb","type":"callback","timeout":"30ms"}`)
	token := done["callbacks"].([]any)[0].(obj)["token"].(string)
	ada := w.as(w.approver())
	at := ""
	eventually.True(t, "the approval times out", func() bool {
		a := w.get("/api/v1/approvals?state=all").is(200)["approvals"].([]any)[0].(obj)
		at = "/api/v1/approvals/" + a["approval_id"].(string)
		return a["state"] == "timed_out"
	})
	ada.do("POST", at, `{"decision":"reject"}`).refuses(410, "wait_closed")
	for range 2 {
		w.send(ask{method: http.MethodPost, path: "/api/v1/callbacks/" + token, body: `{"result":1}`}).refuses(410,
			"wait_closed")
	}
	g := w.lease("w", `,"start":true`)
	for _, i := range g["inbox"].([]any) {
		item := i.(obj)
		if item["type"] != "timeout" || item["wait_id"] == "ok" && item["data"].(obj)["decision"] != "reject" {
			t.Errorf("inbox item = %v, want a timeout, for wait ok with decision reject", item)
		}
	}
}

// The token of a callback is good for one answer.
func TestCallbackIsAnsweredOnce(t *testing.T) {
	w := newWorld(t, setup{})
	_, done := w.sleeping(`{"kind":"job"}`, `{"id":"cb","type":"callback"}`)
	at := "/api/v1/callbacks/" + done["callbacks"].([]any)[0].(obj)["token"].(string)
	w.send(ask{method: http.MethodPost, path: at, body: `{"result":{"paid":true}}`}).is(200)
	before := w.fingerprint("")
	w.send(ask{method: http.MethodPost, path: at, body: `{"result":{"paid":true}}`}).is(200)
	w.send(ask{method: http.MethodPost, path: at, body: `{"result":{"paid":false}}`}).refuses(409, "callback_answered")
	if w.fingerprint("") != before {
		t.Error("it counts twice")
	}
	if n := len(w.lease("w", `,"start":true`)["inbox"].([]any)); n != 1 {
		t.Errorf("%d items", n)
	}
}
