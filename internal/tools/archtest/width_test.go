package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/perdure/perdure/internal/tools/prose"
)

// codeWidth is how many columns a line of code may have, with four for a tab.
const codeWidth = 120

func TestLinesOfCodeAreShort(t *testing.T) {
	short := func(name, text string) {
		for i, line := range strings.Split(text, "\n") {
			if n := utf8.RuneCountInString(line) + 3*strings.Count(line, "\t"); n > codeWidth {
				t.Errorf("%s:%d has %d columns, want at most %d", name, i+1, n, codeWidth)
			}
		}
	}
	eachFile(t, ".go", short)
	eachFile(t, ".js", func(name, text string) {
		// Code of other projects and the output of a compiler are exempt.
		if strings.HasPrefix(name, "ui/static/") && !strings.Contains(name, "/vendor/") {
			short(name, text)
		}
	})
}

func TestLinesOfProseAreShort(t *testing.T) {
	eachFile(t, ".md", func(name, text string) {
		for i, line := range prose.Lines(text) {
			if line.Long() {
				t.Errorf("%s:%d has %d characters, want at most %d", name, i+1,
					utf8.RuneCountInString(line.Text), prose.Width)
			}
		}
	})
}

// eachFile reads the files of the repository that have this ending.
func eachFile(t *testing.T, ending string, check func(name, text string)) {
	t.Helper()
	root, found := moduleDir(t), 0
	err := filepath.WalkDir(root, func(file string, e fs.DirEntry, err error) error {
		name := e.Name()
		if err == nil && e.IsDir() && file != root &&
			(name[0] == '.' || slices.Contains([]string{"bin", "tmp", "node_modules", "testdata"}, name)) {
			return fs.SkipDir
		}
		if err != nil || e.IsDir() || !strings.HasSuffix(name, ending) {
			return err
		}
		text, err := os.ReadFile(file)
		found++
		check(strings.TrimPrefix(file, root+"/"), string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found == 0 {
		t.Errorf("no file with the ending %s was found in %s", ending, root)
	}
}
