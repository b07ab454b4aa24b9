package store

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
)

// fsck finds a limit that counts other runs than there are, or that keeps runs back for nothing, and schedules and
// unique keys that are wrong.
func TestFlowControlInvariantsCanBeBroken(t *testing.T) {
	const far, step = "9000000000000000", `,"steps":[{"step":"x#1","refs":[{"limit":"l"}]}]`
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		err := s.Batch(s.Now(), opFunc(func(tx *Tx) error {
			ref := perdure.LimitRef{Limit: "l"}
			use := perdure.Options{Limits: &perdure.LimitUse{Names: []string{"l"}}}
			line := []perdure.Line{{Seq: 1, Type: perdure.LineCreated, At: tx.Now, Attempt: 1, Data: "{}"}}
			held, waits := newRun("a", tx.Now), newRun("b", tx.Now)
			held.Seq = 2
			held.Options, held.State, held.Ready = use, perdure.Dispatched, false
			held.Epoch, held.LeaseUntil = 1, tx.Now.Add(1e9)
			held.Limited = &perdure.Limited{Refs: []perdure.LimitRef{ref}, Held: true}
			waits.Options, waits.Ready = use, false
			waits.Limited = &perdure.Limited{At: ref, Since: tx.Now}
			tx.Runs.Put(held, append(line, perdure.Line{Seq: 2, Type: perdure.LineDispatched, At: tx.Now, Attempt: 1,
				Epoch: 1, Data: "{}"}))
			tx.Runs.Put(waits, line)
			tx.Limits.Put(LimitRow{Tenant: tenant, Name: "l", Spec: `{"concurrency":1}`, CreatedAt: tx.Now})
			tx.LimitKeys.Put(LimitKeyRow{Tenant: tenant, Name: "l", Leased: 1, Waiting: 1, AlarmAt: tx.Now.Add(1e12)})
			tx.Unique.Put(UniqueRow{Tenant: tenant, Kind: "job", Key: "k", RunID: "a"})
			tx.Schedules.Put(ScheduleRow{Tenant: tenant, Name: "s", ID: "1", CreatedAt: tx.Now, NextAt: 9, LastAt: 5,
				AlarmAt: tx.Now.Add(1e12)})
			return nil
		}))[0]
		if err != nil {
			t.Fatal(err)
		}
		check := func() (ids []string) {
			t.Helper()
			err := s.Audit(t.Context(), func(v *View) error {
				found, err := v.Check(nil)
				for _, x := range found {
					ids = append(ids, x.ID)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return slices.Compact(ids)
		}
		for _, x := range []struct{ name, damage, undo, id string }{
			{"nothing", "", "", ""},
			{"a slot too many", "limit_keys SET leased=2", "limit_keys SET leased=1", "P20"},
			{"a slot too few", "limit_keys SET leased=0", "limit_keys SET leased=1", "P20"},
			{"slots that will be counted", "limit_keys SET leased=2, recount=1",
				"limit_keys SET leased=1, recount=0", ""},
			{"another number waits", "limit_keys SET waiting=2", "limit_keys SET waiting=1", "P20"},
			{"no counts", "limit_keys SET name='m', waiting=0, leased=0",
				"limit_keys SET name='l', waiting=1, leased=1", "P20"},
			{"no alarm", "limit_keys SET alarm_at=NULL", "limit_keys SET alarm_at=" + far, "P20"},
			{"a free slot", `limits SET spec='{"concurrency":2}'`, `limits SET spec='{"concurrency":1}'`, "P20"},
			{"a free slot of a closed limit", `limits SET spec='{"concurrency":2}', closed_until=` + far,
				`limits SET spec='{"concurrency":1}', closed_until=0`, ""},
			{"a free rate", `limits SET spec='{"rate":{"count":1,"per":"1s"}}'`,
				`limits SET spec='{"concurrency":1}'`, "P20"},
			{"a step's slot", "ru" + `ns SET rest=replace(rest,'"held":true','"held":true` + step + `')`,
				"ru" + `ns SET rest=replace(rest,'` + step + `','')`, "P20"},
			{"a key without its run", "unique_runs SET run_id='nobody'", "unique_runs SET run_id='a'", "P21"},
			{"an instant that has fired", "schedules SET next_at=5", "schedules SET next_at=9", "P19"},
			{"a schedule without an alarm", "schedules SET alarm_at=NULL", "schedules SET alarm_at=" + far, "P19"},
		} {
			if x.damage != "" {
				execDirect(t, s, "UPDATE "+x.damage)
			}
			var want []string
			if x.id != "" {
				want = []string{x.id}
			}
			if found := check(); !slices.Equal(found, want) {
				t.Errorf("%s: violations = %v, want %v", x.name, found, want)
			}
			if x.undo != "" {
				execDirect(t, s, "UPDATE "+x.undo)
			}
		}
	})
}
