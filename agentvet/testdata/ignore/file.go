//perdurevet:ignore agentclock all of this file makes mistakes on purpose

package ignore

import (
	"time"

	"github.com/perdure/perdure/agent"
)

func file(ctx *agent.Context, in string) (time.Time, time.Time) {
	first := time.Now()
	return first, time.Now()
}
