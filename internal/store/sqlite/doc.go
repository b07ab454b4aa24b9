// Package sqlite is the store's access to SQLite: sessions, and all that a file on a disk needs to
// keep what was acknowledged.
//
// Open takes the file for this process alone (a lock file) and refuses settings under which a
// commit could be lost. It also looks after what an earlier process has left: a log that is damaged
// is kept (wal.go), a sound one is copied into the database (durable.go). A File then guards four
// things while it is open:
//
//   - The write-ahead log is copied into the database beside the writer, and stays short
//     (checkpoint.go).
//   - Space is kept back for when the disk is full, so that what is under way can end (reserve.go).
//   - Another program that holds the file's lock is noticed, and so is one that takes the file away
//     (foreign.go).
//   - A query of a reader that takes too long is ended (interrupt.go).
//
// A Session is one connection with its prepared statements. OpenMemory and OpenPlain give sessions
// of databases that need no guard: those in memory, and those that nobody serves.
//
// The package knows no tables and no SQL of the store's. The store's part is sqlite.go there: the
// dialect.
package sqlite
