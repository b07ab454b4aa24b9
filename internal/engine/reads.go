package engine

// The engine's reads, grouped by noun. Each method is in the file of its noun. A read sees one
// committed snapshot; it changes nothing, and waits for no batch.
type (
	// Runs reads runs and their parts: activity, artifacts, approvals, groups and late results.
	Runs struct{ e *Engine }
	// Threads reads threads and their messages.
	Threads struct{ e *Engine }
	// DeadLetters reads dead letters.
	DeadLetters struct{ e *Engine }
	// Kinds reads the registry of kinds.
	Kinds struct{ e *Engine }
	// Webhooks reads webhooks and their deliveries, and derives their secrets.
	Webhooks struct{ e *Engine }
	// Tenants reads tenants.
	Tenants struct{ e *Engine }
	// Keys looks up API keys, and caches them for a short time.
	Keys struct{ e *Engine }
	// Processes reads runs of the class process, of all tenants.
	Processes struct{ e *Engine }
	// Health reports whether the store can be used.
	Health struct{ e *Engine }
)

// Reads holds a reader for each noun. Engine embeds it: e.Runs.Get, e.Threads.Page.
type Reads struct {
	Runs        Runs
	Threads     Threads
	DeadLetters DeadLetters
	Kinds       Kinds
	Webhooks    Webhooks
	Tenants     Tenants
	Keys        Keys
	Processes   Processes
	Health      Health
}

// newReads makes the readers of an engine.
func newReads(e *Engine) Reads {
	return Reads{Runs{e}, Threads{e}, DeadLetters{e}, Kinds{e}, Webhooks{e}, Tenants{e}, Keys{e}, Processes{e},
		Health{e}}
}
