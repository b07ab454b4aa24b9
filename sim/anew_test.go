package sim

import (
	"testing"

	"github.com/perdure/perdure/internal/testkit/pairs"
)

// anewSituations are those that a campaign of runs that go on anew has to reach.
var anewSituations = []string{
	"a child went on anew",
	"a message went with a run that goes on anew",
	"a report of work outside went with a run that goes on anew",
	"a run was deleted while the one that continues it lived",
	"a run went on anew in a later attempt",
	"a run went on anew",
	"a signal went with a run that goes on anew",
}

// anewEnv makes a replay one of a simulation with runs that go on anew.
const anewEnv = "PERDURE_SIM_ANEW"

// anewSeeds is the number of seeds with runs that go on anew.
const anewSeeds = 16

// Agents go on anew under faults: as one new run each, with what they did not take.
func TestRunsGoOnAnew(t *testing.T) {
	n := int(number(t, "PERDURE_SIM_SEEDS", anewSeeds))
	total, met := make(Counts), make(meetingPoints)
	ran := campaignFor(t, Options{Anew: true}, n, anewSituations, total, func(r *Report) {
		met.add(r.Pairs)
		if r.Violation != nil {
			t.Errorf("with %s=1: %s", anewEnv, explain(r))
		}
	})
	t.Logf("%d seeds, %d runs went on anew\n%s", ran, total["a run went on anew"], total)
	met.check(t, ran, func(p pairs.Pair) bool { return p.Then == pairs.Anew })
}
