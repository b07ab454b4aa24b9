package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store/sqlite"
)

// A backup is a SQLite database with the schema of a store and a row of meta that says what it is, whatever the store is that
// it was made of, and behind it a seal (see seal.go). Nobody serves it: it is restored into an empty store, of either kind.

// A Backup says what a backup holds.
type Backup struct {
	At         perdure.Instant `json:"at"`         // everything is as of this instant of the store's clock
	Generation int64           `json:"generation"` // how often what it was made of has been restored
	From       string          `json:"from"`       // sqlite or postgres
	Runs       int64           `json:"runs"`
	Rows       int64           `json:"rows"`
}

// Copied says how far a copy is.
type Copied struct {
	Table string
	Rows  int64 // of all tables
}

// The names in meta that a backup treats on their own.
const (
	metaBackup     = "backup"
	metaGeneration = "generation"
	metaClock      = "clock"
	metaSchema     = "schema"
	metaSecret     = "secret"
)

// Backup writes everything that is committed at one moment into a new file, for its owner alone. Writers are not held off,
// except of a store in memory. The file is on disk when it returns.
func (s *Store) Backup(ctx context.Context, path string, told func(Copied)) (b Backup, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return b, err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			os.Remove(path)
		}
	}()
	// What is half written is thrown away: there is nothing to be undone.
	into, err := sqlite.OpenPlain(path, "journal_mode(OFF)", "synchronous(OFF)")
	if err != nil {
		return b, fmt.Errorf("back up: %w", err)
	}
	err = s.Audit(ctx, func(v *View) (err error) {
		if err := migrate(into, sqliteDialect, false); err != nil {
			return err
		}
		if err := into.Begin(); err != nil {
			return err
		}
		if b, err = v.copyTo(ctx, into, told); err != nil {
			return err // it is thrown away as it is
		}
		return into.Commit()
	})
	if cerr := into.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = seal(ctx, f)
	}
	if diskFull(err) || errors.Is(err, unix.ENOSPC) {
		return b, perdure.Errorf(perdure.CodeStorageFull, "there is no room for the backup on the disk where it is put together, %s", filepath.Dir(filepath.Dir(path)))
	}
	if err != nil {
		return b, fmt.Errorf("back up: %w", err)
	}
	return b, f.Sync()
}

// copyTo copies a view into a fresh database.
func (v *View) copyTo(ctx context.Context, into Session, told func(Copied)) (b Backup, err error) {
	b = Backup{At: v.Now, From: v.dialect.name}
	if b.Generation, err = v.Generation(); err != nil {
		return b, err
	}
	tables, err := shapes(into)
	if err != nil {
		return b, err
	}
	c := &copying{ctx: ctx, into: into, d: sqliteDialect, told: told}
	for i := range tables {
		n, err := c.table(&tables[i], v.sess)
		if err != nil {
			return b, err
		}
		if tables[i].name == runTable.name {
			b.Runs = n
		}
	}
	b.Rows = c.rows
	meta, err := readMeta(v.sess)
	if err != nil {
		return b, err
	}
	delete(meta, metaSchema) // it has been written with the tables
	// What is seen may be a moment younger than the view.
	if last, err := strconv.ParseInt(meta[metaClock], 10, 64); err == nil {
		b.At = max(b.At, perdure.Instant(last))
	}
	said, err := json.Marshal(b)
	if err != nil {
		return b, err
	}
	meta[metaBackup], meta[metaClock] = string(said), strconv.FormatInt(int64(b.At), 10)
	return b, writeMeta(into, meta)
}

func readMeta(s Session) (map[string]string, error) {
	out := make(map[string]string)
	err := s.Query("SELECT name, value FROM meta", nil, func(scan func(...any) error) error {
		var name, value string
		err := scan(&name, &value)
		out[name] = value
		return err
	})
	return out, err
}

func writeMeta(s Session, meta map[string]string) error {
	for name, value := range meta {
		if _, err := s.Exec("INSERT INTO meta (name,value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value", []any{name, value}); err != nil {
			return err
		}
	}
	return nil
}

// Generation says how often what is stored has been restored from a backup.
func (v *View) Generation() (int64, error) {
	var text string
	err := v.sess.Query("SELECT value FROM meta WHERE name=?", []any{metaGeneration}, func(scan func(...any) error) error { return scan(&text) })
	if err != nil || text == "" {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the store says that its generation is %q, which is no number: it is damaged", text)
	}
	return n, nil
}

// refuseBackup holds off a server that would go on where a backup ends: whoever held a run at that time would still hold it.
func refuseBackup(s Session) error {
	exists := 0
	err := s.Query(sqliteDialect.tableExists, []any{"meta"}, func(scan func(...any) error) error { return scan(&exists) })
	if err != nil || exists == 0 {
		return err
	}
	meta, err := readMeta(s)
	if err == nil && meta[metaBackup] != "" {
		err = errors.New("this file is a backup: perdure restore makes a store of it")
	}
	return err
}
