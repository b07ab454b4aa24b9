package agenttest

import (
	"testing"
	"time"
)

// LookAtClockEvery shortens the time after which a clock that has stopped is found.
func LookAtClockEvery(d time.Duration) { stuckAfter = d / 2 }

// StayAwake makes one trial without a crash, and the one in which the run stays awake.
func (sc Scenario) StayAwake(t *testing.T) {
	t.Helper()
	found := new(failures)
	sc.stayAwake(t, sc.trial(t, nil, found, nil, false), found)
}
