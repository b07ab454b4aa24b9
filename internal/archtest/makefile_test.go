package archtest

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The Makefile names tests that the race detector leaves out, and some that don't run once more on PostgreSQL. A test
// that was renamed would no longer be meant.
func TestMakefileNamesTestsThatExist(t *testing.T) {
	root := moduleDir(t)
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	missing := make(map[string]bool)
	for _, variable := range []string{"UNRACED", "STORELESS"} {
		list := regexp.MustCompile(`(?m)^` + variable + ` := \^\((.*)\)\$\$$`).FindSubmatch(text)
		if list == nil {
			t.Fatalf("the Makefile has no %s := ^(…)$$: this test looks at nothing", variable)
		}
		for _, name := range strings.Split(string(list[1]), "|") {
			missing[name] = true
		}
	}
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for name := range missing {
			if strings.Contains(string(source), "func "+name+"(") {
				delete(missing, name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range missing {
		t.Errorf("the Makefile names %s, and there is no such test", name)
	}
}

// "make check" vets packages with the tag plant that have files for it. A package that gets such a file belongs there.
func TestMakefileNamesPackagesWithPlantedFiles(t *testing.T) {
	root := moduleDir(t)
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?m)^PLANTED := (.*)$`).FindSubmatch(text)
	if list == nil {
		t.Fatal("the Makefile has no PLANTED := …: this test looks at nothing")
	}
	want := strings.Fields(string(list[1]))
	constraint := regexp.MustCompile(`(?m)^//go:build .*\bplant\b`)
	found := make(map[string]bool)
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		source, err := os.ReadFile(path)
		if constraint.Match(source) {
			dir, _ := filepath.Rel(root, filepath.Dir(path))
			found["./"+filepath.ToSlash(dir)] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, want) {
		t.Errorf("packages with files for the tag plant = %v, and the Makefile names %v; want the same", got, want)
	}
}
