package pairs

import (
	_ "embed"
	"strings"
	"sync"
)

// The pairs that the simulator and the conformance suite reach, one in each line. The simulator's list
// has those that at least 8 of its first 204 seeds reach, so that another history of some seeds
// changes nothing.
//
// To write them anew: PERDURE_SIM_PAIRS=FILE and PERDURE_SIM_SEEDS=200 with TestSeeds of package sim,
// and PERDURE_PAIRS_WRITE=FILE with TestPairs of package conformance.
var (
	//go:embed simulated.txt
	simulatedText string
	//go:embed conformance.txt
	conformedText string
)

var simulated = sync.OnceValue(func() []Pair { return parse(simulatedText) })
var conformed = sync.OnceValue(func() []Pair { return parse(conformedText) })

// parse reads a list of pairs. A name that is no feature is left out, and a test finds it.
func parse(text string) (out []Pair) {
	for line := range strings.Lines(text) {
		a, b, _ := strings.Cut(strings.TrimSpace(line), " × ")
		first, ok := named(a)
		then, too := named(b)
		if ok && too {
			out = append(out, Pair{first, then}.Sorted())
		}
	}
	return out
}

var simulatedSet = sync.OnceValue(func() map[Pair]bool { return setOf(simulated()) })

func setOf(list []Pair) map[Pair]bool {
	out := make(map[Pair]bool, len(list))
	for _, p := range list {
		out[p] = true
	}
	return out
}

// Simulated tells whether the simulator reaches a pair.
func Simulated(p Pair) bool { return simulatedSet()[p.Sorted()] }

// BySimulator lists the pairs that the simulator reaches.
func BySimulator() []Pair { return simulated() }

// Conformed lists the pairs that the conformance suite reaches.
func Conformed() []Pair { return conformed() }
