package engine

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// maxPast is how many runs past their deadline are named.
const maxPast = 20

// Invariants is what a check of a whole store found.
type Invariants struct {
	Generation   int64 // how often the store was restored from a backup
	PastDeadline int   // live runs past their deadline
	PastRuns     []perdure.RunID
	Checked      int      // invariants
	Unchecked    []string // those that there was no time for
	Violations   []store.Violation
}

// CheckInvariants checks the whole store, and goes no further after so long; zero: however long it
// takes.
func (e *Engine) CheckInvariants(ctx context.Context, within time.Duration) (out Invariants, err error) {
	err = e.store.Audit(ctx, func(v *store.View) error {
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
