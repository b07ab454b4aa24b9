package archtest

import (
	"cmp"
	"os/exec"
	"strings"
	"testing"
)

// most is how many names go doc may list of a package that programs call, so that a person can read them all.
const most = 40

// mostOf has the exceptions. Package agent is the language that agents are written in.
var mostOf = map[string]int{"agent": 64}

// vocabularies are packages of types: those of the domain, and the bodies of calls. They are as large as the protocol,
// and a reader looks up one name at a time.
var vocabularies = map[string]bool{"": true, "api": true}

// ours are the folders whose packages are not for other programs.
var ours = []string{"internal/", "cmd/", "examples/", "sim", "e2e", "bench"}

func TestAPackageIsTakenInAtOneLook(t *testing.T) {
	looked := 0
packages:
	for _, p := range list(t) {
		rest, ok := inModule(p.ImportPath)
		if !ok || vocabularies[rest] || len(p.GoFiles) == 0 || strings.Contains(rest, "/internal/") {
			continue
		}
		for _, prefix := range ours {
			if strings.HasPrefix(rest, prefix) {
				continue packages
			}
		}
		looked++
		cmd := exec.Command("go", "doc", "-short", ".")
		cmd.Dir = p.Dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("go doc %s: %v\n%s", rest, err, out)
			continue
		}
		// A group of constants or variables is a line, as is a function, a type, and what makes one.
		names := strings.Split(strings.TrimSpace(string(out)), "\n")
		limit := cmp.Or(mostOf[rest], most)
		if len(names) > limit {
			t.Errorf("go doc %s lists %d names, more than %d: what can go, or be a method?\n%s", rest, len(names),
				limit, out)
		}
		if len(out) == 0 {
			t.Errorf("go doc %s lists nothing", rest)
		}
	}
	if looked < 3 {
		t.Errorf("looked at %d packages alone", looked)
	}
}
