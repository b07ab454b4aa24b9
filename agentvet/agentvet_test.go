package agentvet_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/packages"

	"github.com/perdure/perdure/agentvet"
)

// Each folder of testdata has code that its rule reports, and right code that looks like it. A
// comment "want" has a pattern of what is reported in its line, and nothing else may be. The code
// is compiled with the real package agent. Package analysistest does the same, and takes six
// seconds for each folder, because it compiles the standard library.
func TestRulesFindWhatIsMarked(t *testing.T) {
	folders := map[string]*analysis.Analyzer{
		"assign":      agentvet.Assign,
		"maporder":    agentvet.MapOrder,
		"clock":       agentvet.Clock,
		"effect":      agentvet.Effect,
		"goroutine":   agentvet.Go,
		"stepcontext": agentvet.StepContext,
		"dropped":     agentvet.Dropped,
		"kept":        agentvet.Kept,
		"ignore":      agentvet.Clock,
	}
	var patterns []string
	for folder := range folders {
		patterns = append(patterns, "./testdata/"+folder)
	}
	for _, pkg := range load(t, patterns...) {
		rule := folders[pkg.Name]
		t.Run(pkg.Name, func(t *testing.T) {
			graph, err := checker.Analyze([]*analysis.Analyzer{rule}, []*packages.Package{pkg}, nil)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, wanted(t, pkg), findings(t, graph))
		})
	}
}

func load(t *testing.T, patterns ...string) []*packages.Package {
	t.Helper()
	pkgs, err := packages.Load(&packages.Config{Mode: packages.LoadSyntax | packages.NeedModule}, patterns...)
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs) != len(patterns) || packages.PrintErrors(pkgs) > 0 {
		t.Fatalf("%d packages, want the %d of testdata without errors", len(pkgs), len(patterns))
	}
	return pkgs
}

// findings returns the reports, by file and line.
func findings(t *testing.T, graph *checker.Graph) map[string][]string {
	t.Helper()
	out := make(map[string][]string)
	for _, act := range graph.Roots {
		if act.Err != nil {
			t.Fatal(act.Err)
		}
		for _, d := range act.Diagnostics {
			place := act.Package.Fset.Position(d.Pos)
			at := fmt.Sprintf("%s:%d", place.Filename, place.Line)
			out[at] = append(out[at], d.Message)
		}
	}
	return out
}

// wanted returns the patterns of the comments "want", by file and line.
func wanted(t *testing.T, pkg *packages.Package) map[string]*regexp.Regexp {
	t.Helper()
	out := make(map[string]*regexp.Regexp)
	for _, file := range pkg.Syntax {
		for _, group := range file.Comments {
			for _, comment := range group.List {
				pattern, ok := strings.CutPrefix(comment.Text, "// want `")
				if !ok {
					continue
				}
				place := pkg.Fset.Position(comment.Pos())
				at := fmt.Sprintf("%s:%d", place.Filename, place.Line)
				out[at] = regexp.MustCompile(strings.TrimSuffix(pattern, "`"))
			}
		}
	}
	if len(out) == 0 {
		t.Errorf("%s has no comment with want: this test looks at nothing", pkg.Name)
	}
	return out
}

func compare(t *testing.T, want map[string]*regexp.Regexp, got map[string][]string) {
	t.Helper()
	for place, texts := range got {
		if want[place] == nil || len(texts) > 1 || !want[place].MatchString(texts[0]) {
			t.Errorf("%s: findings %q, want %v", place, texts, want[place])
		}
	}
	for place, pattern := range want {
		if len(got[place]) == 0 {
			t.Errorf("%s: no finding, want %v", place, pattern)
		}
	}
}

// A driver shows the names of rules and links to the page.
func TestPageHasAParagraphForEachRule(t *testing.T) {
	page, err := os.ReadFile("../docs/vet.md")
	if err != nil {
		t.Fatal(err)
	}
	if err := analysis.Validate(agentvet.Analyzers()); err != nil {
		t.Error(err)
	}
	if n := len(agentvet.Analyzers()); n != 8 {
		t.Errorf("there are %d rules, want the 8 of docs/vet.md", n)
	}
	for _, rule := range agentvet.Analyzers() {
		if heading := "### " + rule.Name; !strings.Contains(string(page), "\n"+heading+"\n") {
			t.Errorf("docs/vet.md has no heading %q", heading)
		}
		if !strings.HasSuffix(rule.URL, "docs/vet.md#"+rule.Name) {
			t.Errorf("rule %s links to %q, want its paragraph", rule.Name, rule.URL)
		}
	}
}
