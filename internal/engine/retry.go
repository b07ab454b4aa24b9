package engine

import (
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// Retry makes a new run of an ended one: same input, new deadline, no parent. The original stays as
// it is. The new run's result becomes a late result of the original. With a Key it is idempotent.
type Retry struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Key    string

	Run     perdure.Run
	Created bool
}

func (op *Retry) Needs() []store.Ref { return refs(op.Tenant, op.RunID) }

// Do creates the new run.
func (op *Retry) Do(tx *Tx) error {
	op.Created = false
	orig, err := tx.run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	key := "retry:" + string(op.RunID) + ":" + op.Key
	if op.Key != "" {
		known, ok, err := tx.DB.Idempotency.Get(op.Tenant, key)
		if err != nil {
			return err
		}
		if ok {
			op.Run, err = tx.run(op.Tenant, perdure.RunID(known.Ref))
			return err
		}
	}
	if orig.State.Live() {
		return perdure.Errorf(perdure.CodeWrongState, "the run is %s: wait for it, or cancel it first", orig.State)
	}
	if err := mayRepeat(tx, &orig); err != nil {
		return err
	}
	if op.Run, err = repeatRun(tx, &orig); err != nil {
		return err
	}
	op.Created = true
	if op.Key != "" {
		tx.DB.Idempotency.Put(store.KeyRow{Tenant: op.Tenant, Key: key, Ref: string(op.Run.ID),
			ExpiresAt: tx.Now.Add(tx.e.policy.IdempotencyTTL)})
	}
	// Writing the original's row makes this conflict with an operation that removes the original.
	return tx.Apply(&orig, perdure.Repeated{})
}

// repeatRun creates a new run with the input of an ended one.
func repeatRun(tx *Tx, orig *perdure.Run) (perdure.Run, error) {
	input, err := tx.DB.Values.Resolve(orig.Tenant, orig.Input)
	if err != nil {
		return perdure.Run{}, err
	}
	r := perdure.Run{
		Tenant: orig.Tenant, Kind: orig.Kind, Class: orig.Class, Queue: orig.Queue, Priority: orig.Priority,
		ThreadID: orig.ThreadID,
		RetryOf:  orig.ID, MaxAttempts: orig.MaxAttempts, Metadata: orig.Metadata,
		Options: perdure.Options{Timeout: orig.Options.Timeout, Process: orig.Options.Process,
			Webhook:      orig.Options.Webhook,
			WebhookLines: orig.Options.WebhookLines},
	}
	err = acceptRun(tx, &r, json.RawMessage(input), nil, nil, perdure.MultitaskEnqueue)
	return r, err
}
