// Package agent contains an agent in Python, and a test that kills it.
package agent

import (
	"testing"

	"github.com/perdure/perdure/internal/testkit/killtest"
)

// A worker that is killed while the model answers goes on there: the tools of the answer before it are not called
// again, and the answers that were there are not asked for again.
func TestAgentIsKilledInTheMiddle(t *testing.T) {
	killtest.Run(t, killtest.Example{
		Command: []string{"python3", "agent.py"},
		Env:     []string{"PYTHONPATH=../../sdk/python", "PYTHONDONTWRITEBYTECODE=1"},
	})
}
