package python

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

// perdure.testing finds agents that don't survive crashes, and none that do, with a server of its own.
func TestKit(t *testing.T) {
	t.Parallel()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Left(t))
	defer cancel()
	cmd := exec.CommandContext(ctx, "python3", "-m", "tests.kit")
	cmd.Env = append(os.Environ(), "PERDURE="+path, "NO_PROXY=*", "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "every crash\n") {
		t.Errorf("the kit has ended with %v:\n%s", err, out)
	}
}
