// Package typescript has the SDK for TypeScript, and runs its tests.
package typescript

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// runtimes are the versions of Node.js with which the tests run, as package.json of the folder names them.
var runtimes = []string{"node-22", "node-20"}

// node returns the program of a version that "make typescript" has installed.
func node(t *testing.T, version string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("runtime", "node_modules", version, "bin", "node"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is not installed: run \"make typescript\" (%v)", version, err)
	}
	return path
}

// The vectors of testdata/journal, all stories, cut after every entry, and what the SDK does by itself.
func TestLibrary(t *testing.T) {
	for _, version := range runtimes {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			files, err := filepath.Glob("dist/test/*.test.js")
			if err != nil || len(files) == 0 {
				t.Fatalf("dist/test has no tests (error %v): run \"make typescript\"", err)
			}
			args := append([]string{"--test", "--test-reporter=tap"}, files...)
			cmd := exec.CommandContext(t.Context(), node(t, version), args...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("the tests of the SDK for TypeScript, on %s: %v\n%s", version, err, out)
			}
		})
	}
}
