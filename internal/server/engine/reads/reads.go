package reads

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// The engine's reads, grouped by noun. Each method is in the file of its noun. A read sees one
// committed snapshot; it changes nothing, and waits for no batch.
type (
	// Runs reads runs and their parts: activity, artifacts, approvals, groups and late results.
	Runs struct{ e *kernel.Engine }
	// Threads reads threads and their messages.
	Threads struct{ e *kernel.Engine }
)

// Reads holds a reader for each noun. Engine embeds it: e.Runs.Get, e.Threads.Page.
type Reads struct {
	Runs        Runs
	Threads     Threads
	DeadLetters DeadLetters
	Kinds       Kinds
	Tenants     Tenants
	Processes   Processes
	Health      Health
	Schedules   Schedules
	Limits      Limits
}

// New makes the readers of an engine.
func New(e *kernel.Engine) Reads {
	return Reads{Runs{e}, Threads{e}, DeadLetters{e}, Kinds{e}, Tenants{e}, Processes{e},
		Health{e}, Schedules{e}, Limits{e}}
}

// Add adds this wing to an engine: every transition is counted in its minute.
func Add(e *kernel.Engine) {
	e.OnApplied(func(tx *kernel.Tx, before, after *perdure.Run, lines []perdure.Line) error {
		countHistory(tx, before, after, lines)
		return nil
	})
	e.OnDurable(func(tx *kernel.Tx) {
		if s := countedIn.Has(tx); s != nil {
			for i := range *s {
				history.Of(e).add(&(*s)[i])
			}
		}
	})
}
