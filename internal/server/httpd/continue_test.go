package httpd

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

// ---- on a thread

func (w *world) thread() string {
	w.t.Helper()
	return w.do("POST", "/api/v1/threads", `{}`).is(201)["thread_id"].(string)
}

func (w *world) messages(thread string) (out []obj) {
	w.t.Helper()
	for _, m := range w.get("/api/v1/threads/" + thread + "/messages?limit=1000").is(200)["messages"].([]any) {
		out = append(out, m.(obj))
	}
	return out
}

func (w *world) run(id any) obj {
	w.t.Helper()
	return w.get(fmt.Sprint(runs, "/", id)).is(200)
}

// take leases the one run of a kind that there is, begun.
func (w *world) take(kind string) obj {
	w.t.Helper()
	return w.lease("w", `,"start":true,"kinds":["`+kind+`"]`)
}

// continued lists the runs that continue one, oldest first.
func (w *world) continued(id any) (out []obj) {
	w.t.Helper()
	for _, r := range w.get(fmt.Sprint(runs, "/", id, "/tree?limit=1000")).is(200)["runs"].([]any) {
		if r := r.(obj); r["continuation_of_run_id"] == id {
			out = append(out, r)
		}
	}
	slices.Reverse(out)
	return out
}

// boss starts a run on a thread and has it spawn children, which are k0, k1, … of kind "kid".
func (w *world) boss(thread string, n int) (g obj, kids []string) {
	w.t.Helper()
	w.do("POST", "/api/v1/threads/"+thread+"/runs", `{"kind":"boss","timeout":"1h","metadata":{"who":"ann"}}`).is(201)
	g = w.take("boss")
	if n == 0 {
		return g, nil
	}
	var spawns []string
	for i := range n {
		spawns = append(spawns, fmt.Sprintf(`{"key":"k%d","kind":"kid"}`, i))
	}
	for _, c := range w.commits(g, `"children":[`+strings.Join(spawns, ",")+`]`)["children"].([]any) {
		kids = append(kids, c.(obj)["run_id"].(string))
	}
	return g, kids
}

const broken = `"outcome":{"type":"fail","error":{"code":"broke","message":"it broke"},"retryable":false}`

func TestTurnIsContinuedWhenChildrenHaveEnded(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.thread()
	boss, kids := w.boss(thread, 4)
	first, second := w.take("kid"), w.take("kid")
	// before its parent's turn ends
	w.commits(first, `"outcome":{"type":"complete","result":{"disk":"45%"},"summary":"fine"}`)
	done := w.commits(boss, fmt.Sprintf(`"messages":[{"role":"assistant","content":"I'll tell you"}],
		"outcome":{"type":"complete","result":"later","continue_on":["k3","%s","k1","k0",
"%s"]}`, kids[2], kids[0])) // by key and id, one twice
	if done["state"] != "completed" {
		t.Fatalf("done = %v, want state = completed", done)
	}
	w.do("POST", "/api/v1/threads/"+thread+"/runs", `{"kind":"chat"}`).is(201)
	chat := w.take("chat") // the thread goes on meanwhile
	w.do("POST", "/api/v1/threads/"+thread+"/runs", `{"kind":"chat"}`).is(201)
	w.commits(second, broken)
	w.do("POST", runs+"/"+kids[3]+"/cancel", `{"reason":"not needed"}`).is(200)
	if more := w.continued(boss["run_id"]); len(more) != 0 || w.run(boss["run_id"])["continued_by_run_id"] != nil {
		t.Fatalf("continued before the last had ended: %v", more)
	}
	w.commits(w.take("kid"), complete)

	orig := w.run(boss["run_id"])
	more := w.continued(boss["run_id"])
	if len(more) != 1 {
		t.Fatalf("%d continuations", len(more))
	}
	c := more[0]
	if c["run_id"] != orig["continued_by_run_id"] || c["parent_run_id"] != nil ||
		c["root_run_id"] != orig["root_run_id"] || c["thread_id"] != thread ||
		c["kind"] != "boss" || c["metadata"].(obj)["who"] != "ann" || c["state"] != "queued" {
		t.Errorf("continuation = %v, want it queued with the kind and metadata of its run", c)
	}
	input := w.run(c["run_id"])["input"].(obj)
	if input["trigger"] != "chord" || input["continuation_of_run_id"] != boss["run_id"] {
		t.Errorf("it is told %v", input)
	}
	if n := len(w.get(fmt.Sprint(runs, "/", c["run_id"], "/tree")).is(200)["runs"].([]any)); n != 6 {
		t.Errorf("%d runs in the tree, not six", n)
	}
	life := func(r obj) time.Duration {
		from, _ := time.Parse(time.RFC3339, r["created_at"].(string))
		to, _ := time.Parse(time.RFC3339, r["deadline_at"].(string))
		return to.Sub(from)
	}
	if life(c) != time.Hour {
		t.Errorf("its deadline lies %s ahead", life(c))
	}

	// The results stand in the order in which they were named, whichever ended first.
	var told []string
	for _, m := range w.messages(thread) {
		if m["role"] != "tool" {
			continue
		}
		content, meta := m["content"].(obj), m["metadata"].(obj)
		if m["run_id"] != boss["run_id"] || meta["run_id"] != content["run_id"] || meta["status"] != content["status"] {
			t.Errorf("message = %v, want run and status equal in content and metadata", m)
		}
		told = append(told, fmt.Sprint(content["key"], " ", content["status"], " ", content["result"]))
		if content["key"] == "k1" && content["error"].(obj)["message"] != "it broke" {
			t.Errorf("message = %v, want error message \"it broke\" for k1", content)
		}
	}
	if want := []string{"k3 cancelled <nil>", "k2 completed done", "k1 failed <nil>",
		"k0 completed map[disk:45%]"}; !slices.Equal(told, want) {
		t.Errorf("the thread was told %q, not %q", told, want)
	}
	types := w.types(fmt.Sprint(boss["run_id"]))
	if n := countOf(types, "run:continued"); n != 1 {
		t.Errorf("types of lines = %v, want run:continued once", types)
	}

	// It goes before the run that waited longer.
	w.commits(chat, complete)
	g := w.lease("w", `,"start":true`)
	if g["run_id"] != c["run_id"] {
		t.Errorf("%v is next on the thread", g["kind"])
	}
	w.commits(g, complete)
	if g := w.lease("w", `,"start":true`); g["kind"] != "chat" {
		t.Errorf("g = %v, want kind = chat", g)
	}
}

func countOf(list []string, s string) (n int) {
	for _, x := range list {
		if x == s {
			n++
		}
	}
	return n
}

func TestTurnWithEndedChildrenIsContinuedAtOnce(t *testing.T) {
	w := newWorld(t, setup{})
	boss, kids := w.boss(w.thread(), 2)
	for range kids {
		w.commits(w.take("kid"), complete)
	}
	w.commits(boss, `"outcome":{"type":"complete","continue_on":["k0","`+kids[1]+`"]}`)
	if more := w.continued(boss["run_id"]); len(more) != 1 || w.take("boss")["run_id"] != more[0]["run_id"] {
		t.Errorf("continuations = %v, want 1 that can be leased", more)
	}
	// The end is the last line but for what has come of it.
	if types := w.types(fmt.Sprint(boss["run_id"])); types[len(types)-1] != "run:completed" {
		t.Errorf("types of lines = %v, want run:completed last", types)
	}
}

func TestInvalidContinuationsOfTurnAreRefused(t *testing.T) {
	w := newWorld(t, setup{})
	boss, _ := w.boss(w.thread(), 1)
	_, other := w.boss(w.thread(), 1)
	for on, field := range map[string]string{`"nobody"`: "commits[0].outcome.continue_on",
		`"` + other[0] + `"`:              "commits[0].outcome.continue_on",
		fmt.Sprintf("%q", boss["run_id"]): "commits[0].outcome.continue_on"} {
		if p := w.commit(boss, `"outcome":{"type":"complete","continue_on":[`+on+`]}`).refuses(400,
			"invalid"); p["field"] != field {
			t.Errorf("%s: %v", on, p)
		}
	}
	task := w.running(`{"kind":"task","priority":100}`)
	w.commit(task, `"children":[{"key":"k","kind":"kid"}],"outcome":{"type":"complete",
"continue_on":["k"]}`).refuses(400, "invalid")
	if run := w.run(boss["run_id"]); run["state"] != "running" {
		t.Errorf("run = %v, want state = running", run)
	}
}

func TestCancelOfEndedTurnDropsContinuation(t *testing.T) {
	w := newWorld(t, setup{})
	boss, kids := w.boss(w.thread(), 2)
	held := w.take("kid")
	w.commits(boss, `"outcome":{"type":"complete","continue_on":["k0","k1"]}`)
	if run := w.do("POST", fmt.Sprint(runs, "/", boss["run_id"], "/cancel"), "").is(200); run["state"] != "completed" {
		t.Errorf("run = %v, want state = completed", run)
	}
	if run := w.run(kids[1]); run["state"] != "cancelled" {
		t.Errorf("run = %v, want state = cancelled", run)
	}
	w.commits(held, complete)
	if more := w.continued(boss["run_id"]); len(more) != 0 {
		t.Errorf("more = %v, want 0 entries", more)
	}
}

// ---- work outside

func (w *world) outside(id any, body string) *answer {
	w.t.Helper()
	return w.do("POST", fmt.Sprint("/api/internal/runs/", id, "/continue"), body)
}

func TestExternalWorkContinuesEndedRunOncePerJob(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.thread()
	boss, _ := w.boss(thread, 0)
	w.commits(boss, complete)
	body := `{"trigger":"ci","job_id":"build 7","worker_id":"runner-3","status":"success","result_summary":"green"}`
	one := w.outside(boss["run_id"], body).is(201)
	for range 3 {
		if again := w.outside(boss["run_id"],
			body).is(200); again["continued_by_run_id"] != one["continued_by_run_id"] ||
			again["run_id"] != boss["run_id"] {
			t.Errorf("%v and %v", one, again)
		}
	}
	two := w.outside(boss["run_id"], `{"job_id":"build 8"}`).is(201)
	if again := w.outside(boss["run_id"], body).is(200); again["continued_by_run_id"] != one["continued_by_run_id"] {
		t.Errorf("after another job the first one's continuation is %v", again)
	}
	more := w.continued(boss["run_id"])
	if len(more) != 2 || more[0]["run_id"] != one["continued_by_run_id"] ||
		more[1]["run_id"] != two["continued_by_run_id"] {
		t.Errorf("more = %v, want 2 entries, [0].run_id = %v, [1].run_id = %v",
			more, one["continued_by_run_id"], two["continued_by_run_id"])
	}
	said := w.messages(thread)
	if c := said[0]["content"].(obj); len(said) != 2 || said[0]["role"] != "tool" || c["job_id"] != "build 7" ||
		c["worker_id"] != "runner-3" || c["status"] != "success" ||
		c["result_summary"] != "green" || c["trigger"] != "ci" || said[0]["metadata"].(obj)["outside"] != true {
		t.Errorf("messages = %v, want the report of the job, marked as outside", said)
	}
	if input := w.run(more[0]["run_id"])["input"].(obj); input["trigger"] != "external" {
		t.Errorf("input = %v, want trigger = external", input)
	}
}

// A report that a live run does not acknowledge goes to the continuation that its end makes. A
// repeated report is answered with that continuation, whatever continues the run later.
func TestExternalWorkThatEndsDuringRun(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.thread()
	boss, kids := w.boss(thread, 1)
	id := boss["run_id"]
	for _, job := range []string{"heard", "unheard"} {
		if c := w.outside(id, `{"job_id":"`+job+`"}`).is(201); c["continued_by_run_id"] != nil {
			t.Errorf("c = %v, want no continued_by_run_id", c)
		}
		w.outside(id, `{"job_id":"`+job+`"}`).is(200)
	}
	inbox := w.get(fmt.Sprint(runs, "/", id, "/inbox?epoch=", boss["epoch"])).is(200)["inbox"].([]any)
	if len(inbox) != 2 || inbox[0].(obj)["type"] != "continue" || inbox[0].(obj)["name"] != "heard" {
		t.Fatalf("inbox = %v, want 2 entries, [0].type = continue, [0].name = heard", inbox)
	}
	w.commits(boss, `"ack":[1],"outcome":{"type":"complete","continue_on":["k0"]}`)
	unheard := w.continued(id)
	if len(unheard) != 1 {
		t.Fatalf("unheard = %v, want 1 entry", unheard)
	}
	w.commits(w.take("kid"), complete)
	all := w.continued(id)
	if len(all) != 2 || kids[0] == "" || w.run(id)["continued_by_run_id"] != all[1]["run_id"] {
		t.Fatalf("continuations = %v, want 2, the second one linked from the run", all)
	}
	if c := w.outside(id, `{"job_id":"unheard"}`).is(200); c["continued_by_run_id"] != unheard[0]["run_id"] {
		t.Errorf("what was not heard is continued by %v, and that is said to be %v", unheard[0]["run_id"], c)
	}
	if c := w.outside(id, `{"job_id":"heard"}`).is(200); c["continued_by_run_id"] != nil {
		t.Errorf("what was heard is continued: %v", c)
	}
	if n := len(w.messages(thread)); n != 2 { // one of what was not heard, one of the child
		t.Errorf("%d messages: %v", n, w.messages(thread))
	}
}

func TestExternalWorkContinuesFailedRun(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.thread()
	boss, _ := w.boss(thread, 0)
	w.outside(boss["run_id"], `{"job_id":"j","result_summary":"green"}`).is(201)
	w.commits(boss, broken)
	more := w.continued(boss["run_id"])
	if len(more) != 1 || more[0]["state"] != "queued" {
		t.Fatalf("more = %v, want 1 entry, [0].state = queued", more)
	}
	if g := w.take("boss"); g["run_id"] != more[0]["run_id"] {
		t.Errorf("g = %v, want run_id = %v", g, more[0]["run_id"])
	}
	var roles []string
	for _, m := range w.messages(thread) {
		roles = append(roles, m["role"].(string))
	}
	if !slices.Equal(roles, []string{"tool", "system"}) {
		t.Errorf("roles = %v, want %v", roles, []string{"tool", "system"})
	}
}

func TestInvalidContinuationsAreRefused(t *testing.T) {
	w := newWorld(t, setup{})
	boss, _ := w.boss(w.thread(), 0)
	for body, field := range map[string]string{
		`{}`: "job_id", `{"job_id":""}`: "job_id", `{"job_id":" x"}`: "job_id", `{"job_id":"x","colour":1}`: "colour",
		`{"job_id":7}`: "job_id",
		`{"job_id":"` + strings.Repeat("x", 201) + `"}`: "job_id",
	} {
		if p := w.outside(boss["run_id"], body).refuses(400, "invalid"); p["field"] != field {
			t.Errorf("%.60s: %v", body, p)
		}
	}
	w.outside(boss["run_id"], `{"job_id":"x","result_summary":"`+strings.Repeat("x", 5000)+`"}`).refuses(413,
		"too_large")
	w.outside("nobody", `{"job_id":"x"}`).refuses(404, "not_found")
	w.as(w.newKey("b", nil)).outside(boss["run_id"], `{"job_id":"x"}`).refuses(404, "not_found")
	task := w.start(`{"kind":"task"}`)
	w.outside(task, `{"job_id":"x"}`).refuses(400, "invalid")
	w.commits(boss, complete)
	if more := w.continued(boss["run_id"]); len(more) != 0 {
		t.Errorf("more = %v, want 0 entries", more)
	}
}

// ---- who goes first on a thread

func TestMultitaskStrategiesWithContinuation(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.thread()
	path := "/api/v1/threads/" + thread + "/runs"
	boss, _ := w.boss(thread, 1)
	w.commits(boss, `"outcome":{"type":"complete","continue_on":["k0"]}`)
	active := w.do("POST", path, `{"kind":"active"}`).is(201)
	g := w.take("active")
	w.do("POST", path, `{"kind":"waiting"}`).is(201)
	w.commits(w.take("kid"), complete)
	w.do("POST", path, `{"kind":"no","multitask_strategy":"reject"}`).refuses(409, "thread_busy")
	w.do("POST", path, `{"kind":"urgent","multitask_strategy":"interrupt","messages":[{"role":"user",`+
		`"content":"stop"}]}`).is(201)
	if run := w.run(active["run_id"]); run["cancel"] == nil {
		t.Errorf("the active run is not asked to stop: %v", run)
	}
	w.commits(g, `"outcome":{"type":"cancelled"}`)
	var order []string
	for range 3 {
		g := w.lease("w", `,"start":true`)
		order = append(order, g["kind"].(string))
		w.commits(g, complete)
	}
	if !slices.Equal(order, []string{"urgent", "boss", "waiting"}) {
		t.Errorf("order = %v, want %v", order, []string{"urgent", "boss", "waiting"})
	}
	w.do("POST", path, `{"kind":"free","multitask_strategy":"reject"}`).is(201)
}

// ---- ends that people can read

func TestEveryEndIsWrittenToThread(t *testing.T) {
	w := newWorld(t, setup{watchdog: true})
	for _, c := range []struct {
		name, body string
		end        func(g obj)
		status     string
		code       string
		says       string
	}{
		{"fails", `{"kind":"k"}`, func(g obj) { w.commits(g, broken) }, "failed", "broke", "This run failed: it broke"},
		{"is out of time", `{"kind":"k","timeout":"30ms"}`, func(obj) {}, "timeout", "deadline_exceeded",
			"This run ran out of time"},
		{"is cancelled", `{"kind":"k"}`, func(g obj) {
			w.do("POST", fmt.Sprint(runs, "/", g["run_id"], "/cancel"), `{"reason":"changed my mind"}`).is(200)
			w.commits(g, `"outcome":{"type":"cancelled"}`)
		}, "cancelled", "cancelled", "This run was cancelled: changed my mind"},
		{"was deferred and fails", `{"kind":"k","wait":"1ms"}`, func(g obj) {
			w.commits(g, broken)
		}, "failed", "broke", "This run failed: it broke"},
	} {
		thread := w.thread()
		if a := w.do("POST", "/api/v1/threads/"+thread+"/runs", c.body); a.status != http.StatusCreated &&
			a.status != http.StatusAccepted {
			t.Fatalf("%s: %d", c.name, a.status)
		}
		g := w.lease("w", `,"start":true`)
		c.end(g)
		eventually.True(t, "it has ended", func() bool { return w.run(g["run_id"])["finished_at"] != nil })
		said := w.messages(thread)
		last := said[len(said)-1]
		meta := last["metadata"].(obj)
		if text, _ := last["content"].(string); !strings.HasPrefix(text, c.says) || last["role"] != "system" ||
			meta["notice"] != true || meta["status"] != c.status || meta["code"] != c.code ||
			meta["run_id"] != g["run_id"] || meta["deliverable_id"] == nil {
			t.Errorf("a run that %s says %v", c.name, last)
		}
		if len(said) > 1 && said[0]["metadata"].(obj)["status"] != "deferred" || len(said) > 2 {
			t.Errorf("a run that %s: %v", c.name, said)
		}
	}
}
