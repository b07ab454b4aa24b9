package kernel

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
)

// A wing adds state to an engine (Part) and to an operation (Scratch), and registers hooks.
//
// The kernel knows no wing. A file of a wing that has state asks once for a place in every engine
// ([NewPart]) and, if its operations have something to remember until they are durable, for one in
// every operation ([NewScratch]). The place is a variable of the file that uses it; other files and
// other wings call its functions. A wing registers its hooks when the engine is made.

// maxScratches bounds the places in an operation. A place costs two words in each.
const maxScratches = 8

// newParts make the state of the places in an engine. scratches counts those in an operation.
// Packages ask for places while they are initialized, one after the other.
var (
	newParts  []func(e *Engine) any
	scratches int
)

// A Part is a place in every engine, for a *T.
type Part[T any] struct{ n int }

// NewPart gives a place. It is called for a package's variable. Every engine calls the function once,
// when the engine is made.
func NewPart[T any](state func(e *Engine) *T) Part[T] {
	newParts = append(newParts, func(e *Engine) any { return state(e) })
	return Part[T]{len(newParts) - 1}
}

// Of gives the state in an engine.
func (p Part[T]) Of(e *Engine) *T { return e.parts[p.n].(*T) }

// A Scratch is a place in every operation, for a *T.
type Scratch[T any] struct{ n int }

// NewScratch gives a place. It is called for a package's variable.
func NewScratch[T any]() Scratch[T] {
	scratches++
	if scratches > maxScratches {
		panic(fmt.Sprintf("more than %d places in an operation", maxScratches))
	}
	places[scratches-1] = scratchPlace{
		save: func(p any) any {
			saved := *p.(*T)
			return &saved
		},
		restore: func(p, saved any) { *p.(*T) = *saved.(*T) },
	}
	return Scratch[T]{scratches - 1}
}

// A scratchPlace copies the value of a place, and puts the copy back. Lists in it are only ever appended
// to, so that a copy keeps them as they were.
type scratchPlace struct {
	save    func(p any) any
	restore func(p, saved any)
}

var places [maxScratches]scratchPlace

// Of gives what the wing remembers in an operation. It is empty at first.
func (s Scratch[T]) Of(tx *Tx) *T {
	p, ok := tx.scratch[s.n].(*T)
	if !ok {
		p = new(T)
		tx.scratch[s.n] = p
	}
	return p
}

// Has gives what the wing remembers in an operation, or nil if that is nothing.
func (s Scratch[T]) Has(tx *Tx) *T {
	p, _ := tx.scratch[s.n].(*T)
	return p
}

// saveScratch copies what the wings remember in an operation.
func (tx *Tx) saveScratch() (saved [maxScratches]any) {
	for i, p := range tx.scratch {
		if p != nil {
			saved[i] = places[i].save(p)
		}
	}
	return saved
}

// restoreScratch forgets what the wings have remembered since saveScratch.
func (tx *Tx) restoreScratch(saved *[maxScratches]any) {
	for i, p := range tx.scratch {
		if p != nil && saved[i] != nil {
			places[i].restore(p, saved[i])
		} else {
			tx.scratch[i] = nil
		}
	}
}

// hooks are functions of wings. They are called in the order in which they were registered.
type hooks struct {
	applied []func(tx *Tx, before, after *perdure.Run, lines []perdure.Line) error
	decided []func(tx *Tx) error
	durable []func(tx *Tx)
	rings   []func(tx *Tx, t doorbell.Topic) bool
}

// OnApplied has f called for every transition that is staged, with the run before and after it.
func (e *Engine) OnApplied(f func(tx *Tx, before, after *perdure.Run, lines []perdure.Line) error) {
	e.hooks.applied = append(e.hooks.applied, f)
}

// OnDecided has f called at the end of every operation that was not refused. An error refuses it.
func (e *Engine) OnDecided(f func(tx *Tx) error) { e.hooks.decided = append(e.hooks.decided, f) }

// OnDurable has f called once an operation's batch is durable, before the caller gets its answer.
func (e *Engine) OnDurable(f func(tx *Tx)) { e.hooks.durable = append(e.hooks.durable, f) }

// OnReady has f asked whether the doorbell of a run that became claimable has to ring. It rings if
// all say so.
func (e *Engine) OnReady(f func(tx *Tx, t doorbell.Topic) bool) {
	e.hooks.rings = append(e.hooks.rings, f)
}
