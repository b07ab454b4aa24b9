package store

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store/pg"
	"github.com/perdure/perdure/internal/store/sqlite"
)

// diskFull tells an error that means "there was no space to write it, and nothing was written", here or at the server of
// PostgreSQL.
func diskFull(err error) bool { return sqlite.IsFull(err) || pg.IsFull(err) }

// Full tells whether new work is refused because the disk is full.
func (s *Store) Full() bool { return s.file.Full() }

// Room refuses what would make new work when the disk is full. Whatever helps what is under way to its end does
// not ask.
func (tx *Tx) Room() error {
	if tx.s.file.Full() {
		return perdure.Errorf(perdure.CodeStorageFull, "the disk is full: runs under way can end, new work is not taken")
	}
	return nil
}
