package store

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestPacedSleepsBetweenSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, steps := time.Now(), 0
		step := func() (bool, error) {
			time.Sleep(10 * time.Millisecond)
			steps++
			return steps < 3, nil
		}
		if err := Paced(t.Context(), step); err != nil || steps != 3 || time.Since(begin) != 90*time.Millisecond {
			t.Errorf("Paced = %v after %d steps in %v, want nil after 3 steps in 90ms", err, steps, time.Since(begin))
		}
		ctx, leave := context.WithCancel(t.Context())
		steps = -1000
		if err := Paced(ctx, func() (bool, error) { leave(); return step() }); !errors.Is(err, context.Canceled) ||
			steps != -999 {
			t.Errorf("Paced with a cancelled context = %v after %d steps, want context.Canceled after 1", err,
				steps+1000)
		}
	})
}
