// Package aisdk contains an agent of the AI SDK, and a test that kills it.
package aisdk

import (
	"os/exec"
	"testing"

	"github.com/perdure/perdure/internal/testkit/killtest"
)

// node is the Node.js that "make typescript" installs.
const node = "../../sdk/typescript/runtime/node_modules/node-22/bin/node"

// The example has the types of the SDKs that it uses.
func TestTypes(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), node, "../../sdk/typescript/node_modules/typescript/bin/tsc", "--noEmit",
		"--strict", "--skipLibCheck", "--allowImportingTsExtensions", "--module", "nodenext", "--target", "es2023",
		"--lib", "es2023,dom,dom.asynciterable", "--types", "node", "--typeRoots",
		"../../sdk/typescript/node_modules/@types", "agent.ts")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

// A worker that is killed while the model answers goes on there: the tools of the answer before it are not called
// again, and the answers that were there are not asked for again.
func TestAgentIsKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	killtest.Run(t, killtest.Example{Command: []string{node, "agent.ts"}})
}
