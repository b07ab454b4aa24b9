package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// listed are packages whose doc.go lists the files in an order in which each builds on those before it.
var listed = append([]string{"agent", "internal/server/httpd", "internal/server/store"}, wings...)

// maxArrowsUp is the share of arrows that may run up, in percent. An arrow is a file that uses a name of
// another file of its package. It runs up if doc.go lists the other one later.
const maxArrowsUp = 10

func TestFilesBuildOnThoseListedBefore(t *testing.T) {
	total := 0
	for _, pkg := range listed {
		order, arrows := arrowsOf(t, pkg)
		var up []string
		for _, a := range arrows {
			from, to := slices.Index(order, a[0]), slices.Index(order, a[1])
			if from < 0 || to < 0 {
				t.Errorf("%s: doc.go lists not both of %v", pkg, a)
			}
			if to > from {
				up = append(up, a[0]+" -> "+a[1])
			}
		}
		total += len(arrows)
		t.Logf("%s: %d of %d arrows run up", pkg, len(up), len(arrows))
		if 100*len(up) > maxArrowsUp*len(arrows) {
			t.Errorf("%s: %d of %d arrows run up, want at most %d percent:\n%s", pkg, len(up), len(arrows), maxArrowsUp,
				strings.Join(up, "\n"))
		}
	}
	if total < 1000 {
		t.Errorf("there are %d arrows in all, want 1,000 or more: this test looks at nothing", total)
	}
}

// unknown imports every package as an empty one: only names of the package itself are looked at.
type unknown struct{}

func (unknown) Import(name string) (*types.Package, error) {
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}

// arrowsOf returns the files of a package as doc.go lists them, and pairs of files of which the first
// uses a name of the second.
func arrowsOf(t *testing.T, pkg string) (order []string, arrows [][2]string) {
	t.Helper()
	set := token.NewFileSet()
	paths, err := filepath.Glob(filepath.Join(moduleDir(t), pkg, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, p := range paths {
		if strings.HasSuffix(p, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, p, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
		if filepath.Base(p) == "doc.go" {
			_, list, _ := strings.Cut(f.Doc.Text(), "# Where to start reading")
			_, list, _ = strings.Cut(list, "\n  - ")
			order = regexp.MustCompile(`\b[a-z_]+\.go\b`).FindAllString(list, -1)
		}
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: unknown{}, Error: func(error) {}}
	checked, _ := conf.Check(pkg, set, files, info) // the names of other packages are unknown
	fileOf := func(at token.Pos) string { return filepath.Base(set.Position(at).Filename) }
	for id, obj := range info.Uses {
		local := obj.Parent() != nil && obj.Parent() != checked.Scope() // a variable of a function
		if obj.Pkg() != checked || local || !obj.Pos().IsValid() {
			continue
		}
		a := [2]string{fileOf(id.Pos()), fileOf(obj.Pos())}
		if a[0] != a[1] && !slices.Contains(arrows, a) {
			arrows = append(arrows, a)
		}
	}
	slices.SortFunc(arrows, func(a, b [2]string) int { return strings.Compare(a[0]+a[1], b[0]+b[1]) })
	return order, arrows
}
