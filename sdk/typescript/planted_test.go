package typescript

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A fault is a change of the library that a vector, a story or a test of the protocol has to find.
type fault struct {
	name, file string
	// right is in the compiled file once, and wrong stands in its place.
	right, wrong string
	// finds is the file of tests that fails, and tests a pattern for their names.
	finds, tests string
}

var faults = []fault{
	{"names sorted by UTF-16", "json.js", ".sort(compareUtf8)", ".sort()", "vectors", "canonical"},
	{"1.0 for 1", "json.js", `Object.is(v, -0) ? "0" : String(v)`,
		`Number.isInteger(v) ? v.toFixed(1) : String(v)`, "vectors", "canonical"},
	{"a report skipped by its number", "say.js",
		"const said = x.facts.said.get(b.point);\n    const at = said?.indexOf(digest) ?? -1;",
		"const said = [...x.facts.said.values()].find((l) => l.length > 0);\n    const at = said ? 0 : -1;",
		"stories", "report-said-anew"},
	{"a branch's name left out of a key", "branch.js", "`${this.prefix}${name}#${n}`", "`${name}#${n}`", "vectors",
		"keys"},
	{"an error recorded too early", "steps.js", "if (lasting) {", "if (true) {", "stories", "error-that-is-no-fact"},
	{"a branch's step that is expected in order", "execution.js",
		"const left = [...b.expected.values()];\n        if (b.parent)",
		"const left = [...this.facts.expected.values()].flatMap((l) => [...l.values()]);\n        if (b.parent)",
		"stories", "branches"},
	{"a slot of a limit not given back with its step", "limits.js", "x.session.limits(key,",
		`x.session.limits("other",`,
		"stories", "step-under-limits"},
	{"a commit sent again with other bytes", "lease.js", "raw: bytes,",
		`raw: Buffer.concat([bytes, Buffer.from(" ".repeat(pause / 100))]),`, "calls", "same bytes"},
}

func TestPlantedFaultsAreFound(t *testing.T) {
	t.Parallel()
	vectors, err := filepath.Abs("../../testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			dir := filepath.Join(root, "sdk", "typescript")
			if err := os.CopyFS(filepath.Join(dir, "dist"), os.DirFS("dist")); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(vectors, filepath.Join(root, "testdata")); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "package.json"), `{"type":"module"}`)
			file := filepath.Join(dir, "dist", "src", f.file)
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), f.right); n != 1 {
				t.Fatalf("%s has %q %d times, want once", f.file, f.right, n)
			}
			write(t, file, strings.Replace(string(text), f.right, f.wrong, 1))
			cmd := exec.CommandContext(t.Context(), node(t, runtimes[0]), "--test", "--test-reporter=tap",
				"--test-name-pattern="+f.tests, filepath.Join("dist", "test", f.finds+".test.js"))
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "\n# fail 1\n") {
				t.Errorf("no test of %s has found it (%v):\n%s", f.finds, err, out)
			}
		})
	}
}
