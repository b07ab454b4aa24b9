package store

import (
	"log/slog"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// An answer may be minutes late, or seconds where a line is slow. The clock goes on as before: one that were
// behind would grant leases that other nodes see expire early.
func TestServerClockIgnoresTheDelayOfAnAnswer(t *testing.T) {
	const second = perdure.Instant(time.Second / time.Microsecond)
	for name, x := range map[string]struct {
		server      perdure.Instant // what it says, when it is asked after ten seconds
		took        time.Duration
		least, most perdure.Instant // of the clock after that
	}{
		"at once":                        {110 * second, time.Millisecond, 110 * second, 110*second + 1000},
		"the answer is late":             {110 * second, 5 * time.Second, 115 * second, 115 * second},
		"the request is late":            {115 * second, 5 * time.Second, 115 * second, 115 * second},
		"the local counter is slow":      {111 * second, time.Millisecond, 111 * second, 111*second + 1000},
		"the local counter is fast":      {110*second - 5000, time.Millisecond, 110*second - 5000, 110*second - 4000},
		"the server's clock is set on":   {999 * second, time.Millisecond, 999 * second, 999*second + 1000},
		"the server's clock is set back": {50 * second, time.Millisecond, 50 * second, 50*second + 1000},
	} {
		t.Run(name, func(t *testing.T) {
			c := &serverClock{log: slog.New(slog.DiscardHandler)}
			c.answered(100*second, 0, 0)
			c.answered(x.server, 10*time.Second, 10*time.Second+x.took)
			if c.at < x.least || c.at > x.most || c.zero != 10*time.Second+x.took {
				t.Errorf("the clock shows %d µs, want %d to %d", c.at, x.least, x.most)
			}
		})
	}
}
