package python

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/gonames"
)

const page = "../../docs/python.md"

// inPython matches a name of Python in a row, with a parameter or without.
var inPython = regexp.MustCompile("`perdure\\.([A-Za-z_.]+)(?:\\(([a-z_]+)=\\))?`")

var ofTable = regexp.MustCompile("(?m)^\\| `([A-Za-z.]+)` \\| (.*) \\|$")

// table returns the rows of a table of the page: Go's name, and what stands beside it.
func table(t *testing.T, of string) (rows map[string]string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, part, found := strings.Cut(string(text), "<!-- names of "+of+" -->")
	if part, _, _ = strings.Cut(part, "<!-- end -->"); !found {
		t.Fatalf("%s has no table of %s", page, of)
	}
	rows = make(map[string]string)
	for _, m := range ofTable.FindAllStringSubmatch(part, -1) {
		if rows[m[1]] != "" {
			t.Errorf("%s has two rows for %s", page, m[1])
		}
		rows[m[1]] = m[2]
	}
	return rows
}

// A new function of Go without a row fails, and so does a row for what Go or Python no longer has.
func TestNamesAreCompared(t *testing.T) {
	methods := func(dir string) (names []string) {
		for _, n := range gonames.Exported(t, dir) {
			if m, ok := strings.CutPrefix(n, "Client."); ok {
				names = append(names, m)
			}
		}
		return names
	}
	// Methods by which Go sees the kind of an error.
	plain := regexp.MustCompile(`^Err.*\.(Error|FailureCode|Is|Permanent|Unwrap)$`)
	agents := slices.DeleteFunc(gonames.Exported(t, "../../agent"), plain.MatchString)
	var python []string
	for of, names := range map[string][]string{"agent": agents, "client": methods("../../client")} {
		rows := table(t, of)
		for _, n := range names {
			if rows[n] == "" {
				t.Errorf("%s has no row for %s.%s", page, of, n)
			}
		}
		for n, cell := range rows {
			if !slices.Contains(names, n) {
				t.Errorf("%s has a row for %s.%s, which Go does not have", page, of, n)
			}
			for _, m := range inPython.FindAllStringSubmatch(cell, -1) {
				python = append(python, m[1]+" "+m[2])
			}
		}
	}
	slices.Sort(python)
	run(t, append([]string{"-m", "tests.names"}, python...)...)
}
