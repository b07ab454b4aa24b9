package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// A wound is one column of one row of a run, holding what it never should.
type wound struct {
	table, column string
	value         any
	state         string // of the run
	run           perdure.RunID
}

func (x wound) String() string {
	return fmt.Sprintf("%s.%s=%.60q of a %s run", x.table, x.column, fmt.Sprint(x.value), x.state)
}

// belongs are the columns of a row that say whose it is, so that one in which they change is somebody else's.
var belongs = []string{"tenant", "id", "run_id"}

// wounds gives what a value may turn into: bits of its first, middle and last byte, and numbers beyond all bounds.
func wounds(v any, postgres bool) (out []any) {
	switch v := v.(type) {
	case string:
		at := []int{0, len(v) / 2, len(v) - 1}
		for i, n := range slices.Compact(at) {
			if v == "" {
				return []any{"y"}
			}
			b := []byte(v)
			b[n] ^= 1 << i
			if b[n] < ' ' {
				b[n] = '#'
			}
			out = append(out, string(b))
		}
		if !postgres {
			b := []byte(v)
			b[len(b)/2] ^= 0x80
			out = append(out, string(b))
		}
		out = append(out, "")
	case int64:
		out = []any{v ^ 1, -v - 7, int64(math.MaxInt32)}
		if v > math.MaxInt32 {
			out = append(out, v^1<<62, v+1<<37, int64(math.MaxInt64))
		}
		if !postgres {
			out = append(out, "x", int64(math.MinInt64))
		}
	}
	return out
}

// unchecked lets statements write what the schema forbids.
func (w *World) unchecked(postgres bool, change func()) {
	w.t.Helper()
	if !postgres {
		w.do(corrupt{"PRAGMA ignore_check_constraints=1", nil})
		change()
		w.do(corrupt{"PRAGMA ignore_check_constraints=0", nil})
		return
	}
	type constraint struct{ table, name, def string }
	var all []constraint
	w.view(func(v *store.View) error {
		return v.Rows("SELECT conrelid::regclass::text, conname::text, pg_get_constraintdef(oid) FROM "+
			"pg_constraint WHERE contype='c' AND conrelid::regclass::text IN ('runs','inbox')", nil,
			func(scan func(...any) error) error {
				var c constraint
				err := scan(&c.table, &c.name, &c.def)
				all = append(all, c)
				return err
			})
	})
	w.check(len(all) == 4, "%v", all)
	for _, c := range all {
		w.do(corrupt{"ALTER TABLE " + c.table + " DROP CONSTRAINT " + c.name, nil})
	}
	change()
	for _, c := range all {
		w.do(corrupt{"ALTER TABLE " + c.table + " ADD CONSTRAINT " + c.name + " " + c.def + " NOT VALID", nil})
	}
}

// row reads a row as it is.
func (w *World) row(table, key string, id string) map[string]any {
	w.t.Helper()
	columns, err := storetest.Columns(table)
	w.check(err == nil, "%v", err)
	values, places := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		places[i] = &values[i]
	}
	w.view(func(v *store.View) error {
		return v.Rows("SELECT "+strings.Join(columns, ",")+" FROM "+table+" WHERE "+key+"=?", []any{id},
			func(scan func(...any) error) error { return scan(places...) })
	})
	out := make(map[string]any)
	for i, c := range columns {
		out[c] = values[i]
	}
	return out
}

const damagedTimeout = perdure.Duration(5 * time.Minute)

// victims makes n runs of a state, each with all that may belong to one.
func (w *crowded) victims(state string, n int) []perdure.RunID {
	w.t.Helper()
	ids, _ := w.runs(n, true, perdure.Submission{Kind: state, Class: perdure.Agent, Timeout: damagedTimeout,
		Input: json.RawMessage(`{"n":1}`), Metadata: map[string]string{"a": "b"}})
	w.signals(ids)
	if state == "queued" {
		return ids
	}
	op := &dispatch.Claim{Tenant: tenant, Worker: "w1", Kinds: []string{state}, Slots: n, Start: true}
	w.do(op)
	w.check(len(op.Grants) == n, "%d grants", len(op.Grants))
	w.many(n, func(i int) kernel.Op {
		c := perdure.Commit{Journal: []perdure.JournalEntry{{Key: "a#1", Value: json.RawMessage(`{"x":1}`)}}}
		if state == "suspended" {
			c.Children = []perdure.Spawn{{Key: "a", Kind: "kid", Queue: "kids"}}
			c.Waits = wait(perdure.WaitSpec{ID: "c", Type: perdure.WaitChildren, Keys: []string{"a"},
				Timeout: perdure.Duration(3 * time.Minute)})
			c.Outcome = suspend
		}
		return w.commitOf(op.Grants[i], c)
	})
	w.many(n, func(i int) kernel.Op {
		return &life.CreateGroup{Tenant: tenant, RunIDs: ids[i : i+1], Timeout: perdure.Duration(4 * time.Minute)}
	})
	return ids
}

// hurt damages a store, a run for each wound that there can be.
func (w *crowded) hurt(postgres bool) (all []wound) {
	w.t.Helper()
	for _, state := range []string{"queued", "running", "suspended"} {
		pattern := w.victims(state, 1)[0]
		var list []wound
		for _, table := range []string{"runs", "waits", "inbox", "journal", "gatherings"} {
			key, of := "run_id", string(pattern)
			switch table {
			case "runs":
				key = "id"
			case "gatherings":
				key, of = "members", string(pattern)
			}
			for column, v := range w.row(table, key, of) {
				if !slices.Contains(belongs, column) {
					for _, x := range wounds(v, postgres) {
						list = append(list, wound{table, column, x, state, ""})
					}
				}
			}
		}
		ids := w.victims(state, len(list))
		for i := range list {
			list[i].run = ids[i]
			if list[i].value == "y" { // some of them have to differ
				list[i].value = "y" + string(ids[i])
			}
		}
		all = append(all, list...)
	}
	w.unchecked(postgres, func() {
		w.many(len(all), func(i int) kernel.Op {
			x, key := all[i], "run_id"
			switch x.table {
			case "runs":
				key = "id"
			case "gatherings":
				key = "members"
			}
			return corrupt{"UPDATE " + x.table + " SET " + x.column + "=? WHERE " + key + "=?",
				[]any{x.value, string(x.run)}}
		})
	})
	return all
}

// A damaged run gives its slot back, and another one that ends before the slots are counted again gives back one.
func TestADamagedRunGivesItsSlotBack(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := NewWorld(t, storetest.Open(t, at))
		w.limit("l", slots(2), false)
		for range 5 {
			w.under("", "l")
		}
		hurt := w.poll("w1", 5)
		w.do(corrupt{"UPDATE runs SET rest='{' WHERE id=?", []any{string(hurt[0].Run.ID)}})
		now := w.Now
		other := NewWorld(t, storetest.Open(t, at)) // it remembers nothing
		other.Now = max(now, other.Now)
		other.do(&life.Cancel{Tenant: tenant, RunID: hurt[0].Run.ID})
		other.complete(hurt[1], `1`)
		other.sweep()
		other.leases("l", "", 0, 1)
		other.check(len(other.poll("w2", 5)) == 2, "not as many runs are leased as the limit allows: %+v",
			other.counts("l", ""))
	})
}

// A run whose rows were damaged outside of the program blocks no other run, can be read, and ends.
func TestADamagedRunStopsNobody(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := &crowded{NewWorld(t, storetest.Open(t, at)), nil}
		good := w.submit(perdure.Submission{Kind: "queued", Priority: -1})
		due := w.submit(perdure.Submission{Kind: "queued", Priority: -2, Timeout: perdure.Duration(2 * time.Minute)})
		all := w.hurt(at.URL != "")
		now := w.Now
		w = &crowded{NewWorld(t, storetest.Open(t, at)), nil} // one that remembers nothing
		w.Now = max(now, w.Now)
		w.everythingIsShown(all)

		taken := false
		for range len(all) {
			for _, g := range w.poll("w2", 50) {
				w.whole(g)
				if g.Run.ID == good.ID {
					w.complete(g, `1`)
					taken = true
				}
			}
			if taken {
				break
			}
		}
		w.check(taken, "the run behind them is granted")
		end := w.Now.Add(time.Duration(damagedTimeout) + time.Minute)
		for n := 0; w.Now < end; n++ {
			w.Now = w.Now.Add(4 * time.Second)
			w.sweep()
			if n%10 == 0 {
				for _, g := range w.poll("w2", 500) {
					w.whole(g)
				}
			}
			if w.Now > due.DeadlineAt && w.Now < due.DeadlineAt.Add(5*time.Second) {
				w.check(w.storedState(due.ID) == perdure.TimedOut, "another meets its deadline: %s",
					w.storedState(due.ID))
			}
		}
		w.state(good.ID, perdure.Completed)
		w.everythingIsShown(all)
		for _, x := range all {
			// A bit of the deadline makes another deadline.
			if s := w.storedState(x.run); !s.Terminal() && x.column != "deadline_at" {
				t.Errorf("%v: it is %s", x, s)
			}
		}
	})
}

// whole has what is handed over be such that a worker can read it.
func (w *World) whole(g dispatch.Grant) {
	w.t.Helper()
	ok := g.Input == "" || json.Valid([]byte(g.Input))
	for _, j := range g.Journal {
		ok = ok && (j.Value == "" || json.Valid([]byte(j.Value)))
	}
	for _, i := range g.Inbox {
		ok = ok && (i.Data == "" || json.Valid([]byte(i.Data)))
	}
	w.check(ok, "handed over: %+v", g)
}

// everythingIsShown looks at each run alone and at all of them.
func (w *World) everythingIsShown(all []wound) {
	w.t.Helper()
	clean := func(what any, err error) {
		var refused *perdure.Error
		if err != nil && !errors.As(err, &refused) {
			w.t.Fatalf("%v: %v", what, err)
		}
	}
	for i, x := range all {
		d, err := w.E.Runs.Get(context.Background(), tenant, x.run)
		clean(x, err)
		if i%50 == 0 {
			_, err = w.E.Runs.List(context.Background(), tenant, store.RunFilter{Limit: 100, Before: x.run})
			clean("a list", err)
		}
		if _, err := json.Marshal(d.Fallback); err != nil {
			w.t.Fatalf("%v: %v", x, err)
		}
	}
}

// A column that can't be read is not overwritten while the run is live, so that a person may repair it. A tenant
// that requires signatures is told that the run is not the one that was accepted.
func TestWhatCantBeReadIsKeptUntilTheEnd(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := NewWorld(t, storetest.Open(t, at))
		r := w.submit(perdure.Submission{Kind: "job"})
		w.do(corrupt{"UPDATE runs SET rest='{\"held\":', committed='7x', version=version+1 WHERE id=?",
			[]any{string(r.ID)}})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "a"})
		row := w.row("runs", "id", string(r.ID))
		w.check(row["rest"] == `{"held":` && row["committed"] == "7x", "%v %v", row["rest"], row["committed"])
		w.do(corrupt{"UPDATE tenants SET require_signatures=1", nil})
		w.restart()
		w.pass(6 * time.Second)
		w.ended(r.ID, perdure.Failed, perdure.CodeSignatureInvalid)
		row = w.row("runs", "id", string(r.ID))
		w.check(strings.Contains(row["rest"].(string), "signature_invalid"), "%v", row["rest"])
	})
}

// An alarm that would ring long after the deadline is set anew by the patrol.
func TestAnAlarmThatIsTooLateIsSetAnew(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := NewWorld(t, storetest.Open(t, at))
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Minute)})
		w.sweep()
		w.do(corrupt{"UPDATE runs SET alarm_at=alarm_at+100000000000, version=version+1 WHERE id=?",
			[]any{string(r.ID)}})
		w.pass(61 * time.Second)
		w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
	})
}

// A live run that no alarm calls would hang for ever. The check names it, and the patrol has it watched again, by the
// clocks that it has.
func TestARunThatLostItsAlarmIsWatchedAgain(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := &crowded{NewWorld(t, storetest.Open(t, at)), nil}
		w.sweep()
		lost := []any{nil, int64(0)}
		if at.URL == "" {
			lost = append(lost, "x")
		}
		alarms, deadline := make(map[perdure.RunID]any), perdure.Instant(0)
		w.unchecked(at.URL != "", func() {
			for _, state := range []string{"queued", "running", "suspended"} {
				ids, _ := w.runs(len(lost), true, perdure.Submission{Kind: state, Class: perdure.Agent,
					Timeout: damagedTimeout})
				if state != "queued" {
					op := &dispatch.Claim{Tenant: tenant, Worker: "w1", Kinds: []string{state}, Slots: len(ids),
						Start: true}
					w.do(op)
					w.many(len(ids), func(i int) kernel.Op {
						if state == "running" {
							return w.commitOf(op.Grants[i],
								perdure.Commit{Journal: []perdure.JournalEntry{{Key: "a#1",
									Value: json.RawMessage(`1`)}}})
						}
						return w.commitOf(op.Grants[i],
							perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "s", Type: perdure.WaitSignal, Name: "go"}),
								Outcome: suspend})
					})
				}
				for i, id := range ids {
					row := w.row("runs", "id", string(id))
					alarms[id], deadline = row["alarm_at"], perdure.Instant(row["deadline_at"].(int64))
					w.do(corrupt{"UPDATE runs SET alarm_at=?, version=version+1 WHERE id=?",
						[]any{lost[i], string(id)}})
				}
			}
		})
		named := make(map[string]bool)
		w.view(func(v *store.View) error {
			found, err := v.Check(nil)
			for _, x := range found {
				if id, _, _ := strings.Cut(x.Row, " "); x.ID == "S12" {
					named[id] = true
				}
			}
			return err
		})
		w.check(len(named) == len(alarms), "the check names %d of %d", len(named), len(alarms))

		since := len(w.Acted)
		w.pass(5 * time.Second)
		for id, alarm := range alarms {
			n := slices.IndexFunc(w.Acted[since:], func(a watchdog.Action) bool { return a.Run == id })
			w.check(n >= 0 && w.Acted[since+n].Name == "damaged" &&
				strings.Contains(w.Acted[since+n].Why, "without an alarm"), "%s: %v", id, w.Acted[since:])
			w.check(w.row("runs", "id", string(id))["alarm_at"] == alarm, "%s: watched from %v on, not %v", id,
				w.row("runs", "id", string(id))["alarm_at"], alarm)
		}
		w.check(len(w.Acted)-since == len(alarms), "once each: %v", w.Acted[since:])
		w.fsck()
		for w.Now < deadline {
			w.pass(10 * time.Second)
		}
		for id := range alarms {
			w.check(w.storedState(id).Terminal(), "%s is %s", id, w.storedState(id))
		}
	})
}
