package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// maxWalk is how many files a reader opens to follow a submission to its result.
const maxWalk = 15

// The files in which the architecture page follows a submission are there, and are few. Each but the first has
// a name that an earlier file uses, so that a reader finds the next one.
func TestWalkOfASubmissionIsShort(t *testing.T) {
	root := moduleDir(t)
	page, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "## A submission, file by file")
	section, _, _ := strings.Cut(rest, "\n## ")
	var files []string
	for _, m := range regexp.MustCompile(`(?m)^\| \[([^\]]+\.go)\]`).FindAllStringSubmatch(section, -1) {
		files = append(files, m[1])
	}
	if len(files) < 10 || len(files) > maxWalk {
		t.Errorf("the page lists %d files, want 10 to %d", len(files), maxWalk)
	}
	used := make(map[string]bool)
	for i, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		reached := i == 0
		for _, d := range f.Decls {
			for _, x := range declared(d) {
				reached = reached || used[x]
			}
		}
		if !reached {
			t.Errorf("%s: no file before it uses a name of it", name)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				used[id.Name] = true
			}
			return true
		})
	}
}

// declared gives the names of a declaration.
func declared(d ast.Decl) (out []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		out = append(out, d.Name.Name)
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				out = append(out, s.Name.Name)
			case *ast.ValueSpec:
				for _, n := range s.Names {
					out = append(out, n.Name)
				}
			}
		}
	}
	return out
}
