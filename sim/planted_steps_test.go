//go:build plant

package sim

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/server/plant"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/conformance"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// plantedSteps lists deliberate faults of limits of steps, and the scenario of the conformance suite that finds each.
var plantedSteps = map[string]string{
	"step-keeps-slot":           "a step holds a slot until its commit",
	"step-takes-again":          "a step takes of a rate, once for each try",
	"step-checks-first-limit":   "a step gets the slots of all of its limits, or none",
	"step-takes-slot-of-run":    "a step under a limit of its own run takes no second slot",
	"step-wait-ignores-room":    "a wait whose limit has room is satisfied at once",
	"step-overtakes":            "a step does not go ahead of those who wait",
	"limit-step-outlives-epoch": "whatever ends the epoch ends the slots of its steps",
}

// A witness notes that a scenario fails, and lets the test go on.
type witness struct {
	testing.TB
	failed string
}

func (w *witness) Fatalf(format string, args ...any) {
	w.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (w *witness) Fatal(args ...any) { w.Fatalf("%s", fmt.Sprint(args...)) }

// The conformance suite finds deliberate faults of limits of steps, and passes without them.
func TestPlantedInSteps(t *testing.T) {
	defer plant.Set("")
	scenarios := conformance.Scenarios()
	for fault, name := range plantedSteps {
		n := slices.IndexFunc(scenarios, func(s conformance.Scenario) bool { return strings.HasPrefix(s.Name, name) })
		if n < 0 {
			t.Fatalf("the conformance suite has no scenario %q", name)
		}
		for _, planted := range []string{fault, ""} {
			plant.Set(planted)
			w := &witness{TB: t}
			done := make(chan bool)
			go func() {
				defer close(done)
				scenarios[n].Run(conformance.NewWorld(w, storetest.Open(t, store.Options{})))
			}()
			<-done
			if (w.failed != "") != (planted != "") {
				t.Errorf("scenario %q with the fault %q: failed %q", name, planted, w.failed)
			}
		}
	}
}
