// Package openai is the door for clients of OpenAI's API: the Responses API, the list of models, and
// chat completions.
//
// # How it works
//
// A response is a run. Its id is resp_ and the run's id in hexadecimal digits; the model is its kind.
// Each run has a thread, so that a later response can go on from it. Fields of the request for
// which the run has no place stand in the run's metadata.
//
// Package translate turns the lines of the log into events, and makes no calls. All answers come from it: a
// stream writes the events, and an answer that waits has the response of the last one.
//
// A run that asks a person for an approval ends its response. The answer begins another response, for
// the part of the run that follows. Its id has the number of the line after which the part begins.
//
// Clients post again after a timeout, without an idempotency key. Package again finds the run of the
// first call.
//
// # What it is not
//
// It has no state, and decides nothing: see package doors.
//
// # Where to start reading
//
//   - door.go: the routes and the refusals.
//   - package input: what a request asks. Package again: starting its run once.
//   - package responses: the calls of the Responses API. chat.go: chat completions.
//   - package translate: the translation of a log. Package shape: the objects that it makes.
package openai
