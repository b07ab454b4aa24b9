package sim

import (
	"testing"
	"time"
)

// flowSituations are those that a campaign of flow control has to reach.
var flowSituations = []string{
	"a limit was deleted",
	"a limit was full",
	"a rate held a run back",
	"a resumed run took its slots again",
	"a run made up for missed instants",
	"a run waited at a limit",
	"a run was replaced",
	"a run was suspended on the limits of a step",
	"a run was suspended on the limits of two steps",
	"a schedule started a run",
	"a schedule was triggered",
	"a step took its limits",
	"a submission became part of a debounced run",
	"a suspended run stood in the line of a limit",
	"a unique key was taken again",
}

// flowEnv makes a replay one of a simulation with flow control.
const flowEnv = "PERDURE_SIM_FLOW"

// flowSeeds is the number of seeds with flow control.
const flowSeeds = 24

// Limits, unique and debounced runs, and schedules keep their promises under faults.
func TestFlowControl(t *testing.T) {
	n := int(number(t, "PERDURE_SIM_SEEDS", flowSeeds))
	total, ran := make(Counts), 0
	campaign(t, Options{Flow: true}, seedsFrom(number(t, "PERDURE_SIM_BASE", base), n), time.Now().Add(24*time.Hour),
		func(r *Report) {
			ran++
			total.Add(r.Counts)
			if r.Violation != nil {
				t.Errorf("with %s=1: %s", flowEnv, explain(r))
			}
		})
	t.Logf("%d seeds\n%s", ran, total)
	for _, what := range flowSituations {
		if total[what] == 0 {
			t.Errorf("situation %q was not reached in %d seeds, want it at least once", what, ran)
		}
	}
}
