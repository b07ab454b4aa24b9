// Package client talks to a Perdure server: it starts runs, waits for them, follows them, tells them things, and asks
// them to stop. It imports the domain and the wire contract and nothing of the server, so that a program which only
// starts runs links no database. Programs that do the work use package worker, and agents package agent.
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
// How the run ended stands in it: State, Result, Error. [Result] turns that into a Go value and a Go error. What a run
// hands over that has no result, such as how far it got, is its [Client.Deliverable].
//
// # What else there is
//
//   - [Client.Start] starts a run in the background. [Client.Get], [Client.List], [Client.All] and [Client.Tree] find it again.
//   - [Client.Stream] follows a run's log, and comes back by itself to where it was, whatever breaks; [Client.Events] does so
//     by polling.
//   - [Client.Signal] and [Client.Callback] tell a run what it waits for, [Client.Decide] says yes or no to what it wants to do,
//     [Client.Continue] that work outside has finished.
//   - [Client.Cancel] asks a run to stop, and waits until it has. [Client.Retry] makes a new run of an ended one;
//     [Client.LateResults], [Client.Adopt] and [Client.Discard] are for work that was finished too late, [Client.DeadLetters] and
//     [Client.Redrive] for runs that can't go on without a person.
//   - [Client.Artifacts] lists what a run has left beside its result, and [Client.Artifact] gets it. [Client.Delete] and
//     [Client.DeleteThread] remove what nobody needs any more.
//   - [Client.CreateThread] makes a conversation, which runs take turns on, [Client.CreateGroup] gathers runs that are waited for
//     together.
//   - [Client.CreateWebhook] has others told. [Client.CreateKey] lets others in.
//
// The worker protocol is here too, for those who write a worker of another make.
//
// # Unknown outcomes
//
// A connection that breaks leaves its caller in the dark: was the run accepted? This package does not guess.
// Every call that changes something carries an Idempotency-Key, made anew for each call, and is sent again
// under that same key when the network fails or the server asks for patience (429, 503), with growing pauses,
// within the caller's context. The server answers a key that it knows as it did the first time: one run, one
// message, one signal, whatever was lost on the way. A program that wants this beyond its own death gives a key of its
// own, see [IdempotencyKey].
//
// Two calls are different. A key's secret is shown once: [Client.CreateKey] revokes a key whose answer was lost, and makes
// another. [Client.Poll] is sent once, since what a lost answer granted is granted again by itself.
//
// When nobody answers for as long as Options.Retries and the context allow, the error says [perdure.CodeUnknown] if the
// call may have counted. The same call under the same key of one's own finds out, for a day.
//
// # Errors
//
// Every refusal is an [*api.Problem] with a stable code; [CodeOf] reads it, and errors.Is compares by it:
//
//	if errors.Is(err, &perdure.Error{Code: perdure.CodeNotFound}) { … }
//
// What the network did to a call is a problem too: [perdure.CodeUnavailable] when it surely changed nothing,
// [perdure.CodeUnknown] when it may have; the cause is wrapped. [Transient] tells whether it is worth another try.
//
// # Without a socket
//
// Options.Transport replaces the network. The server of package embedded has one that leads straight to it, so
// that the same code runs against a server elsewhere and against one in its own process.
package client
