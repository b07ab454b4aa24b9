package sim

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/pairs"
)

// meetingPoints counts the seeds in which a pair of features was in force on one run, by the order in
// which the two came.
type meetingPoints map[pairs.Pair]int

// add counts one seed.
func (m meetingPoints) add(of map[pairs.Pair]int) {
	for p := range of {
		m[p]++
	}
}

// pairsEnv names a file that gets the pairs of a campaign, each with the number of seeds that reached
// it, instead of the comparison with the list.
const pairsEnv = "PERDURE_SIM_PAIRS"

// check fails if a pair that the page says the simulator reaches was not reached. wanted tells which of
// these the campaign is for.
func (m meetingPoints) check(t *testing.T, seeds int, wanted func(pairs.Pair) bool) {
	t.Helper()
	both := make(map[pairs.Pair]bool)
	for p := range m {
		both[p.Sorted()] = true
	}
	t.Logf("%d pairs of features met in %d seeds, %d in the one order or the other", len(both), seeds, len(m))
	if path := os.Getenv(pairsEnv); path != "" {
		var lines []string
		for p, n := range m {
			lines = append(lines, fmt.Sprintf("%4d %s then %s", n, p.First, p.Then))
		}
		slices.Sort(lines)
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, p := range pairs.BySimulator() {
		if !both[p] && wanted(p) {
			t.Errorf("%s were not in force on one run in %d seeds, want it: the page says so", p, seeds)
		}
	}
}
