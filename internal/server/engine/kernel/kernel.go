package kernel

import (
	"crypto/rand"
	"io"
	"log/slog"
	mrand "math/rand/v2"
	"sync/atomic"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/wire/redact"
)

// Engine decides and writes. It holds no state of runs: everything is in the store, and any number
// of engines may work on one store.
type Engine struct {
	store  *store.Store
	policy perdure.Policy
	// above is the policy with the floor of epochs of the store, after a failover.
	above    atomic.Pointer[perdure.Policy]
	bell     doorbell.Ringer
	observer Observer // may be nil
	Log      *slog.Logger
	Random   io.Reader
	roll     func() float64
	Secrets  *redact.Set
	Alone    bool
	// instance tells workers inside this server from those inside others. node is this server's name.
	Instance, Node string

	// ids counts the ids that were made.
	ids atomic.Uint32
	// sleepUntil is the instant at which the watchdog wakes by itself.
	sleepUntil atomic.Int64
	// wakeup wakes the watchdog before that.
	wakeup chan struct{}

	// storedKeys has the keys of rows that are known to be stored; see Tx.EnsureStored. These rows are only
	// ever removed with all that refers to them.
	storedKeys Cache[string, struct{}]

	// parts has the state of the wings; see Part.
	parts []any
	hooks hooks
}

// Options configure an engine. The zero value is usable.
type Options struct {
	// Policy holds the timeouts and limits to decide by. Default: perdure.DefaultPolicy.
	Policy *perdure.Policy
	// Bell rings when something changed. Default: it is silent, and waiters poll.
	Bell   doorbell.Ringer
	Logger *slog.Logger
	// Entropy is the source of ids and secrets. Default: the system's.
	Entropy io.Reader
	// Roll gives a random number from 0 to 1, for the jitter of backoffs.
	Roll func() float64
	// Instance tells this server from others, and is kept over its restarts. Node is its name, for
	// people.
	Instance, Node string
	// Counter is told of changes once they are durable. Default: none.
	Counter Observer
	// Secrets are the texts that are redacted before anything is stored.
	Secrets *redact.Set
	// Alone says that no other node uses the store, so that nothing has to wait for their caches. It
	// is for tests of one node.
	Alone bool
}

// New makes an engine over a store, without any wing.
func New(s *store.Store, opt Options) (*Engine, error) {
	e := &Engine{store: s, bell: opt.Bell, observer: opt.Counter, Log: opt.Logger, Random: opt.Entropy,
		roll: opt.Roll, Secrets: opt.Secrets, Alone: opt.Alone, Instance: opt.Instance, Node: opt.Node,
		wakeup: make(chan struct{}, 1)}
	e.policy = perdure.DefaultPolicy()
	if opt.Policy != nil {
		e.policy = *opt.Policy
	}
	if err := e.policy.Validate(); err != nil {
		return nil, err
	}
	if e.bell == nil {
		e.bell = doorbell.Silent{}
	}
	if e.Log == nil {
		e.Log = slog.New(slog.DiscardHandler)
	}
	if e.Random == nil {
		e.Random = rand.Reader
	}
	if e.roll == nil {
		e.roll = mrand.Float64
	}
	for _, state := range newParts {
		e.parts = append(e.parts, state(e))
	}
	return e, nil
}

// Policy gives the timeouts and limits that the engine decides by.
func (e *Engine) Policy() *perdure.Policy { return &e.policy }

// policyAbove gives the policy with a floor for epochs.
func (e *Engine) policyAbove(floor int64) *perdure.Policy {
	if floor == 0 {
		return &e.policy
	}
	p := e.above.Load()
	if p == nil || p.EpochFloor != floor {
		next := e.policy
		next.EpochFloor = floor
		p = &next
		e.above.Store(p)
	}
	return p
}

// Store gives the store that the engine writes to.
func (e *Engine) Store() *store.Store { return e.store }

// Now reads the store's clock.
func (e *Engine) Now() perdure.Instant { return e.store.Now() }

// A Ref names a run.
type Ref = store.Ref

// A Page selects a part of a list; see the store's.
type Page = store.Page

// An Op is a use case with its input and, afterwards, its answer. Needs names the runs that Do
// reads, so that the store can load those of a whole batch at once.
type Op interface {
	Needs() []store.Ref
	Do(*Tx) error
}

// Sleep records until when the watchdog sleeps. An operation that sets an earlier alarm wakes it.
func (e *Engine) Sleep(until perdure.Instant) { e.sleepUntil.Store(int64(until)) }

// Earlier is signalled when an alarm was set that is earlier than the watchdog's next wake-up.
func (e *Engine) Earlier() <-chan struct{} { return e.wakeup }

// wake signals the watchdog, unless a signal is pending.
func (e *Engine) wake() {
	select {
	case e.wakeup <- struct{}{}:
	default:
	}
}

// AnyRun takes the place of a run's id in the topic that rings when any run of a tenant is created,
// changes or is deleted. AllTenants takes the place of the tenant in the topic of all tenants.
const (
	AnyRun     = "*"
	AllTenants = perdure.TenantID("")
)

// Tx is an Op's view of the store: the stored rows, overlaid with the rows that the batch has
// staged so far.
type Tx struct {
	// DB reads stored rows and stages changes.
	DB *store.Tx
	// Now is the batch's instant.
	Now perdure.Instant

	Engine *Engine
	// actor is named by the audit log. Without one, the operation leaves no entry.
	Actor *Actor
	// began is the cost of the batch at the beginning of the operation.
	began store.Cost
	// StopsLeft is how many more runs this operation asks to stop. The watchdog asks the rest.
	StopsLeft int
	// spendable is how much of its budget the operation may use: one is all of it.
	spendable float64

	// rings are the topics that ring once the batch is durable.
	rings []doorbell.Topic
	// touched are the tenants whose watchers ring once the batch is durable.
	touched []perdure.TenantID
	// ready are the topics of runs that became claimable. They ring too, unless these runs were granted.
	ready []doorbell.Topic
	// alarm is the earliest alarm that was set.
	alarm perdure.Instant
	// observed are the changes that the observer is told of once the batch is durable.
	observed []Change
	// scratch has the state of the wings in this operation; see Scratch.
	scratch [maxScratches]any
}

// An Actor is the API key of a call and the address that the call came from. The audit log names
// it. An operation without an actor, such as the watchdog's, leaves no entry.
type Actor struct {
	KeyID    string
	Name     string
	Platform bool
	Remote   string
}
