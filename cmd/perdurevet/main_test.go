package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/perdure/perdure/agentvet"
)

// asProgram makes the test binary behave as the program.
const asProgram = "PERDUREVET_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// program runs the program, and returns its output and its exit code.
func program(t *testing.T, args ...string) (out, complaints string, code int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), code
}

func TestFindingsFailTheProgram(t *testing.T) {
	_, findings, code := program(t, "../../agentvet/testdata/kept")
	if code != 3 || !strings.Contains(findings, "kept.go:21:2: the agent's context is kept in b") {
		t.Errorf("program exited with %d and printed %q; want 3 and the findings of the package", code, findings)
	}
	if _, findings, code := program(t, "-agentclock", "../../agentvet/testdata/kept"); code != 0 || findings != "" {
		t.Errorf("with another rule alone it exited with %d and printed %q, want 0 and nothing", code, findings)
	}
}

// go vet asks its tool for a version and for flags.
func TestProgramIsAToolOfGoVet(t *testing.T) {
	version, _, code := program(t, "-V=full")
	if code != 0 || !strings.Contains(version, " version ") || !strings.Contains(version, "buildID=") {
		t.Errorf("-V=full exited with %d and printed %q, want a version with a build id", code, version)
	}
	text, _, _ := program(t, "-flags")
	var flags []struct{ Name string }
	if err := json.Unmarshal([]byte(text), &flags); err != nil {
		t.Fatalf("-flags printed %q: %v", text, err)
	}
	names := make(map[string]bool)
	for _, f := range flags {
		names[f.Name] = true
	}
	for _, rule := range agentvet.Analyzers() {
		if !names[rule.Name] {
			t.Errorf("-flags has no flag %s", rule.Name)
		}
	}
}
