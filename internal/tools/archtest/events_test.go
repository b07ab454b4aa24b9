package archtest

import (
	"go/ast"
	"slices"
	"testing"
)

// appliers are the packages that make events.
var appliers = append([]string{"", "internal/server/watchdog"}, wings...)

// Every event of the domain is made somewhere, and so is every one of its fields. A field that no
// caller sets shows that its call sites are gone, or that the event mixes several facts.
func TestEveryFieldOfAnEventIsSet(t *testing.T) {
	ours := make(map[string]pkg)
	for _, p := range list(t) {
		if rest, ok := inModule(p.ImportPath); ok {
			ours[rest] = p
		}
	}
	events := eventFields(t, ours[""])
	if len(events) < 30 {
		t.Fatalf("the root package has %d events: this test does not find them", len(events))
	}
	set := make(map[string][]string)
	for _, rest := range appliers {
		for _, s := range parse(t, ours[rest]) {
			fieldsSet(s.file, events, set)
		}
	}
	for event, fields := range events {
		got, made := set[event]
		if !made {
			t.Errorf("nothing makes the event %s", event)
			continue
		}
		for _, f := range fields {
			if !slices.Contains(got, f) {
				t.Errorf("%s.%s is never set", event, f)
			}
		}
	}
}

// eventFields lists the fields of each type of the domain that has a method apply.
func eventFields(t *testing.T, root pkg) map[string][]string {
	t.Helper()
	events, structs := make(map[string][]string), make(map[string][]string)
	for _, s := range parse(t, root) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if st, ok := n.Type.(*ast.StructType); ok {
					structs[n.Name.Name] = fieldNames(st)
				}
			case *ast.FuncDecl:
				if n.Name.Name == "apply" && n.Recv != nil {
					if id, ok := n.Recv.List[0].Type.(*ast.Ident); ok {
						events[id.Name] = nil
					}
				}
			}
			return true
		})
	}
	for e := range events {
		events[e] = structs[e]
	}
	return events
}

func fieldNames(st *ast.StructType) (names []string) {
	for _, f := range st.Fields.List {
		for _, id := range f.Names {
			names = append(names, id.Name)
		}
	}
	return names
}

// fieldsSet adds the fields that a file sets: in a literal of the event, or afterwards in a variable
// that such a literal was assigned to.
func fieldsSet(file *ast.File, events, set map[string][]string) {
	vars := make(map[string]string)
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			event := typeName(n.Type)
			fields, ok := events[event]
			if !ok {
				return true
			}
			set[event] = append(set[event], "")
			for i, e := range n.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					set[event] = append(set[event], kv.Key.(*ast.Ident).Name)
				} else {
					set[event] = append(set[event], fields[i])
				}
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if sel, ok := left.(*ast.SelectorExpr); ok {
					if id, ok := sel.X.(*ast.Ident); ok && vars[id.Name] != "" {
						set[vars[id.Name]] = append(set[vars[id.Name]], sel.Sel.Name)
					}
				}
				if i < len(n.Rhs) {
					id, isName := left.(*ast.Ident)
					if lit, ok := n.Rhs[i].(*ast.CompositeLit); ok && isName {
						vars[id.Name] = typeName(lit.Type)
					}
				}
			}
		}
		return true
	})
}

// typeName returns the name of a type of the domain, inside of its package or outside of it.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		if id, ok := e.X.(*ast.Ident); ok && id.Name == "perdure" {
			return e.Sel.Name
		}
	}
	return ""
}
