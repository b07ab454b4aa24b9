package httpd

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// canary is in everything that tenant b has.
const canary = "canary-of-b"

// belongings are one of everything: ids by what they are of.
type belongings struct {
	ids    map[string]string
	epochs map[string]any
}

// furnish gives a tenant one of everything.
func furnish(w *world) belongings {
	w.t.Helper()
	b := belongings{map[string]string{}, map[string]any{}}
	note := func(what string, g obj) {
		b.ids[what] = g["run_id"].(string)
		b.epochs[b.ids[what]] = g["epoch"]
	}
	body := func(kind string) string {
		return fmt.Sprintf(`{"kind":"%s","queue":"q-%s","input":{"secret":"%s"},"metadata":{"who":"%s"}}`, kind, canary,
			canary, canary)
	}
	in := `,"start":true,"queues":["q-` + canary + `"]`
	lease := func(kind string) obj {
		w.start(body(kind))
		return w.lease("worker-"+canary, in)
	}

	b.ids["thread"] = w.do("POST", "/api/v1/threads", `{"metadata":{"title":"%s"}}`,
		canary).is(201)["thread_id"].(string)
	w.do("POST", "/api/v1/threads/"+b.ids["thread"]+"/messages", `{"role":"user","content":"%s"}`, canary).is(201)

	b.ids["webhook"] = w.do("POST", "/api/v1/webhooks", `{"url":"https://1.1.1.1/%s","description":"%s"}`, canary,
		canary).is(201)["webhook_id"].(string)

	g := lease("ended")
	w.commits(g, `"outcome":{"type":"complete","result":"`+canary+`","summary":"`+canary+`"}`)
	note("ended", g)

	g = lease("dead")
	w.commits(g, `"outcome":{"type":"reject","reason":"`+canary+`"}`)
	note("dead", g)

	g = lease("asleep")
	done := w.commits(g, `"journal":[{"key":"step","value":"`+canary+`"}],"children":[{"key":"child","kind":"child-`+
		canary+`","queue":"elsewhere"}],
		"waits":[{"id":"w1","type":"signal","name":"go"},{"id":"cb","type":"callback"},
		{"id":"ok","type":"approval","name":"approve_it","approval":{"title":"`+canary+`","action":"`+canary+`"}}],
"outcome":{"type":"suspend"}`)
	note("asleep", g)
	b.ids["child"] = done["children"].([]any)[0].(obj)["run_id"].(string)
	b.ids["approval"] = w.get("/api/v1/approvals").is(200)["approvals"].([]any)[0].(obj)["approval_id"].(string)
	b.ids["token"] = done["callbacks"].([]any)[0].(obj)["token"].(string)

	g = lease("late")
	w.do("POST", "/api/v1/workers/w/release", `{"runs":[{"run_id":"%s","epoch":%v}]}`, g["run_id"], g["epoch"]).is(200)
	held := w.lease("worker-"+canary, in)
	w.commit(g, `"outcome":{"type":"complete","result":"`+canary+`"}`).refuses(409, "stale_epoch")
	note("late", held)

	g = lease("running")
	w.send(ask{method: "PUT", path: fmt.Sprintf("/api/v1/runs/%s/artifacts/go?epoch=%v", g["run_id"], g["epoch"]),
		key: w.key, body: canary}).is(201)
	w.commits(g, `"views":[{"name":"go","value":"`+canary+`"}]`)
	note("running", g)
	w.do("POST", "/api/v1/threads/"+b.ids["thread"]+"/runs", "%s",
		strings.Replace(body("chat"), "q-"+canary, "q2-"+canary, 1)).is(201)
	b.ids["queued"] = w.start(body("queued"))
	b.ids["group"] = w.do("POST", "/api/v1/groups", `{"run_ids":["%s","%s"]}`, b.ids["queued"],
		b.ids["running"]).is(201)["group_id"].(string)
	b.ids["key"] = w.do("POST", "/api/v1/keys", `{"name":"%s","scopes":["runs:read"]}`,
		canary).is(201)["key_id"].(string)
	list := w.get("/api/v1/webhooks/" + b.ids["webhook"] + "/deliveries").is(200)["deliveries"].([]any)
	b.ids["delivery"] = list[0].(obj)["delivery_id"].(string)
	return b
}

// like returns an id of the same form that does not exist.
func like(id string) string {
	switch {
	case strings.HasPrefix(id, "cb_"):
		return "cb_" + strings.Repeat("A", len(id)-3)
	case strings.HasPrefix(id, "apv_"):
		return "apv_" + strings.Repeat("a", len(id)-4)
	case strings.HasPrefix(id, "wh_"):
		return "wh_" + unknown
	case strings.HasPrefix(id, "msg_"):
		n := perdure.Notification{RunID: unknown, Seq: 1, Webhook: "wh_" + unknown}
		return n.ID()
	case len(id) == 12:
		return "000000000000"
	}
	return unknown
}

// bodies make a call to a route with a foreign id otherwise right.
var bodies = map[string]string{
	"POST /api/v1/threads/{id}/messages":              `{"role":"user","content":"hello"}`,
	"PATCH /api/v1/threads/{id}":                      `{"metadata":{"n":1}}`,
	"POST /api/v1/threads/{id}/runs":                  `{"kind":"job"}`,
	"POST /api/internal/runs/{id}/continue":           `{"job_id":"j"}`,
	"POST /api/v1/runs/{id}/signals/{name}":           `{"data":1}`,
	"POST /api/v1/runs/{id}/cancel":                   `{"reason":"because"}`,
	"POST /api/v1/approvals/{id}":                     `{"decision":"approve"}`,
	"GET /api/v1/runs/{id}/journal":                   "?epoch=%v",
	"PUT /api/v1/runs/{id}/artifacts/{name}":          "?epoch=%v",
	"GET /api/v1/runs/{id}/inbox":                     "?epoch=%v",
	"GET /api/v1/runs/{id}/children/{child}/activity": "?epoch=%v",
	"GET /api/v1/runs/{id}/messages":                  "?epoch=%v",
	"GET /api/v1/runs/{id}/join":                      "?timeout=0s",
	"GET /api/v1/groups/{id}/join":                    "?timeout=0s",
}

// same fails the test unless two answers can't be told apart.
func same(t *testing.T, foreign, none *answer) {
	t.Helper()
	if foreign.status != none.status || string(foreign.body) != string(none.body) ||
		fmt.Sprint(foreign.header) != fmt.Sprint(none.header) {
		t.Errorf("%s:\n%d %v %s\nnot as for what never was:\n%d %v %s", foreign.what, foreign.status, foreign.header,
			foreign.body, none.status, none.header, none.body)
	}
}

func TestIDOfOtherTenantIsNotFound(t *testing.T) {
	w := newWorld(t, setup{})
	b := furnish(w.as(w.newKey("b", nil)))
	furnish(w.as(w.newKey("c", nil))) // so that b's rows are not the first of anything
	approver := w.approver()
	before := w.fingerprint("b")
	calls := 0
	for _, r := range w.s.routes {
		if !strings.Contains(r.pattern, "{id}") || strings.HasPrefix(r.pattern, "/api/v1/workers/") ||
			r.guard.platform {
			continue
		}
		extra, key := bodies[r.method+" "+r.pattern], w.key
		if r.guard.scope == perdure.ScopeApprove {
			key = approver
		}
		for what, id := range b.ids {
			call := func(id string, epoch any) *answer {
				calls++
				a := ask{method: r.method, path: strings.Replace(concrete(r.pattern), unknown, id, 1), key: key,
					body: extra}
				if strings.HasPrefix(extra, "?") {
					a.path, a.body = a.path+strings.Replace(extra, "%v", fmt.Sprint(epoch), 1), ""
				}
				return w.send(a)
			}
			epoch := b.epochs[id]
			if epoch == nil {
				epoch = 1
			}
			got := call(id, epoch)
			if got.status != http.StatusNotFound {
				t.Errorf("%s of b's %s: %d %s", got.what, what, got.status, got.body)
			}
			same(t, got, call(like(id), epoch))
		}
	}
	if w.fingerprint("b") != before {
		t.Error("b's rows have changed")
	}
	t.Logf("%d calls", calls)
}

func TestIDOfOtherTenantInBodyIsNotFound(t *testing.T) {
	w := newWorld(t, setup{})
	b := furnish(w.as(w.newKey("b", nil)))
	thread := w.do("POST", "/api/v1/threads", `{}`).is(201)["thread_id"].(string)
	own := w.start(`{"kind":"own","thread_id":"` + thread + `"}`)
	g := w.lease("w", `,"start":true`)
	if g["run_id"] != own {
		t.Fatal("leased another run")
	}
	before, mine := w.fingerprint("b"), w.fingerprint("a")
	const worker = "/api/v1/workers/w/"
	for _, c := range []struct{ path, body string }{
		{"/api/v1/runs", `{"kind":"job","thread_id":"ID"}`},
		{"/api/v1/threads/" + thread + "/runs", `{"kind":"job","thread_id":"ID"}`},
		{"/api/v1/groups", `{"run_ids":["ID"]}`},
		{"/api/v1/webhooks", `{"url":"https://1.1.1.1/hook","thread_id":"ID"}`},
		{"/api/v1/groups", `{"run_ids":["OWN","ID"]}`},
		{"/api/v1/dlq/redrive", `{"ids":["ID"]}`},
		{"/api/v1/dlq/discard", `{"ids":["ID"]}`},
		{worker + "start", `{"runs":[{"run_id":"ID","epoch":EPOCH}]}`},
		{worker + "release", `{"runs":[{"run_id":"ID","epoch":EPOCH}]}`},
		{worker + "heartbeat", `{"runs":[{"run_id":"ID","epoch":EPOCH,"activity":"x"}]}`},
		{worker + "commit", `{"commits":[{"commit_id":"c","run_id":"ID","epoch":EPOCH,` + complete + `}]}`},
		{worker + "commit", `{"commits":[{"commit_id":"c","run_id":"ID","epoch":EPOCH,` + complete +
			`},{"commit_id":"c","run_id":"01888888-8888-7888-8888-888888888888","epoch":1}]}`},
		{worker + "start", `{"runs":[{"run_id":"ID","epoch":EPOCH},` +
			`{"run_id":"01888888-8888-7888-8888-888888888888","epoch":1}]}`},
		{worker + "release", `{"runs":[{"run_id":"ID","epoch":EPOCH},` +
			`{"run_id":"01888888-8888-7888-8888-888888888888","epoch":1}]}`},
		{worker + "commit", `{"commits":[{"commit_id":"c1","run_id":"OWN","epoch":OWNEPOCH,"waits":[{"id":"w",` +
			`"type":"children","run_ids":["ID"]}]}]}`},
		{worker + "commit", `{"commits":[{"commit_id":"c2","run_id":"OWN","epoch":OWNEPOCH,"waits":[{"id":"w",` +
			`"type":"children","keys":["ID"]}]}]}`},
		{worker + "commit", `{"commits":[{"commit_id":"c3","run_id":"OWN","epoch":OWNEPOCH,"children":[{"key":"k",` +
			`"kind":"job","thread_id":"ID"}]}]}`},
		{worker + "commit", `{"commits":[{"commit_id":"c4","run_id":"OWN","epoch":OWNEPOCH,` +
			`"outcome":{"type":"complete","continue_on":["ID"]}}]}`},
		{worker + "commit", `{"commits":[{"commit_id":"c5","run_id":"OWN","epoch":OWNEPOCH,"close":["ID"]}]}`},
		{worker + "commit", `{"commits":[{"commit_id":"c6","run_id":"OWN","epoch":OWNEPOCH,` +
			`"outcome":{"type":"suspend","waits":["ID"]}}]}`},
	} {
		for what, id := range b.ids {
			epoch := b.epochs[id]
			if epoch == nil {
				epoch = 1
			}
			call := func(id string) *answer {
				body := strings.NewReplacer("ID", id, "OWNEPOCH", fmt.Sprint(g["epoch"]), "EPOCH", fmt.Sprint(epoch),
					"OWN", own).Replace(c.body)
				a := w.do("POST", c.path, strings.ReplaceAll(body, "%", "%%"))
				a.body = []byte(strings.ReplaceAll(string(a.body), id, "ID")) // an id that was sent may come back
				return a
			}
			got := call(id)
			switch {
			case strings.Contains(c.body, "},{"), strings.HasSuffix(c.path, "heartbeat"),
				strings.Contains(c.path, "/dlq/") && got.status == 200:
				if got.is(200); !contains(got.body, `"not_found"`) || contains(got.body, `"ok":true`) {
					t.Errorf("%s with b's %s: %s", got.what, what, got.body)
				}
			case got.status < 400 || got.status > 404:
				t.Errorf("%s %s with b's %s: %d %s", got.what, c.body, what, got.status, got.body)
			}
			if contains(got.body, canary) {
				t.Errorf("%s tells of b: %s", got.what, got.body)
			}
			same(t, got, call(like(id)))
		}
	}
	if w.fingerprint("b") != before {
		t.Error("b's rows have changed")
	}
	if w.fingerprint("a") != mine {
		t.Error("a's rows have changed")
	}
}

func TestListsShowOwnTenantOnly(t *testing.T) {
	w := newWorld(t, setup{})
	b := furnish(w.as(w.newKey("b", nil)))
	w.start(`{"kind":"own"}`)
	ids := []string{canary}
	for _, id := range b.ids {
		ids = append(ids, id)
	}
	before := w.fingerprint("b")
	paths := []string{"/api/v1/runs", "/api/v1/runs?limit=1000", "/api/v1/workers", "/api/v1/queues", "/api/v1/dlq",
		"/api/v1/dlq/causes", "/api/v1/dlq?cause=rejected", "/api/v1/dlq?kind=dead", "/api/v1/signing-keys",
		"/api/v1/keys", "/api/v1/audit", "/api/v1/webhooks",
		"/api/v1/approvals", "/api/v1/approvals?state=all&limit=1000", "/api/v1/approvals?run_id=" + b.ids["asleep"],
		"/api/v1/runs?metadata.who=" + canary, "/api/v1/runs?kind=running", "/api/v1/runs?queue=q-" + canary,
		"/api/v1/runs?state=suspended", "/api/v1/runs?status=failed",
		"/api/v1/dlq?cursor=ffffffff-ffff-ffff-ffff-ffffffffffff",
		"/api/v1/runs?cursor=ffffffff-ffff-ffff-ffff-ffffffffffff"}
	for what, id := range b.ids {
		if what == "token" || what == "key" || what == "webhook" || what == "delivery" || what == "approval" {
			continue
		}
		for _, f := range []string{"thread_id", "parent_run_id", "root_run_id", "cursor"} {
			paths = append(paths, "/api/v1/runs?"+f+"="+id)
		}
	}
	for _, path := range paths {
		a := w.get(path)
		a.is(200)
		for _, id := range ids {
			if contains(a.body, id) {
				t.Errorf("%s shows b's %s: %s", path, id, a.body)
			}
		}
	}
	// A worker of a's leases nothing of b's, whatever queue it names, and may not ask for all tenants.
	polled := w.do("POST", "/api/v1/workers/w/poll", `{"slots":1000,"wait":"0s","queues":["q-%s","q2-%s","elsewhere"]}`,
		canary, canary).is(200)
	if len(polled["runs"].([]any)) != 0 {
		t.Errorf("leased %v", polled)
	}
	w.do("POST", "/api/v1/workers/w/poll", `{"slots":1,"all_tenants":true}`).refuses(403, "forbidden")
	// A key of the platform has a tenant of its own; it looks after the others by leasing, not by looking.
	if a := w.as(w.admin).get("/api/v1/runs/" + b.ids["running"]); a.status != 404 {
		t.Errorf("the platform's key sees %s", a.body)
	}
	if w.fingerprint("b") != before {
		t.Error("b's rows have changed")
	}
}

// Idempotency keys of one tenant are nothing to another.
func TestIdempotencyKeysArePerTenant(t *testing.T) {
	w := newWorld(t, setup{})
	header := http.Header{"Idempotency-Key": {"k"}}
	first := w.send(ask{method: "POST", path: "/api/v1/runs", key: w.key, body: `{"kind":"one"}`,
		header: header}).is(201)
	other := w.send(ask{method: "POST", path: "/api/v1/runs", key: w.newKey("b", nil), body: `{"kind":"another"}`,
		header: header}).is(201)
	if first["run_id"] == other["run_id"] {
		t.Error("one run for two tenants")
	}
}
