package embedded_test

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/embedded"
)

// A folder whose database is gone, moved or cut to nothing, is no new one: what is in the log would be destroyed. It is
// left as it is, and is in order when the database is back.
func TestMissingDatabaseRefusesStart(t *testing.T) {
	dir := t.TempDir()
	db := filepath.Join(dir, "perdure.db")
	s, err := embedded.Open(embedded.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	_, run := call(t, s, "POST", "/api/v1/runs", `{"kind":"job"}`)
	killed := files(t, dir) // as a server leaves it that is killed
	if len(killed["perdure.db-wal"]) == 0 {
		t.Fatal("there is nothing in the log")
	}
	s.Close()
	for _, c := range []struct {
		name  string
		wreck func()
		says  string
	}{
		{"moved away", func() { os.Remove(db) }, "-wal"},
		{"cut to nothing", func() { os.Truncate(db, 0) }, "-wal"},
		{"gone with its log", func() { os.Remove(db); os.Remove(db + "-wal") }, embedded.KeyFile},
	} {
		lay(t, dir, killed)
		if err := os.WriteFile(db+".reserve", []byte("kept back"), 0o600); err != nil {
			t.Fatal(err)
		}
		c.wreck()
		before := files(t, dir)
		_, err := embedded.Open(embedded.Options{Dir: dir})
		if err == nil || !strings.Contains(err.Error(), "the database "+db+" is missing or empty") ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
		if !maps.Equal(files(t, dir), before) {
			t.Errorf("%s: something was touched", c.name)
		}
	}
	lay(t, dir, killed)
	if s, err = embedded.Open(embedded.Options{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if status, _ := call(t, s, "GET", "/api/v1/runs/"+run["run_id"].(string), ""); status != 200 {
		t.Errorf("the run is gone: %d", status)
	}
}

func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[f.Name()] = string(b)
	}
	return out
}

// lay makes a folder hold these files and no others.
func lay(t *testing.T, dir string, all map[string]string) {
	t.Helper()
	for name := range files(t, dir) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range all {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
