package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/backup"
	"github.com/perdure/perdure/internal/server/store/sqlite"
)

// A Backup describes a backup. See package backup for its format.
type Backup = backup.Info

// Copied is the progress of a copy.
type Copied = backup.Progress

// ReadBackup describes a backup, if it is one and complete. It does not change the file.
func ReadBackup(path string) (Backup, error) { return backup.Read(path) }

// CountBackup counts the rows of a backup, by table.
func CountBackup(path string) (map[string]int64, error) { return backup.Count(path) }

// Count counts the rows of the store, by table.
func (v *View) Count() (map[string]int64, error) {
	m, err := NewMemory()
	if err != nil {
		return nil, err
	}
	defer m.Close()
	if err := begin(m.sess); err != nil {
		return nil, err
	}
	tables, err := backup.Tables(m.sess) // those of this program's schema, whatever the dialect
	if err != nil {
		return nil, err
	}
	names := make([]string, len(tables))
	for i := range tables {
		names[i] = tables[i].Name
	}
	return backup.Rows(v.sess, names)
}

// Rows of meta that a backup treats separately.
const (
	metaGeneration = "generation"
	metaClock      = "clock"
	metaSchema     = "schema"
	metaOldest     = "schema_oldest"
	metaSecret     = "secret"
)

// Backup writes everything that is committed at one moment into a new file that only its owner can
// read. Writers are not blocked, except in a store in memory. The file is on disk when Backup
// returns.
func (s *Store) Backup(ctx context.Context, path string, progress func(Copied)) (b Backup, err error) {
	err = backup.Create(ctx, path, func(into *sqlite.Conn) error {
		return s.Audit(ctx, func(v *View) (err error) {
			if err := begin(into); err != nil {
				return err
			}
			if err := into.Begin(); err != nil {
				return err
			}
			if b, err = v.copyTo(ctx, into, progress); err != nil {
				return err // Create removes the file
			}
			return into.Commit()
		})
	})
	if diskFull(err) || errors.Is(err, unix.ENOSPC) {
		return b, perdure.Errorf(perdure.CodeStorageFull,
			"there is no room for the backup on the disk where it is put together, %s",
			filepath.Dir(filepath.Dir(path)))
	}
	if err != nil {
		return b, fmt.Errorf("back up: %w", err)
	}
	return b, nil
}

// copyTo copies a view into an empty database.
func (v *View) copyTo(ctx context.Context, into Conn, progress func(Copied)) (b Backup, err error) {
	b = Backup{At: v.Now, From: v.dialect.name}
	if b.Generation, err = v.Generation(); err != nil {
		return b, err
	}
	tables, err := backup.Tables(into)
	if err != nil {
		return b, err
	}
	c := backup.Copier{Into: into, Inserts: sqliteDialect.inserts, Told: progress}
	for i := range tables {
		n, err := c.Table(ctx, &tables[i], v.sess)
		if err != nil {
			return b, err
		}
		if tables[i].Name == runTable.name {
			b.Runs = n
		}
	}
	b.Rows = c.Rows
	meta, err := readMeta(v.sess)
	if err != nil {
		return b, err
	}
	if err := sameSchema(meta, into); err != nil {
		return b, err
	}
	delete(meta, metaSchema) // migrate has written it, and the next row
	delete(meta, metaOldest)
	// The rows may be a moment younger than the view's instant.
	if last, err := strconv.ParseInt(meta[metaClock], 10, 64); err == nil {
		b.At = max(b.At, perdure.Instant(last))
	}
	said, err := json.Marshal(b)
	if err != nil {
		return b, err
	}
	meta[backup.InfoName], meta[metaClock] = string(said), strconv.FormatInt(int64(b.At), 10)
	return b, writeMeta(into, meta)
}

// sameSchema refuses a copy of a store that a newer release has brought further: the copy would lack
// what that release has added.
func sameSchema(from map[string]string, into Conn) error {
	own, err := readMeta(into)
	if err == nil && from[metaSchema] != own[metaSchema] {
		err = perdure.Errorf(perdure.CodeWrongState, "the store has schema %s, and this program would back up "+
			"schema %s: use a node or a program of the newer release", from[metaSchema], own[metaSchema])
	}
	return err
}

func readMeta(s Conn) (map[string]string, error) {
	out := make(map[string]string)
	err := s.Query("SELECT name, value FROM meta", nil, func(scan func(...any) error) error {
		var name, value string
		err := scan(&name, &value)
		out[name] = value
		return err
	})
	return out, err
}

func writeMeta(s Conn, meta map[string]string) error {
	for name, value := range meta {
		if _, err := s.Exec("INSERT INTO meta (name,value) VALUES (?,?) "+
			"ON CONFLICT (name) DO UPDATE SET value=excluded.value", []any{name, value}); err != nil {
			return err
		}
	}
	return nil
}

// Generation gives how often the contents of the store were restored from a backup.
func (v *View) Generation() (int64, error) {
	var text string
	err := v.sess.Query("SELECT value FROM meta WHERE name=?", []any{metaGeneration},
		func(scan func(...any) error) error { return scan(&text) })
	if err != nil || text == "" {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the store says that its generation is %q, which is no number: it is damaged", text)
	}
	return n, nil
}

// refuseBackup refuses to serve a backup file. The leases in it would still count as held.
func refuseBackup(s Conn) error {
	is, err := backup.Is(s)
	if err == nil && is {
		err = errors.New("this file is a backup: perdure restore makes a store of it")
	}
	return err
}
