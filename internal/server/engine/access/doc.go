// Package access decides about permissions: API keys, sessions, the root secret and the audit log.
//
// Keys are looked up by every call, and cached for a second. OnKeyGone registers a
// function that is called when a key is no longer valid.
//
// # Where to start reading
//
// key.go. The files build on one another: one uses names of those before it.
//
//   - key.go, secret.go: API keys; the root secret.
//   - session.go, audit.go: sessions of people; the audit log.
//   - access.go: adds the wing to an engine.
package access
