package kernel

import (
	"context"
	"log/slog"
	"slices"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/plant"
	"github.com/perdure/perdure/internal/server/store"
)

// afterCommit runs once the batch is durable. It rings the doorbells, wakes the watchdog for an
// alarm that it would sleep through, calls the wings, and counts changes.
func (tx *Tx) afterCommit() {
	for _, t := range tx.rings {
		tx.Engine.bell.Ring(t)
	}
	for _, t := range tx.touched {
		tx.Engine.bell.Ring(doorbell.Run(t, AnyRun))
	}
	if len(tx.touched) > 0 {
		tx.Engine.bell.Ring(doorbell.Run(AllTenants, AnyRun))
	}
	for _, t := range tx.ready {
		if tx.ringsReady(t) {
			tx.Engine.bell.Ring(t)
		}
	}
	if tx.alarm != 0 && int64(tx.alarm) < tx.Engine.sleepUntil.Load() {
		tx.Engine.wake()
	}
	for _, f := range tx.Engine.hooks.durable {
		f(tx)
	}
	if len(tx.observed) > 0 {
		tx.Engine.observer.Observe(tx.observed)
	}
}

// AnyReady tells whether a run became claimable.
func (tx *Tx) AnyReady() bool { return len(tx.ready) > 0 }

// ringsReady tells whether the doorbell of a run that became claimable has to ring.
func (tx *Tx) ringsReady(t doorbell.Topic) bool {
	for _, f := range tx.Engine.hooks.rings {
		if !f(tx, t) {
			return false
		}
	}
	return true
}

// Policy gives the timeouts and limits to decide by.
func (tx *Tx) Policy() *perdure.Policy { return &tx.Engine.policy }

// Roll gives a random number from 0 to 1, for the jitter of backoffs.
func (tx *Tx) Roll() float64 { return tx.Engine.roll() }

// Apply has the transition table decide about an event and stages the result: the run and its log
// lines. Then it calls the hooks of the wings: webhooks are notified, and the minute is counted. Afterwards
// r is the new version of the run. It refuses a copy of the run that is older than the staged one.
func (tx *Tx) Apply(r *perdure.Run, ev perdure.Event) error {
	if v, ok := tx.DB.Runs.Staged(r.Tenant, r.ID); ok && v != r.Version {
		return perdure.Errorf(perdure.CodeInternal, "%s on an outdated copy of the run: version %d, not %d",
			perdure.EventName(ev), r.Version, v)
	}
	before := *r
	lines, err := tx.Engine.policyAbove(tx.DB.EpochFloor()).Change(r, ev, tx.Now)
	if err != nil {
		return err
	}
	if plant.Is("alarm-left-out") && r.State == perdure.Running {
		r.AlarmAt = r.DeadlineAt
	}
	tx.DB.Runs.Put(*r, lines)
	if tx.Engine.observer != nil {
		tx.observe(r, ev, lines)
	}
	for _, f := range tx.Engine.hooks.applied {
		if err := f(tx, &before, r, lines); err != nil {
			return err
		}
	}
	if ready := r.Ready && r.State.Live(); ready {
		tx.ready = append(tx.ready, doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	}
	tx.WakeAt(r.AlarmAt)
	if len(lines) > 0 {
		tx.Ring(doorbell.Run(r.Tenant, string(r.ID)))
		Touch(tx, r.Tenant)
	}
	if from := before.State; from != r.State && tx.Engine.Log.Enabled(context.Background(), slog.LevelDebug) {
		next := *r
		tx.DB.After(func() {
			tx.Engine.Log.Debug("run", "tenant", next.Tenant, "run", next.ID, "event", perdure.EventName(ev),
				"from", from, "to", next.State,
				"epoch", next.Epoch, "attempt", next.Attempt)
		})
	}
	return nil
}

// WakeAt has the watchdog awake for an alarm. Zero: there is none.
func (tx *Tx) WakeAt(at perdure.Instant) {
	if at != 0 && (tx.alarm == 0 || at < tx.alarm) {
		tx.alarm = at
	}
}

// Ring rings a topic once the batch is durable.
func (tx *Tx) Ring(t doorbell.Topic) { tx.rings = append(tx.rings, t) }

// NewID makes an id. Ids of a process sort by the time that they were made.
func (tx *Tx) NewID() (string, error) {
	return perdure.NewID(tx.Now, tx.Engine.ids.Add(1), tx.Engine.Random)
}

// Run reads a run. If there is none, the error is CodeNotFound.
func (tx *Tx) Run(t perdure.TenantID, id perdure.RunID) (perdure.Run, error) {
	r, ok, err := tx.DB.Runs.Get(t, id)
	if err == nil && !ok {
		err = NotFound("run")
	}
	return r, err
}

func NotFound(what string) error { return perdure.Errorf(perdure.CodeNotFound, "no such %s", what) }

func Refs(t perdure.TenantID, ids ...perdure.RunID) []store.Ref {
	out := make([]store.Ref, len(ids))
	for i, id := range ids {
		out[i] = store.Ref{Tenant: t, Run: id}
	}
	return out
}

// EnsureStored calls stage unless the row with this key is known to be stored. It remembers the key
// once the batch is durable.
func (tx *Tx) EnsureStored(key string, stage func() error) error {
	if floor := tx.DB.EpochFloor(); floor != 0 { // rows that a replaced server has stored may be lost
		key = strconv.FormatInt(floor, 36) + " " + key
	}
	if _, known := tx.Engine.storedKeys.Peek(Look{Now: tx.Now}, key); known {
		return nil
	}
	if err := stage(); err != nil {
		return err
	}
	tx.DB.After(func() { tx.Engine.storedKeys.Put(tx.Now, key, struct{}{}) })
	return nil
}

// Touch rings for the watchers of a tenant once the batch is durable.
func Touch(tx *Tx, t perdure.TenantID) {
	if !slices.Contains(tx.touched, t) {
		tx.touched = append(tx.touched, t)
	}
}

func LookOf(tx *Tx) Look { return Look{Now: tx.Now, number: tx.DB.Number, again: tx.DB.Again} }
