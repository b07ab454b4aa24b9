// Package backup is the format of a backup, and copies rows into and out of one.
//
// A backup is a file of two parts:
//
//	a SQLite database   the schema of a store, its rows, and a row of meta with its Info as JSON
//	a seal              a line with the SHA-256 of everything before it (seal.go)
//
// The format does not depend on the store's database. No server uses a backup directly: it is
// restored into an empty store, on either database.
//
// Create writes a backup, and removes the file if anything fails. Read checks that a file is a
// complete backup, and describes it. OpenCopy opens a private copy, which may be migrated without
// changing the backup. A Copier copies rows, table by table, a bounded number at a time.
//
// The package does not know the tables of a store, nor how a run is restored. That is the store's
// part, in its backup.go and restore.go.
package backup
