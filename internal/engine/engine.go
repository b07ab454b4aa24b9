package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/plant"
	"github.com/perdure/perdure/internal/redact"
	"github.com/perdure/perdure/internal/store"
)

// Engine decides and writes. It holds no state of runs: everything is in the store, and any number
// of engines may work on one store.
type Engine struct {
	Reads

	store   *store.Store
	policy  perdure.Policy
	bell    doorbell.Ringer
	log     *slog.Logger
	random  io.Reader
	roll    func() float64
	secrets *redact.Set
	ring    keyring
	signer  *perdure.Signer

	sealKeys [][]byte

	// maxLive limits the live runs of a tenant without a limit of its own. Zero: no limit.
	maxLive int64
	// signingRequired names tenants whose runs have to be signed, whatever the store says.
	signingRequired []perdure.TenantID
	alone           bool
	// instance tells workers inside this server from those inside others; see Keys.WorkerID. node
	// is this server's name.
	instance, node string

	// ids counts the ids that were made.
	ids atomic.Uint32
	// sleepUntil is the instant at which the watchdog wakes by itself.
	sleepUntil atomic.Int64
	// wakeup wakes the watchdog before that.
	wakeup chan struct{}

	// storedKeys has the keys of rows that are known to be stored; see Tx.ensureStored. These rows are only
	// ever removed with all that refers to them.
	storedKeys cache[string, struct{}]
	// workers has the workers whose row is recent enough, and polls the polls. A row that another node
	// removes is written again a little later.
	workers cache[workerRow, struct{}]
	polls   cache[[sha256.Size]byte, struct{}]
	// keys has the API keys that were looked up, by id. A key that another node revokes is valid here for
	// keyTTL, which docs/security.md promises.
	keys cache[string, cachedKey]

	mu sync.Mutex
	// ownKeys are the keys of callers inside this process, by id; see Keys.MakeOwn.
	ownKeys map[string]cachedKey

	cursors  pollCursors
	standing standbys
	held     heldPlaces
	hooks    webhookCache
	// signing has the tenants that require signatures. A tenant that requires them anew has runs of the time
	// before without one, so half a second more of these changes nothing.
	signing cache[struct{}, tenantSet]
	live    liveRuns
	// kinds has definitions for decisions, without what only readers need. A worker announces its kinds before
	// it polls, and a definition counts for the runs that are accepted after it.
	kinds cache[kindRef, kindFacts]
	// served has who polls for what, by tenant, for people: no grant depends on it.
	served  cache[perdure.TenantID, *serving]
	pauses  pauseCache
	posted  postings
	history historyCounts
	// observer may be nil.
	observer Observer
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
	// Signer signs the runs that are accepted. Default: runs are not signed.
	Signer *perdure.Signer

	// SealKeys encrypt the store's root secret: the first one seals, all of them open. Each has
	// SealKeySize bytes. Default: the secret is not sealed.
	SealKeys [][]byte
	// MaxLiveRuns limits the live runs of a tenant that has no limit of its own. Default: no limit.
	MaxLiveRuns int64

	// SigningRequired names tenants whose runs have to be signed, in addition to those that the
	// store names. AnyTenant stands for all.
	SigningRequired []perdure.TenantID

	// Alone says that no other node uses the store, so that nothing has to wait for their caches. It
	// is for tests of one node.
	Alone bool
}

// New makes an engine over a store.
func New(s *store.Store, opt Options) (*Engine, error) {
	e, err := newEngine(s, opt)
	if err != nil {
		return nil, err
	}
	boot, sealed := &bootOp{}, ""
	// The first pass creates the root secret, the second one reads it. Of two nodes that boot at
	// once, one has created it, and both read the same.
	for range 2 {
		err := e.Step(s.Now(), boot)[0]
		var refused *perdure.Error
		if errors.As(err, &refused) && refused.Code == perdure.CodeWrongState {
			// The message is for the operator who starts the server.
			err = errors.New(refused.Message)
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

// Offline makes an engine for a command that works on a store without a server: for keys and the
// audit log. It does not know the root secret, so it can't make or check callback tokens and
// webhook secrets.
func Offline(s *store.Store) (*Engine, error) { return newEngine(s, Options{}) }

// newEngine makes an engine that does not know the root secret yet.
func newEngine(s *store.Store, opt Options) (*Engine, error) {
	e := &Engine{store: s, bell: opt.Bell, log: opt.Logger, random: opt.Entropy, roll: opt.Roll,
		secrets: opt.Secrets, signer: opt.Signer, signingRequired: opt.SigningRequired, sealKeys: opt.SealKeys,
		alone: opt.Alone, instance: opt.Instance, node: opt.Node,
		maxLive: opt.MaxLiveRuns, wakeup: make(chan struct{}, 1), ownKeys: make(map[string]cachedKey)}
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
	e.keys.ttl, e.kinds.ttl, e.kinds.most = keyTTL, KindTTL, maxCachedKinds
	e.served.ttl, e.served.most = servingTTL, maxServing
	e.signing.ttl, e.hooks.withHooks.ttl, e.hooks.tenants.ttl, e.hooks.runHooks.ttl = hookTTL, hookTTL, hookTTL, hookTTL
	e.pauses.generation.ttl = pauseTTL
	e.workers.ttl, e.polls.ttl = e.policy.WorkerOffline/8, e.policy.WorkerOffline/2
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

// Policy gives the timeouts and limits that the engine decides by.
func (e *Engine) Policy() *perdure.Policy { return &e.policy }

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

// Do runs an Op in a batch with other waiting operations, and returns once it is durable.
func (e *Engine) Do(ctx context.Context, op Op) error {
	return e.store.DoAll(ctx, e.bind(actorOf(ctx), []Op{op})...)[0]
}

// DoAll is Do for several Ops. They are decided in order, in one batch as far as they fit, and each
// has an error of its own.
func (e *Engine) DoAll(ctx context.Context, ops ...Op) []error {
	return e.store.DoAll(ctx, e.bind(actorOf(ctx), ops)...)
}

// Step decides and commits a batch at an instant, synchronously, as the group commit does. It gives
// one error per Op, in order.
func (e *Engine) Step(now perdure.Instant, ops ...Op) []error {
	return e.store.Batch(now, e.bind(nil, ops)...)
}

// StepBy is Step on behalf of an actor, whom the audit log names.
func (e *Engine) StepBy(by Actor, now perdure.Instant, ops ...Op) []error {
	return e.store.Batch(now, e.bind(&by, ops)...)
}

// bind wraps Ops for the store. It runs an Op's prepare method outside of the lane, so that
// validating and hashing do not hold up the batch.
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

// A boundOp is an Op as the store sees it, with its engine and its actor.
type boundOp struct {
	e  *Engine
	op Op
	// by may be nil.
	by *Actor
}

// Needs names the runs that the Op reads.
func (b boundOp) Needs() []store.Ref { return b.op.Needs() }

// Name gives the type of the Op, for logs and tests.
func (b boundOp) Name() string { return strings.TrimPrefix(fmt.Sprintf("%T", b.op), "*") }

// Lane gives the lane that the Op runs in. Default: LaneWork.
func (b boundOp) Lane() store.Lane {
	if l, ok := b.op.(interface{ Lane() store.Lane }); ok {
		return l.Lane()
	}
	return store.LaneWork
}

// Slow tells whether others should not wait for the Op.
func (b boundOp) Slow() bool {
	x, ok := b.op.(interface{ Slow() bool })
	return ok && x.Slow()
}

// Weight estimates the rows and bytes that the Op costs. The store forms batches by it.
func (b boundOp) Weight() (rows, bytes int) {
	if w, ok := b.op.(interface{ Weight() (rows, bytes int) }); ok {
		return w.Weight()
	}
	return 4, 1 << 10
}

// Do runs the Op, and registers its effects for when the batch is durable.
func (b boundOp) Do(tx *store.Tx) error {
	x := &Tx{DB: tx, Now: tx.Now, e: b.e, actor: b.by, stopsLeft: maxStops, spendable: 1, began: tx.Cost()}
	if err := b.op.Do(x); err != nil {
		return err
	}
	if len(x.ready) > 0 && b.e.standing.n.Load() > 0 {
		x.handOver = tx.Last(func() store.Op { return boundOp{b.e, &handOver{e: b.e}, nil} }).(boundOp).op.(*handOver)
	}
	if len(x.rings) > 0 || len(x.touched) > 0 || len(x.ready) > 0 || x.alarm != 0 || len(x.postings) > 0 ||
		len(x.observed) > 0 {
		tx.After(x.afterCommit)
	}
	return nil
}

// Tx is an Op's view of the store: the stored rows, overlaid with the rows that the batch has
// staged so far.
type Tx struct {
	// DB reads stored rows and stages changes.
	DB *store.Tx
	// Now is the batch's instant.
	Now perdure.Instant

	e *Engine
	// actor is named by the audit log. Without one, the operation leaves no entry.
	actor *Actor
	// began is what the batch had cost when the operation began.
	began store.Cost
	// stopsLeft is how many more runs this operation asks to stop. The watchdog asks the rest.
	stopsLeft int
	// spendable is how much of its budget the operation may use: one is all of it.
	spendable float64
	// notified counts the notifications that the operation has staged; see maxNotified.
	notified int

	// followUps are the consequences of ends that are left to do; see follow.go.
	followUps []followUp
	// ending counts nested calls of Finish.
	ending int
	// inFollowUps is true while runFollowUps is running.
	inFollowUps bool

	// rings are the topics that ring once the batch is durable.
	rings []doorbell.Topic
	// touched are the tenants whose watchers ring once the batch is durable.
	touched []perdure.TenantID
	// ready are the topics of runs that became claimable. They ring too, unless handOver has granted
	// these runs.
	ready    []doorbell.Topic
	handOver *handOver
	// alarm is the earliest alarm that was set.
	alarm perdure.Instant
	// postings name the endpoints that have something to send once the batch is durable.
	postings []Posting
	// counted are numbers for the history, which are added once the batch is durable.
	counted []Minute
	// observed are the changes that the observer is told of once the batch is durable.
	observed []Change
}

// afterCommit runs once the batch is durable. It rings the doorbells, wakes the watchdog for an
// alarm that it would sleep through, wakes the webhook deliverer, and counts changes.
func (tx *Tx) afterCommit() {
	for _, t := range tx.rings {
		tx.e.bell.Ring(t)
	}
	for _, t := range tx.touched {
		tx.e.bell.Ring(doorbell.Run(t, AnyRun))
	}
	if len(tx.touched) > 0 {
		tx.e.bell.Ring(doorbell.Run(AllTenants, AnyRun))
	}
	for _, t := range tx.ready {
		if tx.handOver.rings(t) {
			tx.e.bell.Ring(t)
		}
	}
	if tx.alarm != 0 && int64(tx.alarm) < tx.e.sleepUntil.Load() {
		tx.e.wake()
	}
	if len(tx.postings) > 0 {
		tx.e.posted.add(tx.postings)
	}
	for i := range tx.counted {
		tx.e.history.add(&tx.counted[i])
	}
	if len(tx.observed) > 0 {
		tx.e.observer.Observe(tx.observed)
	}
}

// Policy gives the timeouts and limits to decide by.
func (tx *Tx) Policy() *perdure.Policy { return &tx.e.policy }

// Roll gives a random number from 0 to 1, for the jitter of backoffs.
func (tx *Tx) Roll() float64 { return tx.e.roll() }

// Apply has the transition table decide about an event and stages the result: the run, its log
// lines, and the notifications of the webhooks that match them. Afterwards r is the new version of
// the run. It refuses a copy of the run that is older than the staged one.
func (tx *Tx) Apply(r *perdure.Run, ev perdure.Event) error {
	if v, ok := tx.DB.Runs.Staged(r.Tenant, r.ID); ok && v != r.Version {
		return perdure.Errorf(perdure.CodeInternal, "%s on an outdated copy of the run: version %d, not %d",
			perdure.EventName(ev), r.Version, v)
	}
	from := r.State
	next, lines, err := tx.e.policy.Apply(*r, ev, tx.Now)
	if err != nil {
		return err
	}
	if plant.Is("alarm-left-out") && next.State == perdure.Running {
		next.AlarmAt = next.DeadlineAt
	}
	countHistory(tx, r, &next, lines)
	*r = next
	tx.DB.Runs.Put(next, lines)
	if tx.e.observer != nil {
		tx.observe(r, ev, lines)
	}
	if err := tx.notify(r, lines); err != nil {
		return err
	}
	if ready := r.Ready && r.State.Live(); ready {
		tx.ready = append(tx.ready, doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	}
	tx.wakeAt(r.AlarmAt)
	if len(lines) > 0 {
		tx.ring(doorbell.Run(r.Tenant, string(r.ID)))
		touch(tx, r.Tenant)
	}
	if from != r.State && tx.e.log.Enabled(context.Background(), slog.LevelDebug) {
		next := *r
		tx.DB.After(func() {
			tx.e.log.Debug("run", "tenant", next.Tenant, "run", next.ID, "event", perdure.EventName(ev),
				"from", from, "to", next.State,
				"epoch", next.Epoch, "attempt", next.Attempt)
		})
	}
	return nil
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

// wakeAt has the watchdog awake for an alarm. Zero: there is none.
func (tx *Tx) wakeAt(at perdure.Instant) {
	if at != 0 && (tx.alarm == 0 || at < tx.alarm) {
		tx.alarm = at
	}
}

// ring rings a topic once the batch is durable.
func (tx *Tx) ring(t doorbell.Topic) { tx.rings = append(tx.rings, t) }

// newID makes an id. Ids of a process sort by the time that they were made.
func (tx *Tx) newID() (string, error) { return perdure.NewID(tx.Now, tx.e.ids.Add(1), tx.e.random) }

// run reads a run. If there is none, the error is CodeNotFound.
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

// ensureStored calls stage unless the row with this key is known to be stored. It remembers the key
// once the batch is durable.
func (tx *Tx) ensureStored(key string, stage func() error) error {
	if _, known := tx.e.storedKeys.peek(look{now: tx.Now}, key); known {
		return nil
	}
	if err := stage(); err != nil {
		return err
	}
	tx.DB.After(func() { tx.e.storedKeys.put(tx.Now, key, struct{}{}) })
	return nil
}

// touch rings for the watchers of a tenant once the batch is durable.
func touch(tx *Tx, t perdure.TenantID) {
	if !slices.Contains(tx.touched, t) {
		tx.touched = append(tx.touched, t)
	}
}
