package embedded_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure/embedded"
)

func TestPartialBackupsAreRemovedAtStart(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, ".perdure-backup-1")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(left, "backup"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := embedded.Open(embedded.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat of the partial backup: %v, want it removed", err)
	}
}
