package watchdog

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

func TestEveryClockHasARule(t *testing.T) {
	for _, c := range perdure.Clocks {
		r := byClock[c.Name]
		if r == nil || r.act == nil {
			t.Errorf("clock %s has no rule: a run whose alarm it is would never be acted on", c.Name)
			continue
		}
		if r.ID != c.Rule {
			t.Errorf("clock %s: id of its rule = %s, want %s as the clock says", c.Name, r.ID, c.Rule)
		}
	}
	for _, r := range Rules {
		if r.Condition == "" || r.Action == "" || r.Bound == "" {
			t.Errorf("%s %s lacks a condition, an action or a bound", r.ID, r.Name)
		}
	}
}

// The specification lists the rules that wait after a gap: W1, W4 to W7, W9, W11 to W14 and the
// cancel grace.
func TestRulesThatJudgeBySilenceArePostponed(t *testing.T) {
	postponed := make(map[string]bool)
	for _, id := range []string{"W1", "W4", "W5", "W6", "W7", "W9", "W11", "W12", "W13", "W14"} {
		postponed[id] = true
	}
	for _, r := range Rules {
		if want := postponed[r.ID] || r.Name == "cancel-grace"; r.Postponed != want {
			t.Errorf("%s %s: postponed after a gap = %v, want %v", r.ID, r.Name, r.Postponed, want)
		}
	}
}

// Several rules share an id, so the names have to tell them apart. A rule of W15, which has eight,
// also has a full name of several words.
func TestRuleNamesAreUnique(t *testing.T) {
	kebab := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	used := make(map[string]string)
	for i := range Rules {
		r := &Rules[i]
		if r.ID == "W15" && (r.FullName == "" || !strings.Contains(r.FullName, "-")) {
			t.Errorf("W15 %s: full name = %q, want several words", r.Name, r.FullName)
		}
		names := []string{r.Name}
		if r.FullName != "" {
			names = append(names, r.FullName)
		}
		for _, name := range names {
			if !kebab.MatchString(name) {
				t.Errorf("%s: name %q is not in kebab case", r.ID, name)
			}
			if other, ok := used[name]; ok {
				t.Errorf("name %q belongs to two rules: %s and %s %s", name, other, r.ID, r.Name)
			}
			used[name] = r.ID + " " + r.Name
			if got := StoredName(name); got != r.Name {
				t.Errorf("StoredName(%q) = %q, want %q", name, got, r.Name)
			}
		}
	}
	for _, other := range []string{"", "W15", "no-such-rule"} {
		if got := StoredName(other); got != other {
			t.Errorf("StoredName(%q) = %q, want it unchanged", other, got)
		}
	}
}

func TestLogHasAllNamesOfARule(t *testing.T) {
	s := storetest.Open(t, storetest.OnDisk(t))
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := New(e, slog.New(slog.NewTextHandler(&out, nil)))
	submit := &life.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "k", Delay: perdure.Duration(time.Hour)}}
	if err := e.Do(t.Context(), submit); err != nil {
		t.Fatal(err)
	}
	if errs := e.Step(submit.Run.ReadyAt, w.Pass()); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if want := "rule=W15 name=due full_name=delay-over"; !strings.Contains(out.String(), want) {
		t.Errorf("log = %q, want it to contain %q", &out, want)
	}
}

// startLoop starts the watchdog's loop on an engine of its own, until the test ends.
func startLoop(t *testing.T, at store.Options) (*engine.Engine, *doorbell.Local) {
	t.Helper()
	s, err := store.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	bell := &doorbell.Local{}
	e, err := engine.New(s, engine.Options{Bell: bell})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- New(e, nil).Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v, want nil when its context ends", err)
		}
		s.Close()
	})
	return e, bell
}

// The loop sleeps for long, because nothing is due soon. A run with a short timeout has to wake it.
// Time is virtual, so that a busy machine does not look like a loop that sleeps too long.
func TestEarlierAlarmWakesLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := func() perdure.Instant { return perdure.At(time.Now()) }
		e, bell := startLoop(t, store.Options{Hooks: store.Hooks{Clock: clock}})
		ctx := t.Context()
		far := &life.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "far"}}
		if err := e.Do(ctx, far); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for range 10 {
			op := &life.Submit{Tenant: "t",
				Submission: perdure.Submission{Kind: "short", Timeout: perdure.Duration(70 * time.Millisecond)}}
			if err := e.Do(ctx, op); err != nil {
				t.Fatal(err)
			}
			rung, stop := bell.Listen(doorbell.Run("t", string(op.Run.ID)))
			<-rung
			stop()
			d, err := e.Runs.Get(ctx, "t", op.Run.ID)
			if err != nil || d.State != perdure.TimedOut {
				t.Fatalf("run %s: state after its deadline = %s (error %v), want %s", op.Run.ID, d.State, err,
					perdure.TimedOut)
			}
			if late := d.FinishedAt.Sub(d.DeadlineAt); late != 0 {
				t.Errorf("run %s ended %s after its deadline, want 0: the loop slept past the alarm", op.Run.ID, late)
			}
			synctest.Wait()
		}
	})
}

// A busy tenant sets hundreds of alarms a second. Those that are due after the one that the loop
// sleeps until must not cause sweeps.
func TestLaterAlarmsDoNotWakeLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sweeps atomic.Int64
		e, _ := startLoop(t, store.Options{Hooks: store.Hooks{
			Clock: func() perdure.Instant { return perdure.At(time.Now()) },
			Spent: func(op store.Op, _ store.Cost) {
				if named, ok := op.(interface{ Name() string }); ok && named.Name() == "watchdog.Sweep" {
					sweeps.Add(1)
				}
			},
		}})
		submit := func(timeout time.Duration) {
			t.Helper()
			op := &life.Submit{Tenant: "t",
				Submission: perdure.Submission{Kind: "k", Timeout: perdure.Duration(timeout)}}
			if err := e.Do(t.Context(), op); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		submit(100 * time.Millisecond)
		before := sweeps.Load()
		for range 50 {
			submit(200 * time.Millisecond)
		}
		if n := sweeps.Load() - before; before == 0 || n != 0 {
			t.Errorf("%d sweeps for the first alarm and %d for 50 later ones, want some and none", before, n)
		}
	})
}

func TestDelayedRunBecomesClaimable(t *testing.T) {
	e, bell := startLoop(t, storetest.OnDisk(t))
	ctx := context.Background()
	rung, stop := bell.Listen(doorbell.Queue("t", "default"))
	defer stop()
	op := &life.Submit{Tenant: "t",
		Submission: perdure.Submission{Kind: "k", Delay: perdure.Duration(50 * time.Millisecond)}}
	if err := e.Do(ctx, op); err != nil {
		t.Fatal(err)
	}
	select {
	case <-rung:
	case <-time.After(eventually.Within):
		t.Fatalf("run %s: its queue did not ring, want a ring after its delay of 50 ms", op.Run.ID)
	}
	poll := &dispatch.Claim{Tenant: "t", Worker: "w", Slots: 1}
	if err := e.Do(ctx, poll); err != nil || len(poll.Grants) != 1 {
		t.Fatalf("poll after the ring: %d grants, error %v; want 1 grant", len(poll.Grants), err)
	}
}

// Readers for callers occupy all their database sessions. The watchdog has one of its own.
func TestSlowReadersDoNotDelayWatchdog(t *testing.T) {
	s := storetest.Open(t, storetest.OnDisk(t))
	bell := &doorbell.Local{}
	e, err := engine.New(s, engine.Options{Bell: bell})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	begun := make(chan bool)
	for range 4 { // as many readers as one tenant can have
		wg.Go(func() {
			s.View(ctx, func(*store.View) error {
				begun <- true
				<-ctx.Done()
				return nil
			})
		})
		<-begun
	}
	wg.Go(func() { New(e, nil).Run(ctx) })
	op := &life.Submit{Tenant: "t",
		Submission: perdure.Submission{Kind: "x", Timeout: perdure.Duration(200 * time.Millisecond)}}
	if err := e.Do(ctx, op); err != nil {
		t.Fatal(err)
	}
	ended := func() (over bool) {
		if err := s.Keep(ctx, func(v *store.View) error {
			r, _, err := v.Runs.Get("t", op.Run.ID)
			over = r.State.Terminal()
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return over
	}
	for limit := time.After(eventually.Within); ; {
		rung, stop := bell.Listen(doorbell.Run("t", string(op.Run.ID)))
		if ended() {
			stop()
			return
		}
		select {
		case <-rung:
			stop()
		case <-limit:
			t.Fatalf("run %s is live long after its timeout of 200 ms, want it ended", op.Run.ID)
		}
	}
}
