package watchdog

import (
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

func TestTenantsTakeTurns(t *testing.T) {
	for _, x := range []struct{ rows, after, want string }{
		{"", "", ""},
		{"a1 a2 a3", "a", "a1 a2 a3"},
		{"a1 a2 a3 b1", "", "a1 b1 a2 a3"},
		{"a1 a2 a3 b1", "a", "b1 a1 a2 a3"},
		{"a1 a2 b1 b2 c1", "b", "c1 a1 b1 a2 b2"},
		{"c1 b1 a1", "z", "a1 b1 c1"},
	} {
		got := takeTurns(strings.Fields(x.rows), perdure.TenantID(x.after), func(s *string) perdure.TenantID {
			return perdure.TenantID((*s)[:1])
		})
		if strings.Join(got, " ") != x.want {
			t.Errorf("rows %q after %q: order = %v, want %s", x.rows, x.after, got, x.want)
		}
	}
}

// A sweep that has to stop early acts on a row of each tenant before it acts on a second one of any.
func TestSweepThatStopsEarlyReachesEveryTenant(t *testing.T) {
	s, err := store.Open(store.Options{Hooks: store.Hooks{Clock: func() perdure.Instant { return 1 }, OpRows: 20}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	submit := func(tenant perdure.TenantID, timeout time.Duration) perdure.RunID {
		t.Helper()
		op := &life.Submit{Tenant: tenant,
			Submission: perdure.Submission{Kind: "k", Timeout: perdure.Duration(timeout)}}
		if err := e.Step(1, op)[0]; err != nil {
			t.Fatal(err)
		}
		return op.Run.ID
	}
	for range 100 {
		submit("noisy", time.Second)
	}
	quiet := submit("quiet", 2*time.Second)
	sweep := New(e, nil).Pass()
	if err := e.Step(perdure.Instant(1).Add(time.Hour), sweep)[0]; err != nil {
		t.Fatal(err)
	}
	if !sweep.More {
		t.Fatalf("the sweep did all of its work, want it to stop early")
	}
	err = s.View(t.Context(), func(v *store.View) error {
		r, _, err := v.Runs.Get("quiet", quiet)
		if r.State != perdure.TimedOut {
			t.Errorf("the run of the quiet tenant is %s after a sweep, want %s", r.State, perdure.TimedOut)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestLongSweepsReadFewerRows(t *testing.T) {
	w := &Watchdog{maxRows: sweepRows}
	for _, x := range []struct {
		took time.Duration
		want int
	}{
		{sweepGoal + 1, 128}, {time.Second, 64}, {sweepGoal, 64}, {sweepGoal / 2, 64}, {time.Millisecond, 128},
		{time.Minute, 64}, {time.Minute, 32}, {time.Minute, 16}, {time.Minute, minSweepRows},
		{time.Minute, minSweepRows},
		{0, 16}, {0, 32}, {0, 64}, {0, 128}, {0, sweepRows}, {0, sweepRows},
	} {
		if w.pace(x.took); w.maxRows != x.want {
			t.Errorf("after a sweep of %s the next one reads %d rows, want %d", x.took, w.maxRows, x.want)
		}
	}
}

// A sweep that its budget stops after a few runs reads few the next time.
func TestStoppedSweepsReadFewerRuns(t *testing.T) {
	w := &Watchdog{runRows: sweepRows}
	for _, x := range []struct {
		acted   int
		stopped bool
		want    int
	}{
		{200, false, sweepRows}, {30, true, 60}, {3, true, minSweepRows}, {1, true, minSweepRows},
		{minSweepRows, false, 16}, {16, false, 32}, {20, true, 40}, {0, false, 80}, {0, false, 160},
		{0, false, sweepRows},
	} {
		if w.readRuns(x.acted, x.stopped); w.runRows != x.want {
			t.Errorf("after %d runs (stopped: %t) the next sweep reads %d, want %d", x.acted, x.stopped, w.runRows,
				x.want)
		}
	}
}

// While deadlines and groups of one tenant have work for many sweeps, every sweep still ends a run
// of another tenant.
func TestEverySweepReachesEveryPart(t *testing.T) {
	s, err := store.Open(store.Options{Hooks: store.Hooks{Clock: func() perdure.Instant { return 1 }, OpRows: 20}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	do := func(now perdure.Instant, op kernel.Op) {
		t.Helper()
		if err := e.Step(now, op)[0]; err != nil {
			t.Fatal(err)
		}
	}
	now := perdure.Instant(1)
	submit := func(tenant perdure.TenantID, timeout time.Duration) perdure.RunID {
		t.Helper()
		op := &life.Submit{Tenant: tenant,
			Submission: perdure.Submission{Kind: "k", Timeout: perdure.Duration(timeout)}}
		do(now, op)
		return op.Run.ID
	}
	const losers = 200
	members := []perdure.RunID{submit("noisy", time.Hour)}
	for range losers {
		members = append(members, submit("noisy", time.Hour))
		submit("noisy", time.Second)
	}
	do(1, &life.CreateGroup{Tenant: "noisy", RunIDs: members, Mode: "any", OnLosers: "cancel"})
	do(1, &life.Cancel{Tenant: "noisy", RunID: members[0]})
	w := New(e, nil)
	for i := range 5 {
		quiet := submit("quiet", time.Second)
		now = now.Add(time.Minute)
		sweep := w.Pass()
		do(now, sweep)
		if !sweep.More {
			t.Fatalf("sweep %d did all of its work, want it to stop early", i)
		}
		err = s.View(t.Context(), func(v *store.View) error {
			r, _, err := v.Runs.Get("quiet", quiet)
			if r.State != perdure.TimedOut {
				t.Errorf("the run of the quiet tenant is %s after sweep %d, want %s", r.State, i, perdure.TimedOut)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
