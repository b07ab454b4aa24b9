package httpd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure/internal/server/store"
)

func TestBackupTakesPlatformKey(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, setup{options: func(o *Options) { o.Scratch = dir }})
	w.do("POST", "/api/v1/runs", `{"kind":"k"}`).is(201)
	w.get("/api/admin/backup").refuses(403, "forbidden")
	got := w.as(w.admin).get("/api/admin/backup")
	if got.status != 200 || got.header.Get("Content-Type") != "application/vnd.sqlite3" {
		t.Fatalf("%d %v", got.status, got.header)
	}
	file := filepath.Join(t.TempDir(), "backup")
	if err := os.WriteFile(file, got.body, 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := store.ReadBackup(file); err != nil || b.Runs != 1 || b.Generation != 0 {
		t.Errorf("%+v %v", b, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, BackupFolder+"*")); len(left) > 0 {
		t.Errorf("it leaves %v", left)
	}
	w.s.backupMu.Lock() // somebody else is at it
	defer w.s.backupMu.Unlock()
	w.as(w.admin).get("/api/admin/backup").refuses(503, "unavailable")
}
