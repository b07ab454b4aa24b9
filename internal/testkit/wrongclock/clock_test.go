//go:build amd64

package wrongclock

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

// A test process would keep its wrong clock, so the clock is that of a child.
func TestWallClockIsWrongAndDurationsAreRight(t *testing.T) {
	if os.Getenv("PERDURE_WRONGCLOCK") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "PERDURE_WRONGCLOCK=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	right := time.Now()
	for _, wrong := range []time.Duration{time.Hour, -3 * time.Hour, 10 * 365 * 24 * time.Hour, 0} {
		if err := Shift(wrong); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		if off := now.Round(0).Sub(right.Round(0)) - wrong; off < 0 || off > time.Minute {
			t.Errorf("shifted by %s: the wall clock is wrong by %s more, want nothing", wrong, off)
		}
		if took := now.Sub(right); took < 0 || took > time.Minute {
			t.Errorf("shifted by %s: %s have passed by the monotonic clock, want a moment", wrong, took)
		}
		if took := time.Since(now); took < 0 || took > time.Minute {
			t.Errorf("shifted by %s: time.Since = %s, want a moment", wrong, took)
		}
	}
	if err := Shift(24 * time.Hour); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(time.Millisecond) // the runtime asks for the time, too
	defer tick.Stop()
	for range 20 {
		<-tick.C
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	<-ctx.Done() // as long as ever
	ctx, cancel = context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	if ctx.Err() != nil {
		t.Error("a deadline in an hour has passed")
	}
}
