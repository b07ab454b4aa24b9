//go:build plant

package sim

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/server/plant"
)

// planted lists the deliberate faults of the product, and how many seeds the simulator may need for
// each, from which one on: a fault that few histories show is not looked for in the first ones.
var planted = []struct {
	fault string
	most  int
	from  uint64
	opt   Options
}{
	{"guard-without-version", 20, base, Options{}},
	{"sweep-ignores-epoch", 60, base, Options{}},
	{"wait-checked-outside", 20, base, Options{}},
	{"alarm-left-out", 5, base, Options{}},
	{"lost-grants-handed-over", 60, base, Options{}},
	{"older-answers-left-out", 60, base + 90, Options{}},
	{"lock-taken-for-free", 20, base, Options{}},
	{"result-without-output", 20, base + 18, Options{}},
	{"handed-over-though-paused", 20, base + 7, Options{}},
	{"pause-not-read-again", 20, base + 8, Options{}},
	{"single-attempt-redelivered", 20, base, Options{}},
	{"limit-slot-kept", 20, base, flowControl},
	{"limit-slot-back-twice", 20, base, flowControl},
	{"limit-full-after-restart", 40, base + 26, flowControl},
	{"limit-resumed-takes-no-slot", 20, base, flowControl},
	{"limit-step-outlives-epoch", 20, base, flowControl},
	{"limit-not-checked-at-grant", 40, base + 5, flowControl},
	{"limit-rate-unchecked", 40, base + 2, flowControl},
	{"limit-alarm-ignored", 40, base + 1, flowControl},
	{"schedule-missed-twice", 40, base + 10, flowControl},
	{"rows-without-version", 40, base + 12, flowControl},
	{"unique-dropped-early", 40, base, flowControl},
	{"debounce-past-max", 20, base, flowControl},
}

// flowControl has limits, unique and debounced runs, and schedules.
var flowControl = Options{Flow: true}

// TestPlanted checks that the simulator finds deliberate faults. With a fault a seed fails soon,
// and without it the same seeds pass.
func TestPlanted(t *testing.T) {
	defer plant.Set("")
	far := time.Now().Add(time.Hour)
	for _, p := range planted {
		t.Run(p.fault, func(t *testing.T) {
			plant.Set(p.fault)
			begin, found := time.Now(), 0
			for n := 1; n <= p.most && found == 0; n++ {
				r, err := Run(p.from+uint64(n)-1, p.opt)
				if err != nil {
					t.Fatal(err)
				}
				if r.Violation != nil {
					found = n
					t.Logf("%s: seed %d, the %d. one, after %d steps and %s: %v", p.fault, r.Seed, n, r.Steps,
						time.Since(begin).Round(time.Millisecond), r.Violation)
				}
			}
			plant.Set("")
			if found == 0 {
				t.Fatalf("%d seeds passed with the fault %s, want one to fail", p.most, p.fault)
			}
			campaign(t, p.opt, seedsFrom(p.from, found), far, func(r *Report) {
				if r.Violation != nil {
					t.Error(explain(r))
				}
			})
		})
	}
}
