// Package feed tells many sockets what happens to runs, and reads the store once for all of them.
//
// # How it works
//
// A socket is a [Client] of the [Hub]. It watches questions: a page of runs, some runs by their
// ids, counts, or another list. A [Question] has a key; two clients that ask questions with equal
// keys share one entry of the hub.
//
// Each tenant with questions has one loop (hub.go). It listens to the doorbell for any change of
// the tenant's runs. A ring makes all its questions due. The loop looks at them one after the
// other, each at most every [Question.Every], and rests after each look, so that a tenant with many
// questions uses a bounded part of a reader. A gate shared by all loops divides the readers among
// tenants. A question without a ring is looked at every [Options.Fallback], because a ring can be
// lost. A tenant without questions has no loop, and an idle server does nothing.
//
// A look is made by the question's [Looker]. It compares the store with what it has told before,
// and returns one [Message] with the difference, or nil. The hub appends the same message to the
// queue of each client. Its text is encoded once, and compressed once (message.go).
//
// A client that reads slowly has a bounded queue. When it overflows, its messages are dropped and
// the client is marked as behind. When it is ready to read again, it gets a snapshot of the newest
// state, as a new client does. Clients that wait for a snapshot share the look that makes it.
//
// # What it is not
//
// The package knows no routes, keys or sockets. Package httpd checks a question before it is
// watched, and writes the frames. The store is the only source: there is no cursor over all runs,
// because rows may commit later than rows with a greater id.
//
// # Where to start reading
//
// [Client.Watch] and loop.run in hub.go. runs.go compares runs, list.go compares other lists.
//
// # Invariants
//
//   - Equal questions of a node cost one look, however many clients ask them.
//   - After a snapshot, a client gets every message of the question in order, or a new snapshot.
//   - The messages that wait for a client are bounded, and so are the questions of a tenant.
package feed
