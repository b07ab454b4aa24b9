package embedded

import (
	"os"
	"path/filepath"
	"testing"
)

// TestInstanceIsThatOfOneFolder opens the folder of a node again after its end, and a copy of it or
// the folder itself while it is open.
func TestInstanceIsThatOfOneFolder(t *testing.T) {
	dir := t.TempDir()
	first := readInstance(dir, nil)
	if first.returns || first.id == "" {
		t.Fatalf("first start: %+v, want a new instance", first)
	}
	file := filepath.Join(dir, instanceFile)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	newOne := func(what string, got instance) {
		t.Helper()
		defer got.close()
		if got.returns || got.id == "" || got.id == first.id {
			t.Errorf("%s: %+v, want another instance than %s", what, got, first.id)
		}
	}
	newOne("a second node on the folder", readInstance(dir, nil))
	copied := t.TempDir()
	if err := os.WriteFile(filepath.Join(copied, instanceFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	newOne("a copy of the folder", readInstance(copied, nil))
	first.close()

	again := readInstance(dir, nil)
	if !again.returns || again.id != first.id {
		t.Errorf("second start: %+v, want the instance %s", again, first.id)
	}
	again.close()
	// The same path, with another file: a folder that was put back from a copy.
	other := file + ".copy"
	if err := os.WriteFile(other, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, file); err != nil {
		t.Fatal(err)
	}
	newOne("another file at the same place", readInstance(dir, nil))
	if err := os.WriteFile(file, []byte(`{"instance":`), 0o600); err != nil {
		t.Fatal(err)
	}
	newOne("a file that is cut off", readInstance(dir, nil))
	newOne("no folder", readInstance(filepath.Join(dir, "none"), nil))
}
