// Package store keeps runs and everything around them in a SQL database, and promises three things:
//
//   - Acknowledged means on disk. Batch answers after its commit is durable; an error at the commit is
//     never an acknowledgement.
//   - One write. A batch of operations is decided on what was read, and then written in one short
//     transaction. Exactly one statement changes a run, a compare-and-set on its version (see runs.go); a
//     row that somebody else changed in between makes the whole batch start again.
//   - One behaviour. The SQL is shared; what differs between SQLite and PostgreSQL is the page dialect.go and
//     how each fills it in.
//
// Three packages below it know no tables: sqlite and pg hold the connections to the databases, and backup is the format
// of a backup. The store imports them, and they never import it.
//
// It decides nothing: what may happen to a run is decided by the domain package, and called by the engine.
// Tx is the engine's view inside a batch, View the reader's view outside of one.
package store
