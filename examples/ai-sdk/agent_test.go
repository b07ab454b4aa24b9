// Package aisdk contains an agent of the AI SDK, and a test that kills it.
package aisdk

import (
	"testing"

	"github.com/perdure/perdure/internal/testkit/killtest"
)

// node is the Node.js that "make typescript" installs.
const node = "../../sdk/typescript/runtime/node_modules/node-22/bin/node"

// A worker that is killed while the model answers goes on there: the tools of the answer before it are not called
// again, and the answers that were there are not asked for again.
func TestAgentIsKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	killtest.Run(t, killtest.Example{Command: []string{node, "agent.ts"}})
}
