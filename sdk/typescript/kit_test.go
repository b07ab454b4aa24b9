package typescript

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

var compiled atomic.Bool

// program compiles the command perdure, once for all tests.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "perdure-typescript-")
	if err != nil {
		return "", err
	}
	compiled.Store(true)
	path := filepath.Join(dir, "perdure")
	out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "../../cmd/perdure").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if compiled.Load() {
		path, _ := program()
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// perdure/test finds agents that don't survive crashes, and none that do, with a server of its own.
func TestKit(t *testing.T) {
	t.Parallel()
	server, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), node(t, runtimes[0]), "dist/test/kit.js")
	cmd.Env = append(os.Environ(), "PERDURE="+server)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "every crash\n") {
		t.Errorf("the kit has ended with %v:\n%s", err, out)
	}
}
