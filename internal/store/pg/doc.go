// Package pg is the store's access to PostgreSQL: sessions over the wire protocol, and the coding
// of their values.
//
// A Server holds the settings of the connections. Open refuses a server that could lose an
// acknowledged write. Writer, Reader, Auditor and Migrator make sessions, each with planner
// settings and time limits for its kind of statements.
//
// A Session is one connection, made when it is first used and made again when it is lost:
//
//   - Statements are prepared once, with ? for their parameters, and planned anew as the tables
//     grow.
//   - Begin sends nothing. The transaction begins in the round trip of its first statement.
//   - ExecAll sends the beginning of a transaction and all its statements in one round trip. Commit
//     is a second one.
//   - A query of a new transaction is tried again on a new connection, until the first row was
//     handed out.
//   - Every transaction that writes learns its number. If the answer to a commit is lost, the
//     session asks the server by that number: ErrLost means that nothing was committed, ErrInDoubt
//     that nobody can tell.
//
// The package knows no tables and no SQL of the store's. The store's part is postgres.go there: the
// dialect, and the clock of the server.
package pg
