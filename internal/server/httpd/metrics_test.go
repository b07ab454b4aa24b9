package httpd

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// scrape gives the samples of /metrics: a name with its labels, and its value.
func (w *world) scrape() map[string]float64 {
	w.t.Helper()
	a := w.as(w.admin).get("/metrics")
	if a.status != 200 || !strings.HasPrefix(a.header.Get("Content-Type"), "text/plain") {
		w.t.Fatalf("%d %v", a.status, a.header)
	}
	out := make(map[string]float64)
	for lines := bufio.NewScanner(strings.NewReader(string(a.body))); lines.Scan(); {
		if line := lines.Text(); !strings.HasPrefix(line, "#") {
			at := strings.LastIndexByte(line, ' ')
			v, err := strconv.ParseFloat(line[at+1:], 64)
			if err != nil {
				w.t.Fatalf("%s: %v", line, err)
			}
			out[line[:at]] = v
		}
	}
	return out
}

func TestMetricsTakePlatformKey(t *testing.T) {
	w := newWorld(t, setup{})
	w.get("/metrics").refuses(403, "forbidden")
	w.as(w.admin).get("/metrics?run_id=1").refuses(400, "invalid")
	first := w.scrape()
	if n := len(first); n < 100 {
		t.Errorf("%d samples", n)
	}
	// there before the first letter
	for _, cause := range []string{"attempts_exhausted", "dispatch_timeout", "rejected", "signature_invalid",
		"heartbeat_lost", "damaged"} {
		for _, name := range []string{"perdure_dead_letters", "perdure_dead_letters_total"} {
			if n, ok := first[fmt.Sprintf("%s{cause=%q}", name, cause)]; !ok || n != 0 {
				t.Errorf("%s of %s: %v %v", name, cause, n, ok)
			}
		}
	}
	none := newWorld(t, setup{options: func(o *Options) { o.Metrics = nil }})
	none.as(none.admin).get("/metrics").refuses(404, "not_found")
}

// Each call changes its metrics. Counters change when the event is durable, so that the test need not wait.
func TestEachMetricCountsItsEvent(t *testing.T) {
	// The clock is set by the test, so that a busy machine loses no lease and no worker.
	var now atomic.Int64
	now.Store(1e15)
	pass := func(d time.Duration) { now.Add(d.Microseconds()) }
	rows := []struct {
		name   string
		do     func(w *world)
		counts map[string]float64 // by how much these rise
	}{
		{"a run completes", func(w *world) { w.commits(w.running(`{"kind":"job"}`), complete) },
			map[string]float64{"perdure_runs_created_total": 1, `perdure_runs_ended_total{state="completed"}`: 1,
				`perdure_run_duration_seconds_count{state="completed"}`: 1,
				`perdure_runs_ended_total{state="failed"}`:              0, `perdure_cancel_seconds_count`: 0}},
		{"a run is rejected", func(w *world) {
			w.commits(w.running(`{"kind":"job"}`), `"outcome":{"type":"reject","reason":"no"}`)
		}, map[string]float64{`perdure_dead_letters_total{cause="rejected"}`: 1,
			`perdure_runs_ended_total{state="failed"}`: 1}},
		{"a run is cancelled", func(w *world) {
			id := w.start(`{"kind":"never"}`)
			w.do("POST", "/api/v1/runs/"+id+"/cancel", `{}`).is(200)
		}, map[string]float64{`perdure_runs_ended_total{state="cancelled"}`: 1, `perdure_cancel_seconds_count`: 1}},
		{"a wait gives up", func(w *world) {
			if a := w.do("POST", "/api/v1/runs", `{"kind":"slow","queue":"left","wait":"10ms"}`); a.status != 202 {
				t.Errorf("a.status = %d, want %d", a.status, 202)
			}
		}, map[string]float64{`perdure_waits_detached_total{reason="timeout"}`: 1}},
		{"a result comes too late", func(w *world) {
			old, held := w.fenced(`{"kind":"twice"}`)
			w.commit(old, complete).refuses(409, "stale_epoch")
			w.commits(held, complete)
			w.do("POST", fmt.Sprintf("/api/v1/runs/%v/late-results/1/discard", held["run_id"]), `{}`).is(200)
		}, map[string]float64{`perdure_late_results_total`: 1, `perdure_runs_ended_total{state="completed"}`: 1}},
		{"a deadline passes", func(w *world) {
			id := w.start(`{"kind":"short","queue":"brief","timeout":"30ms"}`)
			pass(30 * time.Millisecond)
			w.get("/api/v1/runs/" + id + "/join?timeout=1m").is(200)
		}, map[string]float64{`perdure_run_timeouts_total{kind="short",queue="brief"}`: 1,
			`perdure_deadline_lateness_seconds_count`:                   1,
			`perdure_watchdog_actions_total{name="deadline",rule="W8"}`: 1,
			`perdure_runs_ended_total{state="timeout"}`:                 1}},
		{"a run is silent, its lease is lost, and it runs out of attempts", func(w *world) {
			g := w.running(`{"kind":"quiet","max_attempts":1}`)
			w.do("POST", "/api/v1/workers/w/heartbeat", `{"runs":[{"run_id":"%s","epoch":%v}]}`, g["run_id"],
				g["epoch"]).is(200)
			pass(30 * time.Second)
			eventually.True(w.t, "it is silent", func() bool {
				return slices.Contains(w.types(g["run_id"].(string)), "run:slow")
			})
			pass(30 * time.Second)
			w.get("/api/v1/runs/" + g["run_id"].(string) + "/join?timeout=1m").is(200)
		}, map[string]float64{`perdure_run_alerts_total{reason="silent"}`: 1, `perdure_lease_losses_total`: 1,
			`perdure_dead_letters_total{cause="attempts_exhausted"}`:       1,
			`perdure_watchdog_actions_total{name="lost-worker",rule="W6"}`: 1,
			`perdure_watchdog_actions_total{name="silent",rule="W13"}`:     1}},
	}
	at := storetest.Options(t)
	at.Hooks.Clock = func() perdure.Instant { return perdure.Instant(now.Load()) }
	w := newWorld(t, setup{watchdog: true, store: &at, policy: func(p *perdure.Policy) { p.GapAfter = long }})
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			w := *w
			w.t = t
			before := w.scrape()
			r.do(&w)
			// An action of the watchdog is counted just after its waiters are woken.
			eventually.True(t, fmt.Sprint("it is counted: ", r.counts), func() bool {
				after := w.scrape()
				for name, by := range r.counts {
					if _, ok := after[name]; !ok || after[name]-before[name] != by {
						return false
					}
				}
				return true
			})
		})
	}
	after := w.scrape()
	if after[`perdure_store_commit_seconds_count{lane="work"}`] == 0 ||
		after[`perdure_store_operations_total{lane="work"}`] < after[`perdure_store_batch_seconds_count{lane="work"}`] {
		t.Error("nothing was written")
	}
}

func TestGaugesCountRows(t *testing.T) {
	w := newWorld(t, setup{})
	w.start(`{"kind":"waits","queue":"deep"}`)
	w.start(`{"kind":"waits","queue":"deep"}`)
	g := w.running(`{"kind":"job"}`)
	w.sleeping(`{"kind":"sleeps"}`, `{"id":"w","type":"signal","name":"go"}`)
	w.commits(w.running(`{"kind":"bad"}`), `"outcome":{"type":"reject","reason":"no"}`)
	if a := w.do("POST", "/api/v1/runs", `{"kind":"slow","queue":"left","wait":"10ms"}`); a.status != 202 {
		t.Errorf("a.status = %d, want %d", a.status, 202)
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	done := make(chan *answer, 1)
	go func() {
		done <- w.send(ask{method: "GET", path: "/api/v1/runs/" + g["run_id"].(string) + "/join?timeout=60s",
			key: w.key, ctx: ctx})
	}()
	want := map[string]float64{
		`perdure_queue_depth{queue="deep"}`: 2, `perdure_queue_depth{queue="left"}`: 1,
		`perdure_queue_depth{queue="default"}`: 0,
		`perdure_runs{state="queued"}`:         3, `perdure_runs{state="running"}`: 1,
		`perdure_runs{state="suspended"}`:  1,
		`perdure_runs{state="dispatched"}`: 0,
		`perdure_runs_deferred`:            1, `perdure_run_tiers{tier="fresh"}`: 1,
		`perdure_run_tiers{tier="dead"}`:         0,
		`perdure_dead_letters{cause="rejected"}`: 1, `perdure_workers{state="online"}`: 1,
		`perdure_workers{state="offline"}`: 0,
		`perdure_runs_past_deadline`:       0, `perdure_scrape_ok`: 1, `perdure_store_writable`: 1,
		`perdure_stream_clients{transport="wait"}`: 1, `perdure_stream_clients{transport="sse"}`: 0,
	}
	eventually.True(t, fmt.Sprint("it is as it is: ", want), func() bool {
		found := w.scrape()
		for name, v := range want {
			if got, ok := found[name]; !ok || got != v {
				return false
			}
		}
		return found[`perdure_queue_oldest_seconds{queue="deep"}`] > 0 && found[`perdure_stream_clients_limit`] > 0
	})
	leave()
	<-done
}

func TestRunsPastDeadlineAreCountedAndListed(t *testing.T) {
	var now atomic.Int64
	now.Store(1e15)
	at := storetest.Options(t)
	at.Hooks.Clock = func() perdure.Instant { return perdure.Instant(now.Load()) }
	w := newWorld(t, setup{store: &at}) // nobody sweeps
	id := w.start(`{"kind":"forgotten","timeout":"1s"}`)
	w.start(`{"kind":"other"}`)
	now.Add((3 * time.Second).Microseconds())
	if got := w.as(w.admin).get("/api/admin/invariants").is(200); got["runs_past_deadline"] != float64(0) {
		t.Errorf("two seconds are nothing: %v", got)
	}
	now.Add(1)
	got := w.as(w.admin).get("/api/admin/invariants").is(200)
	if got["runs_past_deadline"] != float64(1) || fmt.Sprint(got["past_deadline_run_ids"]) != "["+id+"]" {
		t.Errorf("invariants = %v, want 1 run past its deadline, by its id", got)
	}
	eventually.True(t, "the metric says so", func() bool { return w.scrape()["perdure_runs_past_deadline"] == 1 })
}

func TestWatchdogLog(t *testing.T) {
	w := newWorld(t, setup{watchdog: true})
	admin := w.as(w.admin)
	const many = 5
	var ids []string
	for range many {
		id := w.start(`{"kind":"short","timeout":"20ms"}`)
		w.get("/api/v1/runs/" + id + "/join?timeout=20s").is(200)
		ids = append(ids, id)
	}
	var list []obj
	for cursor := ""; ; {
		page := admin.get("/api/admin/watchdog?rule=W8&limit=2&cursor=" + cursor).is(200)
		for _, a := range page["actions"].([]any) {
			list = append(list, a.(obj))
		}
		next, more := page["next_cursor"].(string)
		if !more {
			break
		}
		cursor = next
	}
	if len(list) != many {
		t.Fatalf("%d actions: %v", len(list), list)
	}
	for i, a := range list {
		if a["run_id"] != ids[many-1-i] || a["tenant"] != "a" || a["name"] != "deadline" || a["rule"] != "W8" ||
			a["what"] != "timeout/deadline_exceeded" ||
			!strings.HasPrefix(a["why"].(string), "its deadline passed ") || a["at"] == nil {
			t.Errorf("%d: %v", i, a)
		}
	}
	waiting := w.start(`{"kind":"job"}`)
	for query, n := range map[string]int{"run_id=" + ids[0]: 1, "rule=deadline&tenant=a": many, "tenant=b": 0,
		"rule=W6": 0, "rule=W6&run_id=" + ids[0]: 0, "run_id=" + waiting: 0, "tenant=a&run_id=" + waiting: 0} {
		if got := admin.get("/api/admin/watchdog?" + query).is(200)["actions"].([]any); len(got) != n {
			t.Errorf("%s: %d, not %d", query, len(got), n)
		}
	}
	for _, query := range []string{"run_id=" + unknown, "tenant=b&run_id=" + waiting, "tenant=a&run_id=" + unknown} {
		admin.get("/api/admin/watchdog?"+query).refuses(404, "not_found")
	}
	for query, field := range map[string]string{"limit=0": "limit", "limit=1001": "limit", "limit=x": "limit",
		"cursor=x": "cursor", "cursor=" + unknown: "cursor",
		"rule=" + strings.Repeat("x", 300): "rule", "rule=W99": "rule", "rule=w8": "rule", "run_id=a%0Ab": "run_id",
		"nonsense=1": "nonsense"} {
		if p := admin.get("/api/admin/watchdog?" + query).problem(); p["status"] == float64(200) ||
			p["field"] != field {
			t.Errorf("%s: %v", query, p)
		}
	}
	w.get("/api/admin/watchdog").refuses(403, "forbidden")
}
