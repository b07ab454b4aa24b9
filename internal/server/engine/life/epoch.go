package life

import "github.com/perdure/perdure"

// FirstEpoch gives the epoch from which a restored store continues. The same backup may be restored
// twice, and the first restored store be lost. The later restore has greater epochs, because a run
// is not granted more often than once in a millisecond.
func FirstEpoch(generation int64, now perdure.Instant) int64 {
	const year2020 = 1_577_836_800_000
	return generation<<epochBits | min(max(0, int64(now)/1000-year2020), 1<<epochBits-1)
}

// epochBits is the number of bits for milliseconds, which last until 2089. The generation is above
// them.
const epochBits = 41

// wasRestored tells whether a run came from a backup. Another store that was restored from the same
// backup, and then lost, may have granted epochs that this one did not.
func wasRestored(r *perdure.Run) bool { return r.Epoch>>epochBits > 0 }

// Outlived tells whether an epoch of a process is from before the restore that the run came from, and
// nobody was granted the run since then.
func Outlived(r *perdure.Run, epoch int64) bool {
	return r.Options.Process && r.State.Live() && epoch>>epochBits < r.Epoch>>epochBits &&
		(r.WatchUntil != 0 || r.Former != 0)
}
