package watchdog

import (
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
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
		got := takeTurns(strings.Fields(x.rows), perdure.TenantID(x.after), func(s *string) perdure.TenantID { return perdure.TenantID((*s)[:1]) })
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
		op := &engine.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "k", Timeout: perdure.Duration(timeout)}}
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
		{time.Minute, 64}, {time.Minute, 32}, {time.Minute, 16}, {time.Minute, minSweepRows}, {time.Minute, minSweepRows},
		{0, 16}, {0, 32}, {0, 64}, {0, 128}, {0, sweepRows}, {0, sweepRows},
	} {
		if w.pace(x.took); w.maxRows != x.want {
			t.Errorf("after a sweep of %s the next one reads %d rows, want %d", x.took, w.maxRows, x.want)
		}
	}
}
