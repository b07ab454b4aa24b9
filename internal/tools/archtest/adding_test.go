package archtest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The files that docs/adding-a-table.md adds are not there, and its schema has the next number. With
// PERDURE_TEST_FULL they are laid over the tree, which then compiles, and the page's own test passes.
func TestPageAboutAddingATableIsTrue(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(root + "/docs/adding-a-table.md")
	if err != nil {
		t.Fatal(err)
	}
	dir, over := t.TempDir(), make(map[string]string)
	put := func(name, text string) {
		to := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		over[filepath.Join(root, name)] = to
	}
	block := regexp.MustCompile("(?ms)^```(?:go|sql)\n(?://|--) (\\S+)\n(.*?)^```$")
	for _, b := range block.FindAllStringSubmatch(string(page), -1) {
		if _, err := os.Stat(filepath.Join(root, b[1])); err == nil {
			t.Errorf("%s exists, and the page adds it", b[1])
		}
		put(b[1], b[2])
	}
	if len(over) != 7 {
		t.Fatalf("the page adds %d files, want 7", len(over))
	}
	schemas, err := filepath.Glob(root + "/internal/server/store/schema/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	next := fmt.Sprintf("internal/server/store/schema/%04d_notices.sql", len(schemas)+1)
	if over[filepath.Join(root, next)] == "" {
		t.Errorf("the page does not add %s, which has the next number", next)
	}
	insert := func(name, before, line string) {
		from := filepath.Join(root, name)
		if over[from] != "" { // it is changed a second time
			from = over[from]
		}
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(text), before) != 1 {
			t.Fatalf("%s has %q %d times, want once", name, before, strings.Count(string(text), before))
		}
		put(name, strings.Replace(string(text), before, line+"\n"+before, 1))
	}
	insert("internal/server/store/records.go", "\tTenants     Tenants\n", "\tNotices Notices")
	insert("internal/server/store/records.go", "\tr.Tenants.open(in)\n", "\tr.Notices.open(in)")
	route := regexp.MustCompile("(?ms)^```go\n(on\\(.*?)\n```$").FindSubmatch(page)
	if route == nil {
		t.Fatal("the page has no route")
	}
	insert("internal/server/httpd/routes.go", "\t\ton(\"PUT\", v1+\"/kinds/{kind}\"", "\t\t"+string(route[1]))
	if os.Getenv("PERDURE_TEST_FULL") == "" {
		return
	}
	list, _ := json.Marshal(map[string]any{"Replace": over})
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, list, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"build", "-overlay", overlay, "./internal/server/httpd"},
		{"test", "-overlay", overlay, "-run", "TestNoticeIsStored", "-count=1", "-v", "./internal/server/engine/reads"},
	} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		if err != nil || args[0] == "test" && !strings.Contains(string(out), "--- PASS: TestNoticeIsStored") {
			t.Errorf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
