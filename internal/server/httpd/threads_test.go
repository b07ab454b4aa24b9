package httpd

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// listed gives the threads of a page.
func (w *world) listed(query string) (list []obj, next any) {
	w.t.Helper()
	page := w.get("/api/v1/threads" + query).is(200)
	for _, x := range page["threads"].([]any) {
		list = append(list, x.(obj))
	}
	return list, page["next_cursor"]
}

// A thread that was created for a child names its parent, and can be left out of the list.
func TestThreadsOfChildrenAreTold(t *testing.T) {
	w := newWorld(t, setup{})
	chat := w.makeThread()
	g := w.running(`{"kind":"boss"}`)
	w.commits(g, `"children":[{"key":"kid","kind":"kid","new_thread":true}]`)
	list, _ := w.listed("")
	if len(list) != 2 || list[0]["parent_run_id"] != g["run_id"] || list[1]["thread_id"] != chat ||
		list[1]["parent_run_id"] != nil {
		t.Errorf("threads = %v, want that of the child of %v, and %s without a parent", list, g["run_id"], chat)
	}
	if list, _ = w.listed("?children=true"); len(list) != 2 {
		t.Errorf("threads with those of children = %v, want both", list)
	}
	if list, _ = w.listed("?children=false"); len(list) != 1 || list[0]["thread_id"] != chat {
		t.Errorf("threads without those of children = %v, want %s alone", list, chat)
	}
	w.get("/api/v1/threads?children=maybe").refuses(400, "invalid")
}

// The list of threads shows the status of each, and is filtered by it and by metadata.
func TestThreadsAreFilteredByStatusAndMetadata(t *testing.T) {
	w := newWorld(t, setup{})
	idle := w.do("POST", "/api/v1/threads", `{"metadata":{"team":"red"}}`).is(201)["thread_id"].(string)
	asks := w.makeThread()
	w.do("POST", "/api/v1/threads/"+asks+"/runs", `{"kind":"chat"}`).is(201)
	w.commits(w.lease("w", `,"start":true`), `"waits":[`+askPush+`],"outcome":{"type":"suspend"}`)
	w.do("PATCH", "/api/v1/threads/"+asks, `{"metadata":{"team":"red","n":1}}`).is(200)
	for query, want := range map[string][]string{"?status=idle": {idle}, "?status=waiting": {asks},
		"?status=busy": nil, "?status=error": nil, "?metadata.team=red": {asks, idle},
		"?metadata.team=red&metadata.n=1&status=waiting": {asks}, "?metadata.team=blue": nil} {
		list, next := w.listed(query)
		var got []string
		for _, th := range list {
			got = append(got, th["thread_id"].(string))
		}
		if !slices.Equal(got, want) || next != nil {
			t.Errorf("threads%s = %v and next %v, want %v", query, got, next, want)
		}
	}
	if list, _ := w.listed(""); list[0]["status"] != "waiting" || list[1]["status"] != "idle" {
		t.Errorf("threads = %v, want one that is waiting and one that is idle", list)
	}
	w.get("/api/v1/threads?status=running").refuses(400, "invalid")
	w.get("/api/v1/threads?metadata.=x").refuses(400, "invalid")
}

func TestThreadsAreListedByLastActivity(t *testing.T) {
	w := newWorld(t, setup{})
	if list, next := w.listed(""); len(list) != 0 || next != nil {
		t.Errorf("threads of a tenant without any: %v, %v", list, next)
	}
	var ids []string
	for i := range 5 {
		ids = append(ids, w.do("POST", "/api/v1/threads", `{"metadata":{"title":"t%d"}}`,
			i).is(201)["thread_id"].(string))
	}
	w.do("POST", "/api/v1/threads/"+ids[1]+"/messages", `{"role":"user","content":"again"}`).is(201)
	run := w.do("POST", "/api/v1/threads/"+ids[3]+"/runs", `{"kind":"chat"}`).is(201)["run_id"]
	want := []string{ids[3], ids[1], ids[4], ids[2], ids[0]}
	_, seen := w.follow("/api/v1/threads?limit=2", "threads", "thread_id")
	if !slices.Equal(seen, want) {
		t.Errorf("threads, 2 a page: %v, want %v", seen, want)
	}
	list, _ := w.listed("")
	if live, _ := list[0]["live_run"].(obj); live["run_id"] != run || live["kind"] != "chat" ||
		live["state"] != "queued" || list[0]["title"] != "t3" {
		t.Errorf("the first thread: %v, want t3 with the run %v", list[0], run)
	}
	if list[1]["live_run"] != nil {
		t.Errorf("a thread without a run has one: %v", list[1])
	}
	// The end of its run counts as activity as well.
	w.do("POST", "/api/v1/threads/"+ids[1]+"/messages", `{"role":"user","content":"more"}`).is(201)
	w.commits(w.lease("w", `,"start":true`), complete)
	if list, _ = w.listed("?limit=1"); list[0]["thread_id"] != ids[3] || list[0]["live_run"] != nil {
		t.Errorf("the first thread after its run has ended: %v, want %s without a run", list[0], ids[3])
	}
	w.do("DELETE", "/api/v1/threads/"+ids[3], "").is(200)
	if list, _ = w.listed("?limit=1"); list[0]["thread_id"] != ids[1] {
		t.Errorf("the first thread after the other was deleted: %v, want %s", list[0], ids[1])
	}
	for _, bad := range []string{"?limit=201", "?limit=0", "?cursor=x", "?cursor=1", "?cursor=x." + ids[0],
		"?cursor=" + strings.Repeat("1", 300)} {
		w.get("/api/v1/threads"+bad).refuses(400, "invalid")
	}
}

func TestListedThreadShowsTitleAndLastMessage(t *testing.T) {
	w := newWorld(t, setup{})
	path := "/api/v1/threads/" + w.do("POST", "/api/v1/threads", `{}`).is(201)["thread_id"].(string) + "/messages"
	if list, _ := w.listed(""); list[0]["title"] != "" || list[0]["last_message"] != nil || list[0]["last_seq"] != 0.0 {
		t.Errorf("an empty thread: %v, want no title and no message", list[0])
	}
	w.do("POST", path, `{"role":"system","content":"You are kind."}`).is(201)
	w.do("POST", path, `{"role":"user","content":[{"type":"text","text":"Where is\n Oslo?"}]}`).is(201)
	w.do("POST", path, `{"role":"user","content":"another"}`).is(201)
	w.do("POST", path, `{"role":"assistant","content":"%s"}`, strings.Repeat("é ", 20_000)).is(201)
	list, _ := w.listed("")
	last := list[0]["last_message"].(obj)
	if list[0]["title"] != "Where is Oslo?" || list[0]["last_seq"] != 4.0 || last["role"] != "assistant" ||
		last["at"] == nil {
		t.Errorf("a thread with messages: %.300s", fmt.Sprint(list[0]))
	}
	if text := []rune(last["text"].(string)); len(text) > 240 || len(text) < 230 ||
		!strings.HasSuffix(string(text), "…") {
		t.Errorf("the last message is shown with %d characters, want some 240: %q", len(text), string(text))
	}
	w.do("POST", "/api/v1/threads", `{"metadata":{"title":"%s"}}`, strings.Repeat("x", 20_000)).is(201)
	list, _ = w.listed("?limit=1")
	if title := []rune(list[0]["title"].(string)); len(title) != 120 || title[119] != '…' {
		t.Errorf("a long title is shown with %d characters, want 120: %q", len(title), string(title))
	}
}

// A copy of a thread has its messages, also large ones, and its metadata. It is a thread of its own: it may be
// deleted, or the one that it was made of.
func TestThreadIsCopied(t *testing.T) {
	w := newWorld(t, setup{})
	large := strings.Repeat("x", 30_000)
	of := w.do("POST", "/api/v1/threads", `{"metadata":{"team":"red"}}`).is(201)["thread_id"].(string)
	for _, text := range []string{"hello", large} {
		w.do("POST", "/api/v1/threads/"+of+"/messages", "%s",
			js(obj{"role": "user", "content": text, "metadata": obj{"n": 1}})).is(201)
	}
	under := func(body string) *answer {
		return w.send(ask{method: "POST", path: "/api/v1/threads", key: w.key, body: body,
			header: http.Header{"Idempotency-Key": {"k"}}})
	}
	made := under(`{"copy_of":"` + of + `"}`).is(201)
	if again := under(`{"copy_of":"` + of + `"}`).is(200); again["thread_id"] != made["thread_id"] {
		t.Errorf("the same call again made %v, want %v", again["thread_id"], made["thread_id"])
	}
	under(`{}`).refuses(422, "key_reused")
	id := made["thread_id"].(string)
	if js(made["metadata"]) != `{"team":"red"}` || made["last_seq"] != 2.0 {
		t.Errorf("the copy = %v, want the metadata of the thread, and two messages", made)
	}
	w.do("POST", "/api/v1/threads/"+of+"/messages", `{"role":"user","content":"later"}`).is(201)
	w.do("DELETE", "/api/v1/threads/"+of, "").is(200)
	list := w.messages(id)
	if len(list) != 2 || list[0]["content"] != "hello" || list[1]["content"] != large ||
		js(list[1]["metadata"]) != `{"n":1}` || list[1]["seq"] != 2.0 {
		t.Errorf("messages of the copy = %.300v, want the two that the thread had", list)
	}
	listed, _ := w.listed("?metadata.team=red")
	if len(listed) != 1 || listed[0]["thread_id"] != id || listed[0]["title"] != "hello" {
		t.Errorf("the listed copy = %v, want the title of the thread", listed)
	}
	own := w.do("POST", "/api/v1/threads", `{"copy_of":"%s","metadata":{"team":"blue"},"name":"mine"}`, id).is(201)
	if js(own["metadata"]) != `{"team":"blue"}` || own["last_seq"] != 2.0 {
		t.Errorf("a copy with metadata of its own = %v", own)
	}
	w.do("POST", "/api/v1/threads", `{"copy_of":"%s"}`, of).refuses(400, "invalid")
	w.do("POST", "/api/v1/threads", `{"copy_of":"a b"}`).refuses(400, "invalid")
	for n := range 998 {
		w.do("POST", "/api/v1/threads/"+id+"/messages", `{"role":"user","content":"%d"}`, n).is(201)
	}
	if got := w.do("POST", "/api/v1/threads", `{"copy_of":"%s"}`, id).is(201); got["last_seq"] != 1000.0 {
		t.Errorf("the largest copy has %v messages, want 1000", got["last_seq"])
	}
	w.do("POST", "/api/v1/threads/"+id+"/messages", `{"role":"user","content":"one more"}`).is(201)
	w.do("POST", "/api/v1/threads", `{"copy_of":"%s"}`, id).refuses(422, "over_bound")
	w.as(w.newKey("b", nil)).do("POST", "/api/v1/threads", `{"copy_of":"%s"}`, id).refuses(400, "invalid")

	// Content that is in its row is copied, so it is bounded as a commit is.
	wide, m := w.thread(), obj{"role": "user", "content": strings.Repeat("x", 8000),
		"metadata": obj{"n": strings.Repeat("x", 1000)}}
	w.do("POST", "/api/v1/threads/"+wide+"/runs", "%s",
		js(obj{"kind": "chat", "messages": slices.Repeat([]obj{m}, 900)})).is(201)
	w.do("POST", "/api/v1/threads", `{"copy_of":"%s"}`, wide).is(201)
	for range 60 {
		w.do("POST", "/api/v1/threads/"+wide+"/messages", "%s", js(m)).is(201)
	}
	w.do("POST", "/api/v1/threads", `{"copy_of":"%s"}`, wide).refuses(422, "over_bound")
	if list, _ := w.listed(""); list[0]["thread_id"] != wide {
		t.Errorf("after a refused copy the newest thread is %v, want that of which it was made", list[0])
	}
}
