package upkeep

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// maxPast bounds the runs past their deadline that are named.
const maxPast = 20

// Invariants is the result of checking a whole store.
type Invariants struct {
	// Generation counts how often the store was restored from a backup.
	Generation int64
	// PastDeadline counts the live runs past their deadline.
	PastDeadline int
	PastRuns     []perdure.RunID
	// Checked counts the invariants that were checked.
	Checked int
	// Unchecked names those for which there was no time.
	Unchecked  []string
	Violations []store.Violation
}

// CheckInvariants checks the whole store, and stops after so long. Zero: there is no time limit.
func CheckInvariants(ctx context.Context, e *kernel.Engine, within time.Duration) (out Invariants, err error) {
	err = e.Store().Audit(ctx, func(v *store.View) error {
		if out.Generation, err = v.Generation(); err != nil {
			return err
		}
		if out.PastDeadline, out.PastRuns, err = v.PastDeadline(maxPast); err != nil {
			return err
		}
		out.Violations, out.Unchecked, err = v.CheckWithin(ctx, within)
		out.Checked = len(store.Invariants) + 1 - len(out.Unchecked)
		return err
	})
	return out, err
}
