package httpd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
)

func TestActivity(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job"}`)
	if a := w.get(runs + "/" + id + "/activity").is(200); a["state"] != "queued" || a["tier"] != nil ||
		a["operation"] != nil || len(a["recent"].([]any)) != 1 || len(a["children"].([]any)) != 0 {
		t.Errorf("queued: %v", a)
	}
	g := w.lease("w", `,"start":true`)
	w.do("POST", "/api/v1/workers/w/heartbeat",
		`{"runs":[{"run_id":"%v","epoch":%v,"activity":"tool_executing","progress":{"left":3}}]}`, g["run_id"],
		g["epoch"]).is(200)
	w.commits(g, `"children":[{"key":"kid","kind":"kid","queue":"kids"}],"waits":[{"id":"go","type":"signal",
"name":"go"}],
		"events":[{"type":"worker:tool_started","data":{"tool":"grep"}},{"type":"llm:delta","data":"so far "},
{"type":"llm:delta","data":"so good"}]`)
	a := w.get(runs + "/" + id + "/activity").is(200)
	if a["state"] != "running" || a["tier"] != "fresh" || a["operation"].(obj)["activity"] != "tool_executing" ||
		a["operation"].(obj)["since"] == nil ||
		a["silent_ms"] == nil || a["text"] != "so far so good" || a["progress"].(obj)["left"] != 3.0 ||
		a["spawned"] != 1.0 || a["worker_id"] != "w" {
		t.Errorf("running: %v", a)
	}
	text := fmt.Sprint(a["recent"])
	for _, want := range []string{"run:started", "activity tool_executing", "left 3", "worker:spawned", "tool grep",
		"wait:opened"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in %s", want, text)
		}
	}
	if waits := a["waits"].([]any); len(waits) != 1 || waits[0].(obj)["wait_id"] != "go" ||
		waits[0].(obj)["name"] != "go" {
		t.Errorf("waits = %v, want 1 entry, [0].wait_id = go, [0].name = go", waits)
	}
	kid := a["children"].([]any)[0].(obj)
	if kid["state"] != "queued" || kid["key"] != "kid" || kid["elapsed_ms"] == nil {
		t.Errorf("kid = %v, want state = queued, key = kid, elapsed_ms set", kid)
	}

	// A key that may only work sees the children of what it holds, and nothing else.
	works := w.as(w.newKey("a", func(op *access.CreateKey) {
		op.Scopes = []perdure.Scope{perdure.ScopePoll, perdure.ScopeReport}
	}))
	child := fmt.Sprintf("%s/%s/children/%v/activity", runs, id, kid["run_id"])
	if seen := works.get(fmt.Sprintf("%s?epoch=%v", child, g["epoch"])).is(200); seen["run_id"] != kid["run_id"] ||
		seen["state"] != "queued" {
		t.Errorf("seen = %v, want run_id = %v, state = queued", seen, kid["run_id"])
	}
	works.get(child+"?epoch=7").refuses(409, "stale_epoch")
	if p := works.get(child).problem(); p["status"] != 400.0 || p["field"] != "epoch" || p["detail"] != "is missing" {
		t.Errorf("no epoch: %v", p)
	}
	works.get(child+"?epoch=x").refuses(400, "invalid")
	works.get(fmt.Sprintf("%s/%s/children/%s/activity?epoch=%v", runs, id, id, g["epoch"])).refuses(404, "not_found")
	works.get(runs+"/"+id+"/activity").refuses(403, "forbidden")

	w.commits(g, `"outcome":{"type":"complete","result":1,"summary":"done"}`)
	if a := w.get(runs + "/" + id + "/activity").is(200); a["state"] != "completed" || a["tier"] != nil ||
		a["silent_ms"] != nil || a["result_summary"] != "done" {
		t.Errorf("ended: %v", a)
	}
}

// The answer is bounded, whatever a run has said and however large its findings are.
func TestActivityIsBounded(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	long := strings.Repeat("x", 60_000)
	w.do("POST", "/api/v1/workers/w/heartbeat", `{"runs":[{"run_id":"%v","epoch":%v,"activity":"%s","progress":"%s"}]}`,
		g["run_id"], g["epoch"], long[:2000], long).is(200)
	for range 3 {
		w.commits(g, fmt.Sprintf(`"events":[%s{"type":"llm:delta","data":"%s"}]`,
			strings.Repeat(`{"type":"x:much","data":{"a":"`+long+`"}},`, 10), long))
	}
	a := w.get(fmt.Sprintf("%s/%v/activity", runs, g["run_id"]))
	if got := a.is(200); len(a.body) > 16<<10 || got["progress"] != nil ||
		got["progress_size"] != float64(len(long)+2) || len(got["text"].(string)) != 2048 {
		t.Errorf("%d bytes: %.3000s", len(a.body), a.body)
	}
}
