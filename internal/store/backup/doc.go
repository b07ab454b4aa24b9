// Package backup is the format of a backup, and how rows are copied into one and out of one.
//
// A backup is a file of two parts:
//
//	a SQLite database   the schema of a store, its rows, and a row of meta that describes the backup (Info, as JSON)
//	a seal              a line with the SHA-256 of everything before it (seal.go)
//
// It is the same whatever the store is that it was made of. Nobody serves it: it is restored into
// an empty store, of either kind.
//
// Create makes a backup. Its file is removed if anything fails. Read looks whether a file is a
// whole backup, and describes it. OpenCopy opens a private copy, which may be brought up to date
// without changing the backup. A Copier copies rows, table by table, a bounded number at a time.
//
// The package does not know which tables a store has, nor what becomes of a run that is restored:
// that is the store's part, in backup.go and restore.go there.
package backup
