package sim

import "testing"

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
	total := make(Counts)
	ran := campaignFor(t, Options{Flow: true}, n, flowSituations, total, func(r *Report) {
		if r.Violation != nil {
			t.Errorf("with %s=1: %s", flowEnv, explain(r))
		}
	})
	t.Logf("%d seeds\n%s", ran, total)
}
