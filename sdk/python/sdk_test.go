// Package python contains the SDK for Python, and tests that run its own.
package python

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

// run runs Python in this folder. Without Python the test fails, because a skipped test would look green.
func run(t *testing.T, args ...string) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal("this test needs python3: ", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, args...)
	cmd.Env = append(os.Environ(), "NO_PROXY=*", "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("python3 %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func TestUnits(t *testing.T) {
	run(t, "-W", "error", "-m", "unittest", "discover", "-s", "tests", "-t", ".")
}
