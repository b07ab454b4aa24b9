// Package stream follows the logs of runs: it reads them for all followers of a node, writes them
// to connections, and limits the number of calls that block.
//
// # How it works
//
// A [Follower] has a cursor and a connection. When the doorbell rings, it asks the [Reader] for the
// lines after its cursor. The Reader answers all followers that want the same lines with one query,
// and caches the last pages (reader.go). The follower writes each page to its [Conn]: a hijacked
// connection ([Hijack]), or the response of a request ([FromResponse]). frame.go has the format of
// server-sent events. A [Limiter] counts the calls that block, per node and per tenant (limit.go).
//
// # What it is not
//
// The package knows no routes, no keys and no waiters. The handler in httpd checks the call first.
// It ends a stream by closing the channels Revoked or Closing.
//
// # Where to start reading
//
// [Follower.Follow] in follow.go is the loop of one stream.
//
// # Invariants
//
//   - A follower holds its cursor and at most one page, however long its log is.
//   - A follower sends every line after its cursor once, in order, or says which lines are gone.
//   - An aborted stream has no last chunk, so no client takes it for the end of the run.
//   - A write ends after its timeout, and shortly after the key is revoked or the server shuts
//     down.
package stream
