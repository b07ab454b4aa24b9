package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rooms are the packages whose surface is used: most of the server's code is in them.
var rooms = append([]string{"internal/server/engine", "internal/server/store"}, wings...)

// Methods that other packages call through an interface of theirs.
var called = []string{"Scan", "String", "Error", "Unwrap", "MarshalJSON", "UnmarshalJSON"}

// Every exported name is used outside of its package. A type may also be in the signature of a function that is
// called there.
func TestExportedNamesAreUsedOutside(t *testing.T) {
	used := identifiers(t)
	for _, room := range rooms {
		files := sources(t, room)
		given := make(map[string]bool)
		for _, f := range files {
			surface(f, given)
		}
		for _, f := range files {
			for _, d := range f.Decls {
				for _, name := range exported(d) {
					if !used[room+" "+name] && !given[name] && !slices.Contains(called, name) {
						t.Errorf("%s: nobody outside of the package uses %s, want it unexported or gone", room, name)
					}
				}
			}
		}
	}
}

// identifiers gives the names that the program uses, each with the rooms that it is used outside of.
func identifiers(t *testing.T) map[string]bool {
	t.Helper()
	out := make(map[string]bool)
	root := moduleDir(t)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, _ := filepath.Rel(root, filepath.Dir(path))
		ast.Inspect(f, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && id.IsExported() {
				for _, room := range rooms {
					if filepath.ToSlash(dir) != room {
						out[room+" "+id.Name] = true
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// exported gives the exported names of a declaration but fields.
func exported(d ast.Decl) (out []string) {
	add := func(id *ast.Ident) {
		if id.IsExported() {
			out = append(out, id.Name)
		}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil || ast.IsExported(receiver(d)) {
			add(d.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				add(s.Name)
			case *ast.ValueSpec:
				for _, id := range s.Names {
					add(id)
				}
			}
		}
	}
	return out
}

// surface notes the names in the signatures of a file's exported functions and in the fields of its exported types.
func surface(f *ast.File, names map[string]bool) {
	note := func(fields *ast.FieldList) {
		ast.Inspect(fields, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				names[id.Name] = true
			}
			return true
		})
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() {
				note(d.Type.Params)
				if d.Type.Results != nil {
					note(d.Type.Results)
				}
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if t, ok := s.(*ast.TypeSpec); ok && t.Name.IsExported() {
					if st, ok := t.Type.(*ast.StructType); ok {
						note(st.Fields)
					}
				}
			}
		}
	}
}

// receiver names the type that a method belongs to.
func receiver(fn *ast.FuncDecl) string {
	e := fn.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// sources parses the files of a package but its tests.
func sources(t *testing.T, pkg string) (out []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(moduleDir(t), pkg, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}
