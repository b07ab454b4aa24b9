package archtest

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// maxDoorLines bounds a package of internal/doors: somebody who mends a door reads one of them whole.
const maxDoorLines = 800

// The doors are cut into packages that are small: lines of all files but tests count.
func TestPackagesOfDoorsAreSmall(t *testing.T) {
	root := moduleDir(t)
	lines := make(map[string]int)
	err := filepath.WalkDir(filepath.Join(root, "internal/doors"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		lines[filepath.ToSlash(dir)] += bytes.Count(text, []byte("\n"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if lines["internal/doors"] == 0 || lines["internal/doors/langgraph"] == 0 {
		t.Fatal("there is no internal/doors or no door in it: this test looks at nothing")
	}
	for dir, n := range lines {
		if n > maxDoorLines {
			t.Errorf("%s has %d lines without tests, want at most %d: cut it where its imports can go one way", dir, n,
				maxDoorLines)
		}
	}
}
