// Package access has who may do what: API keys, sessions, the root secret and the audit log.
//
// Keys are looked up by every call, and cached for a second. Who has to know that a key is no
// longer valid registers with OnKeyGone.
//
// # Where to start reading
//
// key.go; then session.go, secret.go, audit.go and access.go, which has the state.
package access
