package e2e

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
)

// An attack is something that a hostile tenant can do with ordinary calls.
type attack struct {
	name string
	// rate is how often a second it has to happen at full size, on a machine with two processors.
	rate float64
	// begin loads what the attack needs, and returns the attack.
	begin func(a *attacker) func()
}

// unprepared is the begin of an attack that needs nothing.
func unprepared(do func(a *attacker)) func(a *attacker) func() {
	return func(a *attacker) func() { return func() { do(a) } }
}

// harmless lists the routes that no attack calls, with the reason.
var harmless = map[string]string{
	"GET /api/v1/attention":                           "reads bounded counts, as the lists do",
	"GET /api/v1/kinds/{kind}/stats":                  "reads a bounded number of runs, as a list does",
	"DELETE /api/v1/limits/{name}":                    "writes two rows; what waits goes on 16 in a sweep",
	"PUT /api/v1/queues/{name}":                       "writes two rows",
	"DELETE /api/v1/limits/{name}/keys/{key}":         "writes one row",
	"GET /api/v1/runs/by-name/{name}":                 "reads one row and a run",
	"GET /api/v1/threads/by-name/{name}":              "reads one row and a thread",
	"PUT /api/v1/runs/{id}/names/{name}":              "writes one row, beside at most eight others",
	"PUT /api/v1/threads/{id}/names/{name}":           "writes one row, beside at most eight others",
	"PATCH /api/v1/threads/{id}":                      "writes one row with at most 1 MiB of metadata, as a new thread",
	"POST /api/v1/kinds/{kind}/pause":                 "writes one row, as the pause of a queue, which is attacked",
	"POST /api/v1/kinds/{kind}/resume":                "writes one row, as the resume of a queue, which is attacked",
	"POST /api/v1/schedules":                          "writes one row of at most 64 KiB, as PUT does",
	"GET /api/v1/schedules/{name}":                    "reads one row",
	"DELETE /api/v1/schedules/{name}":                 "writes one row",
	"GET /api/v1/schedules/{name}/next":               "counts up to a thousand instants",
	"POST /api/v1/approvals/{id}":                     "writes one run, as a signal does",
	"POST /api/v1/runs/{id}/defer":                    "writes one run, as a signal does",
	"POST /api/v1/runs/{id}/release-hold":             "writes one run, as a signal does",
	"POST /api/v1/runs/{id}/dead-letter":              "writes one run, as a signal does",
	"POST /api/v1/runs/{id}/late-results/{n}/adopt":   "writes one run, as a signal does",
	"POST /api/v1/runs/{id}/late-results/{n}/discard": "writes one row, as a signal does",
	"POST /api/internal/runs/{id}/continue":           "writes one run, as a submit does",
	"GET /api/v1/runs/{id}/children/{child}/activity": "reads what an activity reads",
	"GET /api/v1/runs/{id}/journal/entries/{n}":       "reads one row; the list of them is attacked",
	"GET /api/v1/runs/{id}/inbox/items/{n}":           "reads one row; the list of them is attacked",
	"GET /api/v1/dlq/{id}":                            "reads one row and a run; the list of them is attacked",
	"POST /api/v1/dlq/{id}/redrive":                   "does with one what the attacked call does with many",
	"DELETE /api/v1/dlq/{id}":                         "does with one what the attacked call does with many",
	"GET /api/v1/webhooks/{id}":                       "reads one row; the list of them is attacked",
	"GET /api/v1/deliveries/{id}":                     "reads a few rows; the list of them is attacked",
	"GET /api/v1/approvals/{id}":                      "reads one row; the list of them is attacked",
	"GET /api/v1/kinds/{kind}":                        "reads one row; the list of them is attacked",
	"GET /api/v1/groups/{id}/join":                    "waits as the join of a run does",
	"GET /api/v1/signing-keys":                        "reads a list of the server's own, which no tenant makes longer",
	"GET /readyz":                                     "answers from memory, as healthz does",
	"DELETE /api/admin/tenants/{tenant}/keys/{id}":    operator,
	"POST /api/admin/keys":                            operator,
	"DELETE /api/admin/keys/{id}":                     operator,
	"GET /api/admin/tenants":                          operator,
	"GET /api/admin/tenants/{tenant}":                 operator,
	"PUT /api/admin/tenants/{tenant}":                 operator,
	"GET /api/admin/invariants":                       operator,
	"GET /api/admin/backup":                           operator,
	"GET /api/admin/watchdog":                         operator,
	"GET /api/admin/policy":                           operator,
	"GET /api/admin/locks":                            operator,
	"GET /api/admin/audit":                            operator,
	"GET /api/admin/recovery/jobs/status":             operator,
	"GET /api/admin/recovery/jobs/heartbeats":         operator,
	"GET /api/admin/recovery/jobs/stale":              operator,
	"GET /api/admin/jobs/{jobId}/health":              operator,
	"GET /api/admin/recovery/jobs/sentinels":          operator,
	"GET /api/admin/recovery/jobs/metrics":            operator,
	"GET /api/admin/recovery/jobs/failed":             operator,
	"POST /api/admin/recovery/jobs/resume":            operator,
	"GET /api/admin/startup-log":                      operator,
	"GET /metrics":                                    operator,
}

const operator = "needs a key of the platform, which no tenant has"

// attacks lists what a hostile tenant can do, each at its largest legal size.
var attacks = []attack{
	{"a chain of groups that cancel their losers", 100, func(a *attacker) func() {
		ids := a.load(a.no.scale(120, 6000), alike(obj{"kind": "bomb"}))
		return func() {
			a.each(len(ids)-1, 16, func(i int) {
				var made struct {
					ID string `json:"group_id"`
				}
				a.hit("POST", "/api/v1/groups",
					obj{"mode": "any", "on_losers": "cancel", "run_ids": ids[i : i+2]}, &made)
				a.call("GET", "/api/v1/groups/"+made.ID, nil, nil)
				a.call("GET", "/api/v1/groups?state=timed_out&limit=1000", nil, nil) // none is
				if i == a.no.scale(16, len(ids)/2) {
					a.call("POST", "/api/v1/runs/"+ids[0]+"/cancel", obj{}, nil)
				}
			})
			a.storm(2, func(i int) { a.call("POST", "/api/v1/runs/"+ids[i%len(ids)]+"/cancel", obj{}, nil) })
		}
	}},
	{"a chord of large results", 2, func(a *attacker) func() {
		kids, keys := a.no.scale(30, 600), []string{}
		var spawns []obj
		for i := range kids {
			keys = append(keys, fmt.Sprintf("kid#%d", i))
			spawns = append(spawns, obj{"key": keys[i], "kind": "kid", "timeout": "1m"})
		}
		a.submit(obj{"kind": "boss", "thread_id": a.thread()})
		for _, boss := range a.lease("boss", 1) {
			a.commit(boss, "spawn", obj{"children": spawns})
			a.commit(boss, "end", obj{"outcome": obj{"type": "complete", "continue_on": keys}})
		}
		held := a.lease("kid", kids)
		result := strings.Repeat("x", a.no.scale(20<<10, 1<<20-16))
		return func() {
			a.each(len(held), 8, func(i int) {
				a.count(a.commit(held[i], "end", obj{"outcome": obj{"type": "complete",
					"result": fmt.Sprintf("%04d%s", i, result)}}))
			})
			<-a.ctx.Done()
		}
	}},
	{"many runs in line on one thread, and messages", 100, func(a *attacker) func() {
		thread := a.thread()
		a.load(a.no.scale(100, 5000), alike(obj{"kind": "bomb", "thread_id": thread, "timeout": "5s"}))
		return func() {
			a.storm(4, func(int) {
				a.hit("POST", "/api/v1/threads/"+thread+"/messages", obj{"role": "user", "content": "and?"}, nil)
				a.hit("POST", "/api/v1/threads/"+thread+"/runs", obj{"kind": "bomb", "timeout": "5s"}, nil)
			})
		}
	}},
	{"interrupts on one thread", 50, func(a *attacker) func() {
		thread := a.thread()
		return func() {
			a.storm(16, func(int) {
				a.hit("POST", "/api/v1/runs",
					obj{"kind": "bomb", "thread_id": thread, "multitask_strategy": "interrupt"}, nil)
			})
		}
	}},
	{"signals to one run", 200, func(a *attacker) func() {
		id := a.submit(obj{"kind": "bomb"})
		return func() {
			a.storm(16, func(int) { a.hit("POST", "/api/v1/runs/"+id+"/signals/go", obj{}, nil) })
		}
	}},
	{"a run with a full inbox that is polled, suspends and wakes", 5, func(a *attacker) func() {
		id := a.submit(obj{"kind": "full", "class": "agent"})
		a.each(a.no.scale(150, 2000), 16, func(int) {
			a.call("POST", "/api/v1/runs/"+id+"/signals/go", obj{"data": 1}, nil)
		})
		return func() {
			for k := 0; a.ctx.Err() == nil; k++ {
				for _, r := range a.lease("full", 1) {
					at := fmt.Sprintf("/api/v1/runs/%s/%%s?epoch=%d&limit=1000", r.RunID, r.Epoch)
					a.call("GET", fmt.Sprintf(at, "inbox"), nil, nil)
					a.call("GET", "/api/v1/runs/"+r.RunID+"/inbox/items?limit=1000", nil, nil)
					a.count(a.commit(r, fmt.Sprint("sleep", k), obj{"waits": []obj{{"id": fmt.Sprint("w", k),
						"type": "signal", "name": "wake"}}, "outcome": obj{"type": "suspend"}}))
					a.call("POST", "/api/v1/runs/"+id+"/signals/wake", obj{}, nil)
				}
			}
		}
	}},
	{"the largest metadata, listed by readers who don't read", 5, func(a *attacker) func() {
		meta := obj{}
		for i := range 16 {
			meta[fmt.Sprintf("key%02d", i)] = strings.Repeat("v", 900)
		}
		a.load(a.no.scale(60, 3000), alike(obj{"kind": "bomb", "metadata": meta}))
		return func() { a.held(a.no.scale(6, 60), "GET", "/api/v1/runs?limit=1000") }
	}},
	{"filters that find nothing", 50, func(a *attacker) func() {
		a.load(a.no.scale(100, 5000), alike(obj{"kind": "bomb", "metadata": obj{"x": "y"}}))
		return func() {
			a.storm(8, func(i int) {
				a.hit("GET", fmt.Sprintf("/api/v1/runs?metadata.x=nope%d&limit=1000", i), nil, nil)
				a.hit("GET", "/api/v1/runs?state=failed&kind=none&queue=none&limit=1000", nil, nil)
			})
		}
	}},
	{"filters over sixteen keys of metadata", 3, func(a *attacker) func() {
		// Each key selects fifteen of sixteen runs, and all of them together none.
		q := url.Values{"limit": {"1000"}}
		for i := range 16 {
			q.Set(fmt.Sprintf("metadata.key%02d", i), "common")
		}
		a.load(a.no.scale(160, 16_000), func(i int) obj {
			meta := obj{}
			for k := range 16 {
				meta[fmt.Sprintf("key%02d", k)] = "common"
			}
			meta[fmt.Sprintf("key%02d", i%16)] = "rare"
			return obj{"kind": "bomb", "metadata": meta}
		})
		return func() {
			a.storm(8, func(i int) {
				a.hit("GET", "/api/v1/runs?"+q.Encode(), nil, nil)
				a.hit("GET", "/api/v1/runs/counts?"+strings.ReplaceAll(q.Encode(), "limit=1000&", ""), nil, nil)
			})
		}
	}},
	{"polls for many runs with large inputs", 1, func(a *attacker) func() {
		input := strings.Repeat("x", a.no.scale(100<<10, 1<<20-16))
		a.each(a.no.scale(30, 400), 8, func(int) { a.submit(obj{"kind": "large", "input": input}) })
		return func() {
			a.storm(8, func(i int) {
				worker := fmt.Sprintf("/api/v1/workers/w%d/", i)
				var p polled
				a.hit("POST", worker+"poll", obj{"slots": 500, "wait": "0s", "kinds": []string{"large"}}, &p)
				var leases []obj
				for _, r := range p.Runs {
					leases = append(leases, obj{"run_id": r.RunID, "epoch": r.Epoch})
				}
				if len(leases) > 0 {
					a.call("POST", worker+"start", obj{"runs": leases}, nil)
					a.call("POST", worker+"heartbeat", obj{"runs": leases}, nil)
					a.call("POST", worker+"release", obj{"runs": leases}, nil)
				}
			})
		}
	}},
	{"polls over very many kinds", 50, func(a *attacker) func() {
		a.load(a.no.scale(200, 8000), func(i int) obj { return obj{"kind": fmt.Sprint("kind", i), "queue": "wide"} })
		return func() {
			a.storm(4, func(int) {
				a.hit("POST", "/api/v1/workers/w/poll", obj{"slots": 1, "wait": "0s", "queues": []string{"wide"}}, nil)
			})
		}
	}},
	{"polls over a hundred queues without kinds", 20, func(a *attacker) func() {
		queues := a.wide()
		return func() { a.storm(16, func(i int) { a.pollsWide(queues, i) }) }
	}},
	{"polls over a hundred queues while they are paused and resumed", 20, func(a *attacker) func() {
		queues := a.wide()
		return func() {
			a.beside(func() { a.storm(16, func(i int) { a.pollsWide(queues, i) }) },
				func() {
					a.storm(2, func(i int) {
						a.call("POST", "/api/v1/queues/"+queues[i%len(queues)]+"/pause", obj{}, nil)
						a.call("POST", "/api/v1/queues/"+queues[(i+50)%len(queues)]+"/resume", obj{}, nil)
					})
				})
		}
	}},
	{"pauses of very many queues", 10, unprepared(func(a *attacker) {
		a.storm(8, func(i int) {
			a.hit("POST", fmt.Sprintf("/api/v1/queues/q%d/pause", i%10_000), obj{"reason": strings.Repeat("x", 4000)},
				nil)
			if i%4 == 0 {
				a.call("POST", fmt.Sprintf("/api/v1/queues/q%d/resume", i%10_000), obj{}, nil)
				a.call("GET", "/api/v1/queues?limit=1000", nil, nil)
			}
		})
	})},
	{"kinds with the largest schemas", 20, func(a *attacker) func() {
		props := obj{}
		for i := range a.no.scale(20, 190) {
			props[fmt.Sprint("field", i)] = obj{"type": "string", "description": strings.Repeat("d", 100)}
		}
		schema := obj{"type": "object", "properties": props}
		return func() {
			a.storm(8, func(i int) {
				kind := fmt.Sprintf("/api/v1/kinds/k%d", i%1000)
				a.hit("PUT", kind, obj{"input_schema": schema, "output_schema": schema, "build": fmt.Sprint(i)}, nil)
				switch i % 8 {
				case 0:
					a.call("GET", "/api/v1/kinds?limit=1000", nil, nil)
				case 1:
					a.call("PATCH", kind, obj{"input_schema": schema}, nil)
				case 2:
					a.call("DELETE", kind, nil, nil)
				}
			})
		}
	}},
	{"commits of a thousand approvals", 0.4, func(a *attacker) func() {
		held := a.holds(a.no.scale(3, 40), obj{"kind": "asks"})
		text := strings.Repeat("x", a.no.scale(500, 7000))
		var waits []obj
		for i := range a.no.scale(100, 1000) {
			waits = append(waits, obj{"id": fmt.Sprint("w", i), "type": "approval", "name": "sure",
				"approval": obj{"title": "really?", "action": obj{"run": fmt.Sprint(i, text)}}})
		}
		return func() {
			a.each(len(held), 4, func(i int) {
				a.count(a.commit(held[i], "ask", obj{"waits": waits, "outcome": obj{"type": "suspend"}}))
			})
			for a.ctx.Err() == nil {
				a.call("GET", "/api/v1/approvals?limit=1000", nil, nil)
			}
		}
	}},
	{"journals of a thousand steps", 0.4, func(a *attacker) func() {
		held := a.holds(a.no.scale(3, 60), obj{"kind": "diary", "class": "agent"})
		text := strings.Repeat("x", a.no.scale(500, 7000))
		return func() {
			a.each(len(held)*4, 4, func(i int) {
				r := held[i%len(held)]
				var steps []obj
				for k := range a.no.scale(100, 1000) {
					steps = append(steps,
						obj{"key": fmt.Sprintf("step%d#%d", i/len(held), k), "value": fmt.Sprint(i, k, text)})
				}
				a.count(a.commit(r, fmt.Sprint("note", i/len(held)), obj{"journal": steps}))
				a.call("GET", fmt.Sprintf("/api/v1/runs/%s/journal?epoch=%d&limit=1000", r.RunID, r.Epoch), nil, nil)
				a.call("GET", "/api/v1/runs/"+r.RunID+"/journal/entries?limit=1000", nil, nil)
				a.call("GET", "/api/v1/runs/"+r.RunID+"/replay", nil, nil)
			})
		}
	}},
	{"steps of many runs under four limits with as many keys", 0.4, func(a *attacker) func() {
		var limits []obj
		for i := range 4 {
			name := fmt.Sprint("steps", i)
			a.call("PUT", "/api/v1/limits/"+name, obj{"concurrency": 1000, "per_key": true}, nil)
			limits = append(limits, obj{"name": name})
		}
		held := a.holds(a.no.scale(100, 1000), obj{"kind": "diary", "class": "agent"})
		return func() {
			a.storm(4, func(i int) {
				var steps []obj
				for k, r := range held {
					var takes []obj
					for _, l := range limits {
						takes = append(takes, obj{"name": l["name"], "key": fmt.Sprint("key", k)})
					}
					steps = append(steps, obj{"run_id": r.RunID, "epoch": r.Epoch, "step": fmt.Sprintf("step#%d", i%3),
						"limits": takes, "give_back": i%2 == 1})
				}
				a.count(a.call("POST", "/api/v1/workers/w/limits", obj{"steps": steps}, nil))
			})
		}
	}},
	{"limits with very many keys and waiting runs, which open, close and change", 4, func(a *attacker) func() {
		names := make([]string, 4)
		for i := range names {
			names[i] = fmt.Sprint("door", i)
			a.call("PUT", "/api/v1/limits/"+names[i], obj{"concurrency": 1, "per_key": true}, nil)
			a.call("POST", "/api/v1/limits/"+names[i]+"/close", obj{"for": "1h"}, nil)
		}
		a.load(a.no.scale(500, 20_000), func(i int) obj {
			return obj{"kind": "waits", "limits": names, "limit_key": fmt.Sprint("key", i%10_000)}
		})
		return func() {
			a.storm(4, func(i int) {
				door := "/api/v1/limits/" + names[i%len(names)]
				switch a.hit("POST", door+"/open", obj{}, nil); i % 4 {
				case 0:
					a.hit("PUT", door, obj{"concurrency": 1 + i%9, "per_key": true}, nil)
				case 1:
					a.hit("PUT", fmt.Sprint(door, "/keys/key", i%10_000), obj{"concurrency": 5}, nil)
				case 2:
					a.call("GET", door, nil, nil)
					a.call("GET", door+"/keys?limit=1000", nil, nil)
					a.call("GET", "/api/v1/limits?limit=1000", nil, nil)
				}
				a.hit("POST", "/api/v1/workers/w/poll",
					obj{"slots": 100, "wait": "0s", "kinds": []string{"waits"}}, nil)
				a.hit("POST", door+"/close", obj{"for": "1h"}, nil)
			})
		}
	}},
	{"schedules that are all due at once, and runs of few keys", 10, func(a *attacker) func() {
		a.each(a.no.scale(100, 5000), 8, func(i int) {
			a.call("PUT", fmt.Sprint("/api/v1/schedules/s", i), obj{"every": "10s", "kind": "due",
				"overlap": "cancel_old", "missed": "all", "input": strings.Repeat("x", 1000)}, nil)
		})
		large := strings.Repeat("x", a.no.scale(1000, 60_000))
		return func() {
			a.storm(8, func(i int) {
				a.hit("POST", "/api/v1/runs", obj{"kind": "one", "input": large,
					"unique": obj{"key": fmt.Sprint("key", i%3), "on_conflict": "replace"}}, nil)
				a.hit("POST", "/api/v1/runs", obj{"kind": "later", "input": large,
					"debounce": obj{"key": fmt.Sprint("key", i%3), "for": "1s", "max": "1h"}}, nil)
				schedule := fmt.Sprint("/api/v1/schedules/s", i%100)
				switch i % 8 {
				case 0:
					a.call("GET", "/api/v1/schedules?limit=1000", nil, nil)
				case 1:
					a.hit("POST", schedule+"/trigger", obj{}, nil)
				case 2:
					a.hit("POST", schedule+"/pause", obj{}, nil)
					a.hit("POST", schedule+"/resume", obj{}, nil)
				}
			})
		}
	}},
	{"retries of runs with long journals", 2, func(a *attacker) func() {
		held := a.holds(a.no.scale(4, 40), obj{"kind": "diary", "class": "agent"})
		text := strings.Repeat("x", a.no.scale(100, 1000))
		a.each(len(held), 4, func(i int) {
			var steps []obj
			for k := range a.no.scale(100, 1000) {
				steps = append(steps, obj{"key": fmt.Sprintf("step#%d", k), "value": fmt.Sprint(k, text)})
			}
			a.commit(held[i], "note", obj{"journal": steps})
		})
		a.end(held, obj{"type": "fail", "retryable": false, "error": obj{"code": "x", "message": "x"}})
		ids := make([]string, len(held))
		for i, r := range held {
			ids[i] = r.RunID
		}
		return func() {
			a.storm(8, func(i int) {
				if i%10 == 9 {
					a.call("POST", "/api/v1/runs/retry", obj{"run_ids": ids, "from": "journal"}, nil)
					return
				}
				a.hit("POST", "/api/v1/runs/"+ids[i%len(ids)]+"/retry", obj{"from": "journal"}, nil)
			})
		}
	}},
	{"the largest views, published and read", 5, func(a *attacker) func() {
		held := a.holds(a.no.scale(4, 32), obj{"kind": "shows"})
		text := strings.Repeat("x", a.no.scale(2<<10, 64<<10-100))
		return func() {
			var next atomic.Int64
			a.storm(8, func(i int) {
				r := held[i%len(held)]
				var views []obj
				for v := range 16 {
					views = append(views, obj{"name": fmt.Sprint("v", v), "value": fmt.Sprint(i, v, text)})
				}
				a.count(a.commit(r, fmt.Sprint("show", next.Add(1)), obj{"views": views}))
				a.call("GET", "/api/v1/runs/"+r.RunID+"/views", nil, nil)
				a.call("GET", "/api/v1/runs/"+r.RunID+"/views/v7", nil, nil)
			})
		}
	}},
	{"watches of many lists over many sockets", 20, func(a *attacker) func() {
		a.load(a.no.scale(50, 3000), func(i int) obj {
			return obj{"kind": fmt.Sprint("kind", i%50), "metadata": obj{"m": fmt.Sprint(i % 7)}}
		})
		return func() {
			a.beside(
				func() {
					a.each(a.no.scale(6, 64), 64, func(k int) {
						var watches []obj
						for i := range 16 {
							w := obj{"type": "watch", "id": fmt.Sprint(i), "of": "runs", "limit": 200, "events": true,
								"filter": obj{"metadata": obj{"m": fmt.Sprint((k + i) % 200)}}}
							if i%4 == 3 {
								w = obj{"type": "watch", "id": fmt.Sprint(i), "of": "counts",
									"filter": obj{"metadata": obj{"m": fmt.Sprint(i)}}}
							}
							watches = append(watches, w)
						}
						a.watch(a.key, watches)
					})
				},
				func() {
					a.storm(8, func(i int) { a.submit(obj{"kind": "kind1", "metadata": obj{"m": fmt.Sprint(i % 7)}}) })
				})
		}
	}},
	{"an operator watches all tenants at once", 1, func(a *attacker) func() {
		for i := range a.no.scale(5, 200) {
			a.callAs(a.platform, "POST", fmt.Sprintf("/api/admin/tenants/crowd%d/keys", i),
				obj{"name": "k", "scopes": []string{"runs:read"}}, nil)
		}
		a.load(a.no.scale(50, 3000), alike(obj{"kind": "bomb"}))
		return func() {
			a.beside(
				func() {
					a.each(a.no.scale(3, 24), 24, func(k int) {
						a.watch(a.platform, []obj{
							{"type": "watch", "id": "r", "of": "runs", "tenant": "*", "limit": 200 - k, "events": true},
							{"type": "watch", "id": "c", "of": "counts", "tenant": "*",
								"filter": obj{"kind": fmt.Sprint("k", k)}},
							{"type": "watch", "id": "h", "of": "history", "tenant": "*"}})
					})
				},
				func() { a.storm(8, func(i int) { a.submit(obj{"kind": "bomb"}) }) })
		}
	}},
	{"events for a hundred webhooks", 1, func(a *attacker) func() {
		hooks := make([]string, a.no.scale(20, 100))
		a.each(len(hooks), 50, func(i int) {
			var made struct {
				ID string `json:"webhook_id"`
			}
			a.call("POST", "/api/v1/webhooks",
				obj{"url": fmt.Sprintf("http://127.0.0.1:9/%d", i), "events": []string{"x:noise"}}, &made)
			hooks[i] = made.ID
		})
		held := a.holds(a.no.scale(2, 20), obj{"kind": "loud"})
		a.commit(held[0], "first", obj{"events": []obj{{"type": "x:noise", "data": 1}}})
		var page struct {
			Deliveries []struct {
				ID string `json:"delivery_id"`
			} `json:"deliveries"`
		}
		for len(page.Deliveries) == 0 && a.ctx.Err() == nil {
			a.call("GET", "/api/v1/webhooks/"+hooks[0]+"/deliveries?limit=1000", nil, &page)
		}
		var events []obj
		for range a.no.scale(100, 1000) {
			events = append(events, obj{"type": "x:noise", "data": 1})
		}
		return func() {
			var next atomic.Int64
			a.beside(func() {
				a.storm(2, func(i int) {
					a.count(a.commit(held[i%len(held)], fmt.Sprint("noise", next.Add(1)), obj{"events": events}))
				})
			}, func() {
				a.storm(2, func(i int) {
					hook := "/api/v1/webhooks/" + hooks[i%len(hooks)]
					if i%8 == 1 {
						a.call("DELETE", hook, nil, nil)
					}
					a.call("GET", hook+"/deliveries?limit=1000", nil, nil)
					a.call("POST", "/api/v1/deliveries/"+page.Deliveries[0].ID+"/redeliver", obj{}, nil)
					a.call("POST", hook+"/test", obj{}, nil)
					a.call("POST", hook+"/rotate", obj{}, nil)
					a.call("PATCH", hook, obj{"description": fmt.Sprint(i)}, nil)
				})
			})
		}
	}},
	{"spawns by the thousand in one call", 0.4, func(a *attacker) func() {
		held := a.holds(a.no.scale(8, 64), obj{"kind": "parent"})
		var spawns []obj
		for i := range a.no.scale(50, 1000) {
			spawns = append(spawns, obj{"key": fmt.Sprintf("kid#%d", i), "kind": "brood", "timeout": "5s"})
		}
		return func() {
			a.each(len(held), 4, func(i int) {
				a.count(a.commit(held[i], "c", obj{"children": spawns}))
				a.call("GET", "/api/v1/runs/"+held[i].RunID+"/tree?limit=1000", nil, nil)
				a.commit(held[i], "end", obj{"outcome": obj{"type": "complete"}})
			})
			<-a.ctx.Done()
		}
	}},
	{"deadlines and groups that pass all at once", 1, func(a *attacker) func() {
		long := fmt.Sprintf("%dms", a.no.scale(100, 2000))
		return func() {
			ids := a.load(a.no.scale(200, 10_000), alike(obj{"kind": "bomb", "timeout": long}))
			for _, id := range ids {
				if id != "" {
					a.happened(1)
				}
			}
			a.each(len(ids)/2, 16, func(i int) {
				a.call("POST", "/api/v1/groups", obj{"run_ids": ids[2*i : 2*i+2], "timeout": long}, nil)
			})
			<-a.ctx.Done()
		}
	}},
	{"submits as fast as it goes", 200, unprepared(func(a *attacker) {
		a.storm(64, func(int) {
			a.hit("POST", "/api/v1/runs", obj{"kind": "bomb", "input": strings.Repeat("x", 4000)}, nil)
		})
	})},
	{"submits in batches of a thousand", 0.5, func(a *attacker) func() {
		runs := make([]obj, a.no.scale(100, 1000))
		for i := range runs {
			runs[i] = obj{"kind": "bomb", "input": strings.Repeat("x", 4000)}
		}
		return func() { a.storm(8, func(int) { a.hit("POST", "/api/v1/runs/batch", obj{"runs": runs}, nil) }) }
	}},
	{"the largest bodies", 1, func(a *attacker) func() {
		body := []byte(`{"kind":"bomb","metadata":{"a":"` + strings.Repeat("x", 15<<20) + `"}}`)
		return func() {
			a.storm(a.no.scale(4, 32), func(int) {
				if status := a.call("POST", "/api/v1/runs", body, nil); status/100 == 4 && status != 429 {
					a.happened(1) // it was read, and is too large to be stored
				}
			})
		}
	}},
	{"streams, sockets and polls that stay", 30, func(a *attacker) func() {
		id := a.submit(obj{"kind": "bomb"})
		n := a.no.scale(30, 400)
		return func() {
			a.beside(func() { a.held(n, "GET", "/api/v1/runs/"+id+"/stream") },
				func() { a.held(n, "GET", "/api/v1/runs/"+id+"/events?wait=30s&after=100") },
				func() { a.held(n, "GET", "/api/v1/runs/"+id+"/join?timeout=1h") })
		}
	}},
	{"thousands of joins of one run, which ends", 500, func(a *attacker) func() {
		var conns []net.Conn
		for range a.no.scale(200, 8000) {
			c, err := net.Dial("tcp", a.addr)
			if err != nil {
				a.wrong("connection %d: %v", len(conns), err)
				break
			}
			conns = append(conns, c)
		}
		held := a.holds(a.no.scale(2, 50), obj{"kind": "awaited"})
		return func() {
			for i := 0; i < len(held) && a.ctx.Err() == nil; i++ {
				a.joins(conns, held[i].RunID, func() {
					for k := range 5 { // each line wakes those who wait
						a.commit(held[i], fmt.Sprint("line", k), obj{"events": []obj{{"type": "x:line"}}})
					}
					a.commit(held[i], "end", obj{"outcome": obj{"type": "complete"}})
				})
			}
		}
	}},
	{"connections without a key that ask once, or never read", 30, unprepared(func(a *attacker) {
		a.beside(func() { a.held(a.no.scale(30, 400), "GET", "/healthz") },
			func() { a.held(a.no.scale(10, 60), "GET", "/openapi.json") })
	})},
	{"slow requests without a key on all connections", 500, unprepared(func(a *attacker) {
		a.slowly(a.no.scale(1800, 9500))
	})},
	{"callbacks that nobody gave out, with large bodies", 10, unprepared(func(a *attacker) {
		body := obj{"result": strings.Repeat("x", 1<<20-100)}
		a.storm(8, func(i int) { a.hit("POST", fmt.Sprintf("/api/v1/callbacks/cb_%d", i), body, nil) })
	})},
	{"every list at its largest", 50, func(a *attacker) func() {
		a.load(a.no.scale(50, 3000), func(i int) obj {
			return obj{"kind": fmt.Sprint("kind", i%500), "queue": fmt.Sprint("queue", i%500)}
		})
		a.each(a.no.scale(20, 500), 8, func(int) { a.thread() })
		lists := []string{"/runs?limit=1000", "/workers", "/queues", "/dlq?limit=1000", "/approvals?limit=1000",
			"/webhooks", "/keys", "/threads?limit=200", "/audit?limit=1000", "/history?since=24h", "/runs/counts"}
		return func() { a.storm(8, func(i int) { a.hit("GET", "/api/v1"+lists[i%len(lists)], nil, nil) }) }
	}},
	{"looks at one large run", 50, func(a *attacker) func() {
		thread := a.thread()
		large := strings.Repeat("x", a.no.scale(10<<10, 1<<20-100))
		a.submit(obj{"kind": "large", "input": large, "thread_id": thread,
			"messages": []obj{{"role": "user", "content": large}}})
		r := a.lease("large", 1)[0]
		at := "/api/v1/runs/" + r.RunID
		messages := fmt.Sprintf("%s/messages?epoch=%d", at, r.Epoch)
		a.call("GET", messages, nil, nil)
		a.put(r, "out", large)
		a.commit(r, "end", obj{"outcome": obj{"type": "complete", "result": large}})
		looks := []string{at, at + "/activity", at + "/deliverable", at + "/events?limit=1000", at + "/artifacts",
			at + "/late-results", "/api/v1/jobs/" + r.RunID + "/status", "/api/v1/threads/" + thread,
			"/api/v1/threads/" + thread + "/messages?limit=1000"}
		return func() { a.storm(8, func(i int) { a.hit("GET", looks[i%len(looks)], nil, nil) }) }
	}},
	{"artifacts under one name", 1, func(a *attacker) func() {
		r := a.holds(1, obj{"kind": "maker"})[0]
		body := strings.Repeat("x", a.no.scale(1<<20, 16<<20))
		return func() { a.storm(8, func(i int) { a.count(a.put(r, "one", fmt.Sprint(i, body))) }) }
	}},
	{"downloads of a large artifact", 1, func(a *attacker) func() {
		r := a.holds(1, obj{"kind": "maker"})[0]
		a.put(r, "one", strings.Repeat("x", a.no.scale(100<<10, 16<<20)))
		return func() {
			a.storm(4, func(i int) { a.hit("GET", "/api/v1/runs/"+r.RunID+"/artifacts/one", nil, nil) })
		}
	}},
	{"dead letters, redriven and discarded by the thousand", 0.2, func(a *attacker) func() {
		a.end(a.holds(a.no.scale(100, 4000), obj{"kind": "dies"}),
			obj{"type": "fail", "retryable": false, "error": obj{"code": "x", "message": strings.Repeat("x", 2000)}})
		return func() {
			a.storm(4, func(i int) {
				a.hit("POST", "/api/v1/dlq/redrive", obj{"kind": "dies", "limit": 1000}, nil)
				a.hit("GET", "/api/v1/dlq/causes", nil, nil)
				if i%4 == 3 {
					a.hit("POST", "/api/v1/dlq/discard", obj{"kind": "dies", "limit": 1000}, nil)
				}
			})
		}
	}},
	{"runs and threads that are deleted", 20, func(a *attacker) func() {
		n := a.no.scale(60, 3000)
		held := a.holds(n, obj{"kind": "short", "input": strings.Repeat("x", 4000)})
		a.end(held, obj{"type": "complete"})
		var threads []string
		for range a.no.scale(3, 30) {
			thread := a.thread()
			for range a.no.scale(1, 3) {
				var messages []obj
				for range a.no.scale(20, 900) {
					messages = append(messages, obj{"role": "user", "content": strings.Repeat("x", 1000)})
				}
				a.submit(obj{"kind": "talk", "thread_id": thread, "messages": messages})
				a.end(a.lease("talk", 1), obj{"type": "complete"})
			}
			threads = append(threads, thread)
		}
		return func() {
			a.each(len(held)+len(threads), 16, func(i int) {
				if i < len(threads) {
					a.hit("DELETE", "/api/v1/threads/"+threads[i], nil, nil)
					return
				}
				a.hit("DELETE", "/api/v1/runs/"+held[i-len(threads)].RunID, nil, nil)
			})
			<-a.ctx.Done()
		}
	}},
	{"keys, sessions and links made in a loop", 20, unprepared(func(a *attacker) {
		a.storm(8, func(i int) {
			var made struct {
				ID string `json:"key_id"`
			}
			a.hit("POST", "/api/v1/keys", obj{"name": fmt.Sprint("k", i), "scopes": []string{"runs:read"}}, &made)
			a.hit("POST", "/api/v1/session", obj{}, nil)
			a.hit("POST", "/api/v1/session/links", obj{}, nil)
			a.call("GET", "/api/v1/session", nil, nil)
			if i%4 == 0 {
				a.call("DELETE", "/api/v1/keys/"+made.ID, nil, nil)
				a.call("DELETE", "/api/v1/session", nil, nil)
			}
		})
	})},
	{"conversations with the supervisor", 20, unprepared(func(a *attacker) {
		text := strings.Repeat("x", 4000)
		a.storm(16, func(int) { a.hit("POST", "/api/v1/chat", obj{"message": "hello " + text}, nil) })
	})},
	{"conversations on very large threads", 1, func(a *attacker) func() {
		// All messages are alike, so that the store keeps their content once.
		var messages []obj
		for range a.no.scale(2, 8) {
			messages = append(messages,
				obj{"role": "user", "content": strings.Repeat("x", a.no.scale(100<<10, 1<<20-1000))})
		}
		threads := make([]string, a.no.scale(2, 8))
		a.each(len(threads), 2, func(i int) {
			threads[i] = a.thread()
			for range a.no.scale(2, 16) {
				a.submit(obj{"kind": fmt.Sprint("fills", i), "thread_id": threads[i], "messages": messages})
				a.end(a.lease(fmt.Sprint("fills", i), 1), obj{"type": "complete"})
			}
		})
		return func() {
			a.storm(8, func(i int) {
				a.hit("POST", "/api/v1/chat",
					obj{"thread_id": threads[i%len(threads)], "message": "and?", "wait": "50ms"}, nil)
			})
		}
	}},
}

// wide loads a hundred queues, each with runs of many kinds.
func (a *attacker) wide() (queues []string) {
	for i := range 100 {
		queues = append(queues, fmt.Sprint("wide", i))
	}
	a.load(a.no.scale(400, 8000), func(i int) obj {
		return obj{"kind": fmt.Sprint("kind", i/100), "queue": queues[i%100]}
	})
	return queues
}

// pollsWide polls all queues for one run.
func (a *attacker) pollsWide(queues []string, i int) {
	a.hit("POST", fmt.Sprintf("/api/v1/workers/w%d/poll", i%16), obj{"slots": 1, "wait": "0s", "queues": queues}, nil)
}
