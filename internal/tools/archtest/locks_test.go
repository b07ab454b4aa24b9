package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// lockless are folders whose locks are not on the page: tests, kits for them, examples and measurements.
var lockless = []string{"agenttest/", "bench/", "cmd/perdure-bench/", "e2e/", "examples/",
	"internal/testkit/", "sim/"}

// A lockRow is a row of docs/locks.md: a lock, its file, and the locks that are taken while it is held.
type lockRow struct {
	name, file string
	inner      []string
}

// docs/locks.md has a row for each lock of the product, and no other rows.
func TestLocksPageNamesAllLocks(t *testing.T) {
	rows := lockRows(t)
	onPage := make(map[string]string)
	for _, r := range rows {
		if onPage[r.name] != "" {
			t.Errorf("docs/locks.md has two rows for %s", r.name)
		}
		onPage[r.name] = r.file
	}
	found := locksOf(t)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if onPage[name] != found[name] {
			t.Errorf("docs/locks.md has no row for `%s` of `%s`: say what it guards and what is taken under it",
				name, found[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(onPage)) {
		if found[name] != onPage[name] {
			t.Errorf("docs/locks.md has a row for `%s` of `%s`, which has no such lock", name, onPage[name])
		}
	}
}

// The rows say which locks are taken under which. These nestings must not form a circle.
func TestLocksPageHasNoCircle(t *testing.T) {
	inner := make(map[string][]string)
	for _, r := range lockRows(t) {
		inner[r.name] = r.inner
	}
	if len(inner["store.lane.mu"]) == 0 {
		t.Error("the row of store.lane.mu names no inner locks: the page's format has changed")
	}
	const begun, done = 1, 2
	state := make(map[string]int)
	var visit func(name string, way []string)
	visit = func(name string, way []string) {
		way = append(way, name)
		if _, known := inner[name]; !known {
			t.Errorf("docs/locks.md says %s, but has no row for %s", strings.Join(way, " → "), name)
		}
		switch state[name] {
		case begun:
			t.Errorf("docs/locks.md has a circle: %s", strings.Join(way, " → "))
			return
		case done:
			return
		}
		state[name] = begun
		for _, next := range inner[name] {
			visit(next, way)
		}
		state[name] = done
	}
	for _, name := range slices.Sorted(maps.Keys(inner)) {
		visit(name, nil)
	}
}

var (
	lockRowForm  = regexp.MustCompile("^\\| `([^`]+)` \\| `([^`]+\\.go)` \\|[^|]*\\|([^|]*)\\|$")
	lockNameForm = regexp.MustCompile("`([^`]+)`")
)

// lockRows reads the rows of the page.
func lockRows(t *testing.T) (rows []lockRow) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(moduleDir(t), "docs/locks.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(page)) {
		m := lockRowForm.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		r := lockRow{name: m[1], file: m[2]}
		for _, name := range lockNameForm.FindAllStringSubmatch(m[3], -1) {
			r.inner = append(r.inner, name[1])
		}
		rows = append(rows, r)
	}
	return rows
}

// locksOf finds the locks of the product: fields and variables that are mutexes, or arrays of or pointers to
// some. It returns their files by their names, which are the folder, the type or function, and the field.
func locksOf(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	eachFile(t, ".go", func(file, text string) {
		outside := func(folder string) bool { return strings.HasPrefix(file, folder) }
		if strings.HasSuffix(file, "_test.go") || slices.ContainsFunc(lockless, outside) ||
			!strings.Contains(text, "Mutex") {
			return
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			for _, name := range locksIn(d) {
				name = path.Base(path.Dir(file)) + "." + name
				if before := found[name]; before != "" {
					t.Errorf("%s and %s both have a lock %s: rename one", before, file, name)
				}
				found[name] = file
			}
		}
	})
	return found
}

// locksIn returns the locks of a declaration, with the name of the type or function that they are in.
func locksIn(d ast.Decl) (out []string) {
	add := func(within string, names []*ast.Ident, of ast.Expr) {
		kind := mutexKind(of)
		if kind != "" && len(names) == 0 { // embedded
			out = append(out, within+kind)
		}
		for _, n := range names {
			if kind != "" {
				out = append(out, within+n.Name)
			}
		}
	}
	within := ""
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			within = n.Name.Name + "."
		case *ast.FuncType:
			return false // parameters are locks of others
		case *ast.TypeSpec:
			within = n.Name.Name + "."
		case *ast.ValueSpec:
			add(within, n.Names, n.Type)
		case *ast.StructType:
			for _, f := range n.Fields.List {
				add(within, f.Names, f.Type)
			}
		}
		return true
	})
	return out
}

// mutexKind returns Mutex or RWMutex, if an expression is such a type.
func mutexKind(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.ArrayType:
		return mutexKind(e.Elt)
	case *ast.StarExpr:
		return mutexKind(e.X)
	case *ast.MapType:
		return mutexKind(e.Value)
	case *ast.SelectorExpr:
		of, ok := e.X.(*ast.Ident)
		if ok && of.Name == "sync" && (e.Sel.Name == "Mutex" || e.Sel.Name == "RWMutex") {
			return e.Sel.Name
		}
	}
	return ""
}
