// Package client calls a Perdure server: it starts runs, waits for them, follows their logs, sends
// them signals, and cancels them. It imports the domain and the wire contract but nothing of the
// server, so a program that only starts runs links no database. Programs that execute runs use
// package worker, and agents use package agent.
//
// # A first run
//
//	c := client.New("http://127.0.0.1:7373", key, client.Options{})
//	run, deferred, err := c.Run(ctx, perdure.Submission{Kind: "report", Input: client.JSON(in)}, time.Minute)
//
// The call has three outcomes. An error means that the call was refused or that the server did not
// answer. Otherwise it returns a run, which has ended or, if the minute has passed, is deferred. A
// deferral is not an error: the caller stops waiting, and the run continues. Any program that has
// the run's id can wait for it again with [Client.Join].
//
// The fields State, Result and Error of a run say how it ended. [Result] turns them into a Go value
// and a Go error. [Client.Deliverable] returns what an ended run hands over: its result, or a
// fallback that says how far it got.
//
// # Overview
//
//   - Call a kind and get its result as a Go value: [Call].
//   - Start and find runs: [Client.Start], [Client.Get], [Client.List], [Client.All],
//     [Client.Tree].
//   - Follow a log: [Client.Stream], which reconnects by itself, or [Client.Events] by polling.
//   - Give a run what it waits for: [Client.Signal], [Client.Callback], [Client.Decide] for an
//     approval, [Client.Continue] for external work that has finished.
//   - Stop and repeat: [Client.Cancel], which can wait for the end, [Client.Retry] and
//     [Client.RetryMany].
//   - Results that came too late: [Client.LateResults], [Client.Adopt], [Client.Discard].
//   - Files of a run: [Client.Artifacts], [Client.Artifact].
//   - Delete: [Client.Delete], [Client.DeleteThread].
//   - Conversations and groups: [Client.CreateThread], [Client.CreateGroup].
//   - The registry of kinds: [Client.Kinds], [Client.ChangeKind].
//   - Webhooks: [Client.CreateWebhook].
//
// Operators use package client/admin with a client of this package: for keys, tenants, dead letters,
// pauses of queues, recovery, audit and backups.
//
// # Unknown outcomes
//
// When a connection breaks, the caller does not know whether the server has carried out the call.
// Every call that changes something therefore carries an Idempotency-Key, random for each call. The
// client retries with the same key when the network fails or the server answers 429 or 503, with
// growing pauses, within the caller's context. The server answers a known key as it did the first
// time, so the call counts once. A program that wants this across its own restarts gives its own
// key, see [IdempotencyKey].
//
// If no attempt succeeds within Options.Retries and the context, the error has
// [perdure.CodeUnknown] if the call may have counted. For a day, the same call with the same key
// finds out.
//
// # Errors
//
// Every refusal is an [*api.Problem] with a stable code. [CodeOf] returns it, and errors.Is
// compares by it:
//
//	if errors.Is(err, &perdure.Error{Code: perdure.CodeNotFound}) { … }
//
// A failure of the network is a problem too: [perdure.CodeUnavailable] if the call has changed
// nothing, [perdure.CodeUnknown] if it may have. The cause is wrapped. [Transient] tells whether a
// later attempt may succeed.
//
// # Several servers
//
// The address of a fleet is a list: client.New("http://a:7373,http://b:7373", …). All servers of the
// list have the same store, so that it does not matter which one gets a call. The client uses one of
// them at a time. It goes on to the next when a connection is refused, fails or times out, or when the
// answer is 503, 502 or 504, and stays there while that works. Each address is tried once before the
// first pause. Streams and long polls move in the same way, and lose and repeat nothing.
//
// # Another tenant
//
// A call is about the tenant of its key. A client with a platform key and Options.Tenant is about
// another tenant: it finds, starts and cancels its runs, follows their logs, and reads its queues, as
// that tenant's own key would. The audit log of the tenant says that the platform did it.
//
// # Without a socket
//
// Options.Transport replaces the network. A server of package embedded has a transport that calls
// it directly. So the same code works with a remote server and with one in the same process.
//
// # Where to start reading
//
// client.go has the options, the request and its attempts; nodes.go the addresses; retry.go decides
// which failures are repeated and makes the errors; runs.go has the calls about runs. stream.go follows
// a log over many connections. calls.go lets packages client/admin and worker use all that. The other
// files have one call after the other.
package client
