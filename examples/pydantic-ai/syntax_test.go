// Package pydanticai contains an agent of Pydantic AI in Python, and a check of its syntax.
package pydanticai

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The packages of the example can't be installed everywhere, so it is read and not executed. It says so at its top.
func TestSyntax(t *testing.T) {
	code := `import ast; ast.parse(open("agent.py", encoding="utf-8").read(), "agent.py", feature_version=(3, 10))`
	if out, err := exec.CommandContext(t.Context(), "python3", "-c", code).CombinedOutput(); err != nil {
		t.Errorf("agent.py: %v\n%s", err, out)
	}
	text, err := os.ReadFile("agent.py")
	if err != nil {
		t.Fatal(err)
	}
	top, _, _ := strings.Cut(string(text), "\n\n")
	if !strings.Contains(top, "checks the syntax of this file alone") {
		t.Errorf("agent.py begins with %q, want it to say that its syntax alone is checked", top)
	}
}
