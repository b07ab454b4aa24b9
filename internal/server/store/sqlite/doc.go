// Package sqlite is the store's access to SQLite: sessions, and the care that a file on a disk
// needs, so that acknowledged writes stay.
//
// Open locks the file for this process (a lock file) and refuses settings under which a commit
// could be lost. It also handles what an earlier process has left: a damaged write-ahead log is
// kept as a copy (wal.go), a valid one is copied into the database (durable.go). While it is open,
// a File does four things:
//
//   - It copies the write-ahead log into the database concurrently with the writer, so that the log
//     stays short (checkpoint.go).
//   - It keeps disk space in reserve, so that work under way can end when the disk is full
//     (reserve.go).
//   - It notices a program that holds the file's lock, or that moves the file away (foreign.go).
//   - It interrupts queries of readers that take too long (interrupt.go).
//
// A Conn is one connection with its prepared statements. OpenMemory and OpenPlain give sessions
// of databases that need no such care: in memory, and files that no server uses. A Template is a
// database that new ones in memory are copied from (template.go).
//
// The package knows no tables and no SQL of the store. The store's part is sqlite.go: the dialect.
// Start reading at Open in file.go.
package sqlite
