package life

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
)

// wasRestored tells whether a run came from a backup. Another store that was restored from the same
// backup, and then lost, may have granted epochs that this one did not.
func wasRestored(r *perdure.Run) bool { return r.Epoch>>store.EpochBits > 0 }

// Outlived tells whether an epoch of a process is from before the restore that the run came from, and
// nobody was granted the run since then.
func Outlived(r *perdure.Run, epoch int64) bool {
	return r.Options.Process && r.State.Live() && epoch>>store.EpochBits < r.Epoch>>store.EpochBits &&
		(r.WatchUntil != 0 || r.Former != 0)
}
