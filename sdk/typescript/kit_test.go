package typescript

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// perdure/test finds agents that don't survive crashes, and none that do, with a server of its own.
func TestKit(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "perdure")
	execute(t, ".", "go", "build", "-ldflags=-s -w", "-o", program, "../../cmd/perdure")
	cmd := exec.CommandContext(t.Context(), node(t, runtimes[0]), "dist/test/kit.js")
	cmd.Env = append(os.Environ(), "PERDURE="+program)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "every crash\n") {
		t.Errorf("the kit has ended with %v:\n%s", err, out)
	}
}
