package httpd

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
)

// getBackup gives a backup of the whole store. It is put together in a file beside the data first, so that what is sent is whole
// and its length known; one at a time, since that takes its space.
func getBackup(c *call) error {
	if !c.s.backing.TryLock() {
		return perdure.Errorf(perdure.CodeUnavailable, "another backup is being made: try again later")
	}
	defer c.s.backing.Unlock()
	if err := c.hold(); err != nil {
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
	note := &engine.Note{Action: perdure.AuditBackup, Target: "store", Detail: []any{"bytes", info.Size()}}
	if err := c.s.engine.Do(c.Context(), note); err != nil { // a store that takes no writes is backed up all the same
		c.s.log.Warn("a backup has no entry in the audit log", "key", c.key.ID, "error", err)
	}
	h := c.w.Header()
	h.Set("Content-Type", "application/vnd.sqlite3")
	h.Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	h.Set("Content-Disposition", `attachment; filename="perdure.backup"`)
	c.w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(c.w)
	_, err = io.Copy(&patient{ResponseWriter: c.w, rc: rc, c: c}, f)
	c.s.allow(c.w, 0) // the last bytes are written when the handler has returned
	if err != nil {
		panic(http.ErrAbortHandler) // half of it must not look like all of it
	}
	return nil
}

// BackupFolder begins the name of a folder in which a backup is put together. One that a killed server leaves is of no use.
const BackupFolder = ".perdure-backup-"
