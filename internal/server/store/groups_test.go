package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// gatherings writes gatherings g000, g001 and so on: every fifth is a group, every tenth an open one.
// The others are chords, of which those with an odd number are open.
func gatherings(t *testing.T, s *Store, n int) {
	t.Helper()
	var members []perdure.RunID
	for i := range 1000 {
		members = append(members, perdure.RunID(fmt.Sprintf("01a1de78-9353-7000-8000-%012d", i)))
	}
	must(t, s, opFunc(func(tx *Tx) error {
		for i := range n {
			g := perdure.Gathering{Tenant: tenant, ID: perdure.GroupID(fmt.Sprintf("g%03d", i)), Mode: perdure.ModeAll,
				Kind: perdure.GatheringChord, State: perdure.GatheringDropped, Total: 3, Ended: 2, OK: 1}
			if i%2 == 1 {
				g.State = perdure.GatheringOpen
			}
			if i%5 == 0 {
				g.Kind, g.State, g.EndedAt, g.Members = perdure.GatheringGroup, perdure.GatheringSatisfied, 9, members
			}
			if i%10 == 0 {
				g.State, g.EndedAt, g.AlarmAt = perdure.GatheringOpen, 0, 7
			}
			tx.Groups.Put(g)
			g.Tenant = "other"
			tx.Groups.Put(g)
		}
		return nil
	}))
}

// A page of groups is newest first. It examines a bounded number of gatherings, and does not read the
// members.
func TestGroupsAreFoundInBoundedSteps(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		gatherings(t, s, 40)
		for what, c := range map[string]struct {
			f    GroupFilter
			want string
		}{
			"all":          {GroupFilter{Limit: 50}, "g035 g030 g025 g020 g015 g010 g005 g000 →"},
			"three a page": {GroupFilter{Limit: 3}, "g035 g030 g025 →g025 g020 g015 g010 →g010 g005 g000 →"},
			"open":         {GroupFilter{Limit: 50, State: "open"}, "g030 g020 g010 g000 →"},
			"ended":        {GroupFilter{Limit: 50, State: "ended"}, "g035 g025 g015 g005 →"},
			"satisfied":    {GroupFilter{Limit: 50, State: "satisfied"}, "g035 g025 g015 g005 →"},
			"timed out":    {GroupFilter{Limit: 50, State: "timed_out"}, "→"},
			"12 examined": {GroupFilter{Limit: 50, Rows: 12, State: "ended"},
				"g035 →g028 (cut) g025 →g016 (cut) g015 g005 →g004 (cut) →"},
			"9 open ones examined": {GroupFilter{Limit: 50, Rows: 9, State: "open"},
				"g030 →g021 (cut) g020 g010 →g003 (cut) g000 →"},
		} {
			var got []string
			for pages := 0; pages < 10; pages++ {
				w := &queryRecorder{Conn: s.lanes[LaneWork].write}
				p, err := newView(s.Now(), s.dialect, w).Groups.Page(tenant, c.f)
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				for _, g := range p.Groups {
					got = append(got, string(g.ID))
					if g.Tenant != tenant || g.Members != nil || g.Total != 3 || g.Ended != 2 || g.OK != 1 ||
						(g.State == perdure.GatheringOpen) != (g.AlarmAt == 7) {
						t.Errorf("%s: group %+v, want one of the tenant with its counts and without members", what, g)
					}
				}
				if got = append(got, "→"+string(p.Next)); p.Cut {
					got = append(got, "(cut)")
				}
				if w.rows > len(p.Groups)+1 {
					t.Errorf("%s: %d rows were read for %d groups", what, w.rows, len(p.Groups))
				}
				for _, q := range w.queries {
					if strings.Contains(q, "members") || strings.Contains(q, "next") {
						t.Errorf("%s: %q reads what stands behind the head of a group", what, q)
					}
				}
				if c.f.Before = p.Next; p.Next == "" {
					break
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s: %q, want %q", what, strings.Join(got, " "), c.want)
			}
		}
	})
}

// A list of groups uses the primary key, or the index of open ones, and sorts nothing.
func TestGroupsUseTheirIndexes(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		gatherings(t, s, 40)
		cols := make([]string, len(groupTable.cols))
		for i, c := range groupTable.cols {
			if cols[i] = c; c == "id" {
				cols[i] = "id||'-'||CAST(100+n.i AS TEXT)"
			}
		}
		execDirect(t, s, fmt.Sprintf("INSERT INTO gatherings (%s) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "+
			"SELECT i+1 FROM n WHERE i<300) SELECT %s FROM n, gatherings WHERE kind<>'group'",
			strings.Join(groupTable.cols, ","), strings.Join(cols, ",")))
		if s.Shared() {
			execDirect(t, s, "ANALYZE gatherings")
		}
		for state, index := range map[perdure.GatheringState][2]string{
			"":          {"sqlite_autoindex_gatherings_1", "gatherings_pkey"},
			"ended":     {"sqlite_autoindex_gatherings_1", "gatherings_pkey"},
			"timed_out": {"sqlite_autoindex_gatherings_1", "gatherings_pkey"},
			"open":      {"gatherings_open", "gatherings_open"},
		} {
			w := &queryRecorder{Conn: s.lanes[LaneWork].write}
			f := GroupFilter{State: state, Before: "g035", Limit: 50, Rows: 1000}
			if p, err := newView(s.Now(), s.dialect, w).Groups.Page(tenant, f); err != nil || !p.Cut {
				t.Fatalf("groups of the state %q: %+v, %v, want a page that is cut", state, p, err)
			}
			plan, want := plans(t, s, w), index[0]
			if s.Shared() {
				want = index[1]
			}
			if strings.Count(plan, want) != len(w.queries) || strings.Contains(plan, "TEMP B-TREE") ||
				strings.Contains(plan, "Sort") || strings.Contains(plan, "Seq Scan") {
				t.Errorf("the plans of groups of the state %q are\n%swant %s in each and no sort", state, plan, want)
			}
		}
	})
}
