package store

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// Minutes of several writers add up, are read by tenant and over all, and are removed when they are
// old.
func TestHistoryAddsUpAndIsTrimmed(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		const minute = perdure.Instant(time.Minute / time.Microsecond)
		add := func(tenant perdure.TenantID, at perdure.Instant, n int64) {
			t.Helper()
			must(t, s, opFunc(func(tx *Tx) error {
				m := Minute{Tenant: tenant, At: at, Created: n, Lateness: n}
				m.Dispatched[3] = n
				return tx.History.Add(m)
			}))
		}
		add("a", minute, 1)
		add("a", minute, 2)
		add("a", 2*minute, 4)
		add("b", minute, 8)
		read := func(tenant perdure.TenantID, from perdure.Instant) (out []Minute) {
			t.Helper()
			if err := s.View(t.Context(), func(v *View) (err error) {
				out, err = v.History.Since(tenant, from, 100)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return out
		}
		for _, c := range []struct {
			tenant         perdure.TenantID
			from           perdure.Instant
			created, worst []int64
		}{
			{"a", 0, []int64{3, 4}, []int64{2, 4}}, {"a", 2 * minute, []int64{4}, []int64{4}},
			{"b", 0, []int64{8}, []int64{8}}, {"", 0, []int64{11, 4}, []int64{8, 4}},
		} {
			got := read(c.tenant, c.from)
			if len(got) != len(c.created) {
				t.Fatalf("tenant %q from %d: %d minutes, want %d", c.tenant, c.from, len(got), len(c.created))
			}
			for i, m := range got {
				if m.Created != c.created[i] || m.Dispatched[3] != c.created[i] || m.Lateness != c.worst[i] {
					t.Errorf("tenant %q, minute %d: %+v, want %d created and lateness %d", c.tenant, i, m, c.created[i],
						c.worst[i])
				}
			}
		}
		must(t, s, opFunc(func(tx *Tx) error { return tx.History.Trim(2*minute, 100) }))
		if got := read("", 0); len(got) != 1 || got[0].At != 2*minute {
			t.Errorf("minutes after the removal of old ones = %+v, want the second one", got)
		}
	})
}

// Counts look at a bounded number of runs, and say so.
func TestTalliesAreBounded(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		must(t, s, insert("a1"), insert("a2"), insert("a3"))
		endedRuns(t, s, 20)
		if err := s.View(t.Context(), func(v *View) error {
			live, more, err := v.TallyLive(tenant, RunFilter{}, 2)
			if err != nil || !more || len(live) != 1 || live[0].N != 2 {
				t.Errorf("two of three live runs: %+v, more %t (%v), want 2 and more", live, more, err)
			}
			if live, more, err = v.TallyLive(tenant, RunFilter{}, 3); err != nil || more || live[0].N != 3 {
				t.Errorf("three live runs: %+v, more %t (%v), want 3 and no more", live, more, err)
			}
			ended, oldest, err := v.TallyEnded(tenant, RunFilter{}, 10)
			if err != nil || oldest == "" || len(ended) != 1 || ended[0].N != 10 ||
				ended[0].State != perdure.Completed {
				t.Errorf("ended among 10: %+v, oldest %q (%v), want 10 completed", ended, oldest, err)
			}
			ended, oldest, err = v.TallyEnded(tenant, RunFilter{}, 100)
			if err != nil || oldest != "" || ended[0].N != 20 {
				t.Errorf("ended among all: %+v, oldest %q (%v), want 20", ended, oldest, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}
