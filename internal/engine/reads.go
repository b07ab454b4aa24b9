package engine

// The engine's reads, by what they read. Each is a method in the file of its noun. A read sees what is committed; it
// changes nothing, and does not wait for batches.
type (
	// Runs reads runs, and what belongs to a run: its activity, artifacts, approvals, groups and late results.
	Runs struct{ e *Engine }
	// Threads reads threads and their messages.
	Threads struct{ e *Engine }
	// DeadLetters reads dead letters.
	DeadLetters struct{ e *Engine }
	// Webhooks reads webhooks and what they were sent, and makes their secrets.
	Webhooks struct{ e *Engine }
	// Tenants reads tenants.
	Tenants struct{ e *Engine }
	// Keys looks up API keys, and remembers them for a while.
	Keys struct{ e *Engine }
	// Health tells how the store is.
	Health struct{ e *Engine }
)

// Reads are the engine's reads.
type Reads struct {
	Runs        Runs
	Threads     Threads
	DeadLetters DeadLetters
	Webhooks    Webhooks
	Tenants     Tenants
	Keys        Keys
	Health      Health
}

func newReads(e *Engine) Reads {
	return Reads{Runs{e}, Threads{e}, DeadLetters{e}, Webhooks{e}, Tenants{e}, Keys{e}, Health{e}}
}
