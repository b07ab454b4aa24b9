package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/tools/symptoms"
)

// unlogged are folders whose programs no operator runs.
var unlogged = namesOf("testkit tools e2e sim bench examples agenttest cmd/perdure-bench ui")

// An errorLine is a call that logs at level error, or may.
type errorLine struct {
	at, message string // an empty message is no literal
}

// Every line that is logged at level error has a row in internal/tools/symptoms, and every row is a line.
func TestEveryErrorLineHasARow(t *testing.T) {
	root := moduleDir(t)
	var found []errorLine
	for dir, files := range folders(t, root) {
		for _, l := range errorLines(files) {
			found = append(found, errorLine{filepath.Join(dir, l.at), l.message})
		}
	}
	if len(found) < 20 {
		t.Fatalf("%d lines at level error were found, want at least 20: this test looks at nothing", len(found))
	}
	rows := make(map[string]bool)
	for _, l := range symptoms.Lines {
		if rows[l.Sign] {
			t.Errorf("%q has two rows in internal/tools/symptoms", l.Sign)
		}
		rows[l.Sign] = true
		if l.Cause == "" || l.Action == "" || l.By == "" {
			t.Errorf("%q lacks a program, a cause or an action", l.Sign)
		}
		if !slices.ContainsFunc(found, func(f errorLine) bool { return f.message == l.Sign }) {
			t.Errorf("internal/tools/symptoms has a row for %q, which is not logged at level error", l.Sign)
		}
	}
	for _, f := range found {
		switch {
		case f.message == "":
			t.Errorf("%s: the message of a line at level error is a literal, so that it can be found", f.at)
		case !rows[f.message]:
			t.Errorf("%s: %q has no row in internal/tools/symptoms: say what causes it and what to do, or log it at "+
				"another level", f.at, f.message)
		}
	}
}

// A parsed file has its positions.
type parsed struct {
	set  *token.FileSet
	file *ast.File
}

// folders parses the files that operators run, by folder.
func folders(t *testing.T, root string) map[string][]parsed {
	t.Helper()
	out := make(map[string][]parsed)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		rest, _ := filepath.Rel(root, path)
		if e != nil && e.IsDir() && (e.Name() == "node_modules" || behind(filepath.ToSlash(rest), unlogged)) {
			return filepath.SkipDir
		}
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		out[filepath.Dir(rest)] = append(out[filepath.Dir(rest)], parsed{set, f})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// errorLines finds the calls of a package that log at level error, and those whose level is not known from the
// source. A message may be an argument of a function of the package: then its calls count. It may be a field: then
// the literals count that the field is given by its name.
func errorLines(files []parsed) (out []errorLine) {
	wrappers, fields := make(map[string]int), make(map[string]bool)
	for _, f := range files {
		for _, d := range f.file.Decls {
			inside, _ := d.(*ast.FuncDecl)
			ast.Inspect(d, func(n ast.Node) bool {
				call, message := logged(n, nil)
				if call == nil {
					return true
				}
				at := filepath.Base(f.set.Position(call.Pos()).Filename) + ":" +
					strconv.Itoa(f.set.Position(call.Pos()).Line)
				switch x := call.Args[message].(type) {
				case *ast.BasicLit:
					out = append(out, errorLine{at, literal(x)})
					return true
				case *ast.SelectorExpr:
					fields[x.Sel.Name] = true
					return true
				case *ast.Ident:
					if i := argument(inside, x.Name); i >= 0 {
						wrappers[inside.Name.Name] = i
						return true
					}
				}
				out = append(out, errorLine{at, ""})
				return true
			})
		}
	}
	for _, f := range files {
		ast.Inspect(f.file, func(n ast.Node) bool {
			at := func() string {
				at := f.set.Position(n.Pos())
				return filepath.Base(at.Filename) + ":" + strconv.Itoa(at.Line)
			}
			if kv, ok := n.(*ast.KeyValueExpr); ok {
				if key, ok := kv.Key.(*ast.Ident); ok && fields[key.Name] {
					out = append(out, errorLine{at(), literal(kv.Value)})
				}
			}
			if call, message := logged(n, wrappers); call != nil {
				out = append(out, errorLine{at(), literal(call.Args[message])})
			}
			return true
		})
	}
	return out
}

// logged tells whether a node is a call that logs at level error, and which argument is the message. Given wrappers,
// it looks for calls of these instead.
func logged(n ast.Node, wrappers map[string]int) (call *ast.CallExpr, message int) {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return nil, 0
	}
	name, of := "", ""
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		name = fun.Name
	case *ast.SelectorExpr:
		name = fun.Sel.Name
		if pkg, ok := fun.X.(*ast.Ident); ok {
			of = pkg.Name
		}
	}
	message = -1
	switch i, wrapper := wrappers[name]; {
	case wrapper:
		message = i
	case wrappers != nil, of == "http" && name == "Error":
	case name == "Error": // the method of an error has no arguments
		message = 0
	case name == "ErrorContext":
		message = 1
	case (name == "Log" || name == "LogAttrs") && len(call.Args) > 2 && !quiet(call.Args[1]):
		message = 2
	}
	if message < 0 || message >= len(call.Args) {
		return nil, 0
	}
	return call, message
}

// argument gives the place of a function's parameter, or -1.
func argument(fn *ast.FuncDecl, name string) int {
	if fn == nil {
		return -1
	}
	i := 0
	for _, p := range fn.Type.Params.List {
		for _, id := range p.Names {
			if id.Name == name {
				return i
			}
			i++
		}
	}
	return -1
}

// literal gives a text that is written down, or nothing.
func literal(e ast.Expr) string {
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		text, err := strconv.Unquote(lit.Value)
		if err == nil {
			return text
		}
	}
	return ""
}

// quiet tells whether a level is written down, and is less than error.
func quiet(level ast.Expr) bool {
	sel, ok := level.(*ast.SelectorExpr)
	return ok && slices.Contains([]string{"LevelDebug", "LevelInfo", "LevelWarn"}, sel.Sel.Name)
}

func TestErrorLinesAreFound(t *testing.T) {
	const text = `package p
func f() {
	log.Error("one", "error", err)
	x.log().ErrorContext(ctx, "two")
	log.Log(ctx, slog.LevelError, "three")
	log.LogAttrs(ctx, level, "four")
	log.Log(ctx, slog.LevelWarn, "no")
	log.Error("computed" + more)
	log.Warn("no")
	http.Error(w, "no", 500)
	_ = err.Error()
	_ = math.Log(2)
	say(ctx, "five", err)
	log.Error(of(cause).begins)
}
func (m *M) say(ctx context.Context, message string, err error) { m.log.Error(message) }
var cause = headline{begins: "six", ends: "no"}`
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "p.go", text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	want := []errorLine{{"p.go:3", "one"}, {"p.go:4", "two"}, {"p.go:5", "three"}, {"p.go:6", "four"}, {"p.go:8", ""},
		{"p.go:13", "five"}, {"p.go:17", "six"}}
	if got := errorLines([]parsed{{set, f}}); !slices.Equal(got, want) {
		t.Errorf("lines at level error = %v, want %v", got, want)
	}
}

// Every alert has a row and a test of its rule, in both directions.
func TestEveryAlertHasARowAndATest(t *testing.T) {
	root := moduleDir(t)
	read := func(name, pattern string) (out []string) {
		text, err := os.ReadFile(filepath.Join(root, "deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(out, m[1]) {
				out = append(out, m[1])
			}
		}
		return out
	}
	alerts := read("alerts.yml", `(?m)^ +- alert: (\w+)`)
	var rows []string
	for _, a := range symptoms.Alerts {
		rows = append(rows, a.Sign)
		if a.Cause == "" || a.Action == "" {
			t.Errorf("the row of %s lacks a cause or an action", a.Sign)
		}
	}
	if !slices.Equal(rows, alerts) {
		t.Errorf("alerts of internal/tools/symptoms:\n%v\nwant those of deploy/alerts.yml:\n%v", rows, alerts)
	}
	// A test expects the alert to fire: by its labels and annotations, or as a series.
	fired := append(read("rules_test.yml", `alertname: (\w+)\n +eval_time: \w+\n +exp_alerts:\n`),
		read("rules_test.yml", `alertname="(\w+)"[^}\n]*\}', value`)...)
	for _, a := range alerts {
		if !slices.Contains(fired, a) {
			t.Errorf("deploy/rules_test.yml has no test in which %s fires", a)
		}
	}
}
