// Package webhook sends events of runs to receivers outside: signed messages by HTTP, sent again
// until they are accepted or a day has passed.
//
// # How it works
//
// The engine decides in the transaction of an event which notifications there are, and stores them
// with an alarm. The [Deliverer] finds notifications that are due, claims them in the store, sends
// them with a [Sender], and records the outcome. It runs on every node. A claim lasts a minute, so
// a message is sent at least once, and by one node at a time.
//
// Fairness is the larger part of the Deliverer. Every endpoint has its own queue in memory, and
// concurrent messages are limited per endpoint, per tenant and by the endpoint's health (see
// deliver_places.go). An endpoint that hangs or fails, or has a hundred thousand messages, does not
// delay the others.
//
// A [Guard] keeps the server from being used to reach private networks: it checks URLs when they
// are saved, and addresses again when they are dialled. [Sign] signs as Standard Webhooks defines
// it.
//
// # What it is not
//
// It is not a queue: all state that must survive is in the store. A run never waits for it. The
// order between messages is not kept.
//
// # Where to start reading
//
// deliver.go has the loop, deliver_places.go the choice of the next messages, send.go an attempt,
// guard.go the checks of addresses, body.go the content.
//
// # Invariants
//
//   - All attempts of a message have the same id and the same body.
//   - No connection is made to an address that the guard does not allow, whatever a name resolves
//     to.
//   - Memory is bounded: by the concurrent messages, and by the number of known endpoints.
package webhook
