package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// viaInterface has methods that the standard library calls through its interfaces.
var viaInterface = append(slices.Clone(called), "Is", "MarshalText", "UnmarshalText")

// Everything that the root package and api export is used by another package of the module. A name
// without a use is a promise that no code needs.
//
// Some names stay without a use: a type in an exported signature, field or variable, and a word of a
// group of words of which another one is used, such as a state or the type of an event.
func TestVocabularyIsUsedOutside(t *testing.T) {
	for dir := range vocabularies {
		room := path.Join(".", dir)
		files := sources(t, room)
		given := make(map[string]bool)
		for _, f := range files {
			surface(f, given)
			variables(f, given)
		}
		used, methods := selected(t, room)
		for _, f := range files {
			for _, d := range f.Decls {
				fn, isFunc := d.(*ast.FuncDecl)
				isMethod := isFunc && fn.Recv != nil
				for _, name := range exported(d) {
					switch {
					case isMethod && (methods[name] || slices.Contains(viaInterface, name)):
					case !isMethod && (used[name] || given[name] || isWord(d, name, used)):
					default:
						t.Errorf("package %s: nobody outside of it uses %s, want it unexported or gone", room, name)
					}
				}
			}
		}
		if len(used) < 50 {
			t.Errorf("package %s: %d names are used: this test looks at too little", room, len(used))
		}
	}
}

// selected gives the names of a package that others select from it, and all names that they select
// from anything, which may be methods.
func selected(t *testing.T, room string) (used, all map[string]bool) {
	t.Helper()
	root := moduleDir(t)
	used, all = make(map[string]bool), make(map[string]bool)
	importPath := strconv.Quote(path.Join(module, room))
	err := filepath.WalkDir(root, func(file string, e fs.DirEntry, err error) error {
		own := filepath.Dir(file) == filepath.Join(root, room)
		if err != nil || e.IsDir() || !strings.HasSuffix(file, ".go") || own {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		local := ""
		for _, i := range f.Imports {
			if i.Path.Value == importPath {
				if local = path.Base(path.Join(module, room)); i.Name != nil {
					local = i.Name.Name
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				all[s.Sel.Name] = true
				if x, ok := s.X.(*ast.Ident); ok && local != "" && x.Name == local {
					used[s.Sel.Name] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return used, all
}

// variables notes the names in the types and values of a file's exported variables.
func variables(f *ast.File, names map[string]bool) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if !v.Names[0].IsExported() {
				continue
			}
			nodes := v.Values
			if v.Type != nil {
				nodes = append(slices.Clone(nodes), v.Type)
			}
			for _, e := range nodes {
				lit, ok := e.(*ast.CompositeLit)
				if ok {
					e = lit.Type
				}
				ast.Inspect(e, func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok {
						names[id.Name] = true
					}
					return true
				})
			}
		}
	}
}

// isWord tells whether a name is a constant with a text in a group of which another one is used.
func isWord(d ast.Decl, name string, used map[string]bool) bool {
	g, ok := d.(*ast.GenDecl)
	if !ok || g.Tok != token.CONST {
		return false
	}
	text, other := false, false
	for _, s := range g.Specs {
		v := s.(*ast.ValueSpec)
		for i, id := range v.Names {
			if id.Name != name {
				other = other || used[id.Name]
				continue
			}
			if i < len(v.Values) {
				lit, isLit := v.Values[i].(*ast.BasicLit)
				text = isLit && lit.Kind == token.STRING
			}
		}
	}
	return text && other
}
