// Package mockmodel is a scripted model: an HTTP handler that serves the chat-completions API, with
// streams, tool calls and a list of models, and that answers by the rules of a script. It is for
// tests and for trying Perdure out without a key. It also fails on demand: it answers late, drips,
// falls silent, cuts the connection, limits the rate, and sends garbage.
//
// The first rule that matches a request gives its answer. Answers depend on the request and on how
// often the rule was used, and on nothing else, so a test gets the same one each time. The handler
// checks requests as strictly as the providers do, so that a malformed conversation is found.
//
// It is not a model, and not a proxy to one: nothing leaves it. "perdure mock-model" serves it, and
// docs/testing.md#the-scripted-model describes the script.
//
// script.go has the script, match.go decides which rule answers, request.go reads and checks a
// request, handler.go has the routes and the record of requests, and stream.go and answer.go write
// answers.
package mockmodel
