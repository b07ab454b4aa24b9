package store

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestWhatIsRemovedInStepsLeavesTheStoreToOthersInBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, steps := time.Now(), 0
		step := func() (bool, error) {
			time.Sleep(10 * time.Millisecond)
			steps++
			return steps < 3, nil
		}
		if err := Paced(t.Context(), step); err != nil || steps != 3 || time.Since(begin) != 90*time.Millisecond {
			t.Errorf("%v, %d steps in %v", err, steps, time.Since(begin))
		}
		ctx, leave := context.WithCancel(t.Context())
		steps = -1000
		if err := Paced(ctx, func() (bool, error) { leave(); return step() }); !errors.Is(err, context.Canceled) || steps != -999 {
			t.Errorf("%v, %d steps after the caller left", err, steps+1000)
		}
	})
}
