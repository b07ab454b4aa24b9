package store

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/pg"
	"github.com/perdure/perdure/internal/server/store/sqlite"
)

// diskFull tells whether there was no disk space, here or at the PostgreSQL server, and nothing was
// written.
func diskFull(err error) bool { return sqlite.IsFull(err) || pg.IsFull(err) }

// Full tells whether new work is refused because the disk is full.
func (s *Store) Full() bool { return s.file.Full() }

// RefuseIfFull refuses operations that create new work while the disk is full. Operations that help
// existing work to end do not call it.
func (tx *Tx) RefuseIfFull() error {
	if tx.s.file.Full() {
		return perdure.Errorf(perdure.CodeStorageFull,
			"the disk is full: runs under way can end, new work is not taken")
	}
	return nil
}
