package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// A partCase makes rows for one part of a sweep.
type partCase struct {
	// make makes five rows and returns how they are named in what left gives. One of them is made bad: no write
	// with one of the names that bad gives succeeds.
	make func(w *World) []string
	bad  func(w *World, row string) string
	// due is how long after their making they are due.
	due time.Duration
	// left selects the rows that the part has not acted on.
	left string
}

// partCases has a case for each part of a sweep.
var partCases = map[string]partCase{
	"runs": {make: func(w *World) []string {
		return names(w.submits(tenant, 5, perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Second)}))
	}, due: 2 * time.Second, left: "SELECT id FROM runs WHERE state='queued'"},
	"cascades": {make: func(w *World) (out []string) {
		spawns, _ := kids(101)
		for range 5 {
			r := w.submit(perdure.Submission{Kind: "parent"})
			g := w.takeKind("parent")
			w.commit(g, perdure.Commit{Children: spawns})
			w.complete(g, `1`)
			out = append(out, string(r.ID))
		}
		return out
	}, due: time.Second, left: "SELECT id FROM runs WHERE cascade=1", bad: func(w *World, row string) string {
		// The child that is left: what makes its parent's cascade fail is another row.
		return w.rowsOf("SELECT id FROM runs WHERE parent_id='" + row + "' AND alarm_at IS NOT NULL")[0]
	}},
	"items": {make: func(w *World) (out []string) {
		for range 5 {
			r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
			g := w.take("w")
			w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "too late"})
			w.complete(g, `1`)
			out = append(out, string(r.ID))
		}
		return out
	}, due: 20 * time.Minute, left: "SELECT run_id FROM inbox WHERE status='pending'"},
	"groups": {make: func(w *World) (out []string) {
		ids := w.submits(tenant, 2, perdure.Submission{Kind: "job", Class: perdure.Agent})
		for range 5 {
			g := w.group(&life.CreateGroup{RunIDs: ids, Timeout: perdure.Duration(time.Second)})
			out = append(out, string(g.ID))
		}
		return out
	}, due: 2 * time.Second, left: "SELECT id FROM gatherings WHERE state='open'"},
	"waiters": {make: func(w *World) (out []string) {
		for range 5 {
			r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent, Foreground: true})
			w.do(&life.Attach{Tenant: tenant, Node: "gone", RunIDs: []perdure.RunID{r.ID}})
			out = append(out, string(r.ID))
		}
		return out
	}, due: time.Minute, left: "SELECT run_id FROM waiters"},
	"schedules": {make: func(w *World) (out []string) {
		for i := range 5 {
			out = append(out, fmt.Sprintf("plan-%d", i))
			w.plan(out[i], every(time.Hour))
		}
		return out
	}, due: time.Hour, left: "SELECT name FROM schedules WHERE fired=0"},
	"limits": {make: func(w *World) (out []string) {
		for i := range 5 {
			out = append(out, fmt.Sprintf("limit-%d", i))
			w.limit(out[i], slots(1), false)
			w.under("", out[i])
			w.submit(perdure.Submission{Kind: "other", Limits: out[i:]})
		}
		return out
	}, due: 2 * time.Second, left: "SELECT name FROM limit_keys WHERE waiting>0"},
	"workers": {make: func(w *World) (out []string) {
		for i := range 5 {
			out = append(out, fmt.Sprintf("worker-%d", i))
			w.poll(out[i], 1)
		}
		return out
	}, due: 3 * time.Minute, left: "SELECT id FROM workers WHERE offline=0"},
	"expire": {make: func(w *World) (out []string) {
		for i := range 5 {
			out = append(out, fmt.Sprintf("key-%d", i))
			w.do(&life.Submit{Tenant: tenant, Key: out[i], Submission: perdure.Submission{Kind: "job"}})
			w.complete(w.take("w"), `1`)
		}
		return out
	}, due: 25 * time.Hour, left: "SELECT replace(key,'run:','') FROM idempotency"},
	"patrol": {make: func(w *World) []string {
		ids := w.submits(tenant, 5, perdure.Submission{Kind: "job", Class: perdure.Agent, Timeout: day})
		w.do(stage("UPDATE runs SET alarm_at=9000000000000000"))
		return names(ids)
	}, due: time.Minute, left: "SELECT id FROM runs WHERE alarm_at=9000000000000000"},
}

const day = perdure.Duration(24 * time.Hour)

func names(ids []perdure.RunID) (out []string) {
	for _, id := range ids {
		out = append(out, string(id))
	}
	return out
}

// badRow is a session that can't write what has a name.
type badRow struct {
	store.Conn
	name *string
}

func (s badRow) Exec(query string, args []any) (int64, error) {
	for _, a := range args { // on PostgreSQL the values of a column are one argument
		if *s.name != "" && strings.Contains(fmt.Sprint(a), *s.name) {
			return 0, errors.New("the row is too large")
		}
	}
	return s.Conn.Exec(query, args)
}

// A row that can't be written is found and set aside, in every part of a sweep. The other rows of its part and of
// all other parts don't wait for it.
func TestEveryPartOfASweepSetsItsBadRowAside(t *testing.T) {
	for _, part := range watchdog.Parts() {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			x, ok := partCases[part]
			if !ok {
				t.Fatalf("the part %s of a sweep has no case here", part)
			}
			storetest.OnBoth(t, func(t *testing.T, at store.Options) {
				for _, which := range []int{0, 3} {
					setAside(t, at, part, &x, which)
					if at.Memory != nil {
						at.Memory = storetest.Memory(t)
					} else {
						at.URL = storetest.Postgres(t)
					}
				}
			})
		})
	}
}

func setAside(t *testing.T, at store.Options, part string, x *partCase, which int) {
	t.Helper()
	var bad string
	at.Hooks.Wrap = func(s store.Conn) store.Conn { return badRow{s, &bad} }
	w := node(t, at)
	rows := x.make(w)
	begun := w.Now
	w.S.Close()

	now := begun.Add(x.due)
	at.Hooks.Clock = func() perdure.Instant { return now }
	w.S = storetest.Open(t, at)
	policy := perdure.DefaultPolicy()
	policy.GapAfter, policy.PatrolEvery = 100*time.Hour, time.Millisecond
	e, err := engine.New(w.S, engine.Options{Policy: &policy})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	dog := &dog{Watchdog: watchdog.New(e, slog.New(slog.NewTextHandler(&log, nil)))}
	dog.OnSetAside = func(part string) { dog.set = append(dog.set, part) }
	w.E = e
	row := rows[which]
	if bad = row; x.bad != nil {
		bad = x.bad(w, row)
	}
	for range 3 { // what follows from an action is left to the next sweep
		dog.SweepOnce(t.Context())
		now = now.Add(2 * time.Millisecond)
	}
	if left := w.rowsOf(x.left); !slices.Equal(left, []string{row}) {
		t.Errorf("row %d is bad: %v are left, want %s alone\n%s", which, left, row, &log)
	}
	if !slices.Equal(dog.set, []string{part}) {
		t.Errorf("row %d is bad: set aside in the parts %v, want one row of %s\n%s", which, dog.set, part, &log)
	}
	if err := e.Do(t.Context(), dog.Pass()); err != nil {
		t.Errorf("a sweep with the row set aside: %v", err)
	}
	// A minute later it is tried again.
	bad, now = "", now.Add(time.Minute+time.Second)
	for range 2 {
		dog.SweepOnce(t.Context())
		now = now.Add(2 * time.Millisecond)
	}
	if left := w.rowsOf(x.left); len(left) != 0 {
		t.Errorf("%v are left after the row is sound again, want none\n%s", left, &log)
	}
	w.S.Close()
}
