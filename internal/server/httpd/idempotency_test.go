package httpd

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/webhook"
)

// unkeyed are the calls that change something without an Idempotency-Key, and why the same call again is no second one.
var unkeyed = map[string]string{
	"POST /api/admin/recovery/jobs/resume":            "watching twice is watching, and a dead letter is redriven once",
	"PUT /api/v1/kinds/{kind}":                        "announces the same again",
	"DELETE /api/admin/keys/{id}":                     "revoking again is no error",
	"POST /api/v1/runs/{id}/late-results/{n}/adopt":   "what is adopted stays so",
	"POST /api/v1/runs/{id}/late-results/{n}/discard": "what is discarded stays so",
	"POST /api/v1/runs/{id}/defer":                    "nobody waits: that is so, or it is not",
	"POST /api/v1/approvals/{id}":                     "the same decision is no other",
	"POST /api/v1/callbacks/{token}":                  "its token is the key",
	"POST /api/internal/runs/{id}/continue":           "its job_id is the key",
	"PUT /api/admin/tenants/{tenant}":                 "what holds is said, not changed by so much",
	"DELETE /api/v1/keys/{id}":                        "what is revoked stays so",
	"POST /api/v1/session":                            "another login is another session",
	"DELETE /api/v1/session":                          "who is logged out stays so",
	"POST /api/v1/session/links":                      "another link is another one",
	"DELETE /api/admin/tenants/{tenant}/keys/{id}":    "what is revoked stays so",
	"POST /api/v1/workers/{id}/poll":                  "what was granted and not heard of is granted again",
	"POST /api/v1/workers/{id}/start":                 "what is started stays so; its lease is the key",
	"POST /api/v1/workers/{id}/heartbeat":             "a sign of life is one, however often it is given",
	"POST /api/v1/workers/{id}/commit":                "its commit_id is the key",
	"PUT /api/v1/runs/{id}/artifacts/{name}":          "the same bytes under the same name are the same artifact",
	"POST /api/v1/workers/{id}/release":               "a lease that was handed back is stale",
	"POST /api/v1/workers/{id}/limits":                "a step that has its slots takes nothing",
}

// deadLetter makes a run that can't go on.
func (w *world) deadLetter() string {
	w.t.Helper()
	g := w.running(`{"kind":"job","max_attempts":1}`)
	w.commits(g, `"outcome":{"type":"fail","error":{"code":"broken"}}`)
	return g["run_id"].(string)
}

func (w *world) makeThread() string {
	w.t.Helper()
	return w.do("POST", "/api/v1/threads", `{}`).is(201)["thread_id"].(string)
}

// toLoopback allows webhooks to loopback, where nothing listens.
var toLoopback = setup{options: func(o *Options) {
	o.Webhooks, o.Sender = loopback, webhook.NewHTTP(webhook.HTTPOptions{Guard: loopback})
}}

// A keyedCall is a call that counts once per Idempotency-Key.
type keyedCall struct {
	call func(*world) (path, body, other string) // other: another body, if the call takes one
	same []string                                // fields that say that it is the same thing
}

// keyedCalls are the calls that count once per key, by their routes.
func keyedCalls() map[string]keyedCall {
	const hook = `{"url":"http://127.0.0.1:1/","events":["run:created"]}`
	makeHook := func(w *world) string {
		return w.hook(`"url":"http://127.0.0.1:1/","events":["run:created"]`)["webhook_id"].(string)
	}
	at := func(path, body, other string) func(*world) (string, string, string) {
		return func(*world) (string, string, string) { return path, body, other }
	}
	return map[string]keyedCall{
		"POST /api/v1/runs": {at("/api/v1/runs", `{"kind":"job"}`, `{"kind":"other"}`), []string{"run_id"}},
		// Its entries say each by itself that their key was used with another body: TestBatchCountsOncePerKey.
		"POST /api/v1/runs/batch": {at("/api/v1/runs/batch", `{"runs":[{"kind":"job"},{"kind":"job"}]}`, ""), nil},
		"POST /api/v1/runs/{id}/cancel": {func(w *world) (string, string, string) {
			return "/api/v1/runs/" + w.start(`{"kind":"job"}`) + "/cancel", `{"reason":"enough"}`,
				`{"reason":"too much"}`
		}, []string{"run_id", "state"}},
		"POST /api/v1/runs/{id}/release-hold": {func(w *world) (string, string, string) {
			return "/api/v1/runs/" + w.held() + "/release-hold", "", ""
		}, []string{"run_id", "state"}},
		"POST /api/v1/runs/{id}/dead-letter": {func(w *world) (string, string, string) {
			return "/api/v1/runs/" + w.held() + "/dead-letter", "", ""
		}, []string{"run_id", "state"}},
		"POST /api/v1/runs/{id}/retry": {func(w *world) (string, string, string) {
			return "/api/v1/runs/" + w.deadLetter() + "/retry", `{"from":"journal"}`, `{"from":"start"}`
		}, []string{"run_id"}},
		"POST /api/v1/runs/retry": {func(w *world) (string, string, string) {
			ids := `{"run_ids":["` + w.deadLetter() + `","` + w.deadLetter() + `"]`
			return "/api/v1/runs/retry", ids + `}`, ids + `,"from":"start"}`
		}, []string{"results", "done"}},
		"POST /api/v1/runs/{id}/signals/{name}": {func(w *world) (string, string, string) {
			return "/api/v1/runs/" + w.start(`{"kind":"job"}`) + "/signals/go", `{"data":1}`, `{"data":2}`
		}, []string{"run_id"}},
		"POST /api/v1/threads": {at("/api/v1/threads", `{"metadata":{"for":"me"}}`, `{}`),
			[]string{"thread_id", "metadata", "created_at"}},
		"PATCH /api/v1/threads/{id}": {func(w *world) (string, string, string) {
			return "/api/v1/threads/" + w.makeThread(), `{"metadata":{"n":1}}`, `{"metadata":{"n":2}}`
		}, []string{"thread_id", "metadata"}},
		"PUT /api/v1/threads/{id}/names/{name}": {func(w *world) (string, string, string) {
			return "/api/v1/threads/" + w.makeThread() + "/names/mine", "", ""
		}, []string{"thread_id", "name"}},
		"PUT /api/v1/runs/{id}/names/{name}": {func(w *world) (string, string, string) {
			return "/api/v1/runs/" + w.start(`{"kind":"job"}`) + "/names/mine", `{"from_seq":1}`, `{}`
		}, []string{"run_id", "name", "from_seq"}},
		"POST /api/v1/threads/{id}/messages": {func(w *world) (string, string, string) {
			return "/api/v1/threads/" + w.makeThread() + "/messages", `{"role":"user","content":"hi"}`,
				`{"role":"user","content":"ho"}`
		}, []string{"thread_id", "seq"}},
		"POST /api/v1/threads/{id}/runs": {func(w *world) (string, string, string) {
			return "/api/v1/threads/" + w.makeThread() + "/runs", `{"kind":"job"}`, `{"kind":"other"}`
		}, []string{"run_id"}},
		"POST /api/v1/chat": {at("/api/v1/chat", `{"message":"hi"}`, `{"message":"ho"}`),
			[]string{"run_id", "thread_id", "started"}},
		"POST /api/v1/groups": {func(w *world) (string, string, string) {
			a, b := w.deadLetter(), w.start(`{"kind":"job"}`)
			return "/api/v1/groups", `{"run_ids":["` + a + `","` + b + `"]}`, `{"run_ids":["` + b + `"]}`
		}, []string{"group_id", "ended_runs", "run_ids", "state"}},
		"POST /api/v1/dlq/{id}/redrive": {func(w *world) (string, string, string) {
			return "/api/v1/dlq/" + w.deadLetter() + "/redrive", `{}`, `{"resign":true}`
		}, []string{"run_id"}},
		"POST /api/v1/dlq/redrive": {func(w *world) (string, string, string) {
			w.deadLetter()
			w.deadLetter()
			return "/api/v1/dlq/redrive", `{"cause":"broken","limit":1}`, `{"cause":"broken","limit":2}`
		}, []string{"results", "done"}},
		"POST /api/v1/dlq/discard": {func(w *world) (string, string, string) {
			w.deadLetter()
			return "/api/v1/dlq/discard", `{"ids":["` + w.deadLetter() + `"]}`, `{"cause":"broken"}`
		}, []string{"results", "done"}},
		"DELETE /api/v1/runs/{id}": {func(w *world) (string, string, string) {
			return "/api/v1/runs/" + w.deadLetter(), "", ""
		}, nil},
		"DELETE /api/v1/threads/{id}": {func(w *world) (string, string, string) {
			return "/api/v1/threads/" + w.makeThread(), "", ""
		}, nil},
		"DELETE /api/v1/dlq/{id}": {func(w *world) (string, string, string) {
			return "/api/v1/dlq/" + w.deadLetter(), "", ""
		}, nil},
		"POST /api/v1/webhooks": {at("/api/v1/webhooks", hook, `{"url":"http://127.0.0.1:2/"}`),
			[]string{"webhook_id", "secret"}},
		"POST /api/v1/queues/{name}/pause": {at("/api/v1/queues/slow/pause", `{"reason":"one"}`, `{"reason":"two"}`),
			[]string{"name", "paused"}},
		"POST /api/v1/queues/{name}/resume": {func(w *world) (string, string, string) {
			w.do("POST", "/api/v1/queues/slow/pause", "").is(200)
			return "/api/v1/queues/slow/resume", "", ""
		}, []string{"name"}},
		"POST /api/v1/kinds/{kind}/pause": {at("/api/v1/kinds/slow/pause", `{"reason":"one"}`, `{"reason":"two"}`),
			[]string{"name", "paused"}},
		"POST /api/v1/kinds/{kind}/resume": {func(w *world) (string, string, string) {
			w.do("POST", "/api/v1/kinds/slow/pause", "").is(200)
			return "/api/v1/kinds/slow/resume", "", ""
		}, []string{"name"}},
		"POST /api/v1/schedules": {func(*world) (string, string, string) {
			return "/api/v1/schedules", `{"name":"posted","every":"1h","kind":"scheduled"}`,
				`{"name":"posted","every":"2h","kind":"scheduled"}`
		}, []string{"schedule_id", "next_at"}},
		"PUT /api/v1/schedules/{name}": {func(*world) (string, string, string) {
			return "/api/v1/schedules/set", `{"every":"1h","kind":"scheduled"}`, `{"every":"2h","kind":"scheduled"}`
		}, []string{"schedule_id", "next_at"}},
		"DELETE /api/v1/schedules/{name}": {func(w *world) (string, string, string) {
			return w.makeSchedule("deleted"), "", ""
		}, nil},
		"POST /api/v1/schedules/{name}/pause": {func(w *world) (string, string, string) {
			return w.makeSchedule("paused") + "/pause", "", ""
		}, []string{"schedule_id", "paused_at"}},
		"POST /api/v1/schedules/{name}/resume": {func(w *world) (string, string, string) {
			path := w.makeSchedule("resumed")
			w.do("POST", path+"/pause", "").is(200)
			return path + "/resume", "", ""
		}, []string{"schedule_id", "state"}},
		"POST /api/v1/schedules/{name}/trigger": {func(w *world) (string, string, string) {
			return w.makeSchedule("triggered") + "/trigger", "", ""
		}, []string{"run_id", "schedule_id"}},
		"PUT /api/v1/queues/{name}": {at("/api/v1/queues/put", `{"concurrency":1}`, `{"concurrency":2}`),
			[]string{"name", "concurrency"}},
		"PUT /api/v1/limits/{name}": {at("/api/v1/limits/put", `{"concurrency":1}`, `{"concurrency":2}`),
			[]string{"name", "concurrency"}},
		"DELETE /api/v1/limits/{name}": {func(w *world) (string, string, string) {
			return w.makeLimit("deleted"), "", ""
		}, nil},
		"POST /api/v1/limits/{name}/close": {func(w *world) (string, string, string) {
			return w.makeLimit("closed") + "/close", `{"for":"1h","reason":"one"}`, `{"for":"1h","reason":"two"}`
		}, []string{"name", "closed_until"}},
		"POST /api/v1/limits/{name}/open": {func(w *world) (string, string, string) {
			return w.makeLimit("opened") + "/open", `{}`, `{"key":"a"}`
		}, []string{"name"}},
		"PUT /api/v1/limits/{name}/keys/{key}": {func(w *world) (string, string, string) {
			return w.makeLimit("keyed") + "/keys/a", `{"concurrency":1}`, `{"concurrency":2}`
		}, []string{"key", "concurrency"}},
		"DELETE /api/v1/limits/{name}/keys/{key}": {func(w *world) (string, string, string) {
			path := w.makeLimit("unkeyed") + "/keys/a"
			w.do("PUT", path, `{"concurrency":1}`).is(200)
			return path, "", ""
		}, []string{"key"}},
		"PATCH /api/v1/kinds/{kind}": {func(w *world) (string, string, string) {
			w.do("PUT", "/api/v1/kinds/patched", `{}`).is(200)
			return "/api/v1/kinds/patched", `{"description":"mine"}`, `{"description":"yours"}`
		}, []string{"kind", "description"}},
		"DELETE /api/v1/kinds/{kind}": {func(w *world) (string, string, string) {
			w.do("PUT", "/api/v1/kinds/deleted", `{}`).is(200)
			return "/api/v1/kinds/deleted", "", ""
		}, nil},
		"PATCH /api/v1/webhooks/{id}": {func(w *world) (string, string, string) {
			return "/api/v1/webhooks/" + makeHook(w), `{"description":"mine"}`, `{"description":"yours"}`
		}, []string{"webhook_id", "description"}},
		"DELETE /api/v1/webhooks/{id}": {func(w *world) (string, string, string) {
			return "/api/v1/webhooks/" + makeHook(w), "", ""
		}, nil},
		"POST /api/v1/webhooks/{id}/rotate": {func(w *world) (string, string, string) {
			return "/api/v1/webhooks/" + makeHook(w) + "/rotate", "", ""
		}, []string{"webhook_id", "secret", "rotated_at"}},
		"POST /api/v1/webhooks/{id}/test": {func(w *world) (string, string, string) {
			return "/api/v1/webhooks/" + makeHook(w) + "/test", "", ""
		}, nil},
		"POST /api/v1/deliveries/{id}/redeliver": {func(w *world) (string, string, string) {
			id := makeHook(w)
			w.start(`{"kind":"job"}`)
			return "/api/v1/deliveries/" + w.deliveries(id, "")[0]["delivery_id"].(string) + "/redeliver", "", ""
		}, []string{"delivery_id", "state", "next_attempt_at"}},
		"POST /api/v1/keys": {at("/api/v1/keys", `{"name":"k","scopes":["runs:read"]}`,
			`{"name":"l","scopes":["runs:read"]}`), []string{"key_id", "name"}},
		"POST /api/admin/tenants/{tenant}/keys": {at("/api/admin/tenants/b/keys", `{"name":"k","scopes":["runs:read"]}`,
			`{"name":"l","scopes":["runs:read"]}`),
			[]string{"key_id", "name"}},
		"POST /api/admin/keys": {at("/api/admin/keys", `{"name":"k","scopes":["runs:read"]}`,
			`{"name":"l","scopes":["runs:read"]}`), []string{"key_id", "name"}},
	}
}

func TestCallWithIdempotencyKeyCountsOnce(t *testing.T) {
	rows := keyedCalls()
	for _, r := range (&Server{}).table() {
		name := r.method + " " + r.pattern
		if r.method == "GET" || unkeyed[name] != "" {
			if r.keyed {
				t.Errorf("%s is keyed", name)
			}
			continue
		}
		row, ok := rows[name]
		if !r.keyed || !ok {
			t.Errorf("%s: sent again because its answer was lost, what happens? Have it count once per key, and "+
				"add a row here; or say why it needs none", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, toLoopback)
			if r.guard.platform {
				w.key = w.admin
			}
			path, body, other := row.call(w)
			send := func(body string, keys ...string) *answer {
				return w.send(ask{method: r.method, path: path, key: w.key, body: body,
					header: http.Header{"Idempotency-Key": keys}})
			}
			send(body, "one", "two").refuses(400, "invalid")
			first := send(body, "key").is(r.usual())
			stored := w.fingerprint("")
			again := send(body, `"key"`).is(200) // as a structured string
			for _, f := range row.same {
				if a, b := first[f], again[f]; a == nil || !reflect.DeepEqual(a, b) {
					t.Errorf("%s is %v, and %v the second time", f, a, b)
				}
			}
			if other != "" {
				send(other, "key").refuses(422, "key_reused")
			}
			if w.fingerprint("") != stored {
				t.Error("the second time stored something")
			}
		})
	}
}

func TestSecretIsShownInFirstAnswerOnly(t *testing.T) {
	w := newWorld(t, toLoopback)
	under := func(key, method, path, body string) *answer {
		return w.send(ask{method: method, path: path, key: w.key, body: body,
			header: http.Header{"Idempotency-Key": {key}}})
	}
	// A key's secret is stored as a hash and can't be shown again. A lost key has to be revoked.
	const body = `{"name":"k","scopes":["runs:read"]}`
	made, again := under("k", "POST", "/api/v1/keys", body).is(201), under("k", "POST", "/api/v1/keys", body).is(200)
	if made["secret"] == nil || again["secret"] != nil || again["key_id"] != made["key_id"] {
		t.Errorf("%v, then %v", made, again)
	}
	theirs := w.as(w.admin).do("POST", "/api/admin/tenants/b/keys", body).is(201)
	id := theirs["key_id"].(string)
	w.do("DELETE", "/api/v1/keys/"+id, "").refuses(404, "not_found")
	w.as(w.admin).do("DELETE", "/api/admin/tenants/a/keys/"+id, "").refuses(404, "not_found")
	if k := w.as(w.admin).do("DELETE", "/api/admin/tenants/b/keys/"+id, "").is(200); k["revoked_at"] == nil {
		t.Errorf("k = %v, want revoked_at set", k)
	}
	w.as(theirs["secret"].(string)).get("/api/v1/runs").refuses(401, "unauthorized")

	// A webhook's follows from what it is, and is shown until another one is.
	const hook = `{"url":"http://127.0.0.1:1/"}`
	first := under("h", "POST", "/api/v1/webhooks", hook).is(201)
	rotate := "/api/v1/webhooks/" + first["webhook_id"].(string) + "/rotate"
	second := under("r", "POST", rotate, "").is(200)
	if second["secret"] == first["secret"] || under("r", "POST", rotate, "").is(200)["secret"] != second["secret"] {
		t.Errorf("%v, then %v", first, second)
	}
	if old := under("h", "POST", "/api/v1/webhooks", hook).is(200); old["secret"] != nil ||
		old["webhook_id"] != first["webhook_id"] {
		t.Errorf("old = %v, want no secret, webhook_id = %v", old, first["webhook_id"])
	}
	under("s", "POST", rotate, "").is(200)
	if old := under("r", "POST", rotate, "").is(200); old["secret"] != nil {
		t.Errorf("old = %v, want no secret", old)
	}
}

func TestRepeatedTestMessageHasSameID(t *testing.T) {
	w := delivering(t, setup{})
	s := newSink(t, nil)
	path := "/api/v1/webhooks/" + w.hook(`"url":"` + s.at + `"`)["webhook_id"].(string) + "/test"
	for _, key := range []string{"k", "k", "l"} {
		w.send(ask{method: "POST", path: path, key: w.key, header: http.Header{"Idempotency-Key": {key}}}).is(200)
	}
	var ids []string
	for _, l := range s.waits(3) {
		ids = append(ids, l.id())
	}
	if ids[0] != ids[1] || ids[1] == ids[2] {
		t.Error(ids)
	}
}

// A key's body is compared by its values: the order of keys, spaces and escapes don't matter. Numbers count as they are
// written.
func TestBodiesWithSameKeyAreComparedByValue(t *testing.T) {
	w := newWorld(t, setup{})
	g, res := w.sleeping(`{"kind":"waits"}`, `{"id":"c","type":"callback"}`)
	thread := w.makeThread()
	token := res["callbacks"].([]any)[0].(obj)["token"]
	for _, c := range []struct{ path, body string }{
		{"/api/v1/runs", `{"kind":"job","input":%s}`},
		{"/api/v1/threads", `{"metadata":%s}`},
		{"/api/v1/threads/" + thread + "/messages", `{"role":"user","content":%s}`},
		{fmt.Sprintf("/api/v1/runs/%s/signals/s", g["run_id"]), `{"data":%s}`},
		{fmt.Sprintf("/api/v1/callbacks/%s", token), `{"result":%s}`},
	} {
		send := func(value string) *answer {
			return w.send(ask{method: "POST", path: c.path, key: w.key, body: fmt.Sprintf(c.body, value),
				header: http.Header{"Idempotency-Key": {"k"}}})
		}
		if first := send(`{"a":1,"b":{"d":"\u0041","c":[1.5,null]}}`); first.status/100 != 2 {
			t.Errorf("%s: %d %s", first.what, first.status, first.body)
		}
		send(` { "b" : {"c":[1.5 ,null],"d":"A"}, "a":1}`).is(200)
		for _, other := range []string{`{"a":1,"b":{"d":"A","c":[null,1.5]}}`, `{"a":1.0,"b":{"d":"A","c":[1.5,null]}}`,
			`{"a":1,"b":{"d":"A","c":[1.5]}}`, `{"a":1}`} {
			if a := send(other); strings.Contains(c.path, "callbacks") {
				a.refuses(409, "callback_answered")
			} else {
				a.refuses(422, "key_reused")
			}
		}
	}
}

// A forgedKey stores an idempotency key as it was made before bodies were compared by value.
type forgedKey struct{ row store.IdempotencyRow }

func (op *forgedKey) Needs() []store.Ref { return nil }
func (op *forgedKey) Do(tx *kernel.Tx) error {
	op.row.ExpiresAt = tx.Now.Add(time.Hour)
	tx.DB.Idempotency.Put(op.row)
	return nil
}

func TestOldIdempotencyKeysStillCount(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job"}`)
	sub := perdure.Submission{Kind: "job", Input: json.RawMessage(`{"b":1,"a":2}`)}
	if err := sub.Validate(); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(&sub)
	if err != nil {
		t.Fatal(err)
	}
	row := store.IdempotencyRow{Tenant: "a", Key: "run:old", Digest: store.Digest(string(text)), Ref: id}
	if err := w.e.Do(t.Context(), &forgedKey{row}); err != nil {
		t.Fatal(err)
	}
	send := func(input string) *answer {
		return w.send(ask{method: "POST", path: "/api/v1/runs", key: w.key, body: `{"kind":"job","input":` + input +
			`}`, header: http.Header{"Idempotency-Key": {"old"}}})
	}
	if got := send(`{"b":1,"a":2}`).is(200); got["run_id"] != id {
		t.Errorf("a key of before gives run %v, want %s", got["run_id"], id)
	}
	send(`{"b":1,"a":3}`).refuses(422, "key_reused")
}
