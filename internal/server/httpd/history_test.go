package httpd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/testkit/stage"
)

// A worker reads the thread of a run that it has leased, page by page, with a key that may do nothing
// else, and only while the lease lasts.
func TestThreadIsReadUnderLease(t *testing.T) {
	w := newWorld(t, setup{})
	bot := w.as(w.newKey("a", func(op *access.CreateKey) {
		op.Scopes = []perdure.Scope{perdure.ScopePoll, perdure.ScopeReport}
	}))
	thread := w.do("POST", "/api/v1/threads", `{}`).is(201)["thread_id"].(string)
	big := strings.Repeat("x", 400<<10)
	for i := range 4 {
		w.do("POST", "/api/v1/threads/"+thread+"/messages", `{"role":"user","content":"%d%s","metadata":{"n":%d}}`, i,
			big, i).is(201)
	}
	w.start(`{"kind":"chat","thread_id":"` + thread + `"}`)
	g := bot.lease("w", `,"start":true`)
	at := fmt.Sprintf("%s/%s/messages?epoch=%v", runs, g["run_id"], g["epoch"])
	bot.get("/api/v1/threads/"+thread+"/messages").refuses(403, "forbidden")

	want := w.get("/api/v1/threads/" + thread + "/messages").is(200)["messages"].([]any)
	var got []any
	pages := 0
	for after := any(0); ; pages++ {
		page := bot.get(fmt.Sprint(at, "&after=", after)).is(200)
		list := page["messages"].([]any)
		if len(list) == 0 {
			if page["next_after"] != after {
				t.Errorf("after the last one, which is %v: %v", after, page)
			}
			break
		}
		got, after = append(got, list...), page["next_after"]
	}
	if len(want) != 4 || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%d messages, not the %d there are", len(got), len(want))
	}
	if pages < 2 {
		t.Errorf("1.6 MiB in %d page", pages)
	}
	if list := bot.get(at + "&after=1&limit=1").is(200)["messages"].([]any); len(list) != 1 ||
		list[0].(obj)["seq"] != 2.0 {
		t.Errorf("a page of one: %d", len(list))
	}
	w.commits(g, complete)
	bot.get(at).refuses(409, "stale_epoch")

	// A run without a thread has no messages.
	g = w.running(`{"kind":"job"}`)
	if list := bot.get(fmt.Sprintf("%s/%s/messages?epoch=%v", runs, g["run_id"],
		g["epoch"])).is(200)["messages"].([]any); len(list) != 0 {
		t.Errorf("list = %v, want 0 entries", list)
	}
}

func TestPlatformWorkerReadsThread(t *testing.T) {
	w := newWorld(t, setup{})
	b, p := w.as(w.newKey("b", nil)), w.as(w.admin)
	thread := b.do("POST", "/api/v1/threads", `{}`).is(201)["thread_id"].(string)
	b.do("POST", "/api/v1/threads/"+thread+"/messages", `{"role":"user","content":"hello"}`).is(201)
	id := b.start(`{"kind":"chat","thread_id":"` + thread + `"}`)
	poll := p.later("POST", "/api/v1/workers/p/poll", `{"slots":1,"start":true,"all_tenants":true,"wait":"60s"}`)
	g := soon(t, poll).is(200)["runs"].([]any)[0].(obj)
	at := fmt.Sprintf("%s/%s/messages?epoch=%v", runs, id, g["epoch"])
	if list := p.get(at).is(200)["messages"].([]any); len(list) != 1 || list[0].(obj)["content"] != "hello" {
		t.Errorf("list = %v, want 1 entry, [0].content = hello", list)
	}
	w.get(at).refuses(404, "not_found")
}

// Values are not escaped in answers: escaping could make them six times as long.
func TestValuesAreNotEscapedInAnswers(t *testing.T) {
	w := newWorld(t, setup{})
	value := `"` + strings.Repeat("<&>", 200<<10/3) + `"`
	id := w.start(`{"kind":"job","input":` + value + `}`)
	if a := w.get(runs + "/" + id); !strings.Contains(string(a.body), value) {
		t.Errorf("an answer of %d bytes about a value of %d", len(a.body), len(value))
	}
}

// An answer has a bounded number of bytes, whatever the limit, and the cursor continues after it.
func TestAPageOfAThreadIsBoundedInBytes(t *testing.T) {
	stage.NoRace(t)
	w := newWorld(t, setup{})
	thread := "/api/v1/threads/" + w.do("POST", "/api/v1/threads", `{}`).is(201)["thread_id"].(string)
	big := strings.Repeat("x", 900<<10)
	const all = 6
	for range all {
		w.do("POST", thread+"/messages", `{"role":"user","content":"%s"}`, big).is(201)
	}
	w.do("POST", thread+"/messages", `{"role":"user","content":"the end"}`).is(201)
	seen := 0
	for after := any(0.0); ; {
		a := w.get(fmt.Sprintf("%s/messages?limit=1000&after=%v", thread, after))
		page := a.is(200)
		if len(a.body) > 5<<20 {
			t.Errorf("an answer of %d bytes", len(a.body))
		}
		list := page["messages"].([]any)
		if len(list) == 0 {
			break
		}
		for _, m := range list {
			if seen++; m.(obj)["seq"] != float64(seen) {
				t.Errorf("message %v comes as number %d", m.(obj)["seq"], seen)
			}
		}
		after = page["next_after"]
	}
	if seen != all+1 {
		t.Errorf("%d messages of %d", seen, all+1)
	}
}
