// Package ignore has findings that comments permit.
package ignore

import (
	"time"

	"github.com/perdure/perdure/agent"
)

func lines(ctx *agent.Context, in string) (string, error) {
	began := time.Now() //perdurevet:ignore agentclock for a log that nobody decides by
	//perdurevet:ignore agentclock,agentgo for a log that nobody decides by
	in += time.Since(began).String()
	in += time.Since(began).String() // want `time.Since outside of steps`
	return in, nil
}

// whole is permitted.
//
//perdurevet:ignore agentclock it makes a mistake on purpose
func whole(ctx *agent.Context, in string) (time.Time, time.Time) {
	first := time.Now()
	return first, time.Now()
}

func others(ctx *agent.Context, in string) (time.Time, time.Time) {
	//perdurevet:ignore agentassign another rule
	first := time.Now() // want `time.Now outside of steps`
	//perdurevet:ignore agentclock
	return first, time.Now() // want `time.Now outside of steps`
}
