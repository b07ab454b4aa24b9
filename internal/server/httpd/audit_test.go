package httpd

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/wire/redact"
)

// auditedCalls are the calls that leave an entry and need no Idempotency-Key. key is who calls; empty: tenant a's key.
func auditedCalls() map[string]func(w *world) (path, body, key string) {
	late := func(what string) func(*world) (string, string, string) {
		return func(w *world) (string, string, string) {
			old, _ := w.fenced(`{"kind":"job"}`)
			w.commit(old, complete).refuses(409, "stale_epoch")
			return fmt.Sprintf("/api/v1/runs/%s/late-results/1/%s", old["run_id"], what), "", ""
		}
	}
	revoke := func(path string, platform bool) func(*world) (string, string, string) {
		return func(w *world) (string, string, string) {
			tenant, key := perdure.TenantID("a"), w.key
			if platform {
				tenant, key = "default", w.admin
			}
			if strings.Contains(path, "tenants") {
				key = w.admin
			}
			made := w.newKey(tenant, func(op *access.CreateKey) { op.Platform = platform })
			return path + strings.Split(made, "_")[1], "", key
		}
	}
	return map[string]func(w *world) (path, body, key string){
		"POST /api/v1/runs/{id}/late-results/{n}/adopt":   late("adopt"),
		"POST /api/v1/runs/{id}/late-results/{n}/discard": late("discard"),
		"POST /api/v1/approvals/{id}": func(w *world) (string, string, string) {
			w.sleeping(`{"kind":"deploy"}`,
				`{"id":"ok","type":"approval","name":"approve_push","approval":{"title":"Push?","action":1}}`)
			a := w.get("/api/v1/approvals").is(200)["approvals"].([]any)[0].(obj)
			return "/api/v1/approvals/" + a["approval_id"].(string), `{"decision":"approve"}`, w.approver()
		},
		"POST /api/v1/runs/{id}/signals/{name}": func(w *world) (string, string, string) {
			g, _ := w.sleeping(`{"kind":"deploy"}`,
				`{"id":"ok","type":"approval","name":"approve_it","approval":{"title":"Push?","action":1}}`)
			return fmt.Sprintf("/api/v1/runs/%s/signals/approve_it", g["run_id"]), `{"decision":"reject"}`, w.approver()
		},
		"DELETE /api/v1/keys/{id}":                     revoke("/api/v1/keys/", false),
		"DELETE /api/admin/tenants/{tenant}/keys/{id}": revoke("/api/admin/tenants/a/keys/", false),
		"DELETE /api/admin/keys/{id}":                  revoke("/api/admin/keys/", true),
		"PUT /api/admin/tenants/{tenant}": func(w *world) (string, string, string) {
			return "/api/admin/tenants/fresh", `{}`, w.admin
		},
		"POST /api/admin/recovery/jobs/resume": func(w *world) (string, string, string) {
			id, _, _ := w.process(w.t.TempDir())
			return "/api/admin/recovery/jobs/resume", `{"jobIds":["` + id + `"]}`, w.admin
		},
		"POST /api/v1/session":       func(*world) (string, string, string) { return session, `{}`, "" },
		"POST /api/v1/session/links": func(*world) (string, string, string) { return session + "/links", `{}`, "" },
		"GET /api/admin/backup": func(w *world) (string, string, string) {
			return "/api/admin/backup", "", w.admin
		},
	}
}

// auditActions are the actions of the audited routes.
var auditActions = map[string]string{
	"POST /api/v1/runs/{id}/late-results/{n}/adopt":   "late.adopt",
	"POST /api/v1/runs/{id}/late-results/{n}/discard": "late.discard",
	"POST /api/v1/runs/{id}/release-hold":             "run.release_hold",
	"POST /api/v1/runs/{id}/dead-letter":              "run.dead_letter",
	"POST /api/v1/runs/{id}/cancel":                   "run.cancel",
	"POST /api/v1/runs/{id}/signals/{name}":           "approval.decide",
	"DELETE /api/v1/runs/{id}":                        "run.delete",
	"POST /api/v1/approvals/{id}":                     "approval.decide",
	"DELETE /api/v1/threads/{id}":                     "thread.delete",
	"POST /api/v1/dlq/{id}/redrive":                   "dlq.redrive", "DELETE /api/v1/dlq/{id}": "dlq.discard",
	"POST /api/v1/dlq/redrive": "dlq.redrive", "POST /api/v1/dlq/discard": "dlq.discard",
	"POST /api/v1/webhooks": "webhook.create", "PATCH /api/v1/webhooks/{id}": "webhook.change",
	"DELETE /api/v1/webhooks/{id}":           "webhook.delete",
	"POST /api/v1/webhooks/{id}/rotate":      "webhook.rotate",
	"POST /api/v1/deliveries/{id}/redeliver": "delivery.redeliver",
	"POST /api/v1/keys":                      "key.create", "DELETE /api/v1/keys/{id}": "key.revoke",
	"POST /api/admin/tenants/{tenant}/keys":        "key.create",
	"DELETE /api/admin/tenants/{tenant}/keys/{id}": "key.revoke", "POST /api/admin/keys": "key.create",
	"DELETE /api/admin/keys/{id}": "key.revoke",
	"PATCH /api/v1/kinds/{kind}":  "kind.change", "DELETE /api/v1/kinds/{kind}": "kind.delete",
	"PUT /api/v1/queues/{name}":        "queue.change",
	"POST /api/v1/queues/{name}/pause": "queue.pause", "POST /api/v1/queues/{name}/resume": "queue.resume",
	"POST /api/v1/kinds/{kind}/pause": "kind.pause", "POST /api/v1/kinds/{kind}/resume": "kind.resume",
	"POST /api/v1/schedules": "schedule.set", "PUT /api/v1/schedules/{name}": "schedule.set",
	"POST /api/v1/schedules/{name}/pause": "schedule.pause", "POST /api/v1/schedules/{name}/resume": "schedule.resume",
	"POST /api/v1/schedules/{name}/trigger": "schedule.trigger", "DELETE /api/v1/schedules/{name}": "schedule.delete",
	"PUT /api/v1/limits/{name}": "limit.set", "DELETE /api/v1/limits/{name}": "limit.delete",
	"POST /api/v1/limits/{name}/close": "limit.close", "POST /api/v1/limits/{name}/open": "limit.open",
	"PUT /api/v1/limits/{name}/keys/{key}":    "limit.key_set",
	"DELETE /api/v1/limits/{name}/keys/{key}": "limit.key_delete",
	"POST /api/admin/recovery/jobs/resume":    "process.watch",
	"POST /api/v1/session":                    "session.open", "POST /api/v1/session/links": "session.open",
	"PUT /api/admin/tenants/{tenant}": "tenant.change", "GET /api/admin/backup": "backup",
}

// audit gives the whole audit log, newest first.
func (w *world) audit(query string) (out []obj) {
	w.t.Helper()
	for _, e := range w.as(w.admin).get("/api/admin/audit?limit=1000" + query).is(200)["entries"].([]any) {
		out = append(out, e.(obj))
	}
	return out
}

func TestEachAuditedCallAddsOneEntry(t *testing.T) {
	w := newWorld(t, toLoopback)
	keyed, others := keyedCalls(), auditedCalls()
	for _, r := range w.s.routes {
		name := r.method + " " + r.pattern
		if !r.audited {
			if auditActions[name] != "" {
				t.Errorf("%s is not audited", name)
			}
			continue
		}
		var path, body, key string
		if call := others[name]; call != nil {
			path, body, key = call(w)
		} else {
			path, body, _ = keyed[name].call(w)
		}
		if key == "" {
			if key = w.key; r.guard.platform {
				key = w.admin
			}
		}
		before := len(w.audit(""))
		send := func(path, key string) *answer {
			return w.send(ask{method: r.method, path: path, body: body, key: key,
				header: http.Header{"Idempotency-Key": {"once"}}})
		}
		if a := send(path, key); a.status/100 != 2 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
			continue
		}
		list := w.audit("")
		if len(list) != before+1 {
			t.Errorf("%s leaves %d entries, want 1: %v", name, len(list)-before, list[:len(list)-before])
			continue
		}
		e := list[0]
		if e["action"] != auditActions[name] || e["key_id"] != strings.Split(key, "_")[1] ||
			e["remote"] != "192.0.2.1" || e["target"] == "" ||
			(e["platform"] == true) != (key == w.admin) || e["at"] == nil {
			t.Errorf("%s by %s leaves %v, want the action %s", name, key[:17], e, auditActions[name])
		}
		if auditActions[name] == "session.open" {
			continue // a login again is another one
		}
		if r.method != "GET" {
			send(path, key)
		}
		send(concrete(r.pattern)+"?nonsense=1", key)
		send(path, w.newKey("a", func(op *access.CreateKey) { op.Scopes = []perdure.Scope{perdure.ScopeRead} }))
		send(path, "")
		if auditActions[name] == "approval.decide" {
			w.lease("w", "") // the run goes on: the next call must not lease it
		}
		if again := w.audit(""); len(again) != len(list) {
			t.Errorf("%s: repeated and refused calls leave %v", name, again[:len(again)-len(list)])
		}
	}
}

// Ordinary work leaves nothing in the audit log: it costs no write there.
func TestOrdinaryWorkIsNotAudited(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	w.do("POST", fmt.Sprintf("/api/v1/runs/%s/signals/go", g["run_id"]), `{"data":1}`).is(200)
	w.commits(g, complete)
	if list := w.audit(""); len(list) != 0 {
		t.Errorf("list = %v, want 0 entries", list)
	}
}

func TestTenantSeesItsOwnAuditLog(t *testing.T) {
	w := newWorld(t, setup{})
	b := w.as(w.newKey("b", nil))
	for range 3 {
		w.do("POST", "/api/v1/runs/"+w.start(`{"kind":"job"}`)+"/cancel", "").is(200)
		b.do("POST", "/api/v1/runs/"+b.start(`{"kind":"job"}`)+"/cancel", "").is(200)
	}
	w.as(w.admin).do("POST", "/api/admin/tenants/a/keys", `{"name":"given","scopes":["runs:read"]}`).is(201)
	w.as(w.admin).do("POST", "/api/admin/keys", `{"name":"another","scopes":["runs:read"]}`).is(201)
	admin, mine := strings.Split(w.admin, "_")[1], strings.Split(w.key, "_")[1]

	entries := func(w *world, query string) []any { return w.get("/api/v1/audit" + query).is(200)["entries"].([]any) }
	list := entries(w, "")
	if len(list) != 4 {
		t.Fatalf("tenant a sees %d entries, want 4: %v", len(list), list)
	}
	for _, e := range list {
		if e.(obj)["tenant"] != "a" {
			t.Errorf("tenant a sees %v", e)
		}
	}
	// The tenant sees an action of the platform without its key.
	if e := list[0].(obj); e["action"] != "key.create" || e["platform"] != true || e["key_id"] != nil ||
		e["key_name"] != nil || e["remote"] != nil {
		t.Errorf("tenant a sees %v", e)
	}
	if got := entries(w, "?key_id="+admin); len(got) != 0 {
		t.Errorf("tenant a finds the platform's key: %v", got)
	}
	if got := entries(w, "?key_id="+mine); len(got) != 3 {
		t.Errorf("tenant a finds %d entries of its key, want 3", len(got))
	}
	if got := entries(w, "?action=run.cancel&target="+list[1].(obj)["target"].(string)); len(got) != 1 {
		t.Errorf("%d entries of one run, want 1", len(got))
	}
	if got := w.audit(""); len(got) != 8 || len(w.audit("&tenant=b")) != 3 || len(w.audit("&key_id="+admin)) != 2 {
		t.Errorf("the platform sees %v", got)
	}
	first := w.get("/api/v1/audit?limit=3").is(200)
	rest := w.get("/api/v1/audit?limit=3&cursor=" + first["next_cursor"].(string)).is(200)
	if a := rest["entries"].([]any); len(a) != 1 || a[0].(obj)["id"] != list[3].(obj)["id"] ||
		rest["next_cursor"] != nil {
		t.Errorf("the second page is %v", rest)
	}
	w.get("/api/v1/audit?action=run.start").refuses(400, "invalid")
	w.get("/api/v1/audit?cursor=x").refuses(400, "invalid")
	w.get("/api/v1/audit?limit=1001").refuses(400, "invalid")
	w.get("/api/v1/audit?tenant=b").refuses(400, "invalid")
}

func TestSecretsAreKeptOutOfTheAuditLog(t *testing.T) {
	t.Setenv("AUDIT_TEST_SECRET", "hunter2-hunter2")
	secrets, err := redact.Load([]string{"env:AUDIT_TEST_SECRET"})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, setup{secrets: secrets})
	w.do("POST", "/api/v1/keys", `{"name":"hunter2-hunter2","scopes":["runs:read"]}`)
	if a := w.as(w.admin).get("/api/admin/audit"); contains(a.body, "hunter2") {
		t.Errorf("audit log has the secret: %s", a.body)
	}
}

func TestPlatformKeysHaveScopes(t *testing.T) {
	w := newWorld(t, setup{})
	admin := w.as(w.admin)
	made := admin.do("POST", "/api/admin/keys", `{"name":"prometheus","scopes":["platform:read"]}`).is(201)
	if made["platform"] != true || made["tenant"] != "default" {
		t.Errorf("made = %v, want platform = true, tenant = default", made)
	}
	scraper := w.as(made["secret"].(string))
	if a := scraper.get("/metrics"); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	scraper.get("/api/admin/backup").refuses(403, "forbidden")
	scraper.get("/api/v1/runs").refuses(403, "forbidden")
	scraper.do("POST", "/api/admin/keys", `{"name":"more","scopes":["platform:read"]}`).refuses(403, "forbidden")

	worker := w.as(admin.do("POST", "/api/admin/keys",
		`{"name":"fleet","scopes":["worker:poll","worker:report","keys:admin",
"runs:approve"]}`).is(201)["secret"].(string))
	w.start(`{"kind":"job"}`)
	if got := worker.do("POST", "/api/v1/workers/w/poll",
		`{"slots":1,"all_tenants":true}`).is(200)["runs"].([]any); len(got) != 1 {
		t.Errorf("the platform's worker leases %v", got)
	}
	scraper.do("POST", "/api/v1/workers/w/poll", `{"slots":1,"all_tenants":true}`).refuses(403, "forbidden")
	// A worker's key makes none that decides: of its own tenant, of another, or of the platform.
	before := w.fingerprint("")
	for _, path := range []string{"/api/v1/keys", "/api/admin/tenants/a/keys", "/api/admin/keys"} {
		worker.do("POST", path, `{"name":"approver","scopes":["runs:approve"]}`).refuses(403, "forbidden")
		worker.do("POST", path, `{"name":"more","scopes":["runs:read"]}`).refuses(403, "forbidden")
	}
	if w.fingerprint("") != before {
		t.Error("a refused call changed something")
	}
	admin.do("POST", "/api/admin/tenants/a/keys", `{"name":"x","scopes":["platform:read"]}`).refuses(400, "invalid")
	admin.do("DELETE", "/api/admin/keys/"+strings.Split(w.key, "_")[1], "").refuses(404, "not_found")
	admin.do("DELETE", "/api/admin/keys/"+made["key_id"].(string), "").is(200)
	scraper.get("/metrics").refuses(401, "unauthorized")
}
