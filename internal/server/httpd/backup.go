package httpd

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
)

// getBackup sends a backup of the whole store. It is assembled in a file beside the data first, so
// that it is complete and its length known. One backup is made at a time, because it needs the disk
// space.
func getBackup(c *call) error {
	if !c.s.backupMu.TryLock() {
		return perdure.Errorf(perdure.CodeUnavailable, "another backup is being made: try again later")
	}
	defer c.s.backupMu.Unlock()
	if err := c.watchKey(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(c.s.opt.Scratch, BackupFolder+"*") // 0700
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "backup")
	if err := c.s.engine.Backup(c.Context(), path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	note := &access.AddAuditEntry{Action: perdure.AuditBackup, Target: "store", Detail: []any{"bytes", info.Size()}}
	if err := c.s.engine.Do(c.Context(), note); err != nil { // a read-only store can be backed up too
		c.s.log.Warn("a backup has no entry in the audit log", "key", c.key.ID, "error", err)
	}
	h := c.w.Header()
	h.Set("Content-Type", "application/vnd.sqlite3")
	h.Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	h.Set("Content-Disposition", `attachment; filename="perdure.backup"`)
	c.w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(c.w)
	_, err = io.Copy(&pacedWriter{ResponseWriter: c.w, rc: rc, c: c}, f)
	c.s.setWriteDeadline(c.w, 0) // net/http writes the last bytes after the handler has returned
	if err != nil {
		panic(http.ErrAbortHandler) // a partial file must not look complete
	}
	return nil
}

// BackupFolder is the prefix of folders in which backups are assembled. A server that is killed
// leaves its folder behind, which can be removed.
const BackupFolder = ".perdure-backup-"
