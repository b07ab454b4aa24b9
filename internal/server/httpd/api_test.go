package httpd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

const runs = "/api/v1/runs"

// ---- starting and waiting

func TestWaitReturnsResult(t *testing.T) {
	w := newWorld(t, setup{})
	call := w.later("POST", runs, `{"kind":"job","input":{"n":1},"wait":"60s"}`)
	g := w.do("POST", "/api/v1/workers/w/poll",
		`{"slots":1,"start":true,"wait":"30s"}`).is(200)["runs"].([]any)[0].(obj)
	w.commits(g, complete)
	run := soon(t, call).is(200)
	if run["run_id"] != g["run_id"] || run["state"] != "completed" || run["status"] != "completed" ||
		run["result"] != "done" || run["message"] != nil {
		t.Errorf("run = %v, want run_id = %v, state = completed, status = completed, result = done, no message",
			run, g["run_id"])
	}
	if ms, _ := run["duration_ms"].(float64); ms != run["elapsed_ms"] {
		t.Errorf("duration %v, elapsed %v", run["duration_ms"], run["elapsed_ms"])
	}
	if types := w.types(g["run_id"].(string)); slices.Contains(types, "run:deferred") {
		t.Errorf("deferred: %v", types)
	}
}

func TestWaitThatTimesOutDefersRun(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.do("POST", "/api/v1/threads", `{}`).is(201)["thread_id"].(string)
	late := w.do("POST", "/api/v1/threads/"+thread+"/runs", `{"kind":"job","wait":"1ms"}`).is(202)
	id := late["run_id"].(string)
	if late["status"] != "deferred" || late["attach_url"] != runs+"/"+id+"/stream" ||
		late["status_url"] != runs+"/"+id || late["message"] == nil {
		t.Errorf("late = %v, want status = deferred, attach_url = %v, status_url = %v, message set",
			late, runs+"/"+id+"/stream", runs+"/"+id)
	}
	run := w.get(runs + "/" + id).is(200)
	if run["status"] != "deferred" || run["state"] != "queued" || run["deferred_at"] == nil || run["epoch"] != 0.0 ||
		run["attempt"] != 1.0 || run["cancel"] != nil {
		t.Errorf("a wait that passed touched the run: %v", run)
	}
	if n := len(w.get(runs + "?status=deferred").is(200)["runs"].([]any)); n != 1 {
		t.Errorf("%d runs are deferred", n)
	}
	told := w.get("/api/v1/threads/" + thread + "/messages").is(200)["messages"].([]any)
	if meta := told[0].(obj)["metadata"].(obj); meta["status"] != "deferred" || meta["run_id"] != id {
		t.Errorf("the thread was told %v", told)
	}

	// A caller that comes back ends the deferral. A second timeout adds nothing to the thread.
	w.do("GET", runs+"/"+id+"/join?timeout=1ms", "").is(202)
	join := w.later("GET", runs+"/"+id+"/join?timeout=60s", "")
	eventually.True(t, "the run is attached again", func() bool {
		return w.get(runs + "/" + id).is(200)["status"] == "queued"
	})
	w.commits(w.lease("w", `,"start":true`), complete)
	if run := soon(t, join).is(200); run["status"] != "completed" || run["result"] != "done" {
		t.Errorf("run = %v, want status = completed, result = done", run)
	}
	types := w.types(id)
	mustContain(t, types, "run:deferred", "run:reattached", "run:completed")
	if n := len(w.get("/api/v1/threads/" + thread + "/messages").is(200)["messages"].([]any)); n != 1 {
		t.Errorf("%d messages", n)
	}
	w.get(runs + "/" + id + "/join?timeout=0").is(200)
}

// A join of a background run is no waiter, so its end does not defer the run.
func TestJoinOfBackgroundRunDefersNothing(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job"}`)
	if a := w.get(runs + "/" + id + "/join?timeout=1ms").is(202); a["status"] != "deferred" || a["message"] == nil {
		t.Errorf("a = %v, want status = deferred, message set", a)
	}
	if run := w.get(runs + "/" + id).is(200); run["status"] != "queued" || run["deferred_at"] != nil {
		t.Errorf("run = %v, want status = queued, no deferred_at", run)
	}
	if run := w.do("POST", runs+"/"+id+"/defer", "").is(200); run["status"] != "deferred" {
		t.Errorf("a detached run is %v", run["status"])
	}
}

func TestManyWaitersGetResult(t *testing.T) {
	w := newWorld(t, setup{})
	var calls []<-chan *answer
	for range 20 {
		c := make(chan *answer, 1)
		go func() {
			c <- w.send(ask{method: "POST", path: runs, key: w.key, body: `{"kind":"job","wait":"60s"}`,
				header: http.Header{"Idempotency-Key": {"one"}}})
		}()
		calls = append(calls, c)
	}
	g := w.do("POST", "/api/v1/workers/w/poll", `{"slots":10,"start":true,"wait":"30s"}`).is(200)["runs"].([]any)
	if len(g) != 1 {
		t.Fatalf("%d runs", len(g))
	}
	w.commits(g[0].(obj), complete)
	for _, c := range calls {
		if run := soon(t, c).is(200); run["run_id"] != g[0].(obj)["run_id"] {
			t.Errorf("run = %v, want run_id = %v", run, g[0].(obj)["run_id"])
		}
	}
}

func TestDroppedConnectionFollowsOnDisconnect(t *testing.T) {
	w := newWorld(t, setup{watchdog: true, policy: func(p *perdure.Policy) { p.DetachGrace = time.Millisecond }})
	for mode, want := range map[string]string{"continue": "deferred", "cancel": "cancelled"} {
		ctx, hangUp := context.WithCancel(context.Background())
		gone := make(chan *answer, 1)
		go func() {
			gone <- w.send(ask{method: "POST", path: runs, key: w.key, ctx: ctx,
				body: fmt.Sprintf(`{"kind":"%s","wait":"60s","on_disconnect":"%s"}`, mode, mode)})
		}()
		var id string
		eventually.True(t, "it is attached", func() bool {
			list := w.get(runs + "?kind=" + mode).is(200)["runs"].([]any)
			if len(list) == 1 {
				id = list[0].(obj)["run_id"].(string)
			}
			return id != "" && w.s.waiters.Count(kernel.Ref{Tenant: "a", Run: perdure.RunID(id)}) == 1
		})
		hangUp()
		soon(t, gone)
		eventually.True(t, mode+" has an effect", func() bool {
			return w.get(runs + "/" + id).is(200)["status"] == want
		})
	}
}

func TestIdempotencyKeyOfSubmission(t *testing.T) {
	w := newWorld(t, setup{})
	post := func(path, key, body string) *answer {
		return w.send(ask{method: "POST", path: path, key: w.key, body: body,
			header: http.Header{"Idempotency-Key": {key}}})
	}
	id := post(runs, "k", `{"kind":"job","input":{"a":1}}`).is(201)["run_id"]
	for _, again := range []struct {
		key, body string
		status    int
	}{
		{"k", `{"kind":"job","input":{"a":1}}`, 200},
		{`"k"`, `{"kind":"job","input":{"a":1}}`, 200},
		{"k", `{"input":{"a":1},"kind":"job","queue":"default"}`, 200}, // the same, otherwise written
		{"k", `{"kind":"job","input":{"a":1},"wait":"1ms"}`, 202},
	} {
		if run := post(runs, again.key, again.body).is(again.status); run["run_id"] != id {
			t.Errorf("%v is another run", again)
		}
	}
	post(runs, "k", `{"kind":"job","input":{"a":2}}`).refuses(422, "key_reused")
	if other := post(runs, "k2", `{"kind":"job","input":{"a":1}}`).is(201)["run_id"]; other == id {
		t.Error("another key, and the same run")
	}

	thread := "/api/v1/threads/" + w.do("POST", "/api/v1/threads", `{}`).is(201)["thread_id"].(string) + "/runs"
	if one, same := post(thread, "t", `{"kind":"chat"}`).is(201),
		post(thread, "t", `{"kind":"chat"}`).is(200); one["run_id"] != same["run_id"] {
		t.Errorf("%v and %v", one, same)
	}
	post(runs, "t", `{"kind":"chat"}`).refuses(422, "key_reused") // not on that thread

	ended := w.running(`{"kind":"job","priority":100}`)
	w.commits(ended, complete)
	path := fmt.Sprintf("%s/%v/retry", runs, ended["run_id"])
	retry := post(path, "r", "").is(201)
	if retry["retry_of_run_id"] != ended["run_id"] || retry["run_id"] == ended["run_id"] {
		t.Errorf("retry = %v, want retry_of_run_id = %v, another run_id than %v", retry, ended["run_id"],
			ended["run_id"])
	}
	if again := post(path, "r", "").is(200); again["run_id"] != retry["run_id"] {
		t.Errorf("again = %v, want run_id = %v", again, retry["run_id"])
	}
	if more := w.do("POST", path, "").is(201); more["run_id"] == retry["run_id"] {
		t.Error("without a key, and the same run")
	}
}

// ---- reading

func TestLists(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.do("POST", "/api/v1/threads", `{}`).is(201)["thread_id"].(string)
	var all []string
	for i := range 7 {
		all = append(all, w.start(fmt.Sprintf(`{"kind":"k%d","queue":"q%d","metadata":{"n":"%d","who":"a%% b&c"}}`, i%2,
			i%3, i)))
	}
	slices.Reverse(all) // newest first
	page := func(query string) (ids []string, next string) {
		t.Helper()
		p := w.get(runs + "?" + query).is(200)
		for _, r := range p["runs"].([]any) {
			ids = append(ids, r.(obj)["run_id"].(string))
		}
		next, _ = p["next_cursor"].(string)
		return ids, next
	}
	var got []string
	for cursor, n := "", 0; n == 0 || cursor != ""; n++ {
		var ids []string
		ids, cursor = page("limit=3&cursor=" + cursor)
		got = append(got, ids...)
		if n > 5 {
			t.Fatal("pages without end")
		}
	}
	if !slices.Equal(got, all) {
		t.Errorf("pages give\n%v, not\n%v", got, all)
	}
	on := w.do("POST", "/api/v1/threads/"+thread+"/runs", `{"kind":"chat","queue":"chat"}`).is(201)
	g := w.lease("w", `,"start":true,"queues":["chat"]`)
	child := w.commits(g, `"children":[{"key":"c","kind":"child",
"queue":"chat"}]`)["children"].([]any)[0].(obj)["run_id"].(string)
	parent := on["run_id"].(string)
	for query, want := range map[string][]string{
		"kind=k0":                              {all[0], all[2], all[4], all[6]},
		"queue=q1":                             {all[2], all[5]},
		"kind=k1&queue=q1":                     {all[5]},
		"metadata.n=3":                         {all[3]},
		"metadata.n=3&metadata.who=a":          nil,
		"metadata.n=3&metadata.who=a%25+b%26c": {all[3]},
		"metadata.who=%25":                     nil,
		"metadata.nn=3":                        nil,
		"state=running":                        {parent},
		"status=running":                       {parent},
		"state=completed":                      nil,
		"thread_id=" + thread:                  {parent},
		"parent_run_id=" + parent:              {child},
		"root_run_id=" + parent:                {child, parent},
		"kind=nobody":                          nil,
	} {
		if ids, _ := page(query); !slices.Equal(ids, want) {
			t.Errorf("%s gives %v, not %v", query, ids, want)
		}
	}
	tree := w.get(runs + "/" + child + "/tree").is(200)["runs"].([]any)
	if len(tree) != 2 || tree[0].(obj)["parent_run_id"] != parent {
		t.Errorf("tree = %v, want 2 entries, [0].parent_run_id = %v", tree, parent)
	}
	workers := w.get("/api/v1/workers").is(200)["workers"].([]any)
	if len(workers) != 1 || workers[0].(obj)["worker_id"] != "w" {
		t.Errorf("workers = %v, want 1 entry, [0].worker_id = w", workers)
	}
	for _, q := range w.get("/api/v1/queues").is(200)["queues"].([]any) {
		if q := q.(obj); q["name"] == "chat" && (q["running"] != 1.0 || q["claimable"] != 1.0) {
			t.Errorf("queue = %v, want 1 running and 1 claimable", q)
		}
	}
	job := w.get("/api/v1/jobs/" + parent + "/status").is(200)
	if job["job_id"] != parent || job["state"] != "running" || job["updated_at"] == nil {
		t.Errorf("job = %v, want job_id = %v, state = running, updated_at set", job, parent)
	}
}

func TestEvents(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job"}`)
	path := runs + "/" + id + "/events"
	first := w.get(path).is(200)
	if first["next_after"] != 1.0 || first["ended"] != false {
		t.Errorf("first = %v, want next_after = 1, ended = false", first)
	}
	// With nothing to look again, what wakes these is the ring of the commit itself.
	var calls []<-chan *answer
	for range 3 {
		calls = append(calls, w.later("GET", path+"?after=1&wait=60s", ""))
	}
	g := w.lease("w", `,"start":true`)
	for _, c := range calls {
		if page := soon(t, c).is(200); page["events"].([]any)[0].(obj)["seq"] != 2.0 {
			t.Errorf("page = %v, want events[0].seq = 2", page)
		}
	}
	w.commits(g, `"events":[{"type":"x:one","data":{"a":1}},{"type":"x:two"},{"type":"run:progress","data":0.5}],`+
		complete)
	var types []string
	after, ended := 0.0, false
	for n := 0; !ended; n++ {
		page := w.get(fmt.Sprintf("%s?after=%v&limit=2", path, after)).is(200)
		for _, e := range page["events"].([]any) {
			if e := e.(obj); e["seq"] != after+1 || e["attempt"] != 1.0 || e["at"] == nil {
				t.Fatalf("after %v comes %v", after, e)
			}
			after++
			types = append(types, e.(obj)["type"].(string))
		}
		if ended, _ = page["ended"].(bool); n > 20 {
			t.Fatal("a log without end")
		}
	}
	mustContain(t, types, "run:created", "x:one", "x:two", "run:progress")
	if types[len(types)-1] != "run:completed" {
		t.Errorf("types of lines = %v, want run:completed last", types)
	}
	if page := w.get(fmt.Sprintf("%s?after=%v&wait=60s", path, after)).is(200); page["ended"] != true {
		t.Errorf("whoever waits for more of an ended log gets %v", page)
	}
}

// ---- controlling

func TestCancel(t *testing.T) {
	w := newWorld(t, setup{})
	queued := w.start(`{"kind":"job"}`)
	if run := w.do("POST", runs+"/"+queued+"/cancel?wait=60s",
		`{"reason":"changed my mind"}`).is(200); run["state"] != "cancelled" ||
		run["cancel"].(obj)["reason"] != "changed my mind" {
		t.Errorf("run = %v, want state = cancelled, cancel.reason = changed my mind", run)
	}
	w.do("POST", runs+"/"+queued+"/cancel", "").is(200)

	g := w.running(`{"kind":"job"}`)
	path := fmt.Sprintf("%s/%v/cancel", runs, g["run_id"])
	if run := w.do("POST", path, "").is(200); run["state"] != "running" || run["cancel"].(obj)["requested_at"] == nil {
		t.Errorf("run = %v, want state = running, cancel.requested_at set", run)
	}
	if run := w.do("POST", path+"?wait=20ms", "").is(202); run["state"] != "running" ||
		run["cancel"].(obj)["stopped_at"] != nil {
		t.Errorf("run = %v, want state = running, no cancel.stopped_at", run)
	}
	call := w.later("POST", path+"?wait=60s", `{}`)
	beat := func(ack string) []any {
		return w.do("POST", "/api/v1/workers/w/heartbeat",
			`{"runs":[{"run_id":"%v","epoch":%v,"activity":"cleaning up","progress":{"left":3}%s}]}`, g["run_id"],
			g["epoch"], ack).is(200)["cancel"].([]any)
	}
	if told := beat(""); len(told) != 1 || told[0].(obj)["run_id"] != g["run_id"] {
		t.Fatalf("the worker is told %v", told)
	}
	w.commit(g, `"waits":[{"id":"w","type":"callback"}],"outcome":{"type":"suspend"}`).refuses(409, "cancel_requested")
	if told := beat(`,"cancel_ack":true`); len(told) != 0 {
		t.Errorf("told again after it was acknowledged: %v", told)
	}
	select {
	case a := <-call:
		t.Fatalf("cancel?wait= did not wait: %s", a.body)
	default:
	}
	w.commits(g, `"outcome":{"type":"cancelled"}`)
	run := soon(t, call).is(200)
	proof := run["cancel"].(obj)
	if run["state"] != "cancelled" || proof["requested_at"] == nil || proof["delivered_at"] == nil ||
		proof["acknowledged_at"] == nil || proof["stopped_at"] == nil {
		t.Errorf("run = %v, want it cancelled, with all four times of the cancel", run)
	}
	if d := w.get(fmt.Sprintf("%s/%v/deliverable", runs, g["run_id"])).is(200); d["kind"] != "fallback" ||
		d["content"] == nil {
		t.Errorf("d = %v, want kind = fallback, content set", d)
	}
	w.do("POST", fmt.Sprintf("%s/%v/defer", runs, g["run_id"]), "").is(200)
}

func TestSignals(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	id := g["run_id"].(string)
	send := func(name, body string) *answer { return w.do("POST", runs+"/"+id+"/signals/"+name, body) }
	send("go", `{"data":{"n":1}}`).is(200) // before anybody waits
	send("other", ``).is(200)
	once := ask{method: "POST", path: runs + "/" + id + "/signals/go", key: w.key, body: `{"data":2}`,
		header: http.Header{"Idempotency-Key": {"s"}}}
	for range 3 {
		w.send(once).is(200)
	}
	once.body = `{"data":3}`
	w.send(once).refuses(422, "key_reused")
	if done := w.commits(g, `"waits":[{"id":"first","type":"signal","name":"go"}],
"outcome":{"type":"suspend"}`); done["state"] != "queued" {
		t.Fatalf("a signal that was there already left it %v", done)
	}
	g = w.lease("w", `,"start":true`)
	inbox := g["inbox"].([]any)
	if len(inbox) != 3 || inbox[0].(obj)["wait_id"] != "first" || inbox[0].(obj)["data"].(obj)["n"] != 1.0 {
		t.Fatalf("inbox = %v, want 3 entries, [0].wait_id = first, [0].data.n = 1", inbox)
	}
	if done := w.commits(g, `"ack":[1,2,3],"waits":[{"id":"slash","type":"signal","name":"a/b"}],`+
		`"outcome":{"type":"suspend"}`); done["state"] != "suspended" {
		t.Fatalf("done = %v, want state = suspended", done)
	}
	if names := fmt.Sprint(send("a", `{}`).is(200)["waiting_for_signals"]); names != "[a/b]" {
		t.Errorf("waiting_for_signals after a signal of another name = %s, want [a/b]", names)
	}
	w.do("PUT", "/api/v1/kinds/job", `{"signals":{"a/b":{"type":"string"}}}`).is(200)
	if p := send("a%2Fb", `{"data":1}`).refuses(422, "signal_invalid"); p["field"] != "data" {
		t.Errorf("signal that does not fit its schema: %v, want the field data", p)
	}
	if sent := send("a%2Fb", `{"data":"in time"}`).is(200); sent["status"] != "queued" ||
		sent["waiting_for_signals"] != nil {
		t.Errorf("sent = %v, want status = queued, and no signal that it waits for", sent)
	}
	g = w.lease("w", `,"start":true`)
	if inbox = g["inbox"].([]any); len(inbox) != 2 || inbox[1].(obj)["data"] != "in time" {
		t.Errorf("inbox = %v, want 2 entries, [1].data = in time", inbox)
	}
	w.commits(g, complete)
	send("go", `{}`).refuses(409, "run_ended")
}

func TestCallbacks(t *testing.T) {
	w := newWorld(t, setup{})
	g, done := w.sleeping(`{"kind":"job"}`, `{"id":"pay","type":"callback"},{"id":"ship","type":"callback"}`)
	token := func(i int) string { return done["callbacks"].([]any)[i].(obj)["token"].(string) }
	use := func(token, body string) *answer {
		return w.send(ask{method: "POST", path: "/api/v1/callbacks/" + token, body: body}) // without a key
	}
	if used := use(token(0), `{"result":{"paid":true}}`).is(200); used["run_id"] != g["run_id"] {
		t.Errorf("used = %v, want run_id = %v", used, g["run_id"])
	}
	use(token(0), `{"result":{"paid":true}}`).is(200)
	use(token(0), `{"result":{"paid":false}}`).refuses(409, "callback_answered")
	use(token(0), `{"error":{"code":"broke"}}`).refuses(409, "callback_answered")
	g = w.lease("w", `,"start":true`)
	inbox := g["inbox"].([]any)
	if len(inbox) != 1 || inbox[0].(obj)["wait_id"] != "pay" ||
		inbox[0].(obj)["data"].(obj)["result"].(obj)["paid"] != true {
		t.Errorf("inbox = %v, want 1 entry, [0].wait_id = pay, [0].data.result.paid = true", inbox)
	}
	w.commits(g, `"ack":[1],"close":["ship"],`+complete)
	use(token(1), `{"error":{"code":"lost","message":"at sea"}}`).refuses(410, "wait_closed")
	use(token(1), `{}`).refuses(410, "wait_closed")
	use(token(0), `{"result":{"paid":true}}`).is(200) // it was taken then
	kept := false
	for _, e := range w.events(g["run_id"].(string)) {
		kept = kept || e["type"] == "wait:closed" && strings.Contains(fmt.Sprint(e["data"]), "at sea")
	}
	if !kept {
		t.Error("what came too late is not in the log")
	}
}

func TestLateResults(t *testing.T) {
	w := newWorld(t, setup{})
	old, held := w.fenced(`{"kind":"job"}`)
	path := fmt.Sprintf("%s/%v", runs, old["run_id"])
	for _, result := range []string{"one", "two"} {
		w.commit(old, `"outcome":{"type":"complete","result":"`+result+`","summary":"s"}`).refuses(409, "stale_epoch")
	}
	list := w.get(path + "/late-results").is(200)["late_results"].([]any)
	if len(list) != 2 || list[0].(obj)["result"] != "one" || list[0].(obj)["state"] != "kept" {
		t.Fatalf("list = %v, want 2 entries, [0].result = one, [0].state = kept", list)
	}
	first := w.get(path + "/late-results?limit=1").is(200)
	rest := w.get(path + "/late-results?limit=1&cursor=1").is(200)
	if first["next_cursor"] != "1" || rest["next_cursor"] != nil || rest["late_results"].([]any)[0].(obj)["n"] != 2.0 {
		t.Errorf("one late result a page: %v, then %v; want the cursor 1, then the second and no cursor", first, rest)
	}
	if run := w.do("POST", path+"/late-results/1/discard", "").is(200); run["state"] != "running" {
		t.Errorf("run = %v, want state = running", run)
	}
	w.do("POST", path+"/late-results/1/adopt", "").refuses(409, "wrong_state")
	if run := w.do("POST", path+"/late-results/2/adopt", "").is(200); run["state"] != "completed" ||
		run["result"] != "two" {
		t.Errorf("run = %v, want state = completed, result = two", run)
	}
	w.commit(held, complete).refuses(409, "stale_epoch")
	if d := w.get(path + "/deliverable").is(200); d["kind"] != "result" || d["content"] != "two" {
		t.Errorf("d = %v, want kind = result, content = two", d)
	}
}

// ---- threads, groups, continuations

func TestThreads(t *testing.T) {
	w := newWorld(t, setup{})
	big := strings.Repeat("x", 20_000) // stored by content, shown in full
	th := w.do("POST", "/api/v1/threads", `{"metadata":{"title":"%s"}}`, big).is(201)
	if th["metadata"].(obj)["title"] != big {
		t.Errorf("metadata is answered as %.100s", fmt.Sprint(th["metadata"]))
	}
	path := "/api/v1/threads/" + th["thread_id"].(string)
	if got := w.get(path).is(200); got["metadata"].(obj)["title"] != big {
		t.Errorf("metadata came back as %.100s", fmt.Sprint(got["metadata"]))
	}
	for i := range 3 {
		if m := w.do("POST", path+"/messages", `{"role":"user","content":{"n":%d,"big":"%s"},"metadata":{"big":"%s"}}`,
			i, big, big).is(201); m["seq"] != float64(i+1) {
			t.Errorf("m = %v, want seq = %v", m, float64(i+1))
		}
	}
	page := w.get(path + "/messages?limit=2").is(200)
	rest := w.get(fmt.Sprintf("%s/messages?after=%v", path, page["next_after"])).is(200)
	if len(page["messages"].([]any)) != 2 || len(rest["messages"].([]any)) != 1 || rest["next_after"] != 3.0 {
		t.Errorf("%v %v", page["next_after"], rest["next_after"])
	}
	m := rest["messages"].([]any)[0].(obj)
	if m["content"].(obj)["big"] != big || m["metadata"].(obj)["big"] != big || m["role"] != "user" {
		t.Errorf("a message came back as %.200s", fmt.Sprint(m))
	}
	first := w.do("POST", path+"/runs", `{"kind":"chat","messages":[{"role":"user","content":"hello"}]}`).is(201)
	second := w.do("POST", path+"/runs", `{"kind":"chat"}`).is(201)
	if got := w.get(path).is(200); got["active_run_id"] != first["run_id"] || got["last_seq"] != 4.0 {
		t.Errorf("got = %v, want active_run_id = %v, last_seq = 4", got, first["run_id"])
	}
	w.do("POST", path+"/runs", `{"kind":"chat","multitask_strategy":"reject"}`).refuses(409, "thread_busy")
	g := w.lease("w", `,"start":true`)
	if g["run_id"] != first["run_id"] || g["thread_id"] != th["thread_id"] {
		t.Fatalf("g = %v, want run_id = %v, thread_id = %v", g, first["run_id"], th["thread_id"])
	}
	w.commits(g, `"messages":[{"role":"assistant","content":"hi"}],`+complete)
	if g := w.lease("w", ""); g["run_id"] != second["run_id"] {
		t.Errorf("next is %v", g["run_id"])
	}
}

func TestGroups(t *testing.T) {
	w := newWorld(t, setup{})
	a, b := w.running(`{"kind":"a"}`), w.running(`{"kind":"b"}`)
	group := w.do("POST", "/api/v1/groups", `{"run_ids":["%v","%v","%v"],"mode":"all"}`, a["run_id"], b["run_id"],
		a["run_id"]).is(201)
	path := "/api/v1/groups/" + group["group_id"].(string)
	if group["total"] != 2.0 || group["state"] != "open" {
		t.Errorf("group = %v, want total = 2, state = open", group)
	}
	w.get(path + "/join?timeout=0s").is(202)
	call := w.later("GET", path+"/join?timeout=60s", "")
	w.commits(a, complete)
	if g := w.get(path).is(200); g["ended"] != 1.0 || g["completed"] != 1.0 || g["state"] != "open" {
		t.Errorf("g = %v, want ended = 1, completed = 1, state = open", g)
	}
	w.commits(b, `"outcome":{"type":"fail","error":{"code":"broke"},"retryable":false}`)
	if g := soon(t, call).is(200); g["state"] != "satisfied" || g["ended"] != 2.0 || g["completed"] != 1.0 {
		t.Errorf("g = %v, want state = satisfied, ended = 2, completed = 1", g)
	}
}

func TestContinue(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.do("POST", "/api/v1/threads", `{}`).is(201)["thread_id"].(string)
	g := w.running(`{"kind":"chat","thread_id":"` + thread + `"}`)
	path := fmt.Sprintf("/api/internal/runs/%v/continue", g["run_id"])
	if c := w.do("POST", path, `{"job_id":"live"}`).is(201); c["continued_by_run_id"] != nil {
		t.Errorf("a live run is continued: %v", c)
	}
	inbox := w.get(fmt.Sprintf("%s/%v/inbox?epoch=%v", runs, g["run_id"], g["epoch"])).is(200)["inbox"].([]any)
	if len(inbox) != 1 || inbox[0].(obj)["type"] != "continue" {
		t.Errorf("inbox = %v, want 1 entry, [0].type = continue", inbox)
	}
	w.commits(g, `"ack":[1],`+complete)
	c := w.do("POST", path, `{"trigger":"ci","job_id":"later","worker_id":"x","status":"ok",
"result_summary":"green"}`).is(201)
	again := w.do("POST", path, `{"job_id":"later"}`).is(200)
	if c["continued_by_run_id"] == nil || c["continued_by_run_id"] != again["continued_by_run_id"] {
		t.Errorf("%v %v", c, again)
	}
}

// ---- keys

func TestKeys(t *testing.T) {
	w := newWorld(t, setup{})
	made := w.do("POST", "/api/v1/keys", `{"name":"reader","scopes":["runs:read","worker:poll"],"ttl":"1h"}`).is(201)
	secret := made["secret"].(string)
	if made["tenant"] != "a" || made["expires_at"] == nil || !strings.HasPrefix(secret, "prd_") {
		t.Errorf("key = %v, want tenant a, expires_at, and a secret with prd_", made)
	}
	reader := w.as(secret)
	reader.get(runs).is(200)
	reader.do("POST", runs, `{"kind":"job"}`).refuses(403, "forbidden")
	reader.get("/api/v1/keys").refuses(403, "forbidden")

	list := w.get("/api/v1/keys")
	if n := len(list.is(200)["keys"].([]any)); n != 2 || contains(list.body, secret) || contains(list.body, "secret") ||
		contains(list.body, "hash") {
		t.Errorf("keys = %s, want 2 without secret or hash", list.body)
	}
	if w.stored(strings.Split(secret, "_")[2]) {
		t.Error("the secret itself is stored")
	}
	admin := w.as(w.newKey("a", func(op *access.CreateKey) { op.Scopes = []perdure.Scope{perdure.ScopeKeys} }))
	admin.do("POST", "/api/v1/keys", `{"name":"more","scopes":["runs:read"]}`).refuses(403, "forbidden")
	admin.do("POST", "/api/v1/keys", `{"name":"same","scopes":["keys:admin"]}`).is(201)
	passing := w.do("POST", "/api/v1/keys", `{"name":"passing","scopes":["keys:admin"],"ttl":"1h"}`).is(201)
	heir := w.as(passing["secret"].(string))
	heir.do("POST", "/api/v1/keys", `{"name":"for ever","scopes":["keys:admin"]}`).refuses(403, "forbidden")
	heir.do("POST", "/api/v1/keys", `{"name":"too long","scopes":["keys:admin"],"ttl":"2h"}`).refuses(403, "forbidden")
	heir.do("POST", "/api/v1/keys", `{"name":"shorter","scopes":["keys:admin"],"ttl":"30m"}`).is(201)

	gone := w.do("DELETE", "/api/v1/keys/"+made["key_id"].(string), "").is(200)
	if gone["revoked_at"] == nil || gone["secret"] != nil {
		t.Errorf("gone = %v, want revoked_at set, no secret", gone)
	}
	reader.get(runs).refuses(401, "unauthorized")
	w.do("DELETE", "/api/v1/keys/"+made["key_id"].(string), "").is(200) // again
	w.do("DELETE", "/api/v1/keys/000000000000", "").refuses(404, "not_found")
}

func TestAdmin(t *testing.T) {
	w := newWorld(t, setup{})
	made := w.as(w.admin).do("POST", "/api/admin/tenants/new/keys",
		`{"name":"first","scopes":["runs:create","runs:read"]}`).is(201)
	if made["tenant"] != "new" || made["platform"] != nil {
		t.Errorf("made = %v, want tenant = new, no platform", made)
	}
	tenant := w.as(made["secret"].(string))
	tenant.start(`{"kind":"job"}`)
	tenant.do("POST", "/api/admin/tenants/other/keys", `{"name":"n","scopes":["runs:read"]}`).refuses(403, "forbidden")
	found := w.as(w.admin).get("/api/admin/invariants").is(200)
	if len(found["violations"].([]any)) != 0 || found["checked"].(float64) < 5 {
		t.Errorf("invariants = %v, want no violation and at least 5 checked", found)
	}
	// A page that shows them all the time does not make the server check them all the time.
	for _, x := range []struct {
		query string
		again bool
	}{{"?recent=true", false}, {"?recent=true", false}, {"?recent=false", true}, {"?recent=true", false}, {"", true}} {
		before := found["checked_at"]
		found = w.as(w.admin).get("/api/admin/invariants" + x.query).is(200)
		if again := found["checked_at"] != before; again != x.again {
			t.Errorf("invariants%s: checked at %v after %v, want another check: %t", x.query, found["checked_at"],
				before, x.again)
		}
	}
	w.as(w.admin).get("/api/admin/invariants?recent=maybe").refuses(400, "invalid")
}

// ---- workers

func TestOneRunWakesOnePoll(t *testing.T) {
	w := newWorld(t, setup{})
	const many = 50
	polls := make(chan *answer, many)
	for i := range many {
		go func() {
			polls <- w.send(ask{method: "POST", path: fmt.Sprintf("/api/v1/workers/w%d/poll", i), key: w.key,
				body: `{"slots":1,"start":true,"wait":"60s"}`})
		}()
	}
	eventually.True(t, "all of them wait", func() bool { return w.s.pollReads.Load() == many })
	for i := range 5 {
		id := w.start(`{"kind":"job"}`)
		got := soon(t, polls).is(200)["runs"].([]any)
		if len(got) != 1 || got[0].(obj)["run_id"] != id {
			t.Fatalf("got = %v, want 1 entry, [0].run_id = %v", got, id)
		}
		// The run was granted together with its submission: no poll looked for it.
		if looks := w.s.pollReads.Load(); looks != many {
			t.Errorf("%d runs had polls look %d times more", i+1, looks-many)
		}
	}
	w.s.Shutdown()
	for range many - 5 {
		if got := soon(t, polls).is(200)["runs"].([]any); len(got) != 0 {
			t.Errorf("got = %v, want 0 entries", got)
		}
	}
}

// Workers of different kinds share a queue. A run wakes only the poll that takes its kind.
func TestRunWakesPollThatTakesItsKind(t *testing.T) {
	w := newWorld(t, setup{})
	const others = 20
	idle := make(chan *answer, others)
	for i := range others {
		go func() {
			idle <- w.send(ask{method: "POST", path: fmt.Sprintf("/api/v1/workers/o%d/poll", i), key: w.key,
				body: `{"slots":1,"kinds":["other"],"wait":"60s"}`})
		}()
	}
	eventually.True(t, "all of them wait", func() bool { return w.s.pollReads.Load() == others })
	large := strings.Repeat("x", 64<<10) // too large to be granted together with its submission
	for i := range int64(5) {
		poll := w.later("POST", "/api/v1/workers/w/poll",
			`{"slots":1,"kinds":["some","job"],"start":true,"wait":"60s"}`)
		eventually.True(t, "it waits", func() bool { return w.s.pollReads.Load() == others+2*i+1 })
		id := w.start(`{"kind":"job","input":"` + large + `"}`)
		got := soon(t, poll).is(200)["runs"].([]any)
		if len(got) != 1 || got[0].(obj)["run_id"] != id {
			t.Fatalf("got = %v, want 1 entry, [0].run_id = %v", got, id)
		}
		if looks := w.s.pollReads.Load(); looks != others+2*i+2 {
			t.Errorf("run %d had polls look %d times", i+1, looks-others-2*i-1)
		}
	}
	w.s.Shutdown()
	for range others {
		soon(t, idle).is(200)
	}
}

// A poll for news is answered when a run that the worker has is asked to stop, and leases nothing.
func TestCancelEndsPollForNews(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job"}`)
	w.do("POST", "/api/v1/workers/w/poll", `{"slots":1,"start":true}`).is(200)
	w.start(`{"kind":"job"}`)
	news := w.later("POST", "/api/v1/workers/w/poll", `{"news":true,"slots":0,"wait":"60s"}`)
	other := w.later("POST", "/api/v1/workers/other/poll", `{"news":true,"slots":0,"wait":"60s"}`)
	eventually.True(t, "both wait", func() bool { return w.s.pollReads.Load() == 3 })
	w.do("POST", "/api/v1/runs/"+id+"/cancel", `{}`).is(200)
	if got := soon(t, news).is(200); got["news"] != true || len(got["runs"].([]any)) != 0 {
		t.Errorf("poll = %v, want news and no runs", got)
	}
	w.s.Shutdown()
	if got := soon(t, other).is(200); got["news"] != nil {
		t.Errorf("got = %v, want no news", got)
	}
	w.do("POST", "/api/v1/workers/w/poll", `{"news":true,"slots":1}`).is(400)
}

// A cancel that came before the poll for news is news, until the worker says that it knows.
func TestCancelBeforePollForNewsIsReported(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job"}`)
	g := w.do("POST", "/api/v1/workers/w/poll", `{"slots":1,"start":true}`).is(200)["runs"].([]any)[0].(obj)
	w.do("POST", "/api/v1/runs/"+id+"/cancel", `{}`).is(200)
	news := func(epoch any, wait string) any {
		return w.do("POST", "/api/v1/workers/w/poll",
			fmt.Sprintf(`{"news":true,"slots":0,"wait":%q,"holding":[{"run_id":%q,"epoch":1},{"run_id":%q,`+
				`"epoch":%v}]}`, wait, "no such run", id, epoch)).is(200)["news"]
	}
	if news(g["epoch"], "60s") != true {
		t.Error("a run that was asked to stop is no news")
	}
	if news(g["epoch"].(float64)+1, "0s") != nil {
		t.Error("a lease that nobody has is news")
	}
	w.do("POST", "/api/v1/workers/w/heartbeat", fmt.Sprintf(`{"runs":[{"run_id":%q,"epoch":%v,"cancel_ack":true}]}`, id,
		g["epoch"])).is(200)
	if news(g["epoch"], "0s") != nil {
		t.Error("what the worker knows is news")
	}
	many := strings.Repeat(`{"run_id":"x","epoch":1},`, perdure.MaxList) + `{"run_id":"x","epoch":1}`
	w.do("POST", "/api/v1/workers/w/poll", `{"news":true,"slots":0,"holding":[`+many+`]}`).is(413)
	w.do("POST", "/api/v1/workers/w/poll", `{"slots":1,"wait":"0s","holding":[{"run_id":"x","epoch":1}]}`).is(400)
}

// The server's own look at the queues finds what no ring told of.
func TestLostRingCostsLatencyOnly(t *testing.T) {
	w := newWorld(t, setup{poll: 5 * time.Millisecond})
	deaf, err := engine.New(w.e.Store(), engine.Options{}) // its bell is heard by nobody
	if err != nil {
		t.Fatal(err)
	}
	poll := w.later("POST", "/api/v1/workers/w/poll", `{"slots":1,"start":true,"wait":"60s"}`)
	eventually.True(t, "it waits", func() bool { return w.s.pollReads.Load() >= 1 })
	op := &life.Submit{Tenant: "a", Submission: perdure.Submission{Kind: "job"}}
	if err := deaf.Do(context.Background(), op); err != nil {
		t.Fatal(err)
	}
	got := soon(t, poll).is(200)["runs"].([]any)
	if len(got) != 1 {
		t.Fatalf("got = %v, want 1 entry", got)
	}
	join := w.later("GET", runs+"/"+string(op.Run.ID)+"/join?timeout=60s", "")
	done := &life.Commit{Tenant: "a", Commit: perdure.Commit{ID: "c", RunID: op.Run.ID, Epoch: 1,
		Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete}}}
	if err := deaf.Do(context.Background(), done); err != nil {
		t.Fatal(err)
	}
	soon(t, join).is(200)
}

func TestPollWithoutWait(t *testing.T) {
	w := newWorld(t, setup{})
	if got := w.do("POST", "/api/v1/workers/w/poll", `{"slots":1,"wait":"0s"}`).is(200); len(got["runs"].([]any)) != 0 {
		t.Errorf("poll = %v, want no runs", got)
	}
	id := w.start(`{"kind":"job","queue":"q","input":[1]}`)
	w.start(`{"kind":"job","queue":"q"}`)
	// A queue and a kind that are named twice grant once.
	got := w.do("POST", "/api/v1/workers/w/poll",
		`{"slots":1,"wait":"0s","queues":["q","r","q"],"kinds":["job","x","job"]}`).is(200)["runs"].([]any)
	if len(got) != 1 {
		t.Fatalf("got = %v, want 1 entry", got)
	}
	g := got[0].(obj)
	if g["run_id"] != id || g["state"] != "dispatched" || g["epoch"] != 1.0 || g["lease_ms"] != 60000.0 ||
		g["tenant"] != nil || g["deadline_at"] == nil {
		t.Errorf("g = %v, want run_id = %v, state = dispatched, epoch = 1, lease_ms = 60000, no tenant, "+
			"deadline_at set",
			g, id)
	}
	got = w.do("POST", "/api/v1/workers/w/poll",
		`{"slots":5,"wait":"0s","queues":["q","q"],"kinds":["job","job"]}`).is(200)["runs"].([]any)
	if len(got) != 1 {
		t.Errorf("got = %v, want 1 entry", got)
	}
	lease := fmt.Sprintf(`{"runs":[{"run_id":"%v","epoch":1}]}`, g["run_id"])
	for range 2 {
		if res := w.do("POST", "/api/v1/workers/w/start", "%s",
			lease).is(200)["results"].([]any)[0].(obj); res["ok"] != true {
			t.Errorf("res = %v, want ok = true", res)
		}
	}
	w.do("POST", "/api/v1/workers/w/heartbeat", `{}`).is(200)
	w.do("POST", "/api/v1/workers/w/release", "%s", lease).is(200)
	w.do("POST", "/api/v1/workers/w/release", "%s", lease).refuses(409, "stale_epoch")
	w.do("POST", "/api/v1/workers/w/start", "%s", lease).refuses(409, "stale_epoch")
	if lost := w.do("POST", "/api/v1/workers/w/heartbeat", "%s", lease).is(200)["lost"].([]any); len(lost) != 1 ||
		lost[0].(obj)["error"].(obj)["code"] != "stale_epoch" {
		t.Errorf("lost = %v, want 1 entry, [0].error.code = stale_epoch", lost)
	}
	if run := w.get(runs + "/" + id).is(200); run["attempt"] != 1.0 {
		t.Errorf("a release cost an attempt: %v", run)
	}
}

func TestCommits(t *testing.T) {
	w := newWorld(t, setup{})
	old, held := w.fenced(`{"kind":"job"}`)
	w.commit(old, complete).refuses(409, "stale_epoch")
	good := w.running(`{"kind":"job"}`)
	entry := func(g obj, id, rest string) string {
		return fmt.Sprintf(`{"commit_id":"%s","run_id":"%v","epoch":%v,%s}`, id, g["run_id"], g["epoch"], rest)
	}
	batch := `{"commits":[` + strings.Join([]string{
		entry(old, "stale", `"events":[{"type":"x:a"}]`),
		entry(good, "one", `"journal":[{"key":"step","value":1}]`),
		entry(good, "bad", `"outcome":{"type":"shrug"}`),
		entry(good, "two", `"children":[{"key":"c","kind":"child"}],"waits":[{"id":"cb","type":"callback"}]`),
		entry(held, "three", complete),
		entry(good, "four", complete),
	}, ",") + `]}`
	first := w.do("POST", "/api/v1/workers/w/commit", "%s", batch)
	var got []string
	for _, r := range first.is(200)["results"].([]any) {
		r := r.(obj)
		word := fmt.Sprint(r["state"])
		if e, ok := r["error"].(obj); ok {
			word = fmt.Sprint(e["code"])
		} else if r["ok"] != true {
			t.Errorf("neither ok nor refused: %v", r)
		}
		got = append(got, word)
	}
	if want := []string{"stale_epoch", "running", "invalid", "running", "completed", "completed"}; !slices.Equal(got,
		want) {
		t.Errorf("%v, not %v", got, want)
	}
	// Sent again, what was taken is answered as the first time, though both runs have ended: children and tokens too.
	again := w.do("POST", "/api/v1/workers/w/commit", "%s", batch).is(200)["results"].([]any)
	if !reflect.DeepEqual(again[1:], first.is(200)["results"].([]any)[1:]) {
		t.Errorf("sent again:\n%s\n%v", first.body, again)
	}
	w.do("POST", "/api/v1/workers/w/commit", `{"commits":[%s]}`,
		entry(good, "one", `"journal":[{"key":"step","value":2}]`)).refuses(422, "key_reused")
}

func TestLongJournalAndInboxArePaged(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	id := g["run_id"].(string)
	big := strings.Repeat("x", 400<<10)
	for i := range 4 {
		w.commits(g, fmt.Sprintf(`"journal":[{"key":"s%d","value":"%s"}]`, i, big))
		w.do("POST", runs+"/"+id+"/signals/s", `{"data":"%s"}`, big).is(200)
	}
	w.do("POST", "/api/v1/workers/w/release", `{"runs":[{"run_id":"%s","epoch":%v}]}`, id, g["epoch"]).is(200)
	g = w.lease("w", `,"start":true`)
	if g["journal_next"] == nil || g["inbox_next"] == nil {
		t.Fatal("a grant of more than 1 MiB")
	}
	for _, part := range []string{"journal", "inbox"} {
		have := g[part].([]any)
		for next, n := g[part+"_next"], 0; next != nil; n++ {
			page := w.get(fmt.Sprintf("%s/%s/%s?epoch=%v&after=%v", runs, id, part, g["epoch"], next)).is(200)
			have, next = append(have, page[part].([]any)...), page[part+"_next"]
			if n > 10 {
				t.Fatal("pages without end")
			}
		}
		if len(have) != 4 {
			t.Errorf("%d of 4 of the %s", len(have), part)
		}
		for i, x := range have {
			if x.(obj)["seq"] != float64(i+1) {
				t.Errorf("%s[%d] has seq %v", part, i, x.(obj)["seq"])
			}
		}
	}
	for _, part := range []string{"journal", "inbox"} {
		page := w.get(fmt.Sprintf("%s/%s/%s?epoch=%v&after=1&limit=1", runs, id, part, g["epoch"])).is(200)
		if list := page[part].([]any); len(list) != 1 || list[0].(obj)["seq"] != 2.0 || page[part+"_next"] != 2.0 {
			t.Errorf("a page of one of the %s ends at %v", part, page[part+"_next"])
		}
	}
	w.get(runs+"/"+id+"/journal?epoch=1").refuses(409, "stale_epoch")
}

func TestPlatformWorkerLeasesForAllTenants(t *testing.T) {
	w := newWorld(t, setup{})
	b := w.as(w.newKey("b", nil))
	p := w.as(w.admin)
	poll := p.later("POST", "/api/v1/workers/p/poll", `{"slots":10,"start":true,"all_tenants":true,"wait":"60s"}`)
	eventually.True(t, "it waits", func() bool { return w.s.pollReads.Load() == 1 })
	id := b.start(`{"kind":"job"}`)
	g := soon(t, poll).is(200)["runs"].([]any)[0].(obj)
	if g["run_id"] != id || g["tenant"] != "b" {
		t.Fatalf("g = %v, want run_id = %v, tenant = b", g, id)
	}
	p.do("POST", "/api/v1/workers/p/heartbeat", `{"runs":[{"run_id":"%s","epoch":1}]}`, id).is(200)
	p.get(runs + "/" + id + "/journal?epoch=1").is(200)
	if done := p.commits(g, complete); done["state"] != "completed" {
		t.Errorf("done = %v, want state = completed", done)
	}
	if run := b.get(runs + "/" + id).is(200); run["result"] != "done" {
		t.Errorf("run = %v, want result = done", run)
	}
	p.get(runs+"/"+id).refuses(404, "not_found")
}

// A poll gets no runs of the tenants that it leaves out: neither those that wait nor those that come.
func TestPollLeavesOutTenants(t *testing.T) {
	w := newWorld(t, setup{})
	b, c := w.as(w.newKey("b", nil)), w.as(w.newKey("c", nil))
	p := w.as(w.admin)
	const poll = "/api/v1/workers/p/poll"
	b.start(`{"kind":"job"}`)
	wants := c.start(`{"kind":"job"}`)
	got := p.do("POST", poll, `{"slots":10,"all_tenants":true,"except_tenants":["b"]}`).is(200)["runs"].([]any)
	if len(got) != 1 || got[0].(obj)["run_id"] != wants {
		t.Errorf("runs = %v, want that of c", got)
	}
	later := p.later("POST", poll, `{"slots":10,"all_tenants":true,"except_tenants":["b"],"wait":"60s"}`)
	eventually.True(t, "it waits", func() bool { return w.s.pollReads.Load() > 1 })
	b.start(`{"kind":"job"}`)
	wants = c.start(`{"kind":"job"}`)
	if got := soon(t, later).is(200)["runs"].([]any); len(got) != 1 || got[0].(obj)["run_id"] != wants {
		t.Errorf("runs of the poll that waited = %v, want that of c", got)
	}
	if got := p.do("POST", poll, `{"slots":10,"all_tenants":true}`).is(200)["runs"].([]any); len(got) != 2 {
		t.Errorf("runs = %v, want the two of b", got)
	}
	for _, body := range []string{`{"slots":1,"except_tenants":["b"]}`,
		`{"slots":1,"all_tenants":true,"except_tenants":["\u0000"]}`} {
		p.do("POST", poll, body).refuses(400, "invalid")
	}
}

// ---- going away

// A worker that stops hangs up while its poll waits. A run that comes at that moment may still be
// leased for it, and is then handed back at once: another worker gets it without waiting for the end
// of a lease.
func TestPollOfWorkerThatHungUpHandsBack(t *testing.T) {
	w := newWorld(t, setup{})
	for range 40 {
		ctx, hangUp := context.WithCancel(t.Context())
		before, gone := w.s.pollReads.Load(), make(chan *answer, 1)
		go func() {
			gone <- w.send(ask{method: "POST", path: "/api/v1/workers/stops/poll", key: w.key, ctx: ctx,
				body: `{"slots":1,"wait":"60s"}`})
		}()
		eventually.True(t, "the poll waits", func() bool { return w.s.pollReads.Load() > before })
		hangUp()
		id := w.start(`{"kind":"job"}`)
		polled := w.do("POST", "/api/v1/workers/stays/poll", `{"slots":1,"wait":"10s","start":true}`).is(200)
		got := polled["runs"].([]any)
		if len(got) != 1 || got[0].(obj)["run_id"] != id {
			t.Fatalf("runs = %v, want %s, which a worker that hung up does not have", got, id)
		}
		w.commits(got[0].(obj), `"outcome":{"type":"complete"}`)
		soon(t, gone)
	}
}

func TestShutdownAnswersBlockedCalls(t *testing.T) {
	ready := errors.New("warming up")
	w := newWorld(t, setup{ready: func() error { return ready }})
	if h := w.send(ask{method: "GET", path: "/readyz"}).is(503); h["detail"] != "warming up" {
		t.Errorf("h = %v, want detail = warming up", h)
	}
	ready = nil
	w.send(ask{method: "GET", path: "/readyz"}).is(200)
	g := w.running(`{"kind":"job"}`)
	group := w.do("POST", "/api/v1/groups", `{"run_ids":["%v"]}`, g["run_id"]).is(201)["group_id"]
	seq := len(w.events(g["run_id"].(string)))
	calls := map[string]<-chan *answer{
		"202 start":  w.later("POST", runs, `{"kind":"other","queue":"nobody","wait":"1h"}`),
		"202 join":   w.later("GET", fmt.Sprintf("%s/%v/join?timeout=1h", runs, g["run_id"]), ""),
		"202 group":  w.later("GET", fmt.Sprintf("/api/v1/groups/%v/join?timeout=1h", group), ""),
		"200 events": w.later("GET", fmt.Sprintf("%s/%v/events?after=%d&wait=60s", runs, g["run_id"], seq), ""),
		"202 cancel": w.later("POST", fmt.Sprintf("%s/%v/cancel?wait=1h", runs,
			w.running(`{"kind":"third"}`)["run_id"]), ""),
		"200 poll": w.later("POST", "/api/v1/workers/w9/poll", `{"slots":1,"wait":"60s"}`),
	}
	before := w.get(fmt.Sprintf("%s/%v", runs, g["run_id"])).is(200)
	w.s.Shutdown()
	w.s.Shutdown() // twice is once
	for what, c := range calls {
		if a := soon(t, c); fmt.Sprint(a.status) != what[:3] {
			t.Errorf("%s: %d %s", what, a.status, a.body)
		}
	}
	after := w.get(fmt.Sprintf("%s/%v", runs, g["run_id"])).is(200)
	if after["state"] != "running" || after["epoch"] != before["epoch"] || after["last_seq"] != before["last_seq"] {
		t.Errorf("a shutdown touched a run: %v, then %v", before, after)
	}
	w.send(ask{method: "GET", path: "/readyz"}).is(503)
	w.send(ask{method: "GET", path: "/healthz"}).is(200)
	w.commits(g, complete) // what is reported while the server goes away is taken
}
