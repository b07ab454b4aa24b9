package bench

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure/cmd/internal/golden"
	"github.com/perdure/perdure/cmd/internal/paint"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

func TestOpenLoopDoesNotWaitForCalls(t *testing.T) {
	var calls, others atomic.Int64
	release := make(chan struct{})
	err := openLoop(t.Context(), 1000, 50*time.Millisecond, func(time.Time) error {
		if calls.Add(1) > 1 {
			if others.Add(1) == 10 {
				close(release)
			}
			return nil
		}
		select { // the first call takes until ten others have been made
		case <-release:
		case <-time.After(eventually.Within):
			t.Error("the others wait for the first")
		}
		return nil
	})
	if err != nil || others.Load() < 10 {
		t.Errorf("%d of %d calls ended while the first was blocked (error %v), want at least 10", others.Load(),
			calls.Load(), err)
	}
	boom := errors.New("boom")
	if err := openLoop(t.Context(), 1000, time.Minute, func(time.Time) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("openLoop with a failing call = %v, want that call's error", err)
	}
}

func TestFigureIsComparedWithItsGoals(t *testing.T) {
	large, small := &Bench{Live: 1_000_000, Due: 100_000}, &Bench{Live: 1000, Due: 10}
	for _, c := range []struct {
		name string
		b    *Bench
		f    Figure
		want string
	}{
		{"met", small, Figure{Scenario: "engine-life", Store: storeSQLite, Target: targetProcess, Value: 6000,
			Unit: unitRate}, "✓ ≥ 5000/s: 1.20"},
		{"missed", small, Figure{Scenario: "engine-life", Store: storeSQLite, Target: targetHTTP, Value: 2000,
			Unit: unitRate}, "✗ ≥ 2500/s: 0.80"},
		{"open loop", small, Figure{Scenario: "engine-life", What: "at 10/s", Store: storeSQLite, Target: targetProcess,
			Value: 10, Unit: unitRate}, ""},
		{"two", small, Figure{Scenario: "idle", What: "dispatch", Target: targetHTTP,
			Latency: &spread{P50: 1, P99: 11}}, "✓ p50 ≤ 2 ms: 0.50, ✗ p99 ≤ 10 ms: 1.10"},
		{"large", large, Figure{Scenario: "alarms", What: whatAtOnce, Value: 15, Unit: unitSeconds}, "✓ ≤ 30 s: 0.50"},
		{"agents", small, Figure{Scenario: "agent-steps", What: whatAlone, Store: storeSQLite, Target: targetHTTP,
			Latency: &spread{P50: 4, P99: 30}}, "✓ p50 ≤ 8 ms: 0.50"},
		{"too few agents", small,
			Figure{Scenario: "agent-steps", Store: storeSQLite, Target: targetHTTP, Value: 10, Unit: unitRate}, ""},
		{"not large", small, Figure{Scenario: "alarms", What: whatAtOnce, Value: 15, Unit: unitSeconds}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, v := range c.b.goals(&c.f) {
				got = append(got, v.text(paint.Painter{}))
			}
			if strings.Join(got, ", ") != c.want {
				t.Errorf("verdicts = %q, want %q", got, c.want)
			}
		})
	}
}

func TestPrintReport(t *testing.T) {
	r := &Report{
		Machine: machine{Cores: 2, CPU: "a CPU", Memory: "24 GB", Kernel: "6.1", FileSystem: "ext4",
			Load: "0.00 0.00 0.00", Sync: &spread{P50: .1, P99: .2}, Go: "go1.26", Platform: "linux/amd64",
			At: time.Unix(0, 0).UTC()},
		Stores:   map[string]map[string]string{storeSQLite: {"synchronous": "FULL", "version": "3"}},
		Settings: map[string]any{"callers": 8},
		Figures: []Figure{
			{Store: storeSQLite, Target: targetProcess, Scenario: "engine-life", Loop: closedLoops, Count: 60000,
				Value: 6000,
				Unit:  unitRate, CPU: 150, Latency: &spread{1, 2, 3, 4},
				Goals: []verdict{{Least: true, Bound: 5000, Unit: unitRate, Ratio: 1.2, Met: true}}},
			{Store: storeSQLite, Target: targetHTTP, Scenario: "start", What: whatMemory, Value: 61.5,
				Unit: unitMegabytes, Goals: []verdict{{Bound: 60, Unit: unitMegabytes, Ratio: 1.025}}},
		},
	}
	for name, p := range map[string]paint.Painter{"bench.txt": {}, "bench.colour.txt": {On: true}} {
		var b strings.Builder
		if err := r.Print(&b, p); err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, name, b.String())
	}
}
