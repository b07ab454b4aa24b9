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
//     answers (share.go). A tenant that has used its share gets 429, and nothing has changed.
//  6. The body is read within a time limit and decoded strictly (body.go, strict.go).
//  7. The handler runs an operation or a read of the engine.
//  8. The answer, or an error as problem+json, is written with a write deadline (answer.go,
//     deadline.go).
//
// A call that blocks (a poll, a wait, a stream, a socket) gives its share back and is counted by a
// limiter instead (wait.go). It ends when its key is revoked (keywatcher.go) and when the server
// shuts down. Packages waiting, stream and feed have the loops.
//
// # What it is not
//
// It decides nothing about runs: each handler reads a request, calls the engine and shows the
// result. It never uses the store directly. It has no listener: package embedded and the command
// bring one.
//
// # Where to start reading
//
// Begin with the table of all routes, near the end of this list, and with the steps of a call. The
// files build on one another: one uses names of those before it, and hardly of those after it.
//
//   - options.go, caches.go, shares.go, share.go, keywatcher.go, server.go: the server, what it
//     remembers, and what a call holds of it.
//   - deadline.go, origin.go, bounds.go, shape.go, strict.go: write deadlines, pages of other origins,
//     the bounds of bodies and how these are decoded.
//   - call.go, answer.go, body.go, params.go, wait.go: one call, its answer, its body, its parameters,
//     and how it blocks.
//   - route.go, acting.go, cookie.go, auth.go, serve.go: a row of the table, who may call it, and the
//     steps of a call.
//   - command.go, show.go, threads.go, webhooks.go, runs.go, retry.go, late.go, hold.go, batch.go,
//     stream.go, chat.go, groups.go, events.go, signals.go, approvals.go, activity.go, artifacts.go,
//     views.go, delete.go, dlq.go, runlist.go, counts.go: runs and what belongs to them, a file for
//     each noun.
//   - news.go, poll.go, leases.go, commit.go, entries.go, queues.go, schedules.go, limits.go,
//     kinds.go, lists.go: workers, their queues, schedules, limits.
//   - socket.go, history.go, attention.go, watchdog.go, locks.go, watchlists.go, watches.go, ws.go:
//     sockets and what they watch.
//   - session.go, keys.go, audit.go, tenants.go, signing.go, policy.go, invariants.go, backup.go,
//     recovery.go, metrics.go, ready.go: people and operators.
//   - routes.go, openapi.go, redact.go, background.go, handler.go: the table, the OpenAPI document
//     that is made from it, the server's own work, and the handler of all requests.
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
