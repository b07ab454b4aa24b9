// Package gonames reads the exported names of a Go package from its files. Tests of the SDKs in other
// languages compare their tables of names with it, so that a new name of Go needs a row.
package gonames

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Exported returns the exported names of the package in dir, sorted: functions, variables, types, their
// methods and fields, the latter as Type.Name.
func Exported(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("the Go files of %s: %q, %v", dir, files, err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			names = append(names, declared(d)...)
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
