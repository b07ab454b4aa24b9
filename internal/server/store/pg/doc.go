// Package pg is the store's access to PostgreSQL: sessions over the wire protocol, and the encoding
// of their values.
//
// A Server holds the settings of the connections. Open refuses a server that could lose an
// acknowledged write. Writer, Reader, Auditor and Migrator give sessions, each with planner
// settings and time limits for its kind of statements.
//
// A Conn is one connection. It connects when it is first used, and again after the connection is
// lost:
//
//   - Statements are prepared once, with ? for their parameters, and planned again as the tables
//     grow.
//   - Begin sends nothing. The transaction begins in the round trip of its first statement.
//   - ExecAll sends the beginning of a transaction and all its statements in one round trip. Commit
//     is a second one.
//   - The first query of a transaction is tried again on a new connection, unless a row was already
//     passed to the caller.
//   - Every transaction that writes reads its number. If the answer to a commit is lost, the
//     session asks the server about that number. ErrLost means that nothing was committed,
//     ErrInDoubt that the outcome is unknown.
//
// A new connection asks the server which one it is (primary.go). The store judges the answer, and an
// old primary or another database is not used.
//
// The package knows no tables and no SQL of the store. The store's part is postgres.go: the
// dialect, and the clock of the server.
//
// Start reading at Open in server.go, then Conn.ExecAll and Conn.Commit in conn.go.
package pg
