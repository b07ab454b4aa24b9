package doorbell

// Quiet tells whether a bell is idle: connected, with nothing to send, no wake-up pending, no group
// to join.
func Quiet(b Bell) bool {
	var r *remote
	switch b := b.(type) {
	case *Postgres:
		r = &b.remote
		if !b.hasPeers.Load() {
			return false
		}
	case *NATS:
		r = &b.remote
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.wanted) > 0 || b.caughtUp != b.connects.Load() {
			return false
		}
	default:
		return true
	}
	r.out.mu.Lock()
	defer r.out.mu.Unlock()
	r.local.mu.Lock()
	defer r.local.mu.Unlock()
	return r.connected.Load() && len(r.out.rings) == 0 && r.out.flags == 0 && !r.local.wakeAllPending
}

// Channel returns the channel of a bell on PostgreSQL.
func Channel(b Bell) string { return b.(*Postgres).channel }

// Alone tells whether a bell on PostgreSQL knows of no other node.
func Alone(b Bell) bool { return !b.(*Postgres).hasPeers.Load() }

// Groups returns the number of groups that a bell on NATS has joined.
func Groups(b Bell) int {
	n := b.(*NATS)
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.joined)
}

// Tidy leaves groups without listeners.
func Tidy(b Bell) { b.(*NATS).tidy() }

// QueueMessage returns the message, and its subject, that a bell on NATS publishes for one run of a
// queue.
func QueueMessage(b Bell, t Topic) (subject string, data []byte) {
	n := b.(*NATS)
	return n.subject(keyOf(n.local.space, t)), []byte{wireVersion, 0, 1}
}
