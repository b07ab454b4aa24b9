// Package httpd is the HTTP API: a table of routes over the engine.
//
// # How a call goes through it
//
//  1. The listener limits connections (package connlimit), before this package sees a request.
//  2. [Server.Handler] sets the headers of every answer. It checks the host, the origin and the
//     path, and removes secrets from the request (redact.go).
//  3. The route's guard authenticates the key and checks its scope (auth.go). The tenant always
//     comes from the key.
//  4. The query and the path are checked: unknown parameters and impossible ids are refused.
//  5. The call takes its tenant's share of the calls under way, and of the memory for bodies and
//     answers (shares.go). A tenant that has used its share gets 429, and nothing has changed.
//  6. The body is read within a time limit and decoded strictly (route.go, strict.go).
//  7. The handler runs an operation or a read of the engine.
//  8. The answer, or an error as problem+json, is written with a write deadline (serve.go,
//     deadline.go).
//
// A call that blocks (a poll, a wait, a stream, a socket) gives its shares back and is counted by a
// limiter instead (blocking.go). It ends when its key is revoked (keywatcher.go) and when the
// server shuts down.
//
// # What it is not
//
// It decides nothing about runs: each handler reads a request, calls the engine and shows the
// result. It never uses the store directly. It has no listener: package embedded and the command
// bring one.
//
// # Where to start reading
//
// routes.go is the table of all routes. route.go makes a handler of a row, and serve.go runs it.
// Each noun of the API then has a file: runs.go, threads.go, groups.go, dlq.go, webhooks.go,
// keys.go. Workers have poll.go, leases.go and commit.go. wait.go has the calls that wait for a
// run, waiters.go their record in the store, stream.go and ws.go the streams. openapi.go and
// bounds.go make the OpenAPI document from the table.
//
// # Invariants
//
//   - A request that is not in the table is refused. A route without a guard can't exist.
//   - A call sees only the rows of its key's tenant, unless the key is of the platform.
//   - A body is decoded completely or refused: no field is ignored.
//   - A call that is refused for its key, its input or its share has changed nothing. The error names
//     the field at fault.
//   - An internal error is logged, and the caller sees a code and no detail.
//   - Memory for bodies and answers, blocked calls and write times are all bounded.
package httpd
