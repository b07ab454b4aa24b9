package doorbell

// Quiet tells whether a bell has nothing left to do: nothing to send, nobody to wake, no group to join.
func Quiet(b Bell) bool {
	var r *remote
	switch b := b.(type) {
	case *Postgres:
		r = &b.remote
		if !b.company.Load() {
			return false
		}
	case *NATS:
		r = &b.remote
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.wanted) > 0 || b.caught != b.connects.Load() {
			return false
		}
	default:
		return true
	}
	r.out.mu.Lock()
	defer r.out.mu.Unlock()
	r.local.mu.Lock()
	defer r.local.mu.Unlock()
	return r.connected.Load() && len(r.out.rings) == 0 && r.out.flags == 0 && !r.local.herding
}

// Channel is where a bell on PostgreSQL is heard.
func Channel(b Bell) string { return b.(*Postgres).channel }

// Alone tells whether a bell on PostgreSQL knows of no other node.
func Alone(b Bell) bool { return !b.(*Postgres).company.Load() }

// Groups tells how many groups a bell on NATS is in.
func Groups(b Bell) int {
	n := b.(*NATS)
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.joined)
}

// Tidy leaves the groups that nobody listens for.
func Tidy(b Bell) { b.(*NATS).tidy() }

// QueueMessage is what a bell on NATS would publish for one run of a queue, and where.
func QueueMessage(b Bell, t Topic) (subject string, data []byte) {
	n := b.(*NATS)
	return n.subject(keyOf(n.local.space, t)), []byte{wireVersion, 0, 1}
}
