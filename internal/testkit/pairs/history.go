package pairs

// A History follows the features of one run.
type History struct {
	now   Set
	since [count]int // the observation with which each feature that is in force came
	n     int
}

// Observe notes which features are in force now, and gives the pairs that are in force together for
// the first time since one of the two came. A feature that was in force at the last observation and
// ended with the run still meets the one that ended it.
func (h *History) Observe(s Set) (met []Pair) {
	h.n++
	came := s &^ h.now
	if came == 0 {
		h.now = s
		return nil
	}
	before := h.now
	if !came.Has(Deadline) && !came.Has(Retention) {
		before &= s
	}
	for _, f := range came.All() {
		h.since[f] = h.n
	}
	all := (before | came).All()
	for _, f := range came.All() {
		for _, g := range all {
			switch {
			case g == f:
			case h.since[g] < h.n:
				met = append(met, Pair{g, f})
			case g < f: // they came together
				met = append(met, Pair{g, f}, Pair{f, g})
			}
		}
	}
	h.now = s
	return met
}
