package httpd

import (
	"fmt"
	"testing"
)

// makeLimit makes a limit with keys, and gives its path.
func (w *world) makeLimit(name string) string {
	w.t.Helper()
	path := "/api/v1/limits/" + name
	w.do("PUT", path, `{"concurrency":3,"per_key":true}`).is(201)
	return path
}

func TestLimitsOverHTTP(t *testing.T) {
	w := newWorld(t, setup{})
	body := `{"concurrency":1,"rate":{"count":100,"per":"1m"},"description":"the shop"}`
	made := w.do("PUT", "/api/v1/limits/shop", body).is(201)
	if again := w.do("PUT", "/api/v1/limits/shop", body).is(200); again["changed_at"] != made["changed_at"] {
		t.Errorf("a repeated PUT changed the limit: %v", again)
	}
	first := w.do("POST", "/api/v1/runs", `{"kind":"k","limits":["shop"]}`).is(201)
	second := w.do("POST", "/api/v1/runs", `{"kind":"k","limits":["shop"]}`).is(201)
	why := w.get("/api/v1/runs/" + second["run_id"].(string)).is(200)["waiting_for"].(obj)
	at := why["limits"].([]any)[0].(obj)
	if why["reason"] != "limit" || at["limit"] != "shop" || at["ahead"] != 0.0 {
		t.Errorf("the second run waits for %v, want limit shop", why)
	}
	granted := w.do("POST", "/api/v1/workers/w/poll", `{"slots":5}`).is(200)["runs"].([]any)
	if len(granted) != 1 || granted[0].(obj)["run_id"] != first["run_id"] {
		t.Errorf("granted %v, want the first run alone", granted)
	}
	shown := w.get("/api/v1/limits/shop").is(200)
	if shown["leased"] != 1.0 || shown["waiting"] != 1.0 || len(shown["holders"].([]any)) != 1 ||
		len(shown["waiters"].([]any)) != 1 {
		t.Errorf("the limit shows %v, want a holder and a waiter", shown)
	}
	w.do("POST", "/api/v1/limits/shop/close", `{"for":"1h","reason":"429"}`).is(200)
	list := w.get("/api/v1/limits").is(200)["limits"].([]any)
	if l := list[0].(obj); len(list) != 1 || l["closed_until"] == nil || l["close_reason"] != "429" {
		t.Errorf("the list shows %v, want a closed limit", list)
	}
	if l := w.do("POST", "/api/v1/limits/shop/open", `{}`).is(200); l["closed_until"] != nil {
		t.Errorf("the opened limit shows %v", l)
	}
	path := w.makeLimit("each")
	if k := w.do("PUT", path+"/keys/a%2Fb", `{"concurrency":9}`).is(200); k["key"] != "a/b" || k["concurrency"] != 9.0 {
		t.Errorf("the key shows %v", k)
	}
	if keys := w.get(path + "/keys").is(200)["keys"].([]any); len(keys) != 1 {
		t.Errorf("keys %v, want one", keys)
	}
	w.do("DELETE", "/api/v1/limits/shop", "").is(200)
	w.get("/api/v1/limits/shop").refuses(404, "not_found")
}

func TestBadLimitsAreRefused(t *testing.T) {
	w := newWorld(t, setup{})
	w.makeLimit("keyed")
	w.do("PUT", "/api/v1/limits/plain", `{"rate":{"count":5,"per":"1s"}}`).is(201)
	for _, x := range []struct{ method, path, body, code, field string }{
		{"PUT", "/api/v1/limits/x", `{}`, "unprocessable", "concurrency"},
		{"PUT", "/api/v1/limits/x", `{"concurrency":0}`, "unprocessable", "concurrency"},
		{"PUT", "/api/v1/limits/x", `{"concurrency":1000001}`, "unprocessable", "concurrency"},
		{"PUT", "/api/v1/limits/x", `{"rate":{"count":0,"per":"1s"}}`, "unprocessable", "rate.count"},
		{"PUT", "/api/v1/limits/x", `{"rate":{"count":1,"per":"10ms"}}`, "unprocessable", "rate.per"},
		{"PUT", "/api/v1/limits/x", `{"rate":{"count":1,"per":"25h"}}`, "unprocessable", "rate.per"},
		{"PUT", "/api/v1/limits/kind:x", `{"concurrency":1}`, "invalid", "name"},
		{"PUT", "/api/v1/limits/keyed", `{"concurrency":1}`, "unprocessable", "per_key"},
		{"PUT", "/api/v1/limits/plain/keys/a", `{"concurrency":1}`, "unprocessable", "key"},
		{"PUT", "/api/v1/limits/keyed/keys/a", `{}`, "invalid", "concurrency"},
		{"POST", "/api/v1/limits/plain/close", `{}`, "invalid", "for"},
		{"POST", "/api/v1/limits/plain/close", `{"for":"1m","until":"2100-01-01T00:00:00Z"}`, "invalid", "for"},
		{"POST", "/api/v1/limits/plain/close", `{"for":"1m","key":"a"}`, "unprocessable", "key"},
		{"POST", "/api/v1/runs", `{"kind":"k","limits":["nowhere"]}`, "unknown_limit", "limits"},
		{"POST", "/api/v1/runs", `{"kind":"k","limits":["a","b","c","d","e"]}`, "unprocessable", "limits"},
		{"POST", "/api/v1/runs", `{"kind":"k","limits":["plain","plain"]}`, "unprocessable", "limits"},
		{"POST", "/api/v1/runs", `{"kind":"k","limits":["plain"],"units":6}`, "unprocessable", "units"},
		{"POST", "/api/v1/runs", `{"kind":"k","limits":["plain"],"units":-1}`, "unprocessable", "units"},
		{"POST", "/api/v1/runs", `{"kind":"k","limits":["keyed"],"limit_key":"a\u0001"}`, "invalid", "limit_key"},
		{"PUT", "/api/v1/kinds/k", `{"limit_key_from":"customer"}`, "unprocessable", "limit_key_from"},
		{"PUT", "/api/v1/kinds/k", `{"limit_key_from":"/a~2"}`, "unprocessable", "limit_key_from"},
		{"PUT", "/api/v1/kinds/k", `{"limits":["a","b","c","d","e"]}`, "unprocessable", "limits"},
		{"PUT", "/api/v1/kinds/k", `{"concurrency":-1}`, "unprocessable", "concurrency"},
	} {
		status := 400
		if x.code != "invalid" {
			status = 422
		}
		t.Run(fmt.Sprint(x.method, x.path, x.body), func(t *testing.T) {
			if p := w.do(x.method, x.path, x.body).refuses(status, x.code); p["field"] != x.field {
				t.Errorf("field = %v, want %s: %v", p["field"], x.field, p["detail"])
			}
		})
	}
	w.get("/api/v1/limits/x").refuses(404, "not_found")
	if runs := w.get("/api/v1/runs").is(200)["runs"].([]any); len(runs) != 0 {
		t.Errorf("%d runs were accepted, want none", len(runs))
	}
}

func TestLimitsOfAQueueOverHTTP(t *testing.T) {
	w := newWorld(t, setup{})
	set := w.do("PUT", "/api/v1/queues/shop", `{"limits":["openai"],"concurrency":1}`).is(200)
	if set["name"] != "shop" || set["concurrency"] != 1.0 {
		t.Errorf("the queue shows %v, want shop with one run at once", set)
	}
	w.do("POST", "/api/v1/runs", `{"kind":"k","queue":"shop"}`).is(201)
	second := w.do("POST", "/api/v1/runs", `{"kind":"k","queue":"shop"}`).is(201)
	why := w.get("/api/v1/runs/" + second["run_id"].(string)).is(200)["waiting_for"].(obj)
	if why["reason"] != "limit" || why["limits"].([]any)[0].(obj)["limit"] != "queue:shop" {
		t.Errorf("the second run waits for %v, want limit queue:shop", why)
	}
	q := w.get("/api/v1/queues").is(200)["queues"].([]any)[0].(obj)
	if q["concurrency"] != 1.0 || fmt.Sprint(q["limits"], q["missing_limits"]) != "[openai] [openai]" {
		t.Errorf("the list shows %v, want one at once and a limit that is missing", q)
	}
	w.do("PUT", "/api/v1/kinds/asks", `{"limits":["openai"]}`).is(200)
	if k := w.get("/api/v1/kinds/asks").is(200); fmt.Sprint(k["missing_limits"]) != "[openai]" {
		t.Errorf("the kind shows %v, want a limit that is missing", k)
	}
	w.do("PUT", "/api/v1/limits/openai", `{"concurrency":1}`).is(201)
	if k := w.get("/api/v1/kinds/asks").is(200); k["missing_limits"] != nil {
		t.Errorf("the kind shows %v, want no limit that is missing", k)
	}
	w.do("PUT", "/api/v1/limits/queue:x", `{"concurrency":1}`).refuses(400, "invalid")
	w.do("PUT", "/api/v1/queues/shop", `{"concurrency":-1}`).refuses(422, "unprocessable")
	w.do("PUT", "/api/v1/queues/shop", `{"concurrent":1}`).refuses(400, "invalid")
}
