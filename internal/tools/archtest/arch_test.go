// Package archtest tests the shape of the program: which package imports which, and which package has which code. It
// has no code of its own, only tests that read the sources and the output of go list.
package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/perdure/perdure"

// doors are the folders of internal: the server's rooms, programs that it runs, packages that both ends of a
// connection use, translations of other protocols, kits for tests, and tools of this repository.
var doors = []string{"server", "process", "wire", "doors", "testkit", "tools"}

// wings are the parts of the engine, in order. A later one may use an earlier one, never the other way.
var wings = namesOf("server/engine/kernel server/engine/access server/engine/outbox server/engine/rules " +
	"server/engine/life server/engine/dispatch server/engine/upkeep server/engine/reads")

// namesOf splits a list of packages. The root package is "domain", and a package of internal begins with its
// door.
func namesOf(names string) []string {
	list := strings.Fields(names)
	for i, name := range list {
		switch door, _, _ := strings.Cut(name, "/"); {
		case name == "domain":
			list[i] = ""
		case slices.Contains(doors, door):
			list[i] = "internal/" + name
		}
	}
	return list
}

// layers are the packages of the program, lowest first, and the packages of the module that each may
// import. A package that is not named here may not be imported by one that is. A wing of the engine may
// use the earlier wings as well.
//
// domain ← store, doorbell ← engine ← watchdog, webhook ← httpd ← embedded ← cmd
// domain ← api ← client, agent ← worker
var layers = []struct{ pkg, uses string }{
	{"domain", ""},
	{"api", "domain"},
	{"ui", ""},
	{"wire/timer", ""},
	{"wire/release", ""},
	{"wire/sse", ""},
	{"tools/prose", ""},
	{"server/largejson", ""},
	{"wire/jsonschema", ""},
	{"server/plant", ""},
	{"wire/redact", ""},
	{"server/keyfile", ""},
	{"server/tlscert", ""},
	{"server/fair", "domain"},
	{"server/schedule", "domain"},
	{"server/connlimit", "domain server/fair"},
	{"server/doorbell", "domain wire/timer"},
	{"server/store/scan", ""},
	{"server/store/pg", "server/store/scan wire/release"},
	{"server/store/sqlite", "server/store/scan"},
	{"server/store/backup", "domain server/store/sqlite"},
	{"server/store", "domain wire/release server/plant server/fair server/store/scan server/store/pg " +
		"server/store/sqlite server/store/backup"},
	{"server/engine/kernel", "domain server/plant server/doorbell server/store server/largejson " +
		"wire/redact"},
	{"server/engine/access", "domain server/plant server/doorbell server/store"},
	{"server/engine/outbox", "domain server/plant server/doorbell server/store"},
	{"server/engine/rules", "domain server/plant server/doorbell server/store wire/jsonschema"},
	{"server/engine/life", "domain server/plant server/doorbell server/store wire/jsonschema " +
		"wire/redact server/largejson server/schedule"},
	{"server/engine/dispatch", "domain server/plant server/doorbell server/store"},
	{"server/engine/upkeep", "domain server/plant server/doorbell server/store"},
	{"server/engine/reads", "domain server/plant server/doorbell server/store"},
	{"server/engine", "domain server/doorbell wire/redact server/store"},
	{"server/watchdog", "domain server/plant server/doorbell server/store server/engine"},
	{"server/webhook", "domain wire/timer wire/redact api server/plant server/fair server/store " +
		"server/engine"},
	{"process/jobdir", "domain wire/redact"},
	{"server/sentinel", "domain wire/timer wire/redact server/plant process/jobdir server/engine"},
	{"server/httpd/stream", "domain server/connlimit api server/engine"},
	{"server/httpd/feed", "domain server/fair server/doorbell api server/engine server/httpd/stream"},
	{"server/httpd/waiting", "domain server/fair server/doorbell server/engine"},
	{"server/httpd", "domain server/largejson wire/jsonschema wire/redact server/fair " +
		"server/connlimit api server/plant server/doorbell server/engine server/webhook " +
		"process/jobdir server/sentinel server/schedule server/httpd/stream server/httpd/feed " +
		"server/httpd/waiting ui"},
	{"server/metrics", "domain wire/release server/store server/engine server/sentinel server/watchdog"},
	{"doors/frame", "domain api"},
	{"doors/body", "domain"},
	{"doors/answer", "domain doors/frame"},
	{"doors", "domain api client doors/frame doors/body doors/answer"},
	{"doors/openai/shape", "domain"},
	{"doors/openai/input", "domain"},
	{"doors/openai/translate", "domain api doors/frame doors/openai/shape"},
	{"doors/openai/again", "domain api client doors doors/frame doors/openai/shape"},
	{"doors/openai/responses", "domain api client doors doors/frame doors/openai/shape doors/openai/input " +
		"doors/openai/translate doors/openai/again"},
	{"doors/openai", "domain api doors doors/frame doors/body doors/openai/shape doors/openai/input " +
		"doors/openai/translate doors/openai/again doors/openai/responses"},
	{"doors/langgraph/shape", "domain api"},
	{"doors/langgraph/frames", "domain api doors/frame doors/langgraph/shape"},
	{"doors/langgraph/assistants", "domain api doors doors/langgraph/shape"},
	{"doors/langgraph/threads", "domain api client doors doors/frame doors/langgraph/shape " +
		"doors/langgraph/frames"},
	{"doors/langgraph/runs", "domain api doors doors/frame doors/langgraph/shape doors/langgraph/frames " +
		"doors/langgraph/threads"},
	{"doors/langgraph/start", "domain api client doors doors/frame doors/body doors/langgraph/shape " +
		"doors/langgraph/frames doors/langgraph/assistants doors/langgraph/threads doors/langgraph/runs"},
	{"doors/langgraph/follow", "domain api client doors doors/frame doors/langgraph/shape " +
		"doors/langgraph/frames doors/langgraph/threads doors/langgraph/runs"},
	{"doors/langgraph", "domain api doors doors/langgraph/shape doors/langgraph/frames doors/langgraph/assistants " +
		"doors/langgraph/threads doors/langgraph/runs doors/langgraph/start doors/langgraph/follow"},
	{"embedded", "domain doors doors/frame doors/openai doors/langgraph wire/redact server/keyfile server/tlscert " +
		"server/connlimit api server/metrics server/doorbell server/store server/engine server/watchdog " +
		"server/webhook server/sentinel server/httpd"},
	{"server/settings", "domain server/sentinel server/doorbell embedded"},
	{"testkit/mockmodel", "domain"},
	{"supervisor/model", "domain wire/sse"},
	{"wire/session", "domain api"},
	{"client", "domain api wire/timer wire/sse wire/session"},
	{"client/admin", "domain api client wire/session"},
	{"agent/internal/journal", "domain api wire/session"},
	{"agent", "domain api wire/timer wire/session agent/internal/journal"},
	{"worker", "domain api client agent wire/release wire/timer wire/session wire/jsonschema"},
	{"supervisor/mcp", "domain agent worker"},
	{"supervisor", "domain api client agent worker supervisor/model supervisor/mcp"},
	{"process/adaptor", "domain process/jobdir"},
	{"process/runner", "domain api client process/adaptor process/jobdir wire/redact wire/session " +
		"wire/timer"},
}

// sdk are the packages that a program outside imports. They never import the server. A package that does
// not exist yet is checked once it exists.
var sdk = []string{"", "api", "client", "client/admin", "worker", "agent", "supervisor", "supervisor/model",
	"supervisor/mcp"}

// outside are the modules of the server that an SDK must not link into the program of its user.
var outside = []string{"modernc.org/", "github.com/jackc/", "github.com/nats-io/", "github.com/prometheus/",
	"database/sql"}

// A pkg is a package in the output of go list.
type pkg struct {
	ImportPath string
	Dir        string
	Standard   bool
	GoFiles    []string
	Imports    []string
	Deps       []string
}

func TestArchitecture(t *testing.T) {
	packages := list(t)
	ours := make(map[string]pkg)
	standard := make(map[string]bool)
	for _, p := range packages {
		standard[p.ImportPath] = p.Standard
		if rest, ok := inModule(p.ImportPath); ok {
			ours[rest] = p
		}
	}
	root, ok := ours[""]
	if !ok {
		t.Fatalf("go list does not know %s: these tests look at nothing", module)
	}

	t.Run("the domain imports the standard library only", func(t *testing.T) {
		for _, d := range root.Deps {
			if !standard[d] {
				t.Errorf("the root package depends on %s: the domain is shared by server, SDK and simulator and "+
					"stands on the standard library alone", d)
			}
		}
	})

	t.Run("the domain does no input or output", func(t *testing.T) {
		for _, d := range root.Imports {
			for _, bad := range []string{"os", "os/exec", "os/signal", "net", "net/http", "database/sql", "syscall",
				"sync", "log", "log/slog", "math/rand", "math/rand/v2", "crypto/rand"} {
				if d == bad {
					t.Errorf("the root package imports %s: the domain is pure, whatever it needs is an argument", d)
				}
			}
		}
	})

	t.Run("the domain has no clock and no goroutine", func(t *testing.T) {
		for _, f := range parse(t, root) {
			for _, x := range impurities(f) {
				t.Errorf("%s: the domain is pure, time is an argument", x)
			}
		}
	})

	t.Run("the engine has no clock, no goroutine and no dice of its own", func(t *testing.T) {
		// These are the defaults of two options. Other code gets time and randomness from the transaction.
		allowed := map[string]bool{"kernel.go: rand.Reader": true, "kernel.go: mrand.Float64": true}
		for _, wing := range append(slices.Clone(wings), "internal/server/engine") {
			p, ok := ours[wing]
			if !ok {
				t.Fatalf("there is no %s: this test looks at nothing", wing)
			}
			for _, f := range parse(t, p) {
				for _, x := range impurities(f) {
					if !allowed[x.file+": "+x.what] {
						t.Errorf("%s: the simulator drives the engine, so time, ids and dice come from the "+
							"transaction and the options", x)
					}
					delete(allowed, x.file+": "+x.what)
				}
			}
		}
		for x := range allowed {
			t.Errorf("%s is allowed and no longer there: take it off the list", x)
		}
	})

	t.Run("imports point one way", func(t *testing.T) {
		for _, l := range layers {
			pkg := namesOf(l.pkg)[0]
			uses := namesOf(l.uses)
			if i := slices.Index(append(slices.Clone(wings), "internal/server/engine"), pkg); i >= 0 {
				uses = append(uses, wings[:i]...)
			}
			p, ok := ours[pkg]
			if !ok {
				t.Errorf("there is no package %s: mend the list of layers", name(pkg))
			}
			for _, i := range p.Imports {
				rest, ok := inModule(i)
				if slices.Contains(wings, rest) && !strings.HasPrefix(pkg, "internal/server/engine") {
					rest = "internal/server/engine" // a package that may use the engine may use its wings
				}
				if ok && !slices.Contains(uses, rest) {
					t.Errorf("%s imports %s: imports point from cmd to watchdog and httpd to engine to store and "+
						"doorbell to the domain, never back", name(pkg), name(rest))
				}
			}
		}
		for rest, p := range ours {
			for _, i := range p.Imports {
				if to, ok := inModule(i); ok && strings.HasPrefix(to, "cmd/") &&
					!sameCommand(rest, to) {
					t.Errorf("%s imports %s: nothing stands above the command", name(rest), name(to))
				}
			}
		}
	})

	t.Run("a door leads to one kind of room", func(t *testing.T) {
		// A package behind a door may use packages behind these doors, and of the rest of the module these.
		may := map[string]string{"wire": "wire domain api", "doors": "doors domain api client",
			"process": "process wire domain api client",
			"server":  "server wire process/jobdir domain api ui embedded"}
		// Programs that use a kit for tests: they play a model, measure, or test other programs.
		kits := namesOf("testkit tools sim agenttest e2e cmd/perdure-bench cmd/perdure")
		for rest, p := range ours {
			door, inside := strings.CutPrefix(rest, "internal/")
			door, _, _ = strings.Cut(door, "/")
			for _, i := range p.Imports {
				to, ok := inModule(i)
				if !ok {
					continue
				}
				if uses, known := may[door]; inside && known && !behind(to, namesOf(uses)) {
					t.Errorf("%s imports %s: packages of internal/%s use those of %s only", name(rest), name(to), door,
						uses)
				}
				if strings.HasPrefix(to, "internal/testkit/") && !behind(rest, kits) {
					t.Errorf("%s imports %s: a kit for tests is in no product", name(rest), name(to))
				}
			}
			if inside && !slices.Contains(doors, door) {
				t.Errorf("%s stands in internal by itself: it belongs behind one of the doors %s, or beside its only "+
					"user", name(rest), strings.Join(doors, ", "))
			}
		}
	})

	t.Run("the product does not carry what measures it", func(t *testing.T) {
		if len(ours["cmd/perdure-bench"].Deps) == 0 || len(ours["cmd/perdure"].Deps) == 0 {
			t.Fatal("there is no cmd/perdure or no cmd/perdure-bench: this test looks at nothing")
		}
		for _, d := range ours["cmd/perdure"].Deps {
			if to, _ := inModule(d); strings.HasPrefix(to, "cmd/perdure-bench") || d == "runtime/pprof" {
				t.Errorf("cmd/perdure depends on %s: what measures is in the program perdure-bench", d)
			}
		}
	})

	t.Run("httpd asks the engine, never the store", func(t *testing.T) {
		looked := 0
		for rest, p := range ours {
			if rest != "internal/server/httpd" && !strings.HasPrefix(rest, "internal/server/httpd/") {
				continue
			}
			looked++
			if slices.Contains(p.Imports, module+"/internal/server/store") {
				t.Errorf("%s imports the store: give the engine a method that reads what is needed", name(rest))
			}
			for _, f := range parse(t, p) {
				ast.Inspect(f.file, func(n ast.Node) bool {
					call, ok := n.(*ast.CallExpr)
					if !ok || len(call.Args) > 0 {
						return true
					}
					if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Store" {
						at := f.set.Position(n.Pos())
						t.Errorf("%s:%d takes the engine's store: give the engine a method instead", at.Filename,
							at.Line)
					}
					return true
				})
			}
		}
		if looked == 0 {
			t.Error("there is no internal/server/httpd: this test looks at nothing")
		}
	})

	t.Run("the store leaves the drivers to its packages of the databases", func(t *testing.T) {
		drivers := []string{"database/sql", "github.com/jackc/", "modernc.org/"}
		users := map[string]string{"internal/server/store/pg": "github.com/jackc/",
			"internal/server/store/sqlite": "modernc.org/"}
		for user, driver := range users {
			if !slices.ContainsFunc(ours[user].Imports, func(i string) bool { return strings.HasPrefix(i, driver) }) {
				t.Errorf("%s does not import %s: this test looks at nothing", user, driver)
			}
		}
		for _, i := range ours["internal/server/store"].Imports {
			for _, driver := range drivers {
				if strings.HasPrefix(i, driver) {
					t.Errorf("internal/server/store imports %s: the drivers belong to its packages pg and sqlite", i)
				}
			}
		}
	})

	t.Run("the SDK never pulls in the server", func(t *testing.T) {
		for _, rest := range sdk {
			p, ok := ours[rest]
			if !ok {
				continue
			}
			for _, d := range p.Deps {
				to, ok := inModule(d)
				if ok && strings.HasPrefix(to, "internal/") && !strings.HasPrefix(to, "internal/wire/") {
					t.Errorf("%s depends on %s: whoever imports the SDK gets the server with it", name(rest), name(to))
				}
				for _, bad := range outside {
					if d == strings.TrimSuffix(bad, "/") || strings.HasPrefix(d, bad) {
						t.Errorf("%s depends on %s: whoever imports the SDK gets a database driver with it",
							name(rest), d)
					}
				}
			}
		}
	})
}

// One statement of the program changes runs. A second one fails this test.
func TestOneWrite(t *testing.T) {
	dir := moduleDir(t)
	update := regexp.MustCompile(`(?i)update\s+(or\s+\w+\s+|…)?runs\b`)
	other := regexp.MustCompile(`(?i)(delete\s+from|replace\s+into|insert\s+or\s+\w+\s+into|` +
		`truncate(\s+table)?)\s+runs\b`)
	triggers := regexp.MustCompile(`(?i)create\s+(temp\s+|temporary\s+)?trigger\b`)

	texts := statements(t, dir)
	if len(texts) == 0 {
		t.Fatal("no statement was found: this test looks at nothing")
	}
	t.Run("exactly one statement updates runs", func(t *testing.T) {
		var found []string
		for _, s := range texts {
			for range update.FindAllString(s.text, -1) {
				found = append(found, s.at)
			}
		}
		if len(found) != 1 || !strings.HasPrefix(found[0], "internal/server/store/runs.go:") {
			t.Errorf("statements that update runs: %v\nthere is exactly one, the compare-and-set in "+
				"internal/server/store/runs.go", found)
		}
	})
	t.Run("it is guarded by the version", func(t *testing.T) {
		found := false
		for _, s := range texts {
			found = found || strings.HasPrefix(s.at, "internal/server/store/runs.go:") &&
				s.text == " AND CAST(runs.version AS BIGINT)=input.read"
		}
		if !found {
			t.Error("internal/server/store/runs.go has no guard that compares runs.version with what was read, and " +
				"nothing else")
		}
	})
	t.Run("a run is inserted once and never upserted", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join(dir, "internal/server/store/runs.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`name:\s+"runs",\s+once:\s+true`).Match(text) {
			t.Error("the table of runs is not marked once: an insert of a run that exists would overwrite it, " +
				"whatever its version")
		}
	})
	t.Run("nothing replaces a run, and one statement deletes one, if it is what was read", func(t *testing.T) {
		const drop = "DELETE FROM runs WHERE tenant=? AND id=? AND version=?"
		for _, s := range texts {
			if m := other.FindString(s.text); m != "" && !(strings.HasPrefix(s.at, "internal/server/store/runs.go:") &&
				s.text == drop) {
				t.Errorf("%s: %q goes round the one write", s.at, m)
			}
		}
	})
	t.Run("no trigger writes behind its back", func(t *testing.T) {
		for _, s := range texts {
			if m := triggers.FindString(s.text); m != "" {
				t.Errorf("%s: %q: what a trigger writes is decided by nobody", s.at, m)
			}
		}
	})
}

// behind tells whether a package is one of these, or in a folder of one of these.
func behind(pkg string, these []string) bool {
	return slices.ContainsFunc(these, func(x string) bool {
		return pkg == x || x != "" && strings.HasPrefix(pkg, x+"/")
	})
}

// sameCommand tells whether two packages belong to the same program, or the second to all of them.
func sameCommand(a, b string) bool {
	program := func(rest string) string {
		parts := strings.SplitN(rest, "/", 3)
		return strings.Join(parts[:min(2, len(parts))], "/")
	}
	return program(a) == program(b) || strings.HasPrefix(a, "cmd/") && program(b) == "cmd/internal"
}

// ---- reading the sources

// list returns every package of the module and its dependencies, by go list.
func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Standard,GoFiles,Imports,Deps", "./...")
	cmd.Dir = moduleDir(t)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, complaint.String())
	}
	var all []pkg
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func moduleDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil || !strings.HasPrefix(string(text), "module "+module+"\n") {
		t.Fatalf("%s is not the folder of the module (%v)", dir, err)
	}
	return dir
}

// inModule gives the path of a package inside the module.
func inModule(path string) (rest string, ok bool) {
	if path == module {
		return "", true
	}
	return strings.CutPrefix(path, module+"/")
}

func name(rest string) string {
	if rest == "" {
		return "the root package"
	}
	return rest
}

type source struct {
	name string
	set  *token.FileSet
	file *ast.File
}

// parse reads the files of a package that are not tests.
func parse(t *testing.T, p pkg) []source {
	t.Helper()
	var out []source
	for _, f := range p.GoFiles {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, filepath.Join(p.Dir, f), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, source{f, set, file})
	}
	if len(out) == 0 {
		t.Fatalf("%s has no files: this test looks at nothing", p.ImportPath)
	}
	return out
}

// An impurity is a place where a source reaches for a clock, a goroutine or dice.
type impurity struct {
	file string
	line int
	what string
}

func (i impurity) String() string { return fmt.Sprintf("%s:%d: %s", i.file, i.line, i.what) }

// clock are the functions of package time that read a clock or wait for one.
var clock = []string{"Now", "Since", "Until", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Sleep"}

// impurities finds goroutines, reads of the clock and uses of random sources in a file.
func impurities(s source) []impurity {
	imports := make(map[string]string)
	for _, i := range s.file.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		local := path[strings.LastIndex(path, "/")+1:]
		if local == "v2" {
			local = "rand"
		}
		if i.Name != nil {
			local = i.Name.Name
		}
		imports[local] = path
	}
	var out []impurity
	add := func(n ast.Node, what string) {
		out = append(out, impurity{s.name, s.set.Position(n.Pos()).Line, what})
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			add(n, "go statement")
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if !ok {
				break
			}
			switch path := imports[x.Name]; {
			case path == "time" && slices.Contains(clock, n.Sel.Name),
				path == "math/rand", path == "math/rand/v2", path == "crypto/rand":
				add(n, x.Name+"."+n.Sel.Name)
			}
		}
		return true
	})
	return out
}

type statement struct {
	at   string
	text string
}

// statements gives every string of the program that might be SQL: the literals of its Go files, those that
// are joined by + taken together, and the schema.
func statements(t *testing.T, dir string) []statement {
	t.Helper()
	var out []statement
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		switch {
		case d.IsDir() && rel != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || rel == "bin" ||
			rel == "tmp"):
			return fs.SkipDir
		case d.IsDir() || strings.HasSuffix(rel, "_test.go"):
			return nil
		case strings.HasSuffix(rel, ".sql"):
			text, err := os.ReadFile(path)
			out = append(out, statement{rel, string(text)})
			return err
		case strings.HasSuffix(rel, ".go"):
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			var visit func(ast.Node) bool
			visit = func(n ast.Node) bool {
				expr, ok := n.(ast.Expr)
				if !ok {
					return true
				}
				text, ok := joined(expr)
				if !ok {
					return true
				}
				out = append(out, statement{fmt.Sprintf("%s:%d", rel, set.Position(n.Pos()).Line), text})
				for _, part := range opaque(expr) {
					ast.Inspect(part, visit)
				}
				return false
			}
			ast.Inspect(file, visit)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// joined gives the text of a string literal or of a sum with one in it. Other parts of the sum become "…".
func joined(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", false
		}
		a, okA := joined(e.X)
		b, okB := joined(e.Y)
		if !okA && !okB {
			return "", false
		}
		if !okA {
			a = "…"
		}
		if !okB {
			b = "…"
		}
		return a + b, true
	}
	return "", false
}

// opaque gives the parts of a sum that are not literals: there may be literals inside of them.
func opaque(e ast.Expr) []ast.Expr {
	switch e := e.(type) {
	case *ast.BasicLit:
		return nil
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return append(opaque(e.X), opaque(e.Y)...)
		}
	}
	return []ast.Expr{e}
}
