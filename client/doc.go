// Package client talks to a Perdure server: it starts runs, waits for them, reads their logs, and asks them
// to stop. It imports the domain and the wire contract and nothing of the server, so that a program which
// only starts runs links no database.
//
// # A first run
//
//	c := client.New("http://127.0.0.1:7373", key, client.Options{})
//	run, deferred, err := c.Run(ctx, perdure.Submission{Kind: "report", Input: client.JSON(in)}, time.Minute)
//
// Three things can have happened, and they are three values. An error means that the call was refused, or
// that the server did not answer. Otherwise there is a run: it has ended, or the minute has passed and
// deferred is true. A deferral is no error: a timeout stops waiting, not working. The run goes on, and
// whoever has its id comes back to it with [Client.Join], now or tomorrow, from here or from elsewhere.
//
// How the run ended stands in it: State, Result, Error. [Result] turns that into a Go value and a Go error.
// Whoever wants to see what happens meanwhile follows its log with [Client.Stream], which comes back by itself to where
// it was, whatever breaks.
//
// # Unknown outcomes
//
// A connection that breaks leaves its caller in the dark: was the run accepted? This package does not guess.
// Every call that changes something carries an Idempotency-Key, made anew for each call, and is sent again
// under that same key when the network fails or the server asks for patience (429, 503), with growing pauses,
// within the caller's context. The server answers a key that it knows as it did the first time: one run, one
// signal, whatever was lost on the way. A program that wants this beyond its own death gives a key of its own,
// see [IdempotencyKey].
//
// A few calls have no such key on the server: a poll, and the making of threads, groups, keys and messages.
// These are sent again only when they surely never arrived. Otherwise the error says [perdure.CodeUnknown],
// and the caller, who knows what a second thread would mean, decides.
//
// # Errors
//
// Every refusal is an [*api.Problem] with a stable code; [CodeOf] reads it, and errors.Is compares by it:
//
//	if errors.Is(err, &perdure.Error{Code: perdure.CodeNotFound}) { … }
//
// What the network did to a call is a problem too: [perdure.CodeUnavailable] when it surely changed nothing,
// [perdure.CodeUnknown] when it may have; the cause is wrapped.
//
// # Without a socket
//
// Options.Transport replaces the network. The server of package embedded has one that leads straight to it, so
// that the same code runs against a server elsewhere and against one in its own process.
package client
