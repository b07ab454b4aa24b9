// Package responses answers the calls of the Responses API.
//
// # Where to start reading
//
//   - create.go: starting a response, and answering an approval.
//   - responses.go: reading, cancelling and removing one.
//   - wait.go: waiting for the end of a run, for chat completions as well.
package responses
