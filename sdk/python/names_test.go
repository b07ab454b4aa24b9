package python

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const page = "../../docs/python.md"

// exported returns the exported names of a package: functions, variables, types, their methods and fields.
func exported(t *testing.T, dir string) (names []string) {
	t.Helper()
	source := func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }
	packages, err := parser.ParseDir(token.NewFileSet(), dir, source, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages {
		for _, f := range p.Files {
			for _, d := range f.Decls {
				names = append(names, declared(d)...)
			}
		}
	}
	slices.Sort(names)
	return names
}

func declared(d ast.Decl) (names []string) {
	add := func(parts ...string) {
		if !slices.ContainsFunc(parts, func(s string) bool { return !ast.IsExported(s) }) {
			names = append(names, strings.Join(parts, "."))
		}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			add(d.Name.Name)
		} else {
			add(receiver(d.Recv.List[0].Type), d.Name.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				for _, n := range s.Names {
					add(n.Name)
				}
			case *ast.TypeSpec:
				add(s.Name.Name)
				if body, ok := s.Type.(*ast.StructType); ok {
					for _, f := range body.Fields.List {
						for _, n := range f.Names {
							add(s.Name.Name, n.Name)
						}
					}
				}
			}
		}
	}
	return names
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// inPython matches a name of Python in a row, with a parameter or without.
var inPython = regexp.MustCompile("`perdure\\.([A-Za-z_.]+)(?:\\(([a-z_]+)=\\))?`")

var ofTable = regexp.MustCompile("(?m)^\\| `([A-Za-z.]+)` \\| (.*) \\|$")

// table returns the rows of a table of the page: Go's name, and what stands beside it.
func table(t *testing.T, of string) (rows map[string]string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, part, found := strings.Cut(string(text), "<!-- names of "+of+" -->")
	if part, _, _ = strings.Cut(part, "<!-- end -->"); !found {
		t.Fatalf("%s has no table of %s", page, of)
	}
	rows = make(map[string]string)
	for _, m := range ofTable.FindAllStringSubmatch(part, -1) {
		if rows[m[1]] != "" {
			t.Errorf("%s has two rows for %s", page, m[1])
		}
		rows[m[1]] = m[2]
	}
	return rows
}

// A new function of Go without a row fails, and so does a row for what Go or Python no longer has.
func TestNamesAreCompared(t *testing.T) {
	methods := func(dir string) (names []string) {
		for _, n := range exported(t, dir) {
			if m, ok := strings.CutPrefix(n, "Client."); ok {
				names = append(names, m)
			}
		}
		return names
	}
	// Methods by which Go sees the kind of an error.
	plain := regexp.MustCompile(`^Err.*\.(Error|FailureCode|Is|Permanent|Unwrap)$`)
	agents := slices.DeleteFunc(exported(t, "../../agent"), plain.MatchString)
	var python []string
	for of, names := range map[string][]string{"agent": agents, "client": methods("../../client")} {
		rows := table(t, of)
		for _, n := range names {
			if rows[n] == "" {
				t.Errorf("%s has no row for %s.%s", page, of, n)
			}
		}
		for n, cell := range rows {
			if !slices.Contains(names, n) {
				t.Errorf("%s has a row for %s.%s, which Go does not have", page, of, n)
			}
			for _, m := range inPython.FindAllStringSubmatch(cell, -1) {
				python = append(python, m[1]+" "+m[2])
			}
		}
	}
	slices.Sort(python)
	run(t, append([]string{"-m", "tests.names"}, python...)...)
}
