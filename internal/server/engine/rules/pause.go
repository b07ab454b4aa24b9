package rules

import (
	"cmp"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/plant"
	"github.com/perdure/perdure/internal/server/store"
)

// Paused queues and kinds.
//
// A paused queue or kind accepts runs, and workers keep those that they hold. Nothing is granted from
// it, by any way: polls, polls by run ids, polls for all tenants, and grants to polls that stand by.
// The clocks of its runs go on; only the alert about a run that nobody takes waits for the end.
//
// Every claim needs the pauses of its tenant, and almost never there are any. Each node caches them. It
// asks the store every pauseTTL whether any pause has changed; that is one row, which is missing until
// something was paused for the first time. If one has, the pauses of a tenant are read again when they
// are needed.
//
// A change on this node counts at once: decisions of other lanes that lack it are made again.
// Another node stops granting after pauseTTL. Decisions that it has made before are written within
// store.MaxAge or decided again.

// pauseTTL is how long a node uses the pauses that it has read without asking whether they have changed.
const pauseTTL = 100 * time.Millisecond

// PauseKept is how long the row of a pause that is over is kept.
const PauseKept = time.Hour

// PauseDelay bounds the time after which no node grants from a queue, or of a kind, that was paused.
const PauseDelay = pauseTTL + store.MaxAge

// A PausePlace stops all grants from a queue, or of a kind. One that is paused keeps the time of its
// pause, and gets the new reason and end. With a Key it counts once.
type PausePlace struct {
	Tenant perdure.TenantID
	// Queue or Kind is what is paused.
	Queue, Kind string
	Reason      string
	// Until or For is the end, if there is one.
	Until perdure.Instant
	For   time.Duration
	Key   string

	Paused perdure.QueuePause
}

// PauseQueue is a PausePlace with a queue.
type PauseQueue = PausePlace

func (*PausePlace) Needs() []store.Ref { return nil }

// Do pauses the queue or kind.
func (op *PausePlace) Do(tx *kernel.Tx) error {
	at := pausable{op.Tenant, op.Queue, op.Kind}
	if err := op.check(at, tx.Now); err != nil {
		return err
	}
	// Also when another node has made this pause: its answer says that it counts.
	decideByPauses(tx, op.Tenant)
	body := []any{op.Reason, op.Until, op.For}
	_, err := kernel.UnderKey(tx, op.Tenant, at.action("pause"), op.Key, body, func() (string, error) {
		return "", op.pause(tx, at)
	}, func(string) error {
		row, err := at.row(tx)
		op.Paused = row.QueuePause
		return err
	})
	return err
}

func (op *PausePlace) check(at pausable, now perdure.Instant) error {
	if err := at.check(); err != nil {
		return err
	}
	if err := perdure.CheckText("reason", op.Reason); err != nil {
		return err
	}
	switch {
	case op.Until != 0 && op.For != 0:
		return perdure.Invalid("for", "give either until or for")
	case op.For < 0 || op.For > perdure.MaxPause:
		return perdure.Invalid("for", "lies between 1s and %s; leave it out for a pause without an end",
			perdure.MaxPause)
	case op.Until != 0 && op.Until <= now:
		return perdure.Invalid("until", "has passed")
	case op.Until > now.Add(perdure.MaxPause):
		return perdure.Invalid("until", "lies more than %s ahead; leave it out for a pause without an end",
			perdure.MaxPause)
	}
	return nil
}

func (op *PausePlace) pause(tx *kernel.Tx, at pausable) error {
	row, err := at.row(tx)
	if err != nil {
		return err
	}
	until := op.Until
	if op.For != 0 {
		until = tx.Now.Add(op.For)
	}
	switch holds := row.Holds(tx.Now); {
	case holds && row.Reason == op.Reason && row.Until == until:
		op.Paused = row.QueuePause
		return nil
	case !holds:
		if err := checkPauses(tx, op.Tenant); err != nil {
			return err
		}
		row = store.PauseRow{Tenant: op.Tenant, Queue: op.Queue, Kind: op.Kind}
		row.At = tx.Now
	}
	row.Reason, row.Until = op.Reason, until
	row.By, row.Platform = "", false
	if a := tx.Actor; a != nil && a.Platform {
		row.Platform = true
	} else if a != nil {
		row.By = a.Name
	}
	action := perdure.AuditQueuePause
	if op.Kind == "" {
		err = EnsureQueue(tx, op.Tenant, op.Queue)
	} else {
		action, err = perdure.AuditKindPause, tx.Requires(kernel.PausedKinds)
	}
	if err != nil {
		return err
	}
	op.Paused = row.QueuePause
	if err := putPause(tx, row); err != nil {
		return err
	}
	return tx.Audit(op.Tenant, action, at.name(), "until", row.Until)
}

// A pausable names a queue or a kind of a tenant.
type pausable struct {
	tenant      perdure.TenantID
	queue, kind string
}

func (at pausable) name() string { return cmp.Or(at.kind, at.queue) }

func (at pausable) check() error {
	if at.kind != "" {
		return perdure.CheckName("kind", at.kind)
	}
	return perdure.CheckName("name", at.queue)
}

// action names a call about it for idempotency keys.
func (at pausable) action(verb string) string {
	if at.kind != "" {
		return "kind." + verb + ":" + at.kind
	}
	return "queue." + verb + ":" + at.queue
}

// row gives its pause, which may be over.
func (at pausable) row(tx *kernel.Tx) (row store.PauseRow, err error) {
	if at.kind != "" {
		row, _, err = tx.DB.Pauses.OfKind(at.tenant, at.kind)
	} else {
		row, _, err = tx.DB.Pauses.Get(at.tenant, at.queue)
	}
	return row, err
}

// checkPauses refuses one more pause of a tenant that has as many as it may.
func checkPauses(tx *kernel.Tx, t perdure.TenantID) error {
	list, err := tx.DB.Pauses.Of(t)
	if err == nil && len(list) >= perdure.MaxPauses {
		err = perdure.Errorf(perdure.CodeQuota,
			"%d queues and kinds of this tenant are paused, as many as may be at once", perdure.MaxPauses)
	}
	return err
}

// putPause stages a pause.
func putPause(tx *kernel.Tx, row store.PauseRow) error {
	generation, err := tx.NewID()
	if err != nil {
		return err
	}
	tx.DB.Pauses.Put(row, generation)
	kernel.Touch(tx, row.Tenant)
	return nil
}

// decideByPauses has this node decide by the stored pauses, once the batch is durable.
func decideByPauses(tx *kernel.Tx, t perdure.TenantID) {
	tx.DB.After(func() {
		cachedPauses.Of(tx.Engine).forget()
		// Other lanes may have decided without the change.
		tx.Engine.Store().Outdate(t)
	})
}

// A ResumePlace ends the pause of a queue or a kind. One that is not paused stays as it is. With a Key
// it counts once.
type ResumePlace struct {
	Tenant perdure.TenantID
	// Queue or Kind is what is resumed.
	Queue, Kind string
	Key         string
}

// ResumeQueue is a ResumePlace with a queue.
type ResumeQueue = ResumePlace

func (*ResumePlace) Needs() []store.Ref { return nil }

// Do resumes the queue or kind.
func (op *ResumePlace) Do(tx *kernel.Tx) error {
	at := pausable{op.Tenant, op.Queue, op.Kind}
	if err := at.check(); err != nil {
		return err
	}
	_, err := kernel.UnderKey(tx, op.Tenant, at.action("resume"), op.Key, nil, func() (string, error) {
		return "", op.resume(tx, at)
	}, func(string) error { return nil })
	return err
}

func (op *ResumePlace) resume(tx *kernel.Tx, at pausable) error {
	row, err := at.row(tx)
	if err != nil || !row.Holds(tx.Now) {
		return err
	}
	row.Until = tx.Now
	decideByPauses(tx, op.Tenant)
	if err := putPause(tx, row); err != nil {
		return err
	}
	if op.Kind != "" {
		if err := ringKind(tx, op.Tenant, op.Kind); err != nil {
			return err
		}
		return tx.Audit(op.Tenant, perdure.AuditKindResume, op.Kind)
	}
	if err := ringQueue(tx, op.Tenant, op.Queue); err != nil {
		return err
	}
	return tx.Audit(op.Tenant, perdure.AuditQueueResume, op.Queue)
}

// maxResumeRings bounds the kinds, or the queues, whose polls are woken at once. Polls for others are
// woken by the server's regular look at the queues.
const maxResumeRings = 64

// ringQueue wakes the polls for the kinds of a queue that have claimable runs.
func ringQueue(tx *kernel.Tx, t perdure.TenantID, queue string) error {
	set := store.PlaceSet{Queues: []string{queue}, Key: PlacesKey([]string{queue}, nil)}
	walked, err := tx.DB.Claims.Walk(t, &set, store.Position{}, 1, maxResumeRings)
	if err != nil {
		return err
	}
	var kinds []string
	for _, at := range walked.Places {
		kinds = append(kinds, at.Kind)
	}
	for at := range tx.DB.Claims.Fresh() {
		if at.Tenant == t && at.Queue == queue {
			kinds = append(kinds, at.Kind)
		}
	}
	for _, kind := range slices.Compact(slices.Sorted(slices.Values(kinds))) {
		tx.Ring(doorbell.Queue(t, queue).Of(kind))
	}
	return nil
}

// ringKind wakes the polls for a kind on the tenant's queues.
func ringKind(tx *kernel.Tx, t perdure.TenantID, kind string) error {
	queues, err := tx.DB.Queues.Names(t, maxResumeRings)
	for _, queue := range queues {
		tx.Ring(doorbell.Queue(t, queue).Of(kind))
	}
	return err
}

// pauseCache caches the pauses of tenants.
type pauseCache struct {
	// generation is replaced with every change of any pause. It is read every pauseTTL.
	generation kernel.Cache[struct{}, string]
	// tenants has the pauses of tenants as of a generation.
	tenants kernel.Cache[perdure.TenantID, pausesAt]
}

var cachedPauses = kernel.NewPart(func(*kernel.Engine) *pauseCache {
	c := &pauseCache{}
	c.generation.TTL = pauseTTL
	return c
})

// pausesAt are the pauses of a tenant as of a generation.
type pausesAt struct {
	generation string
	pauses     Pauses
}

// Pauses are the pauses of a tenant, by the names of queues and kinds. Some may be over.
type Pauses struct{ Queues, Kinds map[string]perdure.QueuePause }

// On gives the pause of a queue, or nil.
func (p *Pauses) On(queue string, now perdure.Instant) *perdure.QueuePause {
	return holds(p.Queues, queue, now)
}

// OfKind gives the pause of a kind, or nil.
func (p *Pauses) OfKind(kind string, now perdure.Instant) *perdure.QueuePause {
	return holds(p.Kinds, kind, now)
}

func holds(of map[string]perdure.QueuePause, name string, now perdure.Instant) *perdure.QueuePause {
	if x, ok := of[name]; ok && x.Holds(now) {
		return &x
	}
	return nil
}

// forget has the next claim ask the store.
func (c *pauseCache) forget() {
	c.generation.Forget()
	c.tenants.Forget()
}

// of gives the pauses of a tenant, as of the last pauseTTL.
func (c *pauseCache) of(db *store.Records, at kernel.Look, t perdure.TenantID) (p Pauses, err error) {
	// The generation is read before the rows: rows that are newer are read again later.
	generation, ok := c.generation.Peek(at, struct{}{})
	if !ok {
		if generation, err = c.generation.Load(at, struct{}{}, db.Pauses.Generation); err != nil {
			return p, err
		}
	}
	if generation == "" {
		return p, nil
	}
	known, ok := c.tenants.Peek(at, t)
	if ok && (known.generation == generation || plant.Is("pause-not-read-again")) {
		return known.pauses, nil
	}
	known, err = c.tenants.Load(at, t, func() (pausesAt, error) {
		pauses, err := PausedNow(db, t)
		return pausesAt{generation, pauses}, err
	})
	return known.pauses, err
}

// PausedIn gives the pauses of a tenant.
func PausedIn(tx *kernel.Tx, t perdure.TenantID) (Pauses, error) {
	tx.DB.DependsOn(t)
	if tx.DB.Pauses.Staged() { // an earlier operation of the batch has changed some
		return PausedNow(&tx.DB.Records, t)
	}
	return cachedPauses.Of(tx.Engine).of(&tx.DB.Records, kernel.LookOf(tx), t)
}

// PausedNow reads the pauses of a tenant that hold now.
func PausedNow(db *store.Records, t perdure.TenantID) (p Pauses, err error) {
	list, err := db.Pauses.Of(t)
	for i := range list {
		x := &list[i]
		of, name := &p.Queues, x.Queue
		if x.Kind != "" {
			of, name = &p.Kinds, x.Kind
		}
		if *of == nil {
			*of = make(map[string]perdure.QueuePause)
		}
		(*of)[name] = x.QueuePause
	}
	return p, err
}

// PausesOf gives the pauses of a tenant to a reader.
func PausesOf(e *kernel.Engine, db *store.Records, at kernel.Look, t perdure.TenantID) (Pauses, error) {
	return cachedPauses.Of(e).of(db, at, t)
}
