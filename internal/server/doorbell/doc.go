// Package doorbell carries wake-ups: hints that there may be work. A ring can be lost, repeated,
// forged or late, and the only effect is latency. A listener that is woken reads the store, and it
// also reads the store from time to time without a ring. No decision depends on a ring. The engine
// rings, and the API listens.
//
// # How it works
//
// A [Topic] is a queue, a run, a group, a worker or the keys. A ring of a queue wakes one listener,
// because one run needs one worker. A ring of anything else wakes all its listeners.
//
// There are three bells. [Local] works within one process. [Postgres] (LISTEN and NOTIFY) and
// [NATS] also carry rings to other nodes. They wake local listeners first. A ring that no local
// listener has used goes to an outbox, which a goroutine sends in batches. Ring and Listen never
// wait for a network.
//
// A node that may have missed rings, because its connection was broken or its outbox was full,
// wakes all its listeners ("look at everything"). Topics are hashed with a secret of the
// installation, the space. So names do not leave the process, and other installations on the same
// medium are not heard.
//
// # What it is not
//
// It is neither a queue nor a message bus: a ring has no content and is not stored.
//
// # Where to start reading
//
// doorbell.go has the topics, local.go the listeners. remote.go and outbox.go are shared by the
// bells between nodes, nats.go and postgres.go are their media. wire.go has the format of a
// message. Package belltest is the conformance suite.
//
// # Invariants
//
//   - A listener that began to listen before a ring, and reads the store after it is woken, misses
//     nothing for longer than its fallback polling.
//   - The outbox and the inbox are bounded. An overflow becomes "look at everything".
//   - No lock is held during a call into NATS or PostgreSQL.
package doorbell
