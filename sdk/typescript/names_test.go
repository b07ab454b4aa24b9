package typescript

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/perdure/perdure/internal/testkit/gonames"
)

const page = "../../docs/typescript.md"

var (
	ofTable = regexp.MustCompile("(?m)^\\| `([A-Za-z.]+)` \\| (.*) \\|$")
	// inTypeScript matches a name of TypeScript in a row: a type, or a member of one.
	inTypeScript = regexp.MustCompile("`([A-Z][A-Za-z]+)(?:\\.([A-Za-z]+))?`")
	ofSource     = regexp.MustCompile(`(?ms)^export (?:abstract )?(?:class|interface) (\w+)(.*?)^}`)
	ofMember     = regexp.MustCompile(
		`(?m)(?:^  constructor\(readonly |^  |^    readonly )(?:readonly |get |async |\*)*(\w+)\??[:<(]`)
)

// members returns the exported classes and interfaces of the library, with their members.
func members(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob("src/*.ts")
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string][]string)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ofSource.FindAllStringSubmatch(string(text), -1) {
			for _, member := range ofMember.FindAllStringSubmatch(m[2], -1) {
				out[m[1]] = append(out[m[1]], member[1])
			}
			out[m[1]] = append(out[m[1]], "")
		}
	}
	return out
}

// A new function of Go without a row fails, and so does a row for what Go or TypeScript does not have.
func TestNamesAreCompared(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]string)
	for _, m := range ofTable.FindAllStringSubmatch(string(text), -1) {
		if rows[m[1]] != "" {
			t.Errorf("%s has two rows for %s", page, m[1])
		}
		rows[m[1]] = m[2]
	}
	// Methods by which Go sees the kind of an error.
	plain := regexp.MustCompile(`^Err.*\.(Error|FailureCode|Is|Permanent|Unwrap)$`)
	names := slices.DeleteFunc(gonames.Exported(t, "../../agent"), plain.MatchString)
	for _, n := range names {
		if rows[n] == "" {
			t.Errorf("%s has no row for agent.%s", page, n)
		}
	}
	types := members(t)
	for n, cell := range rows {
		if !slices.Contains(names, n) {
			t.Errorf("%s has a row for agent.%s, which Go does not have", page, n)
		}
		for _, m := range inTypeScript.FindAllStringSubmatch(cell, -1) {
			if _, ok := types[m[1]]; m[1] != "AsyncLocalStorage" && (!ok || !slices.Contains(types[m[1]], m[2])) {
				t.Errorf("the row for agent.%s names %s, which TypeScript does not have", n, m[0])
			}
		}
	}
}
