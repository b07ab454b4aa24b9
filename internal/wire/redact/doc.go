// Package redact removes secrets from text. The secrets are values that the configuration names,
// and they are found in all the encodings in which they are likely to appear: plain, JSON, URL
// escapes, base64, hexadecimal. Each occurrence is replaced by [Mark].
//
// The package is pure. httpd redacts requests, the engine redacts text that is streamed in pieces,
// the store redacts what it writes, and the log redacts its lines.
//
// redact.go has the search, forms.go the encodings, json.go the redaction within JSON, and
// stream.go the redaction of text in pieces. source.go reads the secrets.
//
// Invariants:
//
//   - A redacted text contains no form of a secret, and redacting it again changes nothing.
//   - A text without secrets stays the same to the byte, and valid JSON stays valid.
//   - Of a secret in pieces, less than half is ever shown.
//   - A nil *Set has no secrets and costs nothing. Errors never contain a secret.
package redact
