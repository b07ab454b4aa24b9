package httpd

import (
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
)

func TestPlatformKeyNamesATenant(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job"}`)
	admin := w.as(w.admin)
	admin.get(runs + "/" + id).is(404)
	if r := admin.get(runs + "/" + id + "?tenant=a").is(200); r["run_id"] != id {
		t.Errorf("run = %v, want %s", r, id)
	}
	if list := admin.get(runs + "?tenant=a&limit=5").is(200)["runs"].([]any); len(list) != 1 {
		t.Errorf("runs of the tenant = %v, want one", list)
	}
	made := admin.do("POST", runs+"?tenant=a", `{"kind":"job"}`).is(201)["run_id"].(string)
	w.get(runs + "/" + made).is(200)
	admin.do("POST", runs+"/"+made+"/cancel?tenant=a", "").is(200)
	entries := w.get("/api/v1/audit?action=run.cancel").is(200)["entries"].([]any)
	if len(entries) != 1 || entries[0].(obj)["platform"] != true {
		t.Errorf("the tenant's audit log = %v, want the platform's cancel", entries)
	}

	admin.get(runs + "?tenant=nobody").is(404)
	admin.do("POST", runs+"?tenant=nobody", `{"kind":"job"}`).is(404)
	admin.get(runs + "?tenant=../x").is(400)
	admin.get(runs + "?tenant=").is(400)
	admin.get(runs + "?tenant=a&tenant=b").is(400)
	w.as(w.newKey("b", nil)).get(runs + "?tenant=a").is(400)
	w.get(runs + "?tenant=a").is(400) // its own: the parameter is the platform's
	reader := w.as(w.newKey("default", func(op *access.CreateKey) {
		op.Platform = true
		op.Scopes = []perdure.Scope{perdure.ScopeRead, perdure.ScopeCreate, perdure.ScopePlatformRead}
	}))
	reader.get(runs + "?tenant=a").is(200)
	reader.do("POST", runs+"?tenant=a", `{"kind":"job"}`).is(403)
	plain := w.as(w.newKey("default", func(op *access.CreateKey) {
		op.Platform, op.Scopes = true, []perdure.Scope{perdure.ScopeRead}
	}))
	plain.get(runs + "?tenant=a").is(403)
}

// Every call that takes the parameter refuses it from a tenant's key, whatever the key's scopes, and
// changes nothing.
func TestOnlyPlatformKeysNameATenant(t *testing.T) {
	w := newWorld(t, setup{})
	w.start(`{"kind":"job"}`)
	theirs := w.newKey("b", nil)
	before := w.fingerprint("a")
	for _, r := range w.s.routes {
		if !r.tenanted {
			continue
		}
		a := w.send(ask{method: r.method, path: concrete(r.pattern) + "?tenant=a", key: theirs})
		if p := a.problem(); a.status != 400 || p["field"] != "tenant" {
			t.Errorf("%s: %d %v, want 400 for the parameter", a.what, a.status, p)
		}
	}
	if after := w.fingerprint("a"); after != before {
		t.Errorf("refused calls have changed the tenant:\n%s\n%s", before, after)
	}
}

// No call of a worker, a login, or of the platform itself takes the parameter, and every call of people
// does.
func TestWhichCallsTakeATenant(t *testing.T) {
	w := newWorld(t, setup{})
	for _, r := range w.s.routes {
		people := strings.HasPrefix(r.pattern, "/api/v1/") && !r.guard.open && !r.guard.platform &&
			!strings.HasPrefix(string(r.guard.scope), "worker:") && !strings.Contains(r.pattern, "/session") &&
			!strings.HasSuffix(r.pattern, "/ws")
		if r.tenanted != people {
			t.Errorf("%s %s: takes a tenant = %t, want %t", r.method, r.pattern, r.tenanted, people)
		}
	}
}

// A call that takes no tenant is refused with one, instead of being about the tenant of its key.
func TestOtherCallsRefuseATenant(t *testing.T) {
	w := newWorld(t, setup{})
	w.start(`{"kind":"job"}`)
	before := w.fingerprint("a") + w.fingerprint("default")
	for _, r := range w.s.routes {
		if r.tenanted || r.guard.platform || r.guard.token != nil || !strings.HasPrefix(r.pattern, "/api/") {
			continue // those of the platform may have a filter of this name; a token comes before the query
		}
		a := w.send(ask{method: r.method, path: concrete(r.pattern) + "?tenant=a", key: w.admin})
		if p := a.problem(); a.status != 400 || p["field"] != "tenant" {
			t.Errorf("%s: %d %v, want 400 for the parameter", a.what, a.status, p)
		}
	}
	if after := w.fingerprint("a") + w.fingerprint("default"); after != before {
		t.Errorf("refused calls have changed a tenant:\n%s\n%s", before, after)
	}
}
