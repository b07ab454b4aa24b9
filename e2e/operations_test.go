package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure/internal/testkit/pagetest"
)

// Every command of the handbook succeeds, in its order.
func TestOperationsPageIsTrue(t *testing.T) {
	t.Parallel()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	blocks := pagetest.Blocks(t, "../docs/operations.md", 10)
	last := len(blocks) - 1
	blocks[0].Typed, blocks[last].Typed = "set -e\n"+blocks[0].Typed, blocks[last].Typed+"set +e\n"
	pagetest.Run(t, blocks, t.TempDir(), "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"), "PERDURE_KEY=")
}
