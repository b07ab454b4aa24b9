package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/sqlite"
)

// An Info describes a backup.
type Info struct {
	At         perdure.Instant `json:"at"`         // the instant of the contents, by the store's clock
	Generation int64           `json:"generation"` // how often the store's contents were restored before
	From       string          `json:"from"`       // sqlite or postgres
	Runs       int64           `json:"runs"`
	Rows       int64           `json:"rows"`
}

// MaxGeneration keeps epochs, which contain the generation, exact in clients whose numbers are
// doubles: 41 bits are left for the count.
const MaxGeneration = 1<<12 - 1

// InfoName is the name of the row of meta with the Info. A store does not have it.
const InfoName = "backup"

// Create writes a backup into a new file that only its owner can read. fill fills the database. The
// file is on disk when Create returns, or removed if it returns an error.
func Create(ctx context.Context, path string, fill func(into *sqlite.Conn) error) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			os.Remove(path)
		}
	}()
	// No journal: an incomplete file is removed, so that nothing is ever rolled back.
	into, err := sqlite.OpenPlain(path, "journal_mode(OFF)", "synchronous(OFF)")
	if err != nil {
		return err
	}
	err = fill(into)
	if cerr := into.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = seal(ctx, f)
	}
	if err == nil {
		err = f.Sync()
	}
	return err
}

// Read describes a backup, if it is one and complete. It does not change the file.
func Read(path string) (b Info, err error) {
	f, err := os.Open(path)
	if err != nil {
		return b, err
	}
	if err := errors.Join(unseal(context.Background(), io.Discard, f), f.Close()); err != nil {
		return b, err
	}
	sess, err := sqlite.OpenPlain(path, "query_only(1)")
	if err != nil {
		return b, noBackup(err)
	}
	b, err = describe(sess)
	return b, errors.Join(err, sess.Close())
}

// A Copy is a private copy of a backup, without its seal.
type Copy struct {
	*sqlite.Conn
	path string
}

// OpenCopy copies a complete backup into a folder, and describes it. Only the owner can read the
// copy. An empty folder means the system's folder for temporary files.
func OpenCopy(ctx context.Context, path, folder string) (c *Copy, b Info, err error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, b, err
	}
	defer in.Close()
	out, err := os.CreateTemp(folder, ".perdure-restore-*") // 0600
	if err != nil {
		return nil, b, err
	}
	c = &Copy{path: out.Name()}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
			c = nil
		}
	}()
	if err := unseal(ctx, out, in); err != nil {
		out.Close()
		return c, b, err
	}
	if err := out.Close(); err != nil {
		return c, b, err
	}
	if c.Conn, err = sqlite.OpenPlain(c.path, "synchronous(OFF)"); err != nil {
		return c, b, noBackup(err)
	}
	b, err = describe(c)
	return c, b, err
}

// Close closes the copy and removes it.
func (c *Copy) Close() (err error) {
	if c.Conn != nil {
		err = c.Conn.Close()
	}
	journal := os.Remove(c.path + "-journal")
	if errors.Is(journal, os.ErrNotExist) {
		journal = nil
	}
	return errors.Join(err, os.Remove(c.path), journal)
}

func noBackup(err error) error { return fmt.Errorf("this is no backup, or it is damaged: %w", err) }

// Is tells whether a SQLite database is a backup instead of a store.
func Is(s Session) (bool, error) {
	text, err := infoText(s)
	return text != "", err
}

// infoText reads the row of meta with the Info. It is empty if there is none.
func infoText(s Session) (text string, err error) {
	exists := 0
	err = s.Query("SELECT count(*) FROM sqlite_master WHERE type='table' AND name='meta'", nil,
		func(scan func(...any) error) error { return scan(&exists) })
	if err != nil || exists == 0 {
		return "", err
	}
	err = s.Query("SELECT value FROM meta WHERE name=?", []any{InfoName},
		func(scan func(...any) error) error { return scan(&text) })
	return text, err
}

// describe checks the integrity of a backup, and describes it.
func describe(s Session) (b Info, err error) {
	damage := ""
	err = s.Query("PRAGMA integrity_check(1)", nil, func(scan func(...any) error) error { return scan(&damage) })
	if err != nil || damage != "ok" {
		return b, noBackup(errors.Join(err, errors.New(damage)))
	}
	text, err := infoText(s)
	if err != nil {
		return b, err
	}
	if text == "" {
		return b, errors.New("this is no backup: perdure backup makes one")
	}
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		return b, fmt.Errorf("what the backup says of itself: %w", err)
	}
	if b.Generation < 0 || b.Generation > MaxGeneration {
		return b, fmt.Errorf("the backup says that its generation is %d: it is damaged", b.Generation)
	}
	return b, nil
}

// Count counts the rows of a backup, by table. It does not check the seal: Read does.
func Count(path string) (map[string]int64, error) {
	sess, err := sqlite.OpenPlain(path, "query_only(1)")
	if err != nil {
		return nil, noBackup(err)
	}
	defer sess.Close()
	tables, err := Tables(sess)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(tables))
	for i := range tables {
		names[i] = tables[i].Name
	}
	return Rows(sess, names)
}

// Rows counts the rows of tables.
func Rows(s Session, tables []string) (map[string]int64, error) {
	out := make(map[string]int64)
	for _, name := range tables {
		n := int64(0)
		err := s.Query("SELECT count(*) FROM "+name, nil, func(scan func(...any) error) error { return scan(&n) })
		if err != nil {
			return nil, err
		}
		out[name] = n
	}
	return out, nil
}
