package httpd

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
)

// gather makes a group of runs.
func (w *world) gather(more string, members ...obj) obj {
	w.t.Helper()
	var ids []string
	for _, m := range members {
		ids = append(ids, m["run_id"].(string))
	}
	b, err := json.Marshal(ids)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.do("POST", "/api/v1/groups", `{"run_ids":%s%s}`, b, more).is(201)
}

func groupPath(g obj) string { return "/api/v1/groups/" + g["group_id"].(string) }

// ends are the runs of a group that have ended, as "state" by the place they were named at.
func ends(g obj) (out []string) {
	for _, e := range g["ended_runs"].([]any) {
		e := e.(obj)
		out = append(out, fmt.Sprint(slices.Index(g["run_ids"].([]any), e["run_id"]), " ", e["state"]))
	}
	return out
}

// In every mode, runs that ended before the group was made count like those that end later. A join is
// answered when the deciding run ends.
func TestGroupsInFourModes(t *testing.T) {
	w := newWorld(t, setup{})
	for _, c := range []struct {
		mode string
		ends string // in which the runs end: c completed, f failed
		over int    // after how many of them the group is
	}{
		{"all", "ccc", 3}, {"all", "fcf", 3}, {"", "ccc", 3},
		{"all_ok", "ccc", 3}, {"all_ok", "cfc", 2}, {"all_ok", "f", 1},
		{"any", "ccc", 1}, {"any", "fcc", 1},
		{"any_ok", "ccc", 1}, {"any_ok", "fcc", 2}, {"any_ok", "fff", 3},
	} {
		for before := range len(c.ends) + 1 {
			name := fmt.Sprintf("%s of %s, %d before", c.mode, c.ends, before)
			var members []obj
			for i := range c.ends {
				members = append(members, w.running(fmt.Sprintf(`{"kind":"m%d"}`, i)))
			}
			end := func(i int) {
				if c.ends[i] == 'c' {
					w.commits(members[i], complete)
				} else {
					w.commits(members[i], broken)
				}
			}
			for i := range before {
				end(i)
			}
			mode := ""
			if c.mode != "" {
				mode = `,"mode":"` + c.mode + `"`
			}
			g := w.gather(mode, members...)
			var joins []<-chan *answer // of the group while it is open; its end answers them
			for n := before; ; n++ {
				if open := g["state"] == "open"; open != (n < c.over) || len(g["ended_runs"].([]any)) != n {
					t.Fatalf("%s: after %d it is %v", name, n, g)
				}
				if n >= c.over {
					break
				}
				join := w.later("GET", groupPath(g)+"/join?timeout=60s", "")
				end(n)
				if n+1 < c.over {
					select {
					case a := <-join:
						t.Fatalf("%s: after %d: %s", name, n+1, a.body)
					default:
					}
					g = w.get(groupPath(g)).is(200)
					joins = append(joins, join)
					continue
				}
				g = soon(t, join).is(200)
			}
			for _, join := range joins {
				soon(t, join).is(200)
			}
			if g["state"] != "satisfied" || g["ended_at"] == nil || g["mode"] == "" {
				t.Errorf("%s: %v", name, g)
			}
			for i := max(before, c.over); i < len(c.ends); i++ {
				if run := w.run(members[i]["run_id"]); run["state"] != "running" || run["cancel"] != nil {
					t.Errorf("%s: a loser is %v", name, run)
				}
				end(i)
			}
			// It was over when it was over, and tells of those that ended later.
			last := w.get(groupPath(g) + "/join?timeout=0").is(200)
			if last["ended"] != g["ended"] || last["ended_at"] != g["ended_at"] ||
				len(last["ended_runs"].([]any)) != len(c.ends) {
				t.Errorf("%s: %v, then %v", name, g, last)
			}
		}
	}
}

func TestGroupListsEndedRunsInOrder(t *testing.T) {
	w := newWorld(t, setup{})
	a, b, c := w.running(`{"kind":"a"}`), w.running(`{"kind":"b"}`), w.running(`{"kind":"c"}`)
	g := w.gather(`,"mode":"any_ok","on_losers":"cancel"`, a, b, c)
	w.commits(c, broken)
	w.commits(b, complete)
	if g = w.get(groupPath(g) + "/join").is(200); !slices.Equal(ends(g), []string{"2 failed", "1 completed"}) {
		t.Errorf("group = %v, want ends 2 failed, 1 completed", g)
	}
	if run := w.run(a["run_id"]); run["cancel"].(obj)["reason"] != "another run of its group was enough" {
		t.Errorf("a loser is %v", run)
	}
	w.commits(a, `"outcome":{"type":"cancelled"}`)
	if g = w.get(groupPath(g)).is(200); !slices.Equal(ends(g), []string{"2 failed", "1 completed", "0 cancelled"}) ||
		g["ended"] != 2.0 {
		t.Errorf("group = %v, want ends 2 failed, 1 completed, 0 cancelled, and ended 2", g)
	}
	// One over runs that have ended, with a loser that has not begun: it ends with it.
	queued := w.start(`{"kind":"d"}`)
	g = w.gather(`,"mode":"any","on_losers":"cancel"`, b, obj{"run_id": queued})
	if !slices.Equal(ends(g), []string{"0 completed", "1 cancelled"}) || g["state"] != "satisfied" {
		t.Errorf("group = %v, want it satisfied with ends 0 completed, 1 cancelled", g)
	}
	// The run that decides the group is listed before those that it ends at the same instant.
	queued = w.start(`{"kind":"d"}`)
	e := w.running(`{"kind":"e","priority":100}`)
	g = w.gather(`,"mode":"any","on_losers":"cancel"`, obj{"run_id": queued}, e)
	w.commits(e, broken)
	if g = w.get(groupPath(g)).is(200); !slices.Equal(ends(g), []string{"1 failed", "0 cancelled"}) {
		t.Errorf("group = %v, want ends 1 failed, 0 cancelled", g)
	}
}

// A group's deadline stops the waiting, never the work, whatever is to become of losers.
func TestGroupTimesOut(t *testing.T) {
	w := newWorld(t, setup{watchdog: true})
	a := w.running(`{"kind":"a"}`)
	g := w.gather(`,"timeout":"50ms","on_losers":"cancel"`, a)
	if g["deadline_at"] == nil || g["state"] != "open" {
		t.Errorf("g = %v, want deadline_at set, state = open", g)
	}
	if g = w.get(groupPath(g) + "/join?timeout=60s").is(200); g["state"] != "timed_out" || g["ended_at"] == nil ||
		g["deadline_at"] != nil || g["ended"] != 0.0 {
		t.Errorf("g = %v, want state = timed_out, ended_at set, no deadline_at, ended = 0", g)
	}
	if run := w.run(a["run_id"]); run["state"] != "running" || run["cancel"] != nil {
		t.Errorf("run = %v, want state = running, no cancel", run)
	}
	w.commits(a, complete)
	if g = w.get(groupPath(g)).is(200); g["state"] != "timed_out" || !slices.Equal(ends(g), []string{"0 completed"}) {
		t.Errorf("group = %v, want it timed_out with end 0 completed", g)
	}
}

func TestGroupOfThousandRuns(t *testing.T) {
	w := newWorld(t, setup{watchdog: true})
	const many = 1000
	var ids []string
	for range many {
		ids = append(ids, w.start(`{"kind":"m"}`))
	}
	list, _ := json.Marshal(ids)
	g := w.do("POST", "/api/v1/groups", `{"run_ids":%s}`, list).is(201)
	cancelling := w.do("POST", "/api/v1/groups", `{"run_ids":%s,"mode":"any","on_losers":"cancel"}`, list).is(201)
	if g["total"] != float64(many) || len(g["run_ids"].([]any)) != many {
		t.Fatalf("%v runs", g["total"])
	}
	joins := []<-chan *answer{w.later("GET", groupPath(g)+"/join?timeout=60s", ""),
		w.later("GET", groupPath(cancelling)+"/join?timeout=60s", "")}
	w.commits(w.take("m"), complete) // it wins, and the others, which nobody has begun, end with that
	// The losers of the second are asked to stop in steps: its joiner need not wait for the last one. The first needs
	// all.
	won := soon(t, joins[1]).is(200)
	if won["state"] != "satisfied" || ends(won)[0] != "0 completed" {
		t.Errorf("the group that one run satisfies is %v, first ended: %v", won["state"], ends(won)[0])
	}
	soon(t, joins[0]).is(200)
	for _, x := range []obj{g, cancelling} {
		x = w.get(groupPath(x)).is(200)
		if x["state"] != "satisfied" || len(x["ended_runs"].([]any)) != many || ends(x)[0] != "0 completed" {
			t.Errorf("%v, %v ended", x["state"], x["ended"])
		}
	}
	twice, _ := json.Marshal(append(ids, ids[0]))
	w.do("POST", "/api/v1/groups", `{"run_ids":%s}`, twice).refuses(413, "too_large")
}

func TestInvalidGroupsAreRefused(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.start(`{"kind":"a"}`)
	for body, field := range map[string]string{
		`{}`: "run_ids", `{"run_ids":[]}`: "run_ids", `{"run_ids":["%s"],"mode":"most"}`: "mode",
		`{"run_ids":["%s"],"on_losers":"weep"}`: "on_losers",
		`{"run_ids":["%s"],"timeout":"-1s"}`:    "timeout", `{"run_ids":["%s"],"timeout":"never"}`: "timeout",
		`{"run_ids":["%s"],"timeout":"9999h"}`: "timeout",
		`{"run_ids":["%s",null]}`:              "run_ids[1]", `{"run_ids":"%s"}`: "run_ids",
	} {
		if p := w.do("POST", "/api/v1/groups", strings.ReplaceAll(body, "%s", id)).refuses(400,
			"invalid"); p["field"] != field {
			t.Errorf("%s: %v", body, p)
		}
	}
	for _, stranger := range []string{"nobody", w.as(w.newKey("b", nil)).start(`{"kind":"a"}`)} {
		if p := w.do("POST", "/api/v1/groups", `{"run_ids":["%s","%s"]}`, id, stranger).refuses(404,
			"not_found"); p["field"] != "run_ids" {
			t.Errorf("p = %v, want field = run_ids", p)
		}
	}
	g := w.gather("", obj{"run_id": id})
	for _, other := range []string{"", "/join?timeout=0"} {
		w.as(w.newKey("b", nil)).get(groupPath(g)+other).refuses(404, "not_found")
		w.get("/api/v1/groups/"+id+other).refuses(404, "not_found") // a run is none
	}
	w.get(groupPath(g)+"/join?timeout=2h").refuses(400, "invalid")

	// Nor is what a run left behind to be continued on.
	boss, _ := w.boss(w.thread(), 1)
	w.commits(boss, `"outcome":{"type":"complete","continue_on":["k0"]}`)
	w.get(fmt.Sprint("/api/v1/groups/", boss["run_id"])).refuses(404, "not_found")
}

// Two groups may share a run, and a group may be joined where it was not made.
func TestGroupIsJoinedOnOtherNode(t *testing.T) {
	a, b := twoNodes(t)
	one, two := a.running(`{"kind":"a"}`), a.running(`{"kind":"a"}`)
	all, any := a.gather("", one, two), a.gather(`,"mode":"any","timeout":"1h"`, one, two)
	if g := b.get(groupPath(all)).is(200); g["state"] != "open" || g["total"] != 2.0 {
		t.Errorf("g = %v, want state = open, total = 2", g)
	}
	b.get(groupPath(all) + "/join?timeout=1ms").is(202)
	joins := []<-chan *answer{b.later("GET", groupPath(any)+"/join?timeout=60s", ""),
		b.later("GET", groupPath(all)+"/join?timeout=60s", "")}
	a.commits(one, complete)
	if g := soon(t, joins[0]).is(200); g["state"] != "satisfied" || !slices.Equal(ends(g), []string{"0 completed"}) {
		t.Errorf("group = %v, want it satisfied with end 0 completed", g)
	}
	b.commits(two, complete)
	if g := soon(t, joins[1]).is(200); g["state"] != "satisfied" ||
		!slices.Equal(ends(g), []string{"0 completed", "1 completed"}) {
		t.Errorf("group = %v, want it satisfied with ends 0 completed, 1 completed", g)
	}
}

// The last two of a group end on two nodes at once: one of them sees that they are the last.
func TestLastTwoRunsOfGroupEndOnTwoNodes(t *testing.T) {
	a, b := twoNodes(t)
	for range 30 {
		one, two := a.running(`{"kind":"a"}`), a.running(`{"kind":"a"}`)
		g := a.gather("", one, two)
		there := b.later("POST", "/api/v1/workers/w/commit",
			fmt.Sprintf(`{"commits":[{"commit_id":"c","run_id":"%v","epoch":%v,%s}]}`, two["run_id"], two["epoch"],
				complete))
		a.commits(one, complete)
		soon(t, there).is(200)
		if g = a.get(groupPath(g)).is(200); g["state"] != "satisfied" || g["ended"] != 2.0 || g["completed"] != 2.0 {
			t.Fatalf("g = %v, want state = satisfied, ended = 2, completed = 2", g)
		}
	}
	if found := a.as(a.admin).get("/api/admin/invariants").is(200)["violations"].([]any); len(found) != 0 {
		t.Errorf("found = %v, want 0 entries", found)
	}
}

// The list has a tenant's groups, newest first, with the counts of each and without its runs. What a run
// left behind to be continued on is none.
func TestGroupsAreListed(t *testing.T) {
	w := newWorld(t, setup{})
	if page := w.get("/api/v1/groups").is(200); len(page["groups"].([]any)) != 0 || page["next_cursor"] != nil {
		t.Errorf("groups before any = %v, want none", page)
	}
	a, b := w.running(`{"kind":"a"}`), w.running(`{"kind":"b"}`)
	first := w.gather(`,"timeout":"1h","on_losers":"cancel"`, a, b)
	second := w.gather(`,"mode":"any"`, a, b)
	third := w.gather("", b)
	boss, _ := w.boss(w.thread(), 1)
	w.commits(boss, `"outcome":{"type":"complete","continue_on":["k0"]}`)
	other := w.as(w.newKey("b", nil))
	foreign := other.gather("", obj{"run_id": other.start(`{"kind":"c"}`)})
	w.commits(a, broken)

	// ids reads all pages of a list.
	ids := func(w *world, query string) (out []string) {
		t.Helper()
		for cursor := ""; ; {
			page := w.get("/api/v1/groups?" + query + cursor).is(200)
			for _, g := range page["groups"].([]any) {
				out = append(out, g.(obj)["group_id"].(string))
			}
			next, _ := page["next_cursor"].(string)
			if next == "" {
				return out
			}
			cursor = "&cursor=" + next
		}
	}
	all := []string{third["group_id"].(string), second["group_id"].(string), first["group_id"].(string)}
	for query, want := range map[string][]string{"": all, "limit=1": all, "limit=2": all,
		"state=open": {all[0], all[2]}, "state=ended": {all[1]}, "state=satisfied": {all[1]}, "state=timed_out": nil,
		"state=open&limit=1": {all[0], all[2]}} {
		if got := ids(w, query); !slices.Equal(got, want) {
			t.Errorf("groups of %q = %v, want %v", query, got, want)
		}
	}
	if got := ids(other, ""); !slices.Equal(got, []string{foreign["group_id"].(string)}) {
		t.Errorf("groups of another tenant = %v, want its own alone", got)
	}
	for _, g := range w.get("/api/v1/groups").is(200)["groups"].([]any) {
		whole := w.get(groupPath(g.(obj))).is(200)
		delete(whole, "run_ids")
		delete(whole, "ended_runs")
		if !reflect.DeepEqual(g, whole) {
			t.Errorf("a group of the list = %v, want that of its own call: %v", g, whole)
		}
	}
	for query, field := range map[string]string{"state=over": "state", "limit=0": "limit", "limit=1001": "limit",
		"cursor=x": "cursor", "mode=all": "mode"} {
		if p := w.get("/api/v1/groups?"+query).refuses(400, "invalid"); p["field"] != field {
			t.Errorf("%s: %v, want the field %s", query, p, field)
		}
	}
	w.as(w.newKey("a", func(op *access.CreateKey) { op.Scopes = []perdure.Scope{perdure.ScopeCreate} })).
		get("/api/v1/groups").refuses(403, "forbidden")
}

// Groups arrive over the socket: the list of those of a state, and one of them by its id.
func TestWatchOfGroups(t *testing.T) {
	w := newWorld(t, setup{})
	v := w.view(true)
	v.say(`{"type":"watch","id":"all","of":"groups"}`)
	v.say(`{"type":"watch","id":"open","of":"groups","filter":{"state":["open"]}}`)
	v.until(func() bool { return len(v.last) == 2 })
	items := func(id string) []any { list, _ := v.last[id]["items"].([]any); return list }
	a, b := w.running(`{"kind":"a"}`), w.running(`{"kind":"b"}`)
	g := w.gather("", a, b)
	v.say(`{"type":"watch","id":"one","of":"groups","filter":{"group_id":"%s"}}`, g["group_id"])
	v.until(func() bool { return len(items("all")) == 1 && len(items("open")) == 1 && len(items("one")) == 1 })
	w.commits(a, broken)
	v.until(func() bool { return items("one")[0].(obj)["ended"] == 1.0 && items("all")[0].(obj)["completed"] == 0.0 })
	w.commits(b, complete)
	v.until(func() bool { return items("one")[0].(obj)["state"] == "satisfied" && len(items("open")) == 0 })
	v.until(func() bool { return items("all")[0].(obj)["state"] == "satisfied" })
	if list := w.get("/api/v1/groups").is(200)["groups"].([]any); !reflect.DeepEqual(list, items("all")) {
		t.Errorf("groups on the socket = %v, want those of the list: %v", items("all"), list)
	}
	foreign := w.as(w.newKey("b", nil)).view(true)
	foreign.say(`{"type":"watch","id":"all","of":"groups"}`)
	foreign.say(`{"type":"watch","id":"one","of":"groups","filter":{"group_id":"%s"}}`, g["group_id"])
	foreign.until(func() bool { return len(foreign.last) == 2 })
	for id, m := range foreign.last {
		if list, ok := m["items"].([]any); !ok || len(list) != 0 {
			t.Errorf("%s of another tenant = %v, want an empty list", id, m)
		}
	}
	boss, _ := w.boss(w.thread(), 1) // what it leaves behind has its id, and is no group
	w.commits(boss, `"outcome":{"type":"complete","continue_on":["k0"]}`)
	v.say(`{"type":"watch","id":"chord","of":"groups","filter":{"group_id":"%s"}}`, boss["run_id"])
	v.until(func() bool { return v.last["chord"] != nil })
	if list, ok := v.last["chord"]["items"].([]any); !ok || len(list) != 0 {
		t.Errorf("a watch of what a run left behind = %v, want an empty list", v.last["chord"])
	}
	for filter, field := range map[string]string{`{"state":["odd"]}`: "filter.state",
		`{"state":["open","ended"]}`: "filter.state", `{"kind":"a"}`: "filter.kind"} {
		delete(v.last, "bad")
		v.say(`{"type":"watch","id":"bad","of":"groups","filter":%s}`, filter)
		v.until(func() bool { return v.last["bad"] != nil })
		if e, _ := v.last["bad"]["error"].(obj); e["field"] != field {
			t.Errorf("a watch of groups with %s = %v, want it refused for %s", filter, v.last["bad"], field)
		}
	}
}
