package httpd

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

const chatPath = "/api/v1/chat"

// chats says something, and returns the answer.
func (w *world) chats(status int, body string, args ...any) obj {
	w.t.Helper()
	return w.do("POST", chatPath, body, args...).is(status)
}

// said returns the messages of a thread, each with its role.
func (w *world) said(thread any) string {
	w.t.Helper()
	var out []string
	for _, m := range w.get(fmt.Sprintf("/api/v1/threads/%v/messages", thread)).is(200)["messages"].([]any) {
		out = append(out, fmt.Sprintf("%v: %v", m.(obj)["role"], m.(obj)["content"]))
	}
	return strings.Join(out, "; ")
}

func TestChatStartsAThreadAndGoesOnWithIt(t *testing.T) {
	w := newWorld(t, setup{})
	first := w.chats(201, `{"message":"check the disk"}`)
	if first["started"] != true || first["state"] != "queued" || first["thread_id"] == "" {
		t.Fatalf("answer = %v, want a new run on a new thread", first)
	}
	g := w.lease("w", `,"start":true`)
	if g["kind"] != "supervisor" || g["run_id"] != first["run_id"] || g["thread_id"] != first["thread_id"] {
		t.Fatalf("grant = %v, want run %v of kind supervisor on the thread", g, first["run_id"])
	}
	w.commits(g, `"messages":[{"role":"assistant","content":"half full"}],"outcome":{"type":"complete",`+
		`"result":"half full"}`)

	waiting := w.later("POST", chatPath, fmt.Sprintf(`{"thread_id":%q,"message":"and now?","wait":"30s"}`,
		first["thread_id"]))
	w.answersNext("full")
	second := soon(t, waiting).is(200)
	if second["answer"] != "full" || second["thread_id"] != first["thread_id"] || second["started"] != true {
		t.Errorf("answer = %v, want the result of a second run on the thread", second)
	}
	want := "user: check the disk; assistant: half full; user: and now?; assistant: full"
	if got := w.said(first["thread_id"]); got != want {
		t.Errorf("thread = %s, want %s", got, want)
	}
	if th := w.get("/api/v1/threads").is(200)["threads"].([]any)[0].(obj); th["title"] != "check the disk" {
		t.Errorf("title = %v, want the first message", th["title"])
	}
}

// answersNext waits for the next run, and completes it.
func (w *world) answersNext(result string) obj {
	w.t.Helper()
	runs := w.do("POST", "/api/v1/workers/w/poll", `{"slots":1,"wait":"30s","start":true}`).is(200)["runs"].([]any)
	if len(runs) != 1 {
		w.t.Fatalf("leased %d runs, want 1", len(runs))
	}
	g := runs[0].(obj)
	w.commits(g, fmt.Sprintf(`"messages":[{"role":"assistant","content":%q}],"outcome":{"type":"complete",`+
		`"result":%[1]q}`, result))
	return g
}

func TestChatWithALiveRunIsTakenUpByIt(t *testing.T) {
	w := newWorld(t, setup{})
	first := w.chats(201, `{"message":"count the books"}`)
	g := w.lease("w", `,"start":true`)
	w.commits(g, `"waits":[{"id":"more","type":"message"}]`)

	second := w.chats(200, `{"thread_id":%q,"message":"only the red ones"}`, first["thread_id"])
	if second["run_id"] != first["run_id"] || second["started"] != false {
		t.Errorf("answer = %v, want that the live run %v takes the message up", second, first["run_id"])
	}
	inbox := w.get(fmt.Sprintf("/api/v1/runs/%v/inbox?epoch=%v&after=0", g["run_id"],
		g["epoch"])).is(200)["inbox"].([]any)
	if len(inbox) != 1 || inbox[0].(obj)["data"] != "only the red ones" {
		t.Fatalf("inbox = %v, want the message", inbox)
	}
	w.commits(g, fmt.Sprintf(`"ack":[%v],%s`, inbox[0].(obj)["seq"], complete))
	run := w.get(fmt.Sprintf("%s/%v", runs, g["run_id"])).is(200)
	if run["state"] != "completed" || run["continued_by_run_id"] != nil {
		t.Errorf("run = %v, want it completed and not continued: it took all messages up", run)
	}
}

// A message that comes when the run has looked for the last time gets its answer by a continuation.
func TestMessageThatNobodyTookUpIsAnswered(t *testing.T) {
	w := newWorld(t, setup{})
	first := w.chats(201, `{"message":"count the books"}`)
	g := w.lease("w", `,"start":true`)
	waiting := w.later("POST", chatPath, fmt.Sprintf(`{"thread_id":%q,"message":"only the red ones","wait":"30s"}`,
		first["thread_id"]))
	eventually.True(t, "the message is in the thread", func() bool {
		return strings.Contains(w.said(first["thread_id"]), "red ones")
	})
	w.commits(g, complete)
	next := w.answersNext("seven")
	answer := soon(t, waiting).is(200)
	if answer["answer"] != "seven" || answer["run_id"] != next["run_id"] || next["run_id"] == g["run_id"] {
		t.Errorf("answer = %v, want that of the continuation %v", answer, next["run_id"])
	}
	run := w.get(fmt.Sprintf("%s/%v", runs, g["run_id"])).is(200)
	if run["continued_by_run_id"] != next["run_id"] {
		t.Errorf("continued by %v, want %v", run["continued_by_run_id"], next["run_id"])
	}
	if more := w.do("POST", "/api/v1/workers/w/poll",
		`{"slots":1,"wait":"0s"}`).is(200)["runs"].([]any); len(more) != 0 {
		t.Errorf("leased %v, want nothing: the continuation has seen all messages", more)
	}
}

// A run that reads its thread, instead of waiting for messages, says how far it has read.
func TestChatThatWasReadIsNotContinued(t *testing.T) {
	w := newWorld(t, setup{})
	first := w.chats(201, `{"message":"count the books"}`)
	g := w.lease("w", `,"start":true`)
	w.chats(200, `{"thread_id":%q,"message":"only the red ones"}`, first["thread_id"])
	w.commit(g, `"outcome":{"type":"fail","error":{"code":"a","message":"b"},"read_seq":2}`).refuses(400, "invalid")
	w.commits(g, `"outcome":{"type":"complete","result":"seven","read_seq":2}`)
	run := w.get(fmt.Sprintf("%s/%v", runs, g["run_id"])).is(200)
	if run["state"] != "completed" || run["continued_by_run_id"] != nil {
		t.Errorf("run = %v, want it completed and not continued: it has read both messages", run)
	}
}

func TestCancelledChatIsNotContinued(t *testing.T) {
	w := newWorld(t, setup{})
	first := w.chats(201, `{"message":"count the books"}`)
	g := w.lease("w", `,"start":true`)
	w.chats(200, `{"thread_id":%q,"message":"stop that"}`, first["thread_id"])
	w.do("POST", fmt.Sprintf("%s/%v/cancel", runs, g["run_id"]), "").is(200)
	after := w.chats(201, `{"thread_id":%q,"message":"something else"}`, first["thread_id"])
	if after["run_id"] == g["run_id"] {
		t.Errorf("a run that is being cancelled gets a message, want a new run")
	}
	w.commits(g, `"outcome":{"type":"cancelled"}`)
	if next := w.lease("w", `,"start":true`); next["run_id"] != after["run_id"] {
		t.Errorf("the next run is %v, want %v and no continuation", next["run_id"], after["run_id"])
	}
}

func TestChatIsSaidOncePerKey(t *testing.T) {
	w := newWorld(t, setup{})
	say := func(body string) *answer {
		return w.send(ask{method: "POST", path: chatPath, key: w.key, body: body,
			header: http.Header{"Idempotency-Key": {"k"}}})
	}
	first := say(`{"message":"hello"}`).is(201)
	again := say(`{"message":"hello","wait":"1ms"}`).is(202)
	if again["run_id"] != first["run_id"] || again["thread_id"] != first["thread_id"] ||
		again["status"] != "deferred" || again["message"] == nil {
		t.Errorf("the same call again = %v, want run %v, deferred, with an explanation", again, first["run_id"])
	}
	say(`{"message":"goodbye"}`).refuses(422, "key_reused")
	if got := w.said(first["thread_id"]); got != "user: hello" {
		t.Errorf("thread = %s, want the message once", got)
	}
}

func TestChatStreams(t *testing.T) {
	w := newWorld(t, setup{})
	done := make(chan *answer, 1)
	go func() {
		done <- w.send(ask{method: "POST", path: chatPath, key: w.key, body: `{"message":"hello"}`,
			header: http.Header{"Accept": {"application/json;q=0.5, text/event-stream"}}})
	}()
	w.answersNext("hi")
	a := soon(t, done)
	if a.status != 200 || a.header.Get("Content-Type") != "text/event-stream" ||
		!strings.Contains(string(a.body), "event: stream:end") {
		t.Errorf("answer = %d %s: %s; want the stream of the run until its end", a.status, a.header.Get("Content-Type"),
			a.body)
	}
}

func TestChatRefusesWhatItCannotMean(t *testing.T) {
	w := newWorld(t, setup{})
	first := w.chats(201, `{"message":"hello"}`)
	for _, body := range []string{`{}`, `{"message":null,"thread":1}`, `{"message":"a","wait":"2h"}`,
		`{"message":"a","kind":"no\u0000"}`, `{"message":""}`, `{"message":" \n "}`, `{"message":null}`} {
		w.do("POST", chatPath, "%s", body).refuses(400, "invalid")
	}
	w.do("POST", chatPath, `{"message":"a","thread_id":"none"}`).refuses(404, "not_found")
	w.as(w.newKey("stranger", nil)).do("POST", chatPath, `{"message":"a","thread_id":%q}`,
		first["thread_id"]).refuses(404, "not_found")
	other := w.chats(201, `{"message":"hello","thread_id":%q,"kind":"mine"}`, first["thread_id"])
	if other["run_id"] == first["run_id"] {
		t.Errorf("a message to another kind of agent went to run %v", first["run_id"])
	}
	if got := w.said(first["thread_id"]); got != "user: hello" {
		t.Errorf("thread = %s, want only the first message: the other run waits for its turn", got)
	}
}
