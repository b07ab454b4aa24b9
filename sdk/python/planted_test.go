package python

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
	// right is in the file once, and wrong stands in its place.
	right, wrong string
	// finds are the tests that fail.
	finds []string
}

var faults = []fault{
	{"names sorted by UTF-16", "canonical.py", "for n in sorted(names)",
		`for n in sorted(names, key=lambda n: n.encode("utf-16-be"))`, []string{"tests.test_canonical"}},
	{"1.0 for 1", "canonical.py", "        return float_text(v)", "        return repr(v)",
		[]string{"tests.test_canonical"}},
	{"a report skipped by its number", "agent/said.py", `    made = b.ex.facts.said.get(b.point, [])
    if mark in made:
        made.remove(mark)
`, `    made = next((m for m in b.ex.facts.said.values() if m), [])
    if made:
        made.pop(0)
`, []string{"tests.test_stories", "-k", "report_said_anew"}},
	{"a branch's name left out of a key", "names.py", `return "%s%s#%d" % (prefix, name, number)`,
		`return "%s#%d" % (name, number)`, []string{"tests.test_keys"}},
	{"an error recorded too early", "agent/steps.py", "    if not failure.permanent:\n", "    if False:\n",
		[]string{"tests.test_stories", "-k", "error_that_is_no_fact"}},
	{"a branch's step that is expected in order", "agent/facts.py",
		`        if within:
            for other in self.expected:
                if other != branch and other.startswith(branch):`,
		`        if True:
            for other in self.expected:
                if other != branch:`,
		[]string{"tests.test_stories", "-k", "test_branches"}},
	{"a commit sent again with other bytes", "lease.py", "        while True:\n            # A result",
		"        while True:\n            data = data + b\" \"\n            # A result",
		[]string{"tests.test_commits"}},
	{"a slot of a limit not given back with its step", "agent/limits.py", "take_limits(key, limits, number)",
		`take_limits(key.split("#")[0], limits, number)`, []string{"tests.test_stories", "-k", "under_limits"}},
	{"a recorded step that takes a slot", "agent/steps.py", "    if key in ex.facts.entries:\n",
		"    await limits.admit(b, key, takes or [], crew)\n    if key in ex.facts.entries:\n",
		[]string{"tests.test_stories", "-k", "limits"}},
	{"the end of an opened wait that is not expected", "agent/execution.py",
		"            self.facts.expect_wait(wait)  # it is over", "            pass  # it is over",
		[]string{"tests.test_waits"}},
}

func TestPlantedFaultsAreFound(t *testing.T) {
	vectors, err := filepath.Abs("../../testdata/journal")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, part := range []string{"perdure", "tests"} {
				if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(part)); err != nil {
					t.Fatal(err)
				}
			}
			file := filepath.Join(dir, "perdure", f.file)
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), f.right); n != 1 {
				t.Fatalf("%s has %q %d times, want once", f.file, f.right, n)
			}
			planted := strings.Replace(string(text), f.right, f.wrong, 1)
			if err := os.WriteFile(file, []byte(planted), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "python3", append([]string{"-m", "unittest", "-f"}, f.finds...)...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "NO_PROXY=*", "PERDURE_VECTORS="+vectors)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "FAILED (") {
				t.Errorf("no test of %q has found it (%v):\n%s", f.finds, err, out)
			}
		})
	}
}
