package engine

import (
	"context"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
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

func (op *Redrive) Needs() []store.Ref { return refs(op.Tenant, op.RunID) }

// Do creates the new run.
func (op *Redrive) Do(tx *Tx) error {
	op.Created = false
	var body any = op.Resign // as in keys from before From
	if op.From != "" {
		body = [2]any{op.Resign, op.From}
	}
	_, err := underKey(tx, op.Tenant, "redrive:"+string(op.RunID), op.Key, body, func() (string, error) {
		err := op.redrive(tx)
		return string(op.Run.ID), err
	}, func(id string) (err error) {
		op.Run, err = tx.run(op.Tenant, perdure.RunID(id))
		return err
	})
	return err
}

// redrive creates the new run and marks the letter.
func (op *Redrive) redrive(tx *Tx) error {
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
		return notFound("dead letter")
	}
	// The letter may be redriven again if the run that it led to was deleted.
	if d.RedrivenBy != "" {
		var kept bool
		if op.Run, kept, err = tx.DB.Runs.Get(op.Tenant, d.RedrivenBy); err != nil || kept {
			return err
		}
	}
	if !found {
		return notFound("run")
	}
	if err := op.checkResign(tx, &orig); err != nil {
		return err
	}
	if err := checkTakers(&orig, false); err != nil {
		return err
	}
	if op.Run, err = repeatRun(tx, &orig, op.From); err != nil {
		return err
	}
	op.Created = true
	d.RedrivenBy = op.Run.ID
	tx.DB.DeadLetters.Put(d)
	err = tx.audit(op.Tenant, perdure.AuditLetterRedrive, string(op.RunID), "redriven_by", string(op.Run.ID))
	if err != nil {
		return err
	}
	// Two redrives at once both write the original's row. One of them conflicts, is decided again
	// and finds the other's run.
	return tx.Apply(&orig, perdure.Repeated{})
}

// checkResign refuses to redrive a run whose signature is not valid, unless Resign is set and there
// is a key to sign with.
func (op *Redrive) checkResign(tx *Tx, orig *perdure.Run) error {
	if op.Resign {
		if tx.e.signer == nil {
			return perdure.Errorf(perdure.CodeNoSigner,
				"this server has no key to sign with: redrive it where there is one, "+
					"or without resign if nothing of the tenant has to be signed")
		}
		return nil
	}
	return mayRepeat(tx, orig)
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
func (op *DropDeadLetter) Do(tx *Tx) error {
	_, err := underKey(tx, op.Tenant, "drop:"+string(op.RunID), op.Key, nil, func() (string, error) {
		_, ok, err := tx.DB.DeadLetters.Get(op.Tenant, op.RunID)
		if err == nil && !ok {
			err = notFound("dead letter")
		}
		if err == nil {
			tx.DB.DeadLetters.Drop(op.Tenant, op.RunID)
			touch(tx, op.Tenant)
			err = tx.audit(op.Tenant, perdure.AuditLetterDiscard, string(op.RunID))
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
	// What is the action on the letters. A key counts for this action alone.
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
func (op *PickLetters) Do(tx *Tx) error {
	op.Picked = op.IDs
	created, err := underKey(tx, op.Tenant, op.What, op.Key, op.Asked, func() (string, error) {
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

// A LetterFilter selects dead letters; see the store's.
type LetterFilter = store.LetterFilter

// Find names the dead letters that match a filter. It runs before PickLetters, outside of the lane:
// a filter that matches few of very many letters reads for long, and would hold up writes.
func (q DeadLetters) Find(ctx context.Context, t perdure.TenantID, f LetterFilter) (ids []perdure.RunID, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		list, err := v.DeadLetters.List(t, f)
		for i := range list {
			ids = append(ids, list[i].RunID)
		}
		return err
	})
	return ids, err
}

// Page reads a page of a tenant's dead letters. next is the cursor of the next page if there may be
// one.
func (q DeadLetters) Page(
	ctx context.Context, t perdure.TenantID, f LetterFilter,
) (list []perdure.DeadLetter, next perdure.RunID, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		list, next, err = v.DeadLetters.Page(t, f)
		return err
	})
	return list, next, err
}

// A LetterGroup counts the dead letters of one kind and cause; see the store's.
type LetterGroup = store.LetterGroup

// Groups counts a tenant's dead letters by cause and kind, the largest groups first.
func (q DeadLetters) Groups(ctx context.Context, t perdure.TenantID, f LetterFilter) (list []LetterGroup, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		list, err = v.DeadLetters.Groups(t, f)
		return err
	})
	return list, err
}

// A Letter is a dead letter together with its run, its attempts and the end of its log.
type Letter struct {
	perdure.DeadLetter
	// Run lacks its input if that is stored by reference.
	Run perdure.Run
	// Kept is set if the run still exists.
	Kept   bool
	Parent perdure.Run
	// ParentChangedAt is when something last happened to the parent.
	ParentChangedAt perdure.Instant
	Attempts        []perdure.Attempt
	// Events are the last lines of the run's log.
	Events []perdure.Line
}

// These bound the events and attempts of a Letter, and the log lines that are read for them.
const (
	letterEvents   = 20
	letterAttempts = 50
	letterLines    = 1000
)

// Get reads a dead letter with its run, its attempts and the end of its log.
func (q DeadLetters) Get(ctx context.Context, t perdure.TenantID, id perdure.RunID) (l Letter, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		var ok bool
		if l.DeadLetter, ok, err = v.DeadLetters.Get(t, id); err != nil {
			return err
		}
		if !ok {
			return notFound("dead letter")
		}
		if l.Run, l.Kept, err = v.Runs.Get(t, id); err != nil || !l.Kept {
			return err
		}
		if l.Run.ParentID != "" {
			if l.Parent, ok, err = v.Runs.Get(t, l.Run.ParentID); err == nil && ok {
				l.ParentChangedAt, err = v.Runs.ChangedAt(&l.Parent)
			}
			if err != nil {
				return err
			}
		}
		lines, err := v.Events.OfTypes(t, id, perdure.AttemptLines, letterLines)
		if err != nil {
			return err
		}
		l.Attempts = perdure.Attempts(lines)
		l.Attempts = l.Attempts[max(0, len(l.Attempts)-letterAttempts):]
		l.Events, err = v.Events.After(t, id, max(0, l.Run.Seq-letterEvents), letterEvents)
		return err
	})
	return l, err
}
