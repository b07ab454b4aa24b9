package watchdog

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/storetest"
)

func TestEveryClockHasARule(t *testing.T) {
	for _, c := range perdure.Clocks {
		r := byClock[c.Name]
		if r == nil || r.act == nil {
			t.Errorf("the clock %s has no rule: a run whose alarm it is would never be acted on", c.Name)
			continue
		}
		if r.ID != c.Rule {
			t.Errorf("the clock %s says %s, its rule is %s", c.Name, c.Rule, r.ID)
		}
	}
	for _, r := range Rules {
		if r.Condition == "" || r.Action == "" || r.Bound == "" {
			t.Errorf("%s %s lacks a condition, an action or a bound", r.ID, r.Name)
		}
	}
	// What a gap holds back, to the letter: W1, W4–W7, W9, W11–W14 and the cancel grace.
	held := map[string]bool{"W1": true, "W4": true, "W5": true, "W6": true, "W7": true, "W9": true, "W11": true, "W12": true, "W13": true, "W14": true}
	for _, r := range Rules {
		if want := held[r.ID] || r.Name == "cancel-grace"; r.Held != want {
			t.Errorf("%s %s is held back after a gap: %v", r.ID, r.Name, r.Held)
		}
	}
}

// live starts an engine with the watchdog's loop.
func live(t *testing.T, at store.Options) (*engine.Engine, *doorbell.Local) {
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
			t.Error(err)
		}
		s.Close()
	})
	return e, bell
}

// The loop sleeps, since nothing is due for a long time, and a run with a short timeout has to wake it. Time is virtual, so
// that a machine with other things to do is not taken for a loop that sleeps through an alarm.
func TestTheLoopHonoursDeadlinesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, bell := live(t, store.Options{Hooks: store.Hooks{Clock: func() perdure.Instant { return perdure.At(time.Now()) }}})
		ctx := t.Context()
		if err := e.Do(ctx, &engine.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "far"}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for range 10 {
			op := &engine.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "short", Timeout: perdure.Duration(70 * time.Millisecond)}}
			if err := e.Do(ctx, op); err != nil {
				t.Fatal(err)
			}
			rung, stop := bell.Listen(doorbell.Run("t", string(op.Run.ID)))
			<-rung
			stop()
			d, err := e.Get(ctx, "t", op.Run.ID)
			if err != nil || d.State != perdure.TimedOut {
				t.Fatalf("%s, %v", d.State, err)
			}
			if late := d.FinishedAt.Sub(d.DeadlineAt); late != 0 {
				t.Errorf("%s late: the loop slept through an earlier alarm", late)
			}
			synctest.Wait()
		}
	})
}

// An alarm that rings after the one that the loop sleeps until is no reason to sweep: a busy tenant sets hundreds of them in a second.
func TestLaterAlarmsDoNotWakeTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sweeps atomic.Int64
		e, _ := live(t, store.Options{Hooks: store.Hooks{
			Clock: func() perdure.Instant { return perdure.At(time.Now()) },
			Spent: func(op store.Op, _ store.Cost) {
				if named, ok := op.(interface{ Name() string }); ok && named.Name() == "watchdog.Sweep" {
					sweeps.Add(1)
				}
			},
		}})
		submit := func(timeout time.Duration) {
			t.Helper()
			if err := e.Do(t.Context(), &engine.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "k", Timeout: perdure.Duration(timeout)}}); err != nil {
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

func TestADelayedRunRingsWhenItsTimeComes(t *testing.T) {
	e, bell := live(t, storetest.OnDisk(t))
	ctx := context.Background()
	rung, stop := bell.Listen(doorbell.Queue("t", "default"))
	defer stop()
	if err := e.Do(ctx, &engine.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "k", Delay: perdure.Duration(50 * time.Millisecond)}}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-rung:
	case <-time.After(10 * time.Second):
		t.Fatal("no ring")
	}
	poll := &engine.Claim{Tenant: "t", Worker: "w", Slots: 1}
	if err := e.Do(ctx, poll); err != nil || len(poll.Grants) != 1 {
		t.Fatalf("%v, %v", poll.Grants, err)
	}
}

func TestReadersThatTakeTheirTimeDontHoldUpTheWatchdog(t *testing.T) {
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
	for range 4 { // as many as there are
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
	op := &engine.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "x", Timeout: perdure.Duration(200 * time.Millisecond)}}
	if err := e.Do(ctx, op); err != nil {
		t.Fatal(err)
	}
	ended := func() (over bool) {
		if err := s.Keep(ctx, func(v *store.View) error {
			r, _, err := v.Run("t", op.Run.ID)
			over = r.State.Terminal()
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return over
	}
	for limit := time.After(20 * time.Second); ; {
		rung, stop := bell.Listen(doorbell.Run("t", string(op.Run.ID)))
		if ended() {
			stop()
			return
		}
		select {
		case <-rung:
			stop()
		case <-limit:
			t.Fatal("the run is past its deadline, and nobody has ended it")
		}
	}
}
