package store

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// searched makes runs that differ in everything that a list is searched by.
func searched(t *testing.T, s *Store, owner perdure.TenantID, n int) []perdure.Run {
	t.Helper()
	var all []perdure.Run
	must(t, s, opFunc(func(tx *Tx) error {
		pick := func(i, step int, of ...string) string { return of[i/step%len(of)] }
		for i := range n {
			r := newRun(fmt.Sprintf("%08x-0000-7000-8000-%012x", i, i*7919), tx.Now)
			r.Tenant, r.Worker = owner, pick(i, 2, "", "w1", "w2")
			r.Kind = pick(i, 1, "report", "report.daily", "reporter", "mail", "éa")
			if i%9 == 0 {
				r.Class, r.State, r.Ready = perdure.Process, perdure.Running, false
				r.SeenAt = tx.Now.Add(-time.Duration(i) * time.Second)
			}
			metadata, err := json.Marshal(map[string]string{"x": `":"red"`,
				pick(i, 3, "team", "host"): pick(i, 5, "red", "cube", `a"b`)})
			if err != nil {
				return err
			}
			r.Metadata = perdure.Value(metadata)
			r.DeadlineAt = tx.Now.Add(time.Duration(i) * time.Minute)
			r.AlarmAt = min(r.AlarmAt, r.DeadlineAt)
			if i%4 == 0 { // it is or was on hold, with or without a summary before its failure
				r.Hold = &perdure.Hold{Since: tx.Now, Count: 1, Failure: perdure.Failure{Code: "panic"}}
				if i%8 == 0 {
					r.Hold.Builds = []string{"b1"}
				}
				r.WasDefer = i%3 == 0
			}
			if i%3 != 0 {
				r.State, r.Ready, r.AlarmAt = perdure.Failed, false, 0
				r.FinishedAt = tx.Now.Add(time.Duration(i) * time.Second)
				r.Failure = &perdure.Failure{Code: perdure.Code(pick(i, 7, "panic", "timeout", "odd")),
					Message: `"hold":{`}
				if i%5 == 0 {
					r.Summary = "half done"
				}
				if i%7 == 0 {
					r.State, r.Failure = perdure.Completed, nil
				}
			}
			tx.Runs.Put(r, nil)
			all = append(all, r)
		}
		return nil
	}))
	slices.Reverse(all)
	return all
}

// A list has all runs that match and no others, by each thing to search by, and so have the counts.
func TestListsAreSearched(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		all := searched(t, s, tenant, 240)
		searched(t, s, "neighbour", 240)
		now := all[0].CreatedAt
		type match = func(*perdure.Run) bool
		has := func(v string) match {
			return func(r *perdure.Run) bool {
				var entries map[string]string
				if err := json.Unmarshal([]byte(r.Metadata), &entries); err != nil {
					t.Fatalf("metadata of run %s: %v", r.ID, err)
				}
				for _, x := range entries {
					if x == v {
						return true
					}
				}
				return false
			}
		}
		failed := func(code perdure.Code) match {
			return func(r *perdure.Run) bool { return !r.State.Live() && r.Failure != nil && r.Failure.Code == code }
		}
		soon := now.Add(40 * time.Minute)
		prefixed := func(prefix string) match {
			return func(r *perdure.Run) bool { return strings.HasPrefix(r.Kind, prefix) }
		}
		end, late, early := string(all[17].ID[28:]), now.Add(time.Minute), now.Add(-time.Minute)
		for what, c := range map[string]struct {
			f    RunFilter
			want match
		}{
			"the end of an id": {RunFilter{IDPart: end},
				func(r *perdure.Run) bool { return strings.HasSuffix(string(r.ID), end) }},
			"an id": {RunFilter{IDPart: string(all[17].ID)},
				func(r *perdure.Run) bool { return r.ID == all[17].ID }},
			"a prefix":     {RunFilter{KindPrefix: "report"}, prefixed("report")},
			"no kind":      {RunFilter{KindPrefix: "zz"}, prefixed("zz")},
			"a wide rune":  {RunFilter{KindPrefix: "é"}, prefixed("éa")},
			"a value":      {RunFilter{Value: "cube"}, has("cube")},
			"a quotation":  {RunFilter{Value: `a"b`}, has(`a"b`)},
			"a worker":     {RunFilter{Worker: "w1"}, func(r *perdure.Run) bool { return r.Worker == "w1" }},
			"on hold":      {RunFilter{Held: true}, (*perdure.Run).OnHold},
			"panics":       {RunFilter{Code: "panic"}, failed("panic")},
			"timeouts":     {RunFilter{Code: "timeout"}, failed("timeout")},
			"no such code": {RunFilter{Code: "hold"}, failed("hold")},
			"a class": {RunFilter{Class: perdure.Process},
				func(r *perdure.Run) bool { return r.Class == perdure.Process }},
			"silent": {RunFilter{SeenBefore: early},
				func(r *perdure.Run) bool { return r.State == perdure.Running && r.SeenAt <= early }},
			"deadlines": {RunFilter{DeadlineBefore: soon},
				func(r *perdure.Run) bool { return r.State.Live() && r.DeadlineAt <= soon }},
			"ended lately": {RunFilter{FinishedAfter: late, Status: []string{"failed"}},
				func(r *perdure.Run) bool { return r.State == perdure.Failed && r.FinishedAt >= late }},
			"several": {RunFilter{KindPrefix: "report", Value: "red", Worker: "w2", Code: "odd"},
				func(r *perdure.Run) bool {
					return prefixed("report")(r) && has("red")(r) && r.Worker == "w2" && failed("odd")(r)
				}},
		} {
			var want []string
			for i := range all {
				if c.want(&all[i]) {
					want = append(want, string(all[i].ID))
				}
				fixed := c.f.IDPart != "" || c.f.KindPrefix != "" || c.f.Value != "" // Matches is not about these
				if f := c.f; !fixed && f.Matches(&all[i]) != c.want(&all[i]) {
					t.Errorf("%s: Matches of run %s = %t", what, all[i].ID, f.Matches(&all[i]))
				}
			}
			for _, limit := range []int{7, 1000} {
				c.f.Limit, c.f.Before = limit, ""
				if got, _ := follow(t, s, c.f); !slices.Equal(got, want) {
					t.Errorf("%s, %d a page: %d runs %v, want %d: %v", what, limit, len(got), got, len(want), want)
				}
			}
			n := 0
			err := s.View(t.Context(), func(v *View) error {
				live, _, err := v.TallyLive(tenant, c.f, 1000)
				if err != nil {
					return err
				}
				ended, _, err := v.TallyEnded(tenant, c.f, 1000)
				for _, x := range append(live, ended...) {
					n += x.N
				}
				return err
			})
			if err != nil || n != len(want) {
				t.Errorf("%s: %d runs are counted, want %d (%v)", what, n, len(want), err)
			}
		}
	})
}

// A search that no index carries ends at its bounds, says so, and goes on from there.
func TestSearchSaysThatItEnded(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		endedRuns(t, s, 5000)
		execDirect(t, s, "UPDATE runs SET worker='w' WHERE id IN ('x100001','x104990')")
		for what, c := range map[string]struct {
			f    RunFilter
			want string
		}{
			"a worker": {RunFilter{Worker: "w"}, "x104990 x100001"},
			"an id":    {RunFilter{IDPart: "00001"}, "x100001"},
		} {
			c.f.Limit, c.f.Rows = 50, 2000
			p, w := watchedPage(t, s, c.f)
			if !p.Cut || p.Next != "x103001" {
				t.Errorf("%s: the first page is cut: %t at %s, want a cut at x103001", what, p.Cut, p.Next)
			}
			if w.rows > 10 {
				t.Errorf("%s: %d rows were read for two matches, want few", what, w.rows)
			}
			if got, pages := follow(t, s, c.f); strings.Join(got, " ") != c.want || pages != 3 {
				t.Errorf("%s: %v on %d pages, want %s on 3 pages", what, got, pages, c.want)
			}
		}
		f := RunFilter{KindPrefix: "com", Limit: 50, Rows: 200}
		if p, _ := watchedPage(t, s, f); p.Cut || len(p.Runs) != 50 {
			t.Errorf("a prefix of one kind: %d runs, cut %t; want a full page by the index", len(p.Runs), p.Cut)
		}
	})
}
