package agenttest

import "time"

// LookAtClockEvery shortens the time after which a clock that has stopped is found.
func LookAtClockEvery(d time.Duration) { stuckAfter = d / 2 }
