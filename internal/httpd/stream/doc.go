// Package stream follows logs of runs: it reads them for everyone who follows one, writes them to
// connections, and bounds how many connections there are.
//
// A Follower has a cursor and a connection. A ring of the doorbell has it ask the Reader for the
// lines after its cursor. The Reader answers all followers that want the same lines with one query,
// and keeps the last pages. The follower writes each page to its Conn: a connection of its own
// (Hijack), or the answer of a request (Borrow). A Limiter counts the calls that block, of a node
// and of each tenant.
//
// The package knows no routes, no keys and no waiters: the handler in httpd checks the call, and
// says by closed channels when a stream has to end. Start with Follower.Follow.
//
// A follower holds its cursor and at most one page, however long its log is. A stream whose end was
// not told (Cut) is aborted, so that no client takes it for the end of the run.
package stream
