package conformance

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

// boundScenarios check that one call costs a bounded number of rows and bytes, however much a run
// or a queue holds.
var boundScenarios = []Scenario{
	{"the end of an epoch writes no inbox item", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		w.signals(r.ID, 3)
		g := w.take("w1")
		w.check(w.statuses(r.ID) == "processing processing processing", "after the grant: %s", w.statuses(r.ID))
		before := w.stored(r.ID)
		w.do(&life.Release{Tenant: tenant, Worker: "w1", Leases: []life.Lease{lease(g)}})
		w.check(w.stored(r.ID) == before, "a release wrote items: %s, before it %s", w.stored(r.ID), before)
		w.check(w.statuses(r.ID) == "pending pending pending", "after the release: %s", w.statuses(r.ID))
		g = w.take("w2")
		w.check(len(g.Inbox) == 3, "the next holder has %d of 3 items", len(g.Inbox))
		w.commit(g, perdure.Commit{Ack: []int64{1}, Waits: wait(forGo), Outcome: suspend})
		w.check(w.statuses(r.ID) == "done pending pending", "after the suspend: %s", w.statuses(r.ID))
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "start_task"})
		g = w.take("w3")
		before = w.stored(r.ID)
		w.complete(g, `1`)
		w.check(w.stored(r.ID) == before, "an end wrote items: %s, before it %s", w.stored(r.ID), before)
		w.check(w.statuses(r.ID) == "done pending pending pending", "after the end: %s", w.statuses(r.ID))
	}},
	{"an earlier holder's answer is not told", func(w *World) {
		// The first holder was handed the wait's end; the second has not fetched it and suspends on
		// all that is open.
		r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		big := strings.Repeat("x", 600<<10)
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{{ID: "a", Type: perdure.WaitSignal, Name: "a"},
			{ID: "b", Type: perdure.WaitSignal, Name: "b", Timeout: perdure.Never}}})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "big", Data: json.RawMessage(`"` + big + `"`)})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "big", Data: json.RawMessage(`"` + big + `"`)})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "a"})
		for after := int64(0); ; {
			in := &life.Inbox{Tenant: tenant, RunID: r.ID, Epoch: g.Run.Epoch, After: after}
			w.do(in)
			if after = in.Next; after == 0 {
				break
			}
		}
		w.do(&life.Release{Tenant: tenant, Worker: "w1", Leases: []life.Lease{lease(g)}})
		g = w.take("w2")
		w.check(len(g.Inbox) == 1 && g.InboxNext == 1, "the grant has %d items, next %d", len(g.Inbox), g.InboxNext)
		w.commit(g, perdure.Commit{Outcome: suspend})
		w.state(r.ID, perdure.Queued)
	}},
	{"an inbox is handed over in pages", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		w.signals(r.ID, 300)
		g := w.take("w1")
		w.check(len(g.Inbox) == 256 && g.InboxNext == 256, "a grant has %d items, next %d", len(g.Inbox), g.InboxNext)
		in := &life.Inbox{Tenant: tenant, RunID: r.ID, Epoch: g.Run.Epoch, After: g.InboxNext}
		w.do(in)
		w.check(len(in.Page) == 44 && in.Next == 0, "the next page has %d items, next %d", len(in.Page), in.Next)
		w.commit(g, perdure.Commit{Ack: []int64{1, 300, 300},
			Waits: []perdure.WaitSpec{{ID: "w", Type: perdure.WaitSignal, Name: "s2"}}})
		for _, i := range w.items(r.ID) {
			w.check((i.WaitID == "w") == (i.Seq == 2),
				"item %d satisfied %q: the oldest of its name comes first", i.Seq, i.WaitID)
			w.check((i.Status == perdure.ItemDone) == (i.Seq == 1 || i.Seq == 300), "item %d is %s", i.Seq, i.Status)
		}
		w.complete(g, `1`)
	}},
	{"alarms of inbox items leave their run alone", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		g := w.take("w1")
		w.signals(r.ID, 40)
		version := w.get(r.ID).Version
		w.Now = w.Now.Add(11 * time.Second)
		w.do(w.W.Pass())
		w.check(w.get(r.ID).Version == version, "looking at 40 items made version %d of version %d",
			w.get(r.ID).Version, version)
		w.view(func(v *store.View) error {
			return v.Rows("SELECT count(*) FROM inbox WHERE alarm_at>?", []any{int64(w.Now)},
				func(scan func(...any) error) error {
					n := 0
					err := scan(&n)
					w.check(n == 40, "%d of 40 alarms were put off", n)
					return err
				})
		})
		w.complete(g, `1`)
	}},
	{"an item's alarm undoes nothing", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		g := w.take("w1")
		w.signals(r.ID, 2)
		var rung []perdure.Item
		w.Now = w.Now.Add(11 * time.Second)
		w.do(inTx(func(tx *kernel.Tx) (err error) { rung, err = tx.DB.Inbox.Ringing(10); return err }))
		w.check(len(rung) == 2, "%d of 2 alarms rang", len(rung))
		w.do(&life.Inbox{Tenant: tenant, RunID: r.ID, Epoch: g.Run.Epoch})
		w.commit(g, perdure.Commit{Ack: []int64{1}})
		before := w.stored(r.ID)
		w.do(inTx(func(tx *kernel.Tx) error { // as it was read before the items were handed over
			for _, i := range rung {
				if err := upkeep.PostponeItemAlarm(tx, i, tx.Now.Add(time.Minute)); err != nil {
					return err
				}
			}
			return nil
		}))
		w.check(w.stored(r.ID) == before, "an outdated look made %s of %s", w.stored(r.ID), before)
		w.complete(g, `1`)
	}},
	{"ends of work outside are bounded", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent, ThreadID: w.thread()})
		say := func(n int) *life.Continue {
			return &life.Continue{Tenant: tenant, RunID: r.ID, JobID: fmt.Sprint("job", n)}
		}
		ops := make([]kernel.Op, 256)
		for n := range ops {
			ops[n] = say(n)
		}
		for _, err := range w.E.Step(w.Now, ops...) {
			w.check(err == nil, "%v", err)
		}
		w.refuse(perdure.CodeQuota, say(256))
		w.do(say(7)) // known
		g := w.take("w1")
		w.commit(g, perdure.Commit{Ack: []int64{1}})
		w.do(say(256))
		w.complete(g, `1`)
		w.check(w.get(r.ID).ContinuedBy != "", "it is not continued")
	}},
	{"open waits are bounded", func(w *World) {
		w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		g := w.take("w1")
		waits := make([]perdure.WaitSpec, perdure.MaxOpenWaits)
		for i := range waits {
			waits[i] = perdure.WaitSpec{ID: fmt.Sprint("w", i), Type: perdure.WaitSignal, Name: "s",
				Timeout: perdure.Never}
		}
		w.commit(g, perdure.Commit{Waits: waits})
		more := perdure.Commit{Waits: []perdure.WaitSpec{{ID: "more", Type: perdure.WaitSignal, Name: "s"}}}
		w.refuse(perdure.CodeOverBound, w.commitOf(g, more))
		w.commit(g, perdure.Commit{Waits: waits[:1]}) // it is open already
		more.Close = []string{"w7"}
		w.commit(g, more)
		w.complete(g, `1`)
	}},
	{"children that open waits name are bounded", func(w *World) {
		w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		g := w.take("w1")
		kids := make([]perdure.Spawn, perdure.MaxList)
		keys := make([]string, len(kids))
		for i := range kids {
			keys[i] = fmt.Sprint("k", i)
			kids[i] = perdure.Spawn{Key: keys[i], Kind: "kid"}
		}
		w.commit(g, perdure.Commit{Children: kids})
		for i := range perdure.MaxOpenTargets / len(kids) {
			w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{{ID: fmt.Sprint("w", i),
				Type: perdure.WaitChildren, Keys: keys}}})
		}
		w.refuse(perdure.CodeOverBound, w.commitOf(g,
			perdure.Commit{Waits: []perdure.WaitSpec{{ID: "more", Type: perdure.WaitChildren, Keys: keys[:1]}}}))
		w.commit(g, perdure.Commit{Close: []string{"w0"},
			Waits: []perdure.WaitSpec{{ID: "more", Type: perdure.WaitChildren, Keys: keys[:1]}}})
	}},
	{"a failure's code is short", func(w *World) {
		w.task()
		g := w.take("w1")
		w.refuse(perdure.CodeOverBound, w.commitOf(g,
			perdure.Commit{Outcome: failed(strings.Repeat("c", perdure.MaxCode+1))}))
		o := failed(strings.Repeat("c", perdure.MaxCode))
		o.Retryable = new(bool)
		w.commit(g, perdure.Commit{Outcome: o})
		w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		g = w.take("w1")
		token := w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{{ID: "cb",
			Type: perdure.WaitCallback}}}).Callbacks[0].Token
		w.refuse(perdure.CodeOverBound, &life.Callback{Token: token,
			Error: &perdure.Failure{Code: perdure.Code(strings.Repeat("c", 4000))}})
		w.complete(g, `1`)
	}},
	{"a poll has a bound of bytes", func(w *World) {
		big := json.RawMessage(`"` + strings.Repeat("x", perdure.MaxValue-2) + `"`)
		const runs = 10
		for range runs {
			w.submit(perdure.Submission{Kind: "job", Input: big})
		}
		granted := 0
		for polls := 0; granted < runs; polls++ {
			w.check(polls < 3, "%d of %d runs were granted in %d polls", granted, runs, polls)
			size := 0
			for _, g := range w.poll("w1", 500) {
				size += len(g.Input)
				granted++
			}
			w.check(size <= dispatch.PollMax && size > 0, "poll %d has %d bytes of inputs", polls+1, size)
		}
		w.submit(perdure.Submission{Kind: "job", Input: big})
		op := &dispatch.Claim{Tenant: tenant, Worker: "w1", Slots: 5, Room: 1000}
		w.do(op)
		w.check(len(op.Grants) == 1, "%d runs were granted: one is, whatever its size", len(op.Grants))
	}},
	{"kinds take turns where there are many", func(w *World) {
		const kinds = 330
		for i := range kinds {
			w.submit(perdure.Submission{Kind: fmt.Sprintf("kind%03d", i)})
		}
		first := w.submit(perdure.Submission{Kind: "kind050", Priority: 5})
		// A poll reads some of the kinds. The next one begins behind them.
		w.check(w.poll("w1", 1)[0].Run.ID == first.ID, "the first poll takes by priority")
		second := w.poll("w1", 1)[0].Run.Kind
		w.check(second > "kind100" && second < "kind200", "the second poll took a run of %s", second)
		granted := 2
		for polls := 2; granted < kinds+1; polls++ {
			w.check(polls < 12, "%d of %d runs were granted in %d polls", granted, kinds+1, polls)
			granted += len(w.poll("w1", 1000))
		}
	}},
	{"a poll that has read no run goes on until it has read all places", func(w *World) {
		var queues, kinds []string
		for q := range 100 {
			queues = append(queues, fmt.Sprintf("q%03d", q))
			for k := range 10 {
				kind := fmt.Sprintf("kind%02d", k)
				w.submit(perdure.Submission{Queue: queues[q], Kind: kind})
				if q == 0 {
					kinds = append(kinds, kind+"x")
				}
			}
		}
		last := w.submit(perdure.Submission{Queue: queues[99], Kind: kinds[9]})
		for _, any := range []bool{false, true} {
			op := &dispatch.Claim{Tenant: tenant, AnyTenant: any, Worker: "w1", Queues: queues, Kinds: kinds, Slots: 1}
			claims := 0
			for op.More = true; op.More; claims++ {
				w.check(claims < 20, "the poll comes to no end")
				w.do(op)
			}
			w.check(len(op.Grants) == 1 && op.Grants[0].Run.ID == last.ID && claims > 1,
				"%d claims found %d runs, want the last one", claims, len(op.Grants))
			w.do(&life.Release{Tenant: tenant, Worker: "w1", Leases: []life.Lease{lease(op.Grants[0])}})
			for w.get(last.ID).Run.State != perdure.Queued || !w.get(last.ID).Run.Ready {
				w.pass(time.Second)
			}
		}
	}},
	{"a poll for all tenants goes round them", func(w *World) {
		for i := range 60 {
			w.do(&life.Submit{Tenant: "a-busy", Submission: perdure.Submission{Kind: fmt.Sprint("job", i%3)}})
		}
		for range 5 {
			w.do(&life.Submit{Tenant: "z-quiet", Submission: perdure.Submission{Kind: "job0"}})
		}
		take := func(slots int) (out []string) {
			op := &dispatch.Claim{Tenant: tenant, AnyTenant: true, Worker: "w1", Slots: slots}
			w.do(op)
			for _, g := range op.Grants {
				out = append(out, string(g.Run.Tenant))
			}
			return out
		}
		got := take(6)
		w.check(slices.Equal(got, []string{"a-busy", "z-quiet", "a-busy", "z-quiet", "a-busy", "z-quiet"}),
			"the first poll: %v", got)
		w.check(slices.Equal(take(1), []string{"a-busy"}) && slices.Equal(take(1), []string{"z-quiet"}),
			"polls of one slot don't take turns")
		got = take(1000)
		w.check(len(got) == 57 && got[1] == "z-quiet", "the rest: %v", got)
	}},
	{"a poll for all tenants takes of each as many as its weight says", func(w *World) {
		for i, t := range []perdure.TenantID{"four", "one", "ten"} {
			weight := []int64{4, 0, 10}[i]
			w.do(&rules.ChangeTenant{Tenant: t, Limits: perdure.TenantLimitChanges{Weight: &weight}})
			for range 180 {
				w.do(&life.Submit{Tenant: t, Submission: perdure.Submission{Kind: "job"}})
			}
		}
		for _, slots := range []int{1, 3, 7, 32} {
			for _, kinds := range [][]string{nil, {"job"}} {
				got := make(map[perdure.TenantID]int)
				for n := 0; n < 30; {
					op := &dispatch.Claim{Tenant: tenant, AnyTenant: true, Worker: "w1", Kinds: kinds,
						Slots: min(slots, 30-n)}
					w.do(op)
					for _, g := range op.Grants {
						got[g.Run.Tenant]++
						n++
					}
				}
				w.check(got["four"] == 8 && got["one"] == 2 && got["ten"] == 20, "polls of %d slots for kinds %v: %v",
					slots, kinds, got)
				w.restart() // the turns begin again
			}
		}
		zero, tooMuch := int64(0), int64(101)
		w.do(&rules.ChangeTenant{Tenant: "ten", Limits: perdure.TenantLimitChanges{Weight: &zero}})
		w.refuse(perdure.CodeInvalid,
			&rules.ChangeTenant{Tenant: "ten", Limits: perdure.TenantLimitChanges{Weight: &tooMuch}})
		got := make(map[perdure.TenantID]int)
		for range 12 {
			op := &dispatch.Claim{Tenant: tenant, AnyTenant: true, Worker: "w1", Slots: 1}
			w.do(op)
			got[op.Grants[0].Run.Tenant]++
		}
		w.check(got["four"] == 8 && got["one"] == 2 && got["ten"] == 2, "after the change: %v", got)
	}},
}

// inTx is an operation that a scenario defines.
type inTx func(tx *kernel.Tx) error

func (inTx) Needs() []store.Ref       { return nil }
func (f inTx) Do(tx *kernel.Tx) error { return f(tx) }

// signals sends signals s1, s2, … in one batch.
func (w *World) signals(id perdure.RunID, n int) {
	w.t.Helper()
	ops := make([]kernel.Op, n)
	for i := range ops {
		ops[i] = &life.Signal{Tenant: tenant, RunID: id, Name: fmt.Sprint("s", i+1)}
	}
	for _, err := range w.E.Step(w.Now, ops...) {
		w.check(err == nil, "a signal: %v", err)
	}
}

// items gives a run's inbox items, with their current status.
func (w *World) items(id perdure.RunID) (out []perdure.Item) {
	w.t.Helper()
	w.view(func(v *store.View) (err error) { out, err = v.Inbox.List(tenant, id); return err })
	return out
}

// statuses gives the current status of each inbox item, in order.
func (w *World) statuses(id perdure.RunID) string {
	w.t.Helper()
	var out []string
	for _, i := range w.items(id) {
		out = append(out, i.Status)
	}
	return strings.Join(out, " ")
}

// stored gives a run's inbox items as they are stored.
func (w *World) stored(id perdure.RunID) (out string) {
	w.t.Helper()
	w.view(func(v *store.View) error {
		return v.Rows("SELECT seq, status, epoch, coalesce(alarm_at,0) FROM inbox WHERE run_id=? ORDER BY seq",
			[]any{string(id)}, func(scan func(...any) error) error {
				var seq, epoch, alarm int64
				var status string
				err := scan(&seq, &status, &epoch, &alarm)
				out += fmt.Sprintf("%d %s %d %d; ", seq, status, epoch, alarm)
				return err
			})
	})
	return out
}
