package httpd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

func TestViewIsReadByAnybody(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"plans"}`)
	at := fmt.Sprintf("/api/v1/runs/%s/views", g["run_id"])
	if list := w.get(at).is(200)["views"].([]any); len(list) != 0 {
		t.Errorf("views of a new run = %v, want none", list)
	}
	w.get(at+"/plan").refuses(404, "not_found")
	w.commits(g, `"views":[{"name":"plan","value":{"step":1}},{"name":"a b+c","value":false}]`)
	w.commits(g, `"views":[{"name":"plan","value":{"step":2}}]`)
	v := w.get(at + "/plan").is(200)
	if v["value"].(obj)["step"] != 2.0 || v["version"] != 2.0 || v["name"] != "plan" || v["size"] != 10.0 ||
		v["updated_at"] == nil {
		t.Errorf("view = %v, want the second value", v)
	}
	if v := w.get(at + "/a%20b+c").is(200); v["value"] != false || v["version"] != 1.0 {
		t.Errorf("view of a name with spaces = %v, want false", v)
	}
	w.commits(g, `"outcome":{"type":"complete","result":1}`)
	if list := w.get(at).is(200)["views"].([]any); len(list) != 2 || list[1].(obj)["name"] != "plan" ||
		list[1].(obj)["value"] != nil {
		t.Errorf("views of an ended run = %v, want two, without their values", list)
	}
	w.get("/api/v1/runs/01999999-9999-7999-8999-999999999999/views").refuses(404, "not_found")
}

func TestInvalidViewChangesNothing(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"plans"}`)
	for _, c := range []struct {
		views  string
		status int
		code   string
	}{
		{`{"name":"a/b","value":1}`, 400, "invalid"},
		{`{"name":"","value":1}`, 400, "invalid"},
		{`{"name":"a"}`, 400, "invalid"},
		{`{"name":"a","value":1},{"name":"a","value":2}`, 400, "invalid"},
		{`{"name":"a","value":"` + strings.Repeat("x", perdure.MaxView) + `"}`, 413, "too_large"},
	} {
		w.commit(g, `"views":[`+c.views+`]`).refuses(c.status, c.code)
	}
	w.commit(g, `"cancel":["nobody"]`).refuses(400, "invalid")
	w.commit(g, `"waits":[{"id":"m","type":"message"}]`).refuses(422, "nothing_to_wait_for")
	w.get(fmt.Sprintf("/api/v1/runs/%s/views/%s", g["run_id"], strings.Repeat("x", 300))).refuses(400, "invalid")
	if n := w.rows("run_views"); n != 0 {
		t.Errorf("%d rows of refused views", n)
	}
}

func TestSecretInViewIsRedacted(t *testing.T) {
	w := newWorld(t, setup{secrets: hiding(t)})
	g := w.running(`{"kind":"plans"}`)
	w.commits(g, `"views":[{"name":"plan","value":{"key":"`+hidden+`"}}]`)
	v := w.get(fmt.Sprintf("/api/v1/runs/%s/views/plan", g["run_id"])).is(200)
	if v["value"].(obj)["key"] != "[redacted]" {
		t.Errorf("view = %v, want the secret redacted", v)
	}
}

// A user's message on the thread reaches the agent that waits for one.
func TestMessageWakesItsThreadsRun(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.makeThread()
	w.do("POST", "/api/v1/threads/"+thread+"/runs", `{"kind":"chat"}`).is(201)
	g := w.lease("w", `,"start":true`)
	w.commits(g, `"waits":[{"id":"m","type":"message","timeout":"never"}],"outcome":{"type":"suspend"}`)
	w.do("POST", "/api/v1/threads/"+thread+"/messages", `{"role":"user","content":{"text":"left"}}`).is(201)
	g = w.lease("w", "")
	item := g["inbox"].([]any)[0].(obj)
	if item["type"] != "message" || item["wait_id"] != "m" || item["message_seq"] != 1.0 ||
		item["data"].(obj)["text"] != "left" {
		t.Errorf("inbox item = %v, want the message", item)
	}
}
