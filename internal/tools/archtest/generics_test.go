package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// The compiler compiles the methods of a generic type again in every package that knows the type, and
// whoever knows a struct knows the types of its fields. Every package of the server knows store.Tx. So
// no field of the store's types is of a generic type with methods; see staged.go.
func TestFieldsOfTheStoreHaveNoGenericMethods(t *testing.T) {
	files, err := filepath.Glob("../../server/store/*.go")
	if err != nil {
		t.Fatal(err)
	}
	withMethods, fields := make(map[string]bool), make(map[string][]string)
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv != nil {
					for _, name := range instantiated(n.Recv) {
						withMethods[name] = true
					}
				}
				return false
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					fields[n.Name.Name] = instantiated(s)
				}
			}
			return true
		})
	}
	if !withMethods["table"] || len(fields["Runs"]) == 0 {
		t.Errorf("generic types with methods %v, fields of Runs %v: this test looks at nothing", withMethods,
			fields["Runs"])
	}
	for name, of := range fields {
		for _, generic := range of {
			if withMethods[generic] && !withMethods[name] {
				t.Errorf("a field of store.%s is a %s, whose methods every importing package would compile",
					name, generic)
			}
		}
	}
}

// instantiated gives the names of the generic types that a node instantiates.
func instantiated(n ast.Node) (names []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		var x ast.Expr
		switch n := n.(type) {
		case *ast.IndexExpr:
			x = n.X
		case *ast.IndexListExpr:
			x = n.X
		}
		if id, ok := x.(*ast.Ident); ok {
			names = append(names, id.Name)
		}
		return true
	})
	return names
}
