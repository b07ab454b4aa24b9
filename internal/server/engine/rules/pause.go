package rules

import (
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/plant"
	"github.com/perdure/perdure/internal/server/store"
)

// Paused queues.
//
// A paused queue accepts runs, and workers keep those that they hold. Nothing is granted from it, by
// any way: polls, polls by run ids, polls for all tenants, and grants to polls that stand by. The
// clocks of its runs go on; only the alert about a run that nobody takes waits for the end.
//
// Every claim needs the paused queues of its tenant, and almost never there are any. Each node caches
// them. It asks the store every pauseTTL whether any pause has changed; that is one row, which is
// missing until a queue was paused for the first time. If one has, the pauses of a tenant are read
// again when they are needed.
//
// A change on this node counts at once: decisions of other lanes that lack it are made again.
// Another node stops granting after pauseTTL. Decisions that it has made before are written within
// store.MaxAge or decided again.

// pauseTTL is how long a node uses the paused queues without asking whether they have changed.
const pauseTTL = 100 * time.Millisecond

// PauseKept is how long the row of a pause that is over is kept.
const PauseKept = time.Hour

// PauseDelay bounds the time after which no node grants from a queue that was paused.
const PauseDelay = pauseTTL + store.MaxAge

// PauseQueue stops all grants from a queue. A queue that is paused keeps the time of its pause, and
// gets the new reason and end. With a Key it counts once.
type PauseQueue struct {
	Tenant perdure.TenantID
	Queue  string
	Reason string
	// Until or For is the end, if there is one.
	Until perdure.Instant
	For   time.Duration
	Key   string

	Paused perdure.QueuePause
}

func (*PauseQueue) Needs() []store.Ref { return nil }

// Do pauses the queue.
func (op *PauseQueue) Do(tx *kernel.Tx) error {
	if err := op.check(tx.Now); err != nil {
		return err
	}
	// Also when another node has made this pause: its answer says that it counts.
	decideByPauses(tx, op.Tenant)
	body := []any{op.Reason, op.Until, op.For}
	_, err := kernel.UnderKey(tx, op.Tenant, "queue.pause:"+op.Queue, op.Key, body, func() (string, error) {
		return "", op.pause(tx)
	}, func(string) error {
		row, _, err := tx.DB.Pauses.Get(op.Tenant, op.Queue)
		op.Paused = row.QueuePause
		return err
	})
	return err
}

func (op *PauseQueue) check(now perdure.Instant) error {
	if err := perdure.CheckName("name", op.Queue); err != nil {
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

func (op *PauseQueue) pause(tx *kernel.Tx) error {
	row, _, err := tx.DB.Pauses.Get(op.Tenant, op.Queue)
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
		row = store.PauseRow{Tenant: op.Tenant, Queue: op.Queue}
		row.At = tx.Now
	}
	row.Reason, row.Until = op.Reason, until
	row.By, row.Platform = "", false
	if a := tx.Actor; a != nil && a.Platform {
		row.Platform = true
	} else if a != nil {
		row.By = a.Name
	}
	if err := EnsureQueue(tx, op.Tenant, op.Queue); err != nil {
		return err
	}
	op.Paused = row.QueuePause
	if err := putPause(tx, row); err != nil {
		return err
	}
	return tx.Audit(op.Tenant, perdure.AuditQueuePause, op.Queue, "until", row.Until)
}

// checkPauses refuses one more paused queue of a tenant that has as many as it may.
func checkPauses(tx *kernel.Tx, t perdure.TenantID) error {
	list, err := tx.DB.Pauses.Of(t)
	if err == nil && len(list) >= perdure.MaxPausedQueues {
		err = perdure.Errorf(perdure.CodeQuota, "%d queues of this tenant are paused, as many as may be at once",
			perdure.MaxPausedQueues)
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

// ResumeQueue ends the pause of a queue. One that is not paused stays as it is. With a Key it counts
// once.
type ResumeQueue struct {
	Tenant perdure.TenantID
	Queue  string
	Key    string
}

func (*ResumeQueue) Needs() []store.Ref { return nil }

// Do resumes the queue.
func (op *ResumeQueue) Do(tx *kernel.Tx) error {
	if err := perdure.CheckName("name", op.Queue); err != nil {
		return err
	}
	_, err := kernel.UnderKey(tx, op.Tenant, "queue.resume:"+op.Queue, op.Key, nil, func() (string, error) {
		return "", op.resume(tx)
	}, func(string) error { return nil })
	return err
}

// maxResumeRings bounds the kinds whose polls are woken at once. Polls for others are woken by the
// server's regular look at the queues.
const maxResumeRings = 64

func (op *ResumeQueue) resume(tx *kernel.Tx) error {
	row, _, err := tx.DB.Pauses.Get(op.Tenant, op.Queue)
	if err != nil || !row.Holds(tx.Now) {
		return err
	}
	row.Until = tx.Now
	decideByPauses(tx, op.Tenant)
	if err := putPause(tx, row); err != nil {
		return err
	}
	set := store.PlaceSet{Queues: []string{op.Queue}, Key: PlacesKey([]string{op.Queue}, nil)}
	walked, err := tx.DB.Claims.Walk(op.Tenant, &set, store.Position{}, 1, maxResumeRings)
	if err != nil {
		return err
	}
	var kinds []string
	for _, at := range walked.Places {
		kinds = append(kinds, at.Kind)
	}
	for at := range tx.DB.Claims.Fresh() {
		if at.Tenant == op.Tenant && at.Queue == op.Queue {
			kinds = append(kinds, at.Kind)
		}
	}
	for _, kind := range slices.Compact(slices.Sorted(slices.Values(kinds))) {
		tx.Ring(doorbell.Queue(op.Tenant, op.Queue).Of(kind))
	}
	return tx.Audit(op.Tenant, perdure.AuditQueueResume, op.Queue)
}

// pauseCache caches the paused queues of tenants.
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
	queues     PausedQueues
}

// PausedQueues are the pauses of a tenant, by queue. Some may be over.
type PausedQueues map[string]perdure.QueuePause

// On gives the pause of a queue, or nil.
func (p PausedQueues) On(queue string, now perdure.Instant) *perdure.QueuePause {
	if x, ok := p[queue]; ok && x.Holds(now) {
		return &x
	}
	return nil
}

// forget has the next claim ask the store.
func (c *pauseCache) forget() {
	c.generation.Forget()
	c.tenants.Forget()
}

// of gives the paused queues of a tenant, as of the last pauseTTL.
func (c *pauseCache) of(db *store.Records, at kernel.Look, t perdure.TenantID) (PausedQueues, error) {
	// The generation is read before the rows: rows that are newer are read again later.
	generation, ok := c.generation.Peek(at, struct{}{})
	if !ok {
		var err error
		if generation, err = c.generation.Load(at, struct{}{}, db.Pauses.Generation); err != nil {
			return nil, err
		}
	}
	if generation == "" {
		return nil, nil
	}
	known, ok := c.tenants.Peek(at, t)
	if ok && (known.generation == generation || plant.Is("pause-not-read-again")) {
		return known.queues, nil
	}
	known, err := c.tenants.Load(at, t, func() (pausesAt, error) {
		queues, err := PausedNow(db, t)
		return pausesAt{generation, queues}, err
	})
	return known.queues, err
}

// PausedIn gives the paused queues of a tenant.
func PausedIn(tx *kernel.Tx, t perdure.TenantID) (PausedQueues, error) {
	tx.DB.DependsOn(t)
	if tx.DB.Pauses.Staged() { // an earlier operation of the batch has changed some
		return PausedNow(&tx.DB.Records, t)
	}
	return cachedPauses.Of(tx.Engine).of(&tx.DB.Records, kernel.LookOf(tx), t)
}

// PausedNow reads the pauses of a tenant that hold now.
func PausedNow(db *store.Records, t perdure.TenantID) (PausedQueues, error) {
	list, err := db.Pauses.Of(t)
	if len(list) == 0 {
		return nil, err
	}
	out := make(PausedQueues, len(list))
	for i := range list {
		out[list[i].Queue] = list[i].QueuePause
	}
	return out, err
}

// PausesOf gives the paused queues of a tenant to a reader.
func PausesOf(e *kernel.Engine, db *store.Records, at kernel.Look, t perdure.TenantID) (PausedQueues, error) {
	return cachedPauses.Of(e).of(db, at, t)
}
