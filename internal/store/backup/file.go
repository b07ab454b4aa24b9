package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store/sqlite"
)

// An Info says what a backup holds.
type Info struct {
	At         perdure.Instant `json:"at"`         // everything is as of this instant of the store's clock
	Generation int64           `json:"generation"` // how often what it was made of has been restored
	From       string          `json:"from"`       // sqlite or postgres
	Runs       int64           `json:"runs"`
	Rows       int64           `json:"rows"`
}

// MaxGeneration keeps epochs exact where numbers are doubles: beside it they have 41 bits.
const MaxGeneration = 1<<12 - 1

// InfoName is the name of the row of meta that holds the Info of a backup. No store has it.
const InfoName = "backup"

// Create makes a backup in a new file, for its owner alone. fill fills the database. The file is on
// disk when Create returns, or removed if it returns an error.
func Create(ctx context.Context, path string, fill func(into *sqlite.Session) error) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			os.Remove(path)
		}
	}()
	// What is half written is thrown away: there is nothing to be undone.
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

// Read says what a backup holds, if it is one and whole. It is not changed.
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
	*sqlite.Session
	path string
}

// OpenCopy copies a backup that is whole into a folder, and says what it holds. The copy is for its
// owner alone. With no folder it is where the system has such things.
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
	if c.Session, err = sqlite.OpenPlain(c.path, "synchronous(OFF)"); err != nil {
		return c, b, noBackup(err)
	}
	b, err = describe(c)
	return c, b, err
}

// Close closes the copy and removes it.
func (c *Copy) Close() (err error) {
	if c.Session != nil {
		err = c.Session.Close()
	}
	journal := os.Remove(c.path + "-journal")
	if errors.Is(journal, os.ErrNotExist) {
		journal = nil
	}
	return errors.Join(err, os.Remove(c.path), journal)
}

func noBackup(err error) error { return fmt.Errorf("this is no backup, or it is damaged: %w", err) }

// Is tells whether a SQLite database is a backup, and not a store.
func Is(s Session) (bool, error) {
	text, err := infoText(s)
	return text != "", err
}

// infoText reads the row of meta that holds the Info; empty: there is none.
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

// describe looks whether a database is a sound backup, and says what it holds.
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
