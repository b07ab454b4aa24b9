// Package doors is the frame of the doors: translations of other protocols to calls of the API, so
// that clients that were written for another server work with this one.
//
// # How it works
//
// A [Door] is a list of routes below /doors/<name>, with the shape of its errors and what pages of
// other origins may send. A [Set] finds the route of a request and makes a [Call] of it. The call
// has a client of the API that is bound to the caller's key and calls the API within the process. So
// the API decides about keys, scopes, tenants, shares, idempotency, redaction and the audit log.
//
// A door reads the log of a run with [Call.Lines], from its beginning, and translates each line to
// frames. [Stream] writes them as server-sent events and skips those up to a cursor (package frame).
// [Call.Waiting] answers once with JSON, and keeps the connection alive until then (package answer). Package body
// reads what callers send.
//
// A door is a package with its routes, and packages below it. One of these only translates: it imports no
// client, so that its frames depend on the log alone. No package has more than 800 lines without tests.
//
// To add a door, write a package with a function that returns a Door, and add a line to the list in
// embedded/doors.go.
//
// # What it is not
//
// A door has no rights and no state. It does not import the engine, the store or httpd. Between calls it
// keeps nothing but the kinds that callers have named in the last seconds.
//
// # Where to start reading
//
//   - door.go: what a door is, and how a request finds its route.
//   - call.go: credentials and parameters of a call, and refusals.
//   - known.go: kinds that callers name.
//   - lines.go: reading a log. open.go: bodies, and the two answers that stay open.
//
// # Invariants
//
//   - Frames are a pure function of the log: the same log gives the same bytes on every node and
//     after every restart.
//   - Headers are flushed before anything blocks.
//   - An answer that the server has to give up is aborted. Only a complete one ends cleanly.
package doors
