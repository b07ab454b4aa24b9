package httpd

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
)

// Every list can be watched, is sent whole, and sent again when it has changed.
func TestWatchOfOtherLists(t *testing.T) {
	w := newWorld(t, setup{watchdog: true})
	hook := w.do("POST", "/api/v1/webhooks", `{"url":"https://1.1.1.1/x"}`).is(201)["webhook_id"].(string)
	v := w.view(true)
	for _, of := range []string{"workers", "queues", "approvals", "dead_letters"} {
		v.say(`{"type":"watch","id":"%s","of":"%s"}`, of, of)
	}
	v.say(`{"type":"watch","id":"deliveries","of":"deliveries","filter":{"webhook_id":"%s"}}`, hook)
	v.say(`{"type":"watch","id":"webhooks","of":"webhooks"}`)
	v.until(func() bool { return len(v.last) == 6 })
	items := func(of string) []any {
		m := v.last[of]
		if m["type"] != "list" || m["of"] != of {
			t.Fatalf("message of %s = %v, want a list", of, m)
		}
		return m["items"].([]any)
	}
	for of := range v.last {
		if of != "webhooks" && len(items(of)) != 0 {
			t.Errorf("%s = %v, want none yet", of, items(of))
		}
	}
	w.sleeping(`{"kind":"deploy"}`, askPush)
	w.deadLetter()
	w.start(`{"kind":"other","queue":"second"}`)
	v.until(func() bool {
		return len(items("workers")) > 0 && len(items("queues")) == 2 && len(items("approvals")) == 1 &&
			len(items("dead_letters")) == 1 && len(items("deliveries")) > 0
	})
	// They are what the lists of the API have.
	list := w.get("/api/v1/dlq").is(200)["dead_letters"].([]any)
	if !reflect.DeepEqual(list, items("dead_letters")) {
		t.Errorf("dead letters on the socket = %v, want those of the list: %v", items("dead_letters"), list)
	}
	if list = w.get("/api/v1/webhooks").is(200)["webhooks"].([]any); !reflect.DeepEqual(list, items("webhooks")) {
		t.Errorf("webhooks on the socket = %v, want those of the list: %v", items("webhooks"), list)
	}
	// A change that rings no bell is seen as well.
	w.do("PATCH", "/api/v1/webhooks/"+hook, `{"disabled":true}`).is(200)
	v.until(func() bool { return items("webhooks")[0].(obj)["disabled"] == true })
	for _, c := range []struct{ message, code, field string }{
		{`"of":"webhooks","filter":{"webhook_id":"x"}`, "invalid", "filter.webhook_id"},
		{`"of":"watchdog"`, "forbidden", ""},
		{`"of":"workers","filter":{"kind":"x"}`, "invalid", "filter.kind"},
		{`"of":"workers","limit":1000`, "invalid", "limit"},
		{`"of":"workers","ids":["x"]`, "invalid", "ids"},
		{`"of":"deliveries"`, "invalid", "filter.webhook_id"},
		{`"of":"deliveries","filter":{"webhook_id":"wh_none"}`, "not_found", ""},
		{`"of":"deliveries","filter":{"webhook_id":"` + hook + `","state":["odd"]}`, "invalid", "state"},
		{`"of":"approvals","filter":{"state":["open","expired"]}`, "invalid", "filter.state"},
	} {
		delete(v.last, "bad")
		v.say(`{"type":"watch","id":"bad",%s}`, c.message)
		v.until(func() bool { return v.last["bad"] != nil })
		e, _ := v.last["bad"]["error"].(obj)
		if field, _ := e["field"].(string); e["code"] != c.code || field != c.field {
			t.Errorf("%s: answer = %v, want code %s and field %q", c.message, v.last["bad"], c.code, c.field)
		}
	}
}

// Schedules, kinds and conversations arrive over the socket: a pause, an announcement and a message are seen without a
// call.
func TestWatchOfSchedulesKindsAndThreads(t *testing.T) {
	w := newWorld(t, setup{})
	v := w.view(true)
	v.say(`{"type":"watch","id":"schedules","of":"schedules"}`)
	v.say(`{"type":"watch","id":"kinds","of":"kinds"}`)
	v.say(`{"type":"watch","id":"threads","of":"threads","filter":{"children":"false"}}`)
	v.until(func() bool { return len(v.last) == 3 })
	one := func(of string) obj {
		items, _ := v.last[of]["items"].([]any)
		if len(items) != 1 {
			return obj{}
		}
		return items[0].(obj)
	}
	w.do("PUT", "/api/v1/schedules/nightly", `{"cron":"0 2 * * *","kind":"report"}`).is(201)
	w.do("PUT", "/api/v1/kinds/report", `{"description":"Prints","build":"b"}`)
	id := w.do("POST", "/api/v1/threads", `{"metadata":{"title":"A title"}}`).is(201)["thread_id"].(string)
	v.until(func() bool {
		return one("schedules")["name"] == "nightly" && one("kinds")["kind"] == "report" &&
			one("threads")["thread_id"] == id
	})
	w.do("POST", "/api/v1/schedules/nightly/pause", `{}`).is(200)
	w.do("POST", "/api/v1/threads/"+id+"/messages", `{"role":"user","content":"hello"}`).is(201)
	v.until(func() bool {
		said, _ := one("threads")["last_message"].(obj)
		return one("schedules")["state"] == "paused" && said["text"] == "hello"
	})
	list := w.get("/api/v1/schedules").is(200)["schedules"].([]any)
	if !reflect.DeepEqual(list, v.last["schedules"]["items"]) {
		t.Errorf("schedules on the socket = %v, want those of the list: %v", v.last["schedules"]["items"], list)
	}
	v.say(`{"type":"watch","id":"bad","of":"threads","filter":{"children":"some"}}`)
	v.until(func() bool { return v.last["bad"] != nil })
	if e, _ := v.last["bad"]["error"].(obj); e["field"] != "filter.children" {
		t.Errorf("a watch of threads with children:some = %v, want it refused", v.last["bad"])
	}
}

// Limits arrive over the socket: their counts, the runs that hold slots and wait, and the counts of keys.
func TestWatchOfLimits(t *testing.T) {
	w := newWorld(t, setup{})
	v := w.view(true)
	v.say(`{"type":"watch","id":"limits","of":"limits"}`)
	v.say(`{"type":"watch","id":"one","of":"limits","filter":{"name":"openai"}}`)
	v.say(`{"type":"watch","id":"keys","of":"limit_keys","filter":{"name":"openai"}}`)
	v.until(func() bool { return len(v.last) == 3 })
	first := func(of string) obj {
		items, _ := v.last[of]["items"].([]any)
		if len(items) == 0 {
			return obj{}
		}
		return items[0].(obj)
	}
	w.do("PUT", "/api/v1/limits/openai", `{"concurrency":1,"per_key":true}`).is(201)
	v.until(func() bool { return first("limits")["name"] == "openai" && first("one")["name"] == "openai" })
	held := w.start(`{"kind":"job","limits":["openai"],"limit_key":"acme"}`)
	w.start(`{"kind":"job","limits":["openai"],"limit_key":"acme"}`)
	w.do("POST", "/api/v1/workers/w/poll", `{"slots":2,"start":true}`).is(200)
	v.until(func() bool {
		holders, _ := first("one")["holders"].([]any)
		waiters, _ := first("one")["waiters"].([]any)
		return len(holders) == 1 && holders[0].(obj)["run_id"] == held && len(waiters) == 1 &&
			first("keys")["key"] == "acme" && first("keys")["waiting"] == 1.0 && first("limits")["leased"] == 1.0
	})
	if _, ok := first("limits")["holders"]; ok {
		t.Error("the list of limits has holders, want them with a single limit alone")
	}
	w.do("POST", "/api/v1/limits/openai/close", `{"for":"1h","reason":"429"}`).is(200)
	v.until(func() bool { return first("limits")["close_reason"] == "429" })
	w.do("DELETE", "/api/v1/limits/openai", "").is(200)
	v.until(func() bool { return len(first("limits")) == 0 && len(first("one")) == 0 && len(first("keys")) == 0 })
	v.say(`{"type":"watch","id":"bad","of":"limit_keys"}`)
	v.until(func() bool { return v.last["bad"] != nil })
	if e, _ := v.last["bad"]["error"].(obj); e["field"] != "filter.name" {
		t.Errorf("a watch of limit_keys without a name = %v, want it refused", v.last["bad"])
	}
}

// A socket tells why a run waits, and tells it anew when that changes.
func TestWatchOfWhyARunWaits(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"job","queue":"idle"}`)
	v := w.view(false)
	v.say(`{"type":"watch","id":"why","of":"waiting","filter":{"run_id":"%s"}}`, id)
	reason := func() any {
		items, _ := v.last["why"]["items"].([]any)
		if len(items) == 0 {
			return nil
		}
		why, _ := items[0].(obj)["waiting_for"].(obj)
		return why["reason"]
	}
	v.until(func() bool { return reason() == "unserved" })
	w.do("POST", "/api/v1/queues/idle/pause", `{}`).is(200)
	v.until(func() bool { return reason() == "queue_paused" })
	w.do("POST", runs+"/"+id+"/cancel", "").is(200)
	v.until(func() bool { return reason() == nil })
	w.do("DELETE", runs+"/"+id, "").is(200)
	v.until(func() bool { return len(v.last["why"]["items"].([]any)) == 0 })
	v.say(`{"type":"watch","id":"why","of":"waiting"}`)
	v.until(func() bool { return v.last["why"]["error"] != nil })
	if e := v.last["why"]["error"].(obj); e["field"] != "filter.run_id" {
		t.Errorf("a watch without a run = %v, want the field filter.run_id", e)
	}
}

// A socket tells of the newest entries of a journal as they are recorded.
func TestWatchOfAJournal(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	id := g["run_id"].(string)
	v := w.view(false)
	v.say(`{"type":"watch","id":"steps","of":"journal","limit":2,"filter":{"run_id":"%s"}}`, id)
	keys := func() string {
		if v.last["steps"] == nil {
			return "nothing yet"
		}
		var out []string
		for _, e := range v.last["steps"]["items"].([]any) {
			out = append(out, e.(obj)["key"].(string))
		}
		return strings.Join(out, " ")
	}
	v.until(func() bool { return keys() == "" })
	w.commits(g, `"journal":[{"key":"a#1","value":{"ok":1}},{"key":"b#1","value":{"ok":2}}]`)
	v.until(func() bool { return keys() == "a#1 b#1" })
	w.commits(g, `"journal":[{"key":"c#1","value":{"ok":3}}]`)
	v.until(func() bool { return keys() == "b#1 c#1" })
	v.say(`{"type":"watch","id":"none","of":"journal","filter":{"run_id":"%s"}}`,
		"01a1de72-1a8b-7005-ada3-4df62e624af2")
	v.until(func() bool { return v.last["none"] != nil })
	if items := v.last["none"]["items"].([]any); len(items) > 0 {
		t.Errorf("the journal of no run = %v, want none", items)
	}
}

// Webhooks and deliveries need on the socket what their calls need.
func TestWatchOfWebhooksNeedsItsScope(t *testing.T) {
	w := newWorld(t, setup{})
	hook := w.do("POST", "/api/v1/webhooks", `{"url":"https://1.1.1.1/x"}`).is(201)["webhook_id"].(string)
	v := w.as(w.newKey("a", func(op *access.CreateKey) { op.Scopes = []perdure.Scope{perdure.ScopeRead} })).view(false)
	v.say(`{"type":"watch","id":"webhooks","of":"webhooks"}`)
	v.say(`{"type":"watch","id":"deliveries","of":"deliveries","filter":{"webhook_id":"%s"}}`, hook)
	v.until(func() bool { return len(v.last) == 2 })
	for of, m := range v.last {
		if e, _ := m["error"].(obj); e["code"] != "forbidden" {
			t.Errorf("%s with runs:read alone = %v, want forbidden", of, m)
		}
	}
}

// A key of the platform sees one tenant or all of them, and another key does not.
func TestPlatformKeyWatchesAllTenants(t *testing.T) {
	w := newWorld(t, setup{})
	a := w.start(`{"kind":"job"}`)
	other := w.as(w.newKey("b", nil))
	b := other.start(`{"kind":"job"}`)
	v := w.as(w.admin).view(false)
	v.say(`{"type":"watch","id":"all","of":"runs","tenant":"*"}`)
	v.say(`{"type":"watch","id":"n","of":"counts","tenant":"*"}`)
	v.say(`{"type":"watch","id":"b","of":"runs","tenant":"b"}`)
	v.say(`{"type":"watch","id":"log","of":"watchdog"}`)
	v.until(func() bool { return len(v.last) == 4 })
	if got := v.ids("all"); !slices.Equal(got, []string{b, a}) || v.rows["all"][a]["tenant"] != "a" ||
		v.rows["all"][b]["tenant"] != "b" {
		t.Errorf("runs of all tenants = %v, want %s of b and %s of a", v.rows["all"], b, a)
	}
	if got := v.ids("b"); !slices.Equal(got, []string{b}) {
		t.Errorf("runs of b = %v, want %s", got, b)
	}
	if n := v.last["n"]["status"].(obj)["queued"]; n != float64(2) {
		t.Errorf("counts = %v, want 2 queued", v.last["n"])
	}
	other.do("POST", runs+"/"+b+"/cancel", "").is(200)
	v.until(func() bool {
		n := v.last["n"]["status"].(obj)
		return v.status("all", b) == "cancelled" && v.status("b", b) == "cancelled" && n["cancelled"] == float64(1)
	})
	v.say(`{"type":"watch","id":"w","of":"workers","tenant":"*"}`)
	v.until(func() bool { return v.last["w"] != nil })
	if e, _ := v.last["w"]["error"].(obj); e["field"] != "tenant" {
		t.Errorf("workers of all tenants = %v, want an error at tenant", v.last["w"])
	}
}

// Pages over all tenants follow one another without a gap, whichever tenants their runs are of.
func TestPagesOverAllTenants(t *testing.T) {
	w := newWorld(t, setup{})
	tenants := []*world{w, w.as(w.newKey("b", nil)), w.as(w.newKey("c", nil))}
	var ids []string
	for _, i := range []int{0, 1, 1, 2, 0, 2, 2, 0, 1} {
		ids = append(ids, tenants[i].start(`{"kind":"job"}`))
	}
	slices.Reverse(ids)
	v := w.as(w.admin).view(false)
	cursor := ""
	for page, want := range slices.Collect(slices.Chunk(ids, 4)) {
		id := fmt.Sprintf("p%d", page)
		v.say(`{"type":"watch","id":%q,"of":"runs","tenant":"*","limit":4,"cursor":%q}`, id, cursor)
		v.until(func() bool { return v.last[id] != nil })
		if got := v.ids(id); !slices.Equal(got, want) {
			t.Errorf("page %d = %v, want %v", page, got, want)
		}
		cursor, _ = v.last[id]["next_cursor"].(string)
	}
	if cursor != "" {
		t.Errorf("cursor behind the last page = %q, want none", cursor)
	}
}

func TestCountsOfRuns(t *testing.T) {
	w := newWorld(t, setup{})
	for range 3 {
		w.start(`{"kind":"job","metadata":{"team":"red"}}`)
	}
	w.start(`{"kind":"other","queue":"second"}`)
	w.commits(w.lease("w", `,"start":true,"kinds":["job"]`), complete)
	got := w.get("/api/v1/runs/counts").is(200)
	want := obj{"status": obj{"queued": 3.0, "completed": 1.0}, "state": obj{"queued": 3.0, "completed": 1.0},
		"kind":  obj{"job": obj{"queued": 2.0, "completed": 1.0}, "other": obj{"queued": 1.0}},
		"queue": obj{"default": obj{"queued": 2.0, "completed": 1.0}, "second": obj{"queued": 1.0}}, "at_least": false}
	delete(got, "at")
	if !reflect.DeepEqual(want, obj(got)) {
		t.Errorf("counts = %v, want %v", got, want)
	}
	for query, want := range map[string]obj{
		"kind=other":                            {"queued": 1.0},
		"metadata.team=red":                     {"queued": 2.0, "completed": 1.0},
		"status=completed":                      {"completed": 1.0},
		"status=completed,queued&queue=default": {"queued": 2.0, "completed": 1.0},
		"created_after=2999-01-01T00:00:00Z":    {},
	} {
		if got := w.get("/api/v1/runs/counts?" + query).is(200)["status"]; !reflect.DeepEqual(got, any(want)) {
			t.Errorf("%s: counts = %v, want %v", query, got, want)
		}
	}
	w.get("/api/v1/runs/counts?limit=1").refuses(400, "invalid")
	// The number of queues is bounded.
	for i := range 120 {
		w.start(fmt.Sprintf(`{"kind":"job","queue":"q%03d"}`, i))
	}
	v := w.view(false)
	v.say(`{"type":"watch","id":"n","of":"counts"}`)
	v.read()
	if q := v.last["n"]["queue"].(obj); len(q) != 101 || q["other"] == nil {
		t.Errorf("counts have %d queues, want 100 and other", len(q))
	}
}

func TestRunsAreListedBySeveralStatusesAndTimes(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"b"}`)
	running := g["run_id"].(string)
	done := w.running(`{"kind":"c"}`)
	w.commits(done, complete)
	ended := done["run_id"].(string)
	queued := w.start(`{"kind":"a"}`)
	for query, want := range map[string][]string{
		"status=queued,completed":                              {queued, ended},
		"status=queued&status=completed":                       {queued, ended},
		"status=queued&status=completed,failed":                {queued, ended},
		"state=running&status=queued":                          nil,
		"state=running,queued&limit=1":                         {queued},
		"created_after=2000-01-01T00:00:00Z":                   {queued, ended, running},
		"created_before=2000-01-01T00:00:00Z":                  nil,
		"created_after=2999-01-01T00:00:00Z":                   nil,
		"created_before=2999-01-01T00:00:00Z&cursor=" + queued: {ended, running},
	} {
		var got []string
		for _, r := range w.get(runs + "?" + query).is(200)["runs"].([]any) {
			got = append(got, r.(obj)["run_id"].(string))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: runs = %v, want %v", query, got, want)
		}
	}
	for _, query := range []string{"status=queued,odd", "state=deferred", "created_after=yesterday", "kind=a&kind=b"} {
		w.get(runs+"?"+query).refuses(400, "invalid")
	}
}

func TestHistoryCountsMinutes(t *testing.T) {
	w := newWorld(t, setup{})
	v := w.view(false)
	v.say(`{"type":"watch","id":"h","of":"history","filter":{"since":"1h"}}`)
	v.read()
	if n := len(v.last["h"]["items"].([]any)); n != 0 {
		t.Errorf("%d points of a store in which nothing has happened, want none", n)
	}
	w.commits(w.running(`{"kind":"job"}`), complete)
	w.deadLetter()
	id := w.start(`{"kind":"job"}`)
	w.do("POST", runs+"/"+id+"/cancel", "").is(200)
	// Before and after the numbers are stored, and when another node adds to the same minute.
	want := map[string]float64{"created": 3, "completed": 1, "failed": 1, "cancelled": 1, "errors": 1, "dispatched": 2}
	check := func(when string, points []any, times float64) {
		t.Helper()
		sum := map[string]float64{}
		for _, p := range points {
			for name, n := range p.(obj) {
				if n, ok := n.(float64); ok {
					sum[name] += n
				}
			}
		}
		for name, n := range want {
			if sum[name] != n*times {
				t.Errorf("%s: %s = %v, want %v", when, name, sum[name], n*times)
			}
		}
		if len(points) > 2 || sum["dispatch_p99_ms"] <= 0 {
			t.Errorf("%s: points = %v, want one with times of dispatch", when, points)
		}
	}
	get := func(query string) []any { return w.get("/api/v1/history" + query).is(200)["points"].([]any) }
	check("in memory", get(""), 1)
	for range 2 {
		if err := w.e.FlushHistory(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		check("stored", get(""), 1)
	}
	w.commits(w.running(`{"kind":"job"}`), complete)
	w.deadLetter()
	id = w.start(`{"kind":"job"}`)
	w.do("POST", runs+"/"+id+"/cancel", "").is(200)
	check("stored and in memory", get("?since=2h&step=10m"), 2)
	if err := w.e.FlushHistory(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	check("stored twice", get(""), 2)
	v.until(func() bool {
		points := v.last["h"]["items"].([]any)
		n := 0.0
		for _, p := range points {
			n += p.(obj)["created"].(float64)
		}
		return n == 6
	})
	// Another tenant has nothing, and a key of the platform sees all.
	if p := w.as(w.newKey("b", nil)).get("/api/v1/history").is(200)["points"].([]any); len(p) != 0 {
		t.Errorf("history of another tenant = %v, want none", p)
	}
	all := w.as(w.admin).view(false)
	all.say(`{"type":"watch","id":"h","of":"history","tenant":"*"}`)
	all.read()
	check("all tenants", all.last["h"]["items"].([]any), 2)
	for _, query := range []string{"?since=yesterday", "?since=-1h", "?since=1000h", "?step=1s", "?step=90s",
		"?step=48h", "?since=168h&step=1m"} {
		w.get("/api/v1/history"+query).refuses(400, "invalid")
	}
	if n := len(w.get("/api/v1/history?since=168h").is(200)["points"].([]any)); n == 0 {
		t.Error("a week has no points, want those of today")
	}
}
