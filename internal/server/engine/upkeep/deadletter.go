package upkeep

import (
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
)

// Redrive makes a new run of a dead letter. A letter is redriven once: repeating the call gives the
// same run. With a Key this holds even after the letter is gone.
type Redrive struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	// Resign redrives a run whose signature is not valid, and signs the new run. The caller vouches
	// for it.
	Resign bool
	// From says with which part of the original's journal the new run begins; see resolveFrom.
	From string
	Key  string

	Run     perdure.Run
	Created bool
}

func (op *Redrive) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do creates the new run.
func (op *Redrive) Do(tx *kernel.Tx) error {
	op.Created = false
	var body any = op.Resign // as in keys from before From
	if op.From != "" {
		body = [2]any{op.Resign, op.From}
	}
	_, err := kernel.UnderKey(tx, op.Tenant, "redrive:"+string(op.RunID), op.Key, body, func() (string, error) {
		err := op.redrive(tx)
		return string(op.Run.ID), err
	}, func(id string) (err error) {
		op.Run, err = tx.Run(op.Tenant, perdure.RunID(id))
		return err
	})
	return err
}

// redrive creates the new run and marks the letter.
func (op *Redrive) redrive(tx *kernel.Tx) error {
	// The original is read before its letter, and written last: its version guards the letter.
	orig, found, err := tx.DB.Runs.Get(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	d, ok, err := tx.DB.DeadLetters.Get(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	if !ok {
		return kernel.NotFound("dead letter")
	}
	// The letter may be redriven again if the run that it led to was deleted.
	if d.RedrivenBy != "" {
		var kept bool
		if op.Run, kept, err = tx.DB.Runs.Get(op.Tenant, d.RedrivenBy); err != nil || kept {
			return err
		}
	}
	if !found {
		return kernel.NotFound("run")
	}
	if err := op.checkResign(tx, &orig); err != nil {
		return err
	}
	if err := life.CheckTakers(&orig, false); err != nil {
		return err
	}
	if op.Run, err = life.RepeatRun(tx, &orig, op.From); err != nil {
		return err
	}
	op.Created = true
	d.RedrivenBy = op.Run.ID
	tx.DB.DeadLetters.Put(d)
	err = tx.Audit(op.Tenant, perdure.AuditLetterRedrive, string(op.RunID), "redriven_by", string(op.Run.ID))
	if err != nil {
		return err
	}
	// Two redrives at once both write the original's row. One of them conflicts, is decided again
	// and finds the other's run.
	return tx.Apply(&orig, perdure.Repeated{})
}

// checkResign refuses to redrive a run whose signature is not valid, unless Resign is set and there
// is a key to sign with.
func (op *Redrive) checkResign(tx *kernel.Tx, orig *perdure.Run) error {
	if op.Resign {
		if rules.Signer(tx.Engine) == nil {
			return perdure.Errorf(perdure.CodeNoSigner,
				"this server has no key to sign with: redrive it where there is one, "+
					"or without resign if nothing of the tenant has to be signed")
		}
		return nil
	}
	return rules.MayRepeat(tx, orig)
}

// DropDeadLetter discards a dead letter. Its run and the run's log stay. With a Key, repeating it
// is no error.
type DropDeadLetter struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Key    string
}

func (op *DropDeadLetter) Needs() []store.Ref { return nil }

// Do discards the letter.
func (op *DropDeadLetter) Do(tx *kernel.Tx) error {
	_, err := kernel.UnderKey(tx, op.Tenant, "drop:"+string(op.RunID), op.Key, nil, func() (string, error) {
		_, ok, err := tx.DB.DeadLetters.Get(op.Tenant, op.RunID)
		if err == nil && !ok {
			err = kernel.NotFound("dead letter")
		}
		if err == nil {
			tx.DB.DeadLetters.Drop(op.Tenant, op.RunID)
			kernel.Touch(tx, op.Tenant)
			err = tx.Audit(op.Tenant, perdure.AuditLetterDiscard, string(op.RunID))
		}
		return "", err
	}, func(string) error { return nil })
	return err
}

// PickLetters selects the dead letters of a bulk call: those that are named, or the oldest that a
// filter finds. A repeated call with the same Key selects the same letters, so that a lost answer
// does not make it continue with the next ones.
type PickLetters struct {
	Tenant perdure.TenantID
	// The action on the letters. An idempotency key counts for this action alone.
	What string
	// IDs are the letters that the caller named.
	IDs []perdure.RunID
	// Found are the letters that a filter found; see DeadLetters.Find.
	Found []perdure.RunID
	// Asked is the whole request. It tells a repeated call from a reused key.
	Asked any
	Key   string

	Picked []perdure.RunID
	// Again is set if the key was known.
	Again bool
}

func (*PickLetters) Needs() []store.Ref { return nil }

// Do selects the letters.
func (op *PickLetters) Do(tx *kernel.Tx) error {
	op.Picked = op.IDs
	created, err := kernel.UnderKey(tx, op.Tenant, op.What, op.Key, op.Asked, func() (string, error) {
		if len(op.IDs) > 0 {
			return "", nil
		}
		op.Picked = op.Found
		ids := make([]string, len(op.Found))
		for i, id := range op.Found {
			ids[i] = string(id)
		}
		return strings.Join(ids, " "), nil
	}, func(ids string) error {
		for id := range strings.FieldsSeq(ids) {
			op.Picked = append(op.Picked, perdure.RunID(id))
		}
		return nil
	})
	op.Again = !created
	return err
}

// Weight counts the entries that are copied at once.
func (op *Redrive) Weight() (rows, bytes int) { return life.WeighRetry(op.From) }
