package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The Makefile names tests that the race detector leaves out. A test that was renamed would no longer be meant.
func TestMakefileNamesTestsThatExist(t *testing.T) {
	root := moduleDir(t)
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?m)^UNRACED := \^\((.*)\)\$\$$`).FindSubmatch(text)
	if list == nil {
		t.Fatal("the Makefile has no UNRACED := ^(…)$$: this test looks at nothing")
	}
	missing := make(map[string]bool)
	for _, name := range strings.Split(string(list[1]), "|") {
		missing[name] = true
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
