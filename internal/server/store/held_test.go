package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// Held runs are found by an index that has no other runs.
func TestHeldRunsAreIndexed(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		must(t, s, opFunc(func(tx *Tx) error {
			for i := range 2000 {
				r := newRun(fmt.Sprintf("r%04d", i), tx.Now)
				if i%100 == 0 {
					r.Ready = false
					r.Hold = &perdure.Hold{Since: 1, NextAt: r.ReadyAt, Builds: []string{"v1"}}
				}
				tx.Runs.Put(r, nil)
			}
			return nil
		}))
		if s.Shared() {
			execDirect(t, s, "ANALYZE runs")
		}
		for name, ask := range map[string]func(tx *Tx) error{
			"places": func(tx *Tx) error { _, err := tx.Claims.HeldPlaces("", 5, 10); return err },
			"runs": func(tx *Tx) error {
				_, _, err := tx.Claims.HeldBack(Ready{tenant, "default", "job"}, "v1", false, "", 10)
				return err
			},
		} {
			var plan string
			must(t, s, opFunc(func(tx *Tx) error {
				w := &queryRecorder{Conn: tx.sess}
				tx.sess = w
				err := ask(tx)
				tx.sess = w.Conn
				plan = plans(t, s, w)
				return err
			}))
			if !strings.Contains(plan, "runs_held") {
				t.Errorf("%s: no index runs_held in the plan\n%s", name, plan)
			}
			for _, bad := range []string{"ORDER BY", "SCAN runs\n", "Seq Scan", "Sort"} {
				if strings.Contains(plan, bad) {
					t.Errorf("%s: %q in the plan\n%s", name, bad, plan)
				}
			}
		}
	})
}

// A hold is read as it was written, and its column is empty once the run is not held back.
func TestHoldIsStored(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		r := newRun("a", 1e15)
		r.State, r.ReadyAt, r.Ready = perdure.Queued, 500, false
		r.Hold = &perdure.Hold{Since: 1, Until: 2, At: 3, NextAt: 500, Count: 4, Builds: []string{"", "v1"},
			Failure: perdure.Failure{Code: "panic", Message: "no"}}
		put := func(r perdure.Run) {
			t.Helper()
			must(t, s, opFunc(func(tx *Tx) error { tx.Runs.Put(r, nil); return nil }))
		}
		put(r)
		if n := count(t, s, "SELECT count(*) FROM runs WHERE held_by<>''"); n != 1 {
			t.Errorf("%d runs are held back, want 1", n)
		}
		if err := s.View(t.Context(), func(v *View) error {
			got, _, err := v.Runs.Get(tenant, ref("a"))
			if h := got.Hold; err != nil || h == nil || h.Count != 4 || len(h.Builds) != 2 || h.Builds[1] != "v1" ||
				h.Since != 1 || h.Until != 2 || h.NextAt != 500 || h.Failure.Code != "panic" {
				t.Errorf("hold = %+v, %v, want it as it was written", h, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}
