// Package engine is what can be done with runs: a file per use case. It is the only place where a
// decision of the domain and its write meet.
//
// Every use case is an Op: a struct that holds what was asked and, afterwards, the answer. Its Do is a
// synchronous function that takes its time from the transaction; it starts no goroutine and reads no
// clock, so that the simulator can drive it. Do runs an Op through the store's group commit; Step runs a
// batch of them at a given instant.
//
// A read is a method of Engine that looks at the store at one moment; it stands in the file of its noun.
//
// The path of a run: submit.go, claim.go, commit.go, end.go, and the transition table of the domain.
package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mrand "math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/plant"
	"github.com/perdure/perdure/internal/redact"
	"github.com/perdure/perdure/internal/store"
)

// Options of an engine. The zero value is usable.
type Options struct {
	Policy  *perdure.Policy // default: perdure.DefaultPolicy
	Bell    doorbell.Ringer // default: nobody hears
	Logger  *slog.Logger
	Entropy io.Reader       // of ids; default: the system's
	Roll    func() float64  // dice of the backoff, 0 to 1
	Counter Observer        // is told of what happened; default: nobody
	Secrets *redact.Set     // what must not be written
	Signer  *perdure.Signer // signs the runs that are accepted; default: they are not signed

	// SealKeys seal the store's root secret: the first seals, all open. Each has SealKeySize bytes. Default: it is not sealed.
	SealKeys    [][]byte
	MaxLiveRuns int64 // live runs of a tenant that has no limit of its own; default: no limit

	SigningRequired []perdure.TenantID // whose runs have to be signed, beside those of which the store says so; AnyTenant: all
}

// Engine decides and writes. It holds no state of runs: everything is in the store, and any number of
// engines may work on one.
type Engine struct {
	Reads

	store   *store.Store
	policy  perdure.Policy
	bell    doorbell.Ringer
	log     *slog.Logger
	random  io.Reader
	roll    func() float64
	secrets *redact.Set
	ring    keyring // of callback tokens and webhooks
	signer  *perdure.Signer

	sealKeys [][]byte

	maxLive         int64              // live runs of a tenant without a limit of its own; zero: no limit
	signingRequired []perdure.TenantID // whose runs have to be signed, whatever the store says

	ids        atomic.Uint32 // ids made
	sleepUntil atomic.Int64  // until when the watchdog sleeps
	wakeup     chan struct{} // wakes it

	mu         sync.Mutex
	storedKeys map[string]bool            // queues that are known to be stored
	workers    map[string]perdure.Instant // when each was last written down as seen
	keys       map[string]cachedKey       // credentials that were looked up
	revoked    int                        // how many were forgotten since

	cursors  pollCursors
	hooks    webhookCache
	signing  signingTenants
	live     liveRuns
	posted   postings
	observer Observer // may be nil
}

// New makes an engine over a store.
func New(s *store.Store, opt Options) (*Engine, error) {
	e, err := newEngine(s, opt)
	if err != nil {
		return nil, err
	}
	boot, sealed := &bootOp{}, ""
	for range 2 { // made by whoever was first, and then read: two nodes may boot at once
		err := e.Step(s.Now(), boot)[0]
		var refused *perdure.Error
		if errors.As(err, &refused) && refused.Code == perdure.CodeWrongState {
			err = errors.New(refused.Message) // for whoever starts the server
		}
		if err != nil {
			return nil, err
		}
		sealed, boot.sealed = cmp.Or(sealed, boot.sealed), ""
	}
	e.ring = boot.ring
	if sealed != "" {
		e.log.Info("root secret " + sealed)
	}
	return e, nil
}

// Offline makes an engine for a command that works on a store without a server: for keys and the audit log. It has no secret, so
// that it can't make or check callback tokens and secrets of webhooks.
func Offline(s *store.Store) (*Engine, error) { return newEngine(s, Options{}) }

// newEngine makes an engine that does not know the store's secret yet.
func newEngine(s *store.Store, opt Options) (*Engine, error) {
	e := &Engine{store: s, bell: opt.Bell, log: opt.Logger, random: opt.Entropy, roll: opt.Roll, secrets: opt.Secrets, signer: opt.Signer, signingRequired: opt.SigningRequired, sealKeys: opt.SealKeys, maxLive: opt.MaxLiveRuns, wakeup: make(chan struct{}, 1), storedKeys: make(map[string]bool),
		workers: make(map[string]perdure.Instant), keys: make(map[string]cachedKey)}
	e.Reads = newReads(e)
	e.observer = opt.Counter
	e.posted.list, e.posted.bell = make(map[Posting]bool), make(chan struct{}, 1)
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
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.random == nil {
		e.random = rand.Reader
	}
	if e.roll == nil {
		e.roll = mrand.Float64
	}
	return e, nil
}

// Policy is what the engine decides by.
func (e *Engine) Policy() *perdure.Policy { return &e.policy }

// Store is where it writes.
func (e *Engine) Store() *store.Store { return e.store }

// Now is the store's clock.
func (e *Engine) Now() perdure.Instant { return e.store.Now() }

// A Ref names a run.
type Ref = store.Ref

// A Page says which part of a list is wanted; see the store's.
type Page = store.Page

// An Op is a use case with its input and, afterwards, its answer.
type Op interface {
	Needs() []store.Ref
	Do(*Tx) error
}

// Do decides an Op together with whatever else is waiting and returns when it is durable.
func (e *Engine) Do(ctx context.Context, op Op) error {
	return e.store.DoAll(ctx, e.bind(actorOf(ctx), []Op{op})...)[0]
}

// DoAll is Do for Ops that came together: in their order, in one batch as far as they fit, one error each.
func (e *Engine) DoAll(ctx context.Context, ops ...Op) []error {
	return e.store.DoAll(ctx, e.bind(actorOf(ctx), ops)...)
}

// Step decides a batch at an instant: what the group commit does, as one synchronous step. There is one
// error per Op, in order.
func (e *Engine) Step(now perdure.Instant, ops ...Op) []error {
	return e.store.Batch(now, e.bind(nil, ops)...)
}

// StepBy is Step for operations that an actor does.
func (e *Engine) StepBy(by Actor, now perdure.Instant, ops ...Op) []error {
	return e.store.Batch(now, e.bind(&by, ops)...)
}

// bind makes operations of the store of Ops. What one can do by itself it does here, before it is in anybody's way.
func (e *Engine) bind(by *Actor, ops []Op) []store.Op {
	list := make([]store.Op, len(ops))
	for i, op := range ops {
		if p, ok := op.(interface{ prepare() }); ok {
			p.prepare()
		}
		list[i] = boundOp{e, op, by}
	}
	return list
}

type boundOp struct {
	e  *Engine
	op Op
	by *Actor // may be nil
}

func (b boundOp) Needs() []store.Ref { return b.op.Needs() }

// Name is the use case's, for logs and tests.
func (b boundOp) Name() string { return strings.TrimPrefix(fmt.Sprintf("%T", b.op), "*") }

// Lane is where the Op belongs: most are work.
func (b boundOp) Lane() store.Lane {
	if l, ok := b.op.(interface{ Lane() store.Lane }); ok {
		return l.Lane()
	}
	return store.LaneWork
}

// Weight is about how many rows and bytes the Op costs, for those who put batches together.
func (b boundOp) Weight() (rows, bytes int) {
	if w, ok := b.op.(interface{ Weight() (rows, bytes int) }); ok {
		return w.Weight()
	}
	return 4, 1 << 10
}

func (b boundOp) Do(tx *store.Tx) error {
	x := &Tx{DB: tx, Now: tx.Now, e: b.e, actor: b.by, stopsLeft: maxStops, began: tx.Cost()}
	if err := b.op.Do(x); err != nil {
		return err
	}
	if len(x.rings) > 0 || x.alarm != 0 || len(x.postings) > 0 || len(x.observed) > 0 {
		tx.After(x.afterCommit)
	}
	return nil
}

// Tx is an Op's view: what is stored, through what the batch has staged so far.
type Tx struct {
	DB  *store.Tx       // what is stored, and where changes are staged
	Now perdure.Instant // of the batch

	e         *Engine
	actor     *Actor     // named by the audit log; nil: the operation leaves no entry
	began     store.Cost // of the batch, when the operation began
	stopsLeft int        // how many more runs this operation asks to stop; the watchdog does the rest
	notified  int        // how many notifications it has staged; see maxNotified

	followUps   []followUp // see follow.go
	ending      int        // ends that are being written
	inFollowUps bool       // follow-ups are being done

	rings    []doorbell.Topic // what rings once it is durable
	alarm    perdure.Instant  // the earliest alarm that was set
	postings []Posting        // endpoints for which there is something then
	observed []Change         // what is counted then
}

// tell rings the doorbells, and wakes the watchdog if it would sleep through an alarm that is stored now.
func (tx *Tx) afterCommit() {
	for _, t := range tx.rings {
		tx.e.bell.Ring(t)
	}
	if tx.alarm != 0 && int64(tx.alarm) < tx.e.sleepUntil.Load() {
		tx.e.wake()
	}
	if len(tx.postings) > 0 {
		tx.e.posted.add(tx.postings)
	}
	if len(tx.observed) > 0 {
		tx.e.observer.Observe(tx.observed)
	}
}

// Policy is what is decided by.
func (tx *Tx) Policy() *perdure.Policy { return &tx.e.policy }

// Roll throws the dice of the backoff.
func (tx *Tx) Roll() float64 { return tx.e.roll() }

// Apply has the domain decide and stages what it says: the run, its lines, and the notifications that
// somebody asked for. r is the run as it is afterwards.
func (tx *Tx) Apply(r *perdure.Run, ev perdure.Event) error {
	if v, ok := tx.DB.Runs.Staged(r.Tenant, r.ID); ok && v != r.Version {
		return perdure.Errorf(perdure.CodeInternal, "%s on an outdated copy of the run: version %d, not %d", perdure.EventName(ev), r.Version, v)
	}
	from := r.State
	next, lines, err := tx.e.policy.Apply(*r, ev, tx.Now)
	if err != nil {
		return err
	}
	if plant.Is("alarm-left-out") && next.State == perdure.Running {
		next.AlarmAt = next.DeadlineAt
	}
	*r = next
	tx.DB.Runs.Put(next, lines)
	if tx.e.observer != nil {
		tx.note(r, ev, lines)
	}
	if err := tx.notify(r, lines); err != nil {
		return err
	}
	if ready := r.Ready && r.State.Live(); ready {
		tx.ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	}
	tx.wakeAt(r.AlarmAt)
	if len(lines) > 0 {
		tx.ring(doorbell.Run(r.Tenant, string(r.ID)))
	}
	if from != r.State && tx.e.log.Enabled(context.Background(), slog.LevelDebug) {
		next := *r
		tx.DB.After(func() {
			tx.e.log.Debug("run", "tenant", next.Tenant, "run", next.ID, "event", perdure.EventName(ev), "from", from, "to", next.State,
				"epoch", next.Epoch, "attempt", next.Attempt)
		})
	}
	return nil
}

// Sleep says until when the watchdog sleeps; whoever sets an alarm that rings earlier wakes it.
func (e *Engine) Sleep(until perdure.Instant) { e.sleepUntil.Store(int64(until)) }

// Earlier is signalled when an alarm was set that rings before the watchdog means to wake.
func (e *Engine) Earlier() <-chan struct{} { return e.wakeup }

func (e *Engine) wake() {
	select {
	case e.wakeup <- struct{}{}:
	default:
	}
}

// wakeAt has the watchdog woken for an alarm, unless that is zero.
func (tx *Tx) wakeAt(at perdure.Instant) {
	if at != 0 && (tx.alarm == 0 || at < tx.alarm) {
		tx.alarm = at
	}
}

func (tx *Tx) ring(t doorbell.Topic) { tx.rings = append(tx.rings, t) }

// newID makes an id.
func (tx *Tx) newID() (string, error) { return perdure.NewID(tx.Now, tx.e.ids.Add(1), tx.e.random) }

// run gives a run or says that there is none.
func (tx *Tx) run(t perdure.TenantID, id perdure.RunID) (perdure.Run, error) {
	r, ok, err := tx.DB.Runs.Get(t, id)
	if err == nil && !ok {
		err = notFound("run")
	}
	return r, err
}

func notFound(what string) error { return perdure.Errorf(perdure.CodeNotFound, "no such %s", what) }

func refs(t perdure.TenantID, ids ...perdure.RunID) []store.Ref {
	out := make([]store.Ref, len(ids))
	for i, id := range ids {
		out[i] = store.Ref{Tenant: t, Run: id}
	}
	return out
}

// maxKnown bounds what is remembered; forgetting costs a look-up.
const maxKnown = 10000

// ensureStored remembers that something is stored, after the batch that stored it is durable.
func (tx *Tx) ensureStored(key string, stage func() error) error {
	tx.e.mu.Lock()
	known := tx.e.storedKeys[key]
	tx.e.mu.Unlock()
	if known {
		return nil
	}
	if err := stage(); err != nil {
		return err
	}
	tx.DB.After(func() {
		tx.e.mu.Lock()
		defer tx.e.mu.Unlock()
		if len(tx.e.storedKeys) >= maxKnown {
			clear(tx.e.storedKeys)
		}
		tx.e.storedKeys[key] = true
	})
	return nil
}
