package agentvet_test

import (
	"fmt"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis/checker"

	"github.com/perdure/perdure/agentvet"
	"github.com/perdure/perdure/internal/testkit/agentcases"
)

// The misuses of package agentcases that a rule is to find are found, in the code that is executed elsewhere.
func TestMisusesOfTheTableAreReported(t *testing.T) {
	graph, err := checker.Analyze(agentvet.Analyzers(), load(t, "../internal/testkit/agentcases"), nil)
	if err != nil {
		t.Fatal(err)
	}
	reported := map[string]bool{} // by file, line and rule
	for _, act := range graph.Roots {
		if act.Err != nil {
			t.Fatal(act.Err)
		}
		for _, d := range act.Diagnostics {
			at := act.Package.Fset.Position(d.Pos)
			reported[fmt.Sprint(filepath.Base(at.Filename), ":", at.Line, " ", act.Analyzer.Name)] = true
		}
	}
	for _, area := range agentcases.Misuses {
		for _, m := range area.Rows {
			if m.Vet == "" {
				continue
			}
			code := runtime.FuncForPC(reflect.ValueOf(m.Do).Pointer())
			file, first := code.FileLine(code.Entry())
			file = file[strings.LastIndexByte(file, '/')+1:]
			found := false
			for line := first; line < first+9; line++ {
				found = found || reported[fmt.Sprint(file, ":", line, " ", m.Vet)]
			}
			if !found {
				t.Errorf("%s (%s:%d): %s does not report it", m.Name, file, first, m.Vet)
			}
		}
	}
}
