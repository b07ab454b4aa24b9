// Package api is the wire contract of Perdure: the JSON bodies of its HTTP API, its problems (RFC
// 9457), and the table that maps codes to HTTP statuses. The server and the SDK share it. It
// imports the domain and nothing else.
//
// Durations are written "30s", instants as RFC 3339. Ids are opaque strings. A list has a
// next_cursor if there is another page.
//
// The files follow the parts of the API: api.go has runs, threads, groups and queues; worker.go the
// worker protocol; stream.go and ws.go the event stream and the WebSocket; webhook.go, approval.go,
// deadletter.go and activity.go what their names say; admin.go keys, tenants and the health of a
// server. problem.go has the codes.
//
// The package has no behaviour beyond that table. Checks of bodies are in the domain, handlers in
// the server, and calls in package client.
package api
