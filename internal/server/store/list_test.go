package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// endedRuns inserts so many ended runs directly into the database, with ids from x100001 on.
func endedRuns(t *testing.T, s *Store, n int) {
	t.Helper()
	must(t, s, opFunc(func(tx *Tx) error {
		r := newRun("template", tx.Now)
		r.State, r.Ready, r.AlarmAt, r.Kind, r.FinishedAt = perdure.Completed, false, 0, "common", tx.Now
		tx.Runs.Put(r, nil)
		return nil
	}))
	var values []string
	for _, c := range runTable.cols {
		if c == "id" || c == "root_id" {
			c = "'x'||CAST(100000+n.i AS TEXT)"
		}
		values = append(values, c)
	}
	execDirect(t, s, fmt.Sprintf("INSERT INTO runs (%s) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n "+
		"WHERE i<%d) SELECT %s FROM n, runs WHERE id='template'",
		strings.Join(runTable.cols, ","), n, strings.Join(values, ",")))
	execDirect(t, s, "DELETE FROM runs WHERE id='template'")
}

// queryRecorder counts the rows that queries give, and keeps their texts.
type queryRecorder struct {
	Conn
	rows    int
	queries []string
	args    [][]any
}

func (w *queryRecorder) Query(query string, args []any, row func(scan func(...any) error) error) error {
	w.queries, w.args = append(w.queries, query), append(w.args, args)
	return w.Conn.Query(query, args, func(scan func(...any) error) error {
		w.rows++
		return row(scan)
	})
}

// watchedPage reads a page, and gives what it cost.
func watchedPage(t *testing.T, s *Store, f RunFilter) (RunPage, *queryRecorder) {
	t.Helper()
	w := &queryRecorder{Conn: s.lanes[LaneWork].write}
	p, err := newView(s.Now(), s.dialect, w).Runs.Page(tenant, f)
	if err != nil {
		t.Fatalf("list by %+v: %v", f, err)
	}
	return p, w
}

// plans explains the queries of a page.
func plans(t *testing.T, s *Store, w *queryRecorder) string {
	t.Helper()
	var out strings.Builder
	explain := "EXPLAIN QUERY PLAN "
	if s.Shared() {
		explain = "EXPLAIN "
	}
	for i, q := range w.queries {
		err := w.Conn.Query(explain+q, w.args[i], func(scan func(...any) error) error {
			var a, b, c int
			line := ""
			var err error
			if s.Shared() {
				err = scan(&line)
			} else {
				err = scan(&a, &b, &c, &line)
			}
			out.WriteString(line + "\n")
			return err
		})
		if err != nil {
			t.Fatalf("explain %s: %v", q, err)
		}
	}
	return out.String()
}

// follow reads all pages of a list, and checks that no run comes twice or out of order.
func follow(t *testing.T, s *Store, f RunFilter) (ids []string, pages int) {
	t.Helper()
	for {
		p, _ := watchedPage(t, s, f)
		pages++
		for _, r := range p.Runs {
			if n := len(ids); n > 0 && string(r.ID) >= ids[n-1] {
				t.Fatalf("page %d: run %s comes after %s, want older runs only", pages, r.ID, ids[n-1])
			}
			ids = append(ids, string(r.ID))
		}
		if f.Before = p.Next; f.Before == "" {
			return ids, pages
		}
		if pages > 1000 {
			t.Fatalf("the list by %+v has no end", f)
		}
	}
}

func TestPageEndsAtByteLimit(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		const runs, budget = 150, 256 << 10
		for i := range runs {
			must(t, s, tagged(tenant, fmt.Sprintf("r%03d", i),
				map[string]string{"team": "red", "a": strings.Repeat("x", 4096), "b": strings.Repeat("y", 4096)}))
		}
		// Larger than a page.
		execDirect(t, s, "UPDATE runs SET metadata=metadata||'"+strings.Repeat(" ", 2*budget)+"' WHERE id='r077'")
		for what, f := range map[string]RunFilter{
			"no filter": {}, "a filter": {Kind: "job"}, "metadata": {Metadata: map[string]string{"team": "red"}},
			"a state": {State: []perdure.State{perdure.Queued}},
		} {
			f.Limit, f.Bytes = 1000, budget
			ids, pages := follow(t, s, f)
			if len(ids) != runs {
				t.Errorf("%s: %d runs on %d pages, want every one of %d", what, len(ids), pages, runs)
			}
			for p, from := (RunPage{}), perdure.RunID(""); ; from = p.Next {
				f.Before = from
				var w *queryRecorder
				p, w = watchedPage(t, s, f)
				size := 0
				for i := range p.Runs {
					size += RunSize(&p.Runs[i])
				}
				if size > budget && len(p.Runs) > 1 {
					t.Errorf("%s: a page of %d runs has %d bytes, want at most %d", what, len(p.Runs), size, budget)
				}
				if w.rows > 400 {
					t.Errorf("%s: %d rows were read for a page of %d runs", what, w.rows, len(p.Runs))
				}
				if p.Next == "" {
					break
				}
			}
		}
	})
}

func TestRareMatchesAreFoundInBoundedSteps(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		endedRuns(t, s, 5000)
		execDirect(t, s, "UPDATE runs SET worker='rare' WHERE id IN ('x100001','x100002','x104990')")
		f := RunFilter{Worker: "rare", Limit: 50, Rows: 2000}
		p, w := watchedPage(t, s, f)
		if len(p.Runs) != 1 || p.Runs[0].ID != "x104990" || p.Next != "x103001" {
			t.Errorf("the first page: %d runs, next %q; want x104990 and next x103001", len(p.Runs), p.Next)
		}
		if w.rows > 10 {
			t.Errorf("%d rows were read for one match, want few", w.rows)
		}
		f.Before = p.Next
		if p, _ = watchedPage(t, s, f); len(p.Runs) != 0 || p.Next != "x101001" {
			t.Errorf("the second page: %d runs, next %q; want none and next x101001", len(p.Runs), p.Next)
		}
		f.Before = ""
		ids, pages := follow(t, s, f)
		if got := strings.Join(ids, " "); got != "x104990 x100002 x100001" || pages != 3 {
			t.Errorf("%q on %d pages, want 3 runs on 3 pages", got, pages)
		}

		f.Rows, f.Over = 0, func() bool { return true } // the time is over after the first step
		if _, pages = follow(t, s, f); pages != 6 {
			t.Errorf("%d pages when each has time for one step, want 6", pages)
		}
	})
}

func TestFewLiveRunsAreFoundAmongManyEndedOnes(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		must(t, s, insert("a1"), insert("a2"), opFunc(func(tx *Tx) error {
			r := newRun("a3", tx.Now)
			r.DeferredAt = tx.Now
			tx.Runs.Put(r, nil)
			return nil
		}))
		endedRuns(t, s, 3000)
		for what, c := range map[string]struct {
			f    RunFilter
			want string
		}{
			"queued":            {RunFilter{State: []perdure.State{perdure.Queued}}, "[a3 a2 a1]"},
			"queued, by status": {RunFilter{Status: []string{"queued"}}, "[a2 a1]"},
			"deferred":          {RunFilter{Status: []string{"deferred"}}, "[a3]"},
			"live":              {RunFilter{Live: true}, "[a3 a2 a1]"},
			"live before a2":    {RunFilter{Live: true, Before: "a2"}, "[a1]"},
			"two statuses":      {RunFilter{Status: []string{"deferred", "queued"}}, "[a3 a2 a1]"},
			"heads":             {RunFilter{Status: []string{"queued"}, Heads: true}, "[a2 a1]"},
		} {
			c.f.Limit, c.f.Rows = 50, 1200
			p, _ := watchedPage(t, s, c.f)
			var ids []perdure.RunID
			for _, r := range p.Runs {
				ids = append(ids, r.ID)
			}
			if got := fmt.Sprint(ids); got != c.want || p.Next != "" {
				t.Errorf("%s: %s and next %q on the first page, want %s and no more", what, got, p.Next, c.want)
			}
		}
	})
}

func TestTreeIsListedWithItsRoot(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		child := func(id, parent string) opFunc {
			return func(tx *Tx) error {
				r := newRun(id, tx.Now)
				r.ParentID, r.RootID, r.JournalKey = ref(parent), "m", id
				tx.Runs.Put(r, nil)
				return nil
			}
		}
		must(t, s, insert("m"), insert("n"), child("k", "m"), child("p", "m"), child("q", "p"), child("r", "m"))
		for _, limit := range []int{1, 2, 3, 50} {
			tree, _ := follow(t, s, RunFilter{RootID: "m", Limit: limit})
			children, _ := follow(t, s, RunFilter{ParentID: "m", Limit: limit})
			if got := fmt.Sprint(tree, children); got != "[r q p m k] [r p k]" {
				t.Errorf("%d a page: tree and children %s, want [r q p m k] [r p k]", limit, got)
			}
		}
	})
}

// Each filter uses its index, and reads no more of the tenant's runs than match.
func TestListsUseTheirIndexes(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		endedRuns(t, s, 5000)
		must(t, s, tagged(tenant, "r1", map[string]string{"team": "red", "env": "prod"}))
		execDirect(t, s, "INSERT INTO run_metadata (tenant,name,value,run_id) SELECT tenant,'env','prod',id FROM runs "+
			"WHERE id>'x'")
		execDirect(t, s, "UPDATE runs SET root_id='r1', parent_id='r1', journal_key=id "+
			"WHERE id IN ('x100007','x100009')")
		execDirect(t, s, "UPDATE runs SET thread_id='t1' WHERE id IN ('x100011','x100013')")
		execDirect(t, s, "UPDATE runs SET state='failed' WHERE id IN ('x100001','x100003')")
		execDirect(t, s, "UPDATE runs SET state='timeout' WHERE id IN ('x100002')")
		execDirect(t, s, "UPDATE runs SET kind='rare' WHERE id IN ('x100004')")
		execDirect(t, s, "UPDATE runs SET kind='also rare', queue='rare' WHERE id IN ('x100005')")
		execDirect(t, s, "CREATE INDEX IF NOT EXISTS runs_live ON runs (tenant, alarm_at, id) "+
			"WHERE alarm_at IS NOT NULL")
		if s.Shared() {
			execDirect(t, s, "ANALYZE runs")
			execDirect(t, s, "ANALYZE run_metadata")
		}
		for what, c := range map[string]struct {
			f                RunFilter
			runs             int
			sqlite, postgres string
		}{
			"metadata": {RunFilter{Metadata: map[string]string{"team": "red"}}, 1,
				"SEARCH run_metadata USING PRIMARY KEY (tenant=? AND name=? AND value=? AND run_id>? AND run_id<?)",
				"run_metadata_pkey"},
			"two entries": {RunFilter{Metadata: map[string]string{"team": "red", "env": "prod"}}, 1,
				"SEARCH run_metadata USING PRIMARY KEY (tenant=? AND name=? AND value=? AND run_id>? AND run_id<?)",
				"run_metadata_pkey"},
			"tree": {RunFilter{RootID: "r1"}, 3,
				"SEARCH runs USING COVERING INDEX runs_root (tenant=? AND root_id=? AND id>? AND id<?)", "runs_root"},
			"children": {RunFilter{ParentID: "r1"}, 2,
				"SEARCH runs USING INDEX runs_parent (tenant=? AND parent_id=?)", "runs_parent"},
			"thread": {RunFilter{ThreadID: "t1"}, 2,
				"SEARCH runs USING COVERING INDEX runs_on_thread (tenant=? AND thread_id=? AND id>? AND id<?)",
				"runs_on_thread"},
			"live": {RunFilter{Live: true}, 1, "SEARCH runs USING COVERING INDEX runs_live (tenant=? AND alarm_at>?)",
				"runs_live"},
			"without success": {RunFilter{Status: []string{"failed", "timeout"}}, 3,
				"SEARCH runs USING INDEX runs_ended (tenant=? AND state=? AND id>? AND id<?)", "runs_ended"},
			"kind": {RunFilter{Kind: "rare"}, 1,
				"SEARCH runs USING COVERING INDEX runs_kind (tenant=? AND kind=? AND id>? AND id<?)", "runs_kind"},
			"queue": {RunFilter{Queue: "rare", Kind: "also rare"}, 1,
				"SEARCH runs USING COVERING INDEX runs_queue (tenant=? AND queue=? AND id>? AND id<?)", "runs_queue"},
		} {
			c.f.Limit = 50
			p, w := watchedPage(t, s, c.f)
			if len(p.Runs) != c.runs || p.Next != "" {
				t.Errorf("%s: %d runs and next %q, want %d and no more", what, len(p.Runs), p.Next, c.runs)
			}
			plan := plans(t, s, w)
			want, all := c.sqlite, "SCAN runs"
			if s.Shared() {
				want, all = c.postgres, "Seq Scan on"
			}
			if !strings.Contains(plan, want) || strings.Contains(plan, all) ||
				strings.Contains(plan, "Seq Scan on run_metadata") {
				t.Errorf("%s: the plan has no %q, or reads everything:\n%s\n%s", what, want, plan,
					strings.Join(w.queries, "\n"))
			}
			if w.rows > 20 {
				t.Errorf("%s: %d rows were read for %d runs", what, w.rows, c.runs)
			}
		}
		// A slice of the tenant's runs uses the primary key.
		_, w := watchedPage(t, s, RunFilter{Worker: "rare", Limit: 50, Rows: 1000})
		plan := plans(t, s, w)
		key := "SEARCH runs USING INDEX sqlite_autoindex_runs_1 (tenant=? AND id>? AND id<?)"
		if s.Shared() {
			key = "runs_pkey"
		}
		if !strings.Contains(plan, key) || strings.Contains(plan, "SCAN runs") || strings.Contains(plan, "Seq Scan") {
			t.Errorf("a slice: the plan has no %q, or reads everything:\n%s", key, plan)
		}
	})
}

// A list of live runs reads those alone, also on a store of PostgreSQL that has no statistics yet. Without them its
// planner would read all runs of the tenant, and sort them.
func TestNewStoreReadsListsInOrderOfAnIndex(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		if !s.Shared() {
			return // the planner of SQLite needs no statistics for this
		}
		endedRuns(t, s, 20_000)
		err := s.View(t.Context(), func(v *View) error {
			w := &queryRecorder{Conn: v.sess}
			queued := RunFilter{State: []perdure.State{perdure.Queued}, Limit: 1}
			if _, err := newView(s.Now(), s.dialect, w).Runs.Page(tenant, queued); err != nil {
				return err
			}
			if text := plans(t, s, w); strings.Contains(text, "Bitmap") || !strings.Contains(text, "runs_live") {
				t.Errorf("the plans of a list are\n%s\nwant the index runs_live", text)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
