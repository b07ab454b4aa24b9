package engine

import (
	"context"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// Redrive makes a new run of a dead letter. A letter is redriven once; asking again gives the same run, and with the
// same Key so it does when the letter is gone.
type Redrive struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Resign bool // somebody vouches for the run, although its signature is not valid
	Key    string

	Run     perdure.Run
	Created bool
}

func (op *Redrive) Needs() []store.Ref { return refs(op.Tenant, op.RunID) }

// Do redrives.
func (op *Redrive) Do(tx *Tx) error {
	op.Created = false
	_, err := underKey(tx, op.Tenant, "redrive:"+string(op.RunID), op.Key, op.Resign, func() (string, error) {
		err := op.redrive(tx)
		return string(op.Run.ID), err
	}, func(id string) (err error) {
		op.Run, err = tx.run(op.Tenant, perdure.RunID(id))
		return err
	})
	return err
}

func (op *Redrive) redrive(tx *Tx) error {
	orig, found, err := tx.DB.Runs.Get(op.Tenant, op.RunID) // before its letter: see the end
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
	if d.RedrivenBy != "" { // unless that one was deleted
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
	if op.Run, err = repeatRun(tx, &orig); err != nil {
		return err
	}
	op.Created = true
	d.RedrivenBy = op.Run.ID
	tx.DB.DeadLetters.Put(d)
	if err := tx.audit(op.Tenant, perdure.AuditLetterRedrive, string(op.RunID), "redriven_by", string(op.Run.ID)); err != nil {
		return err
	}
	// The original's row guards the letter: two who redrive at once make one run.
	return tx.Apply(&orig, perdure.Repeated{})
}

// checkResign refuses to sign what nobody stands up for: a run whose signature is not valid, unless it is to be signed anew.
func (op *Redrive) checkResign(tx *Tx, orig *perdure.Run) error {
	if op.Resign {
		if tx.e.signer == nil {
			return perdure.Errorf(perdure.CodeNoSigner, "this server has no key to sign with: redrive it where there is one, or without resign if nothing of the tenant has to be signed")
		}
		return nil
	}
	return mayRepeat(tx, orig)
}

// DropDeadLetter discards a dead letter; its run and its history stay. With a Key, saying it again is no error.
type DropDeadLetter struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Key    string
}

func (op *DropDeadLetter) Needs() []store.Ref { return nil }

// Do discards.
func (op *DropDeadLetter) Do(tx *Tx) error {
	_, err := underKey(tx, op.Tenant, "drop:"+string(op.RunID), op.Key, nil, func() (string, error) {
		_, ok, err := tx.DB.DeadLetters.Get(op.Tenant, op.RunID)
		if err == nil && !ok {
			err = notFound("dead letter")
		}
		if err == nil {
			tx.DB.DeadLetters.Drop(op.Tenant, op.RunID)
			err = tx.audit(op.Tenant, perdure.AuditLetterDiscard, string(op.RunID))
		}
		return "", err
	}, func(string) error { return nil })
	return err
}

// PickLetters says which dead letters a call is about: those that are named, or the oldest that a filter chooses. Under a
// Key it is the same ones each time, so that a call whose answer was lost does not go on to the next.
type PickLetters struct {
	Tenant perdure.TenantID
	What   string          // what is to be done with them: a key counts for that alone
	IDs    []perdure.RunID // the letters that the caller named
	Found  []perdure.RunID // or those that a filter found, see FindLetters
	Asked  any             // the whole request, by which a repeated key is told from a reused one
	Key    string

	Picked []perdure.RunID
	Again  bool // the key was known
}

func (*PickLetters) Needs() []store.Ref { return nil }

// Do picks.
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

// A LetterFilter chooses dead letters; see the store's.
type LetterFilter = store.LetterFilter

// Find names the dead letters that match a filter. It reads before PickLetters is in its lane: a filter that
// matches few of very many letters reads for long, and nobody else's writes wait for that.
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

// Page reads a page of a tenant's dead letters. next is its cursor if there may be more.
func (q DeadLetters) Page(
	ctx context.Context, t perdure.TenantID, f LetterFilter,
) (list []perdure.DeadLetter, next perdure.RunID, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		list, next, err = v.DeadLetters.Page(t, f)
		return err
	})
	return list, next, err
}

// A LetterGroup is the dead letters of a kind that have the same cause; see the store's.
type LetterGroup = store.LetterGroup

// Groups counts a tenant's dead letters by cause and kind, the largest groups first.
func (q DeadLetters) Groups(ctx context.Context, t perdure.TenantID, f LetterFilter) (list []LetterGroup, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		list, err = v.DeadLetters.Groups(t, f)
		return err
	})
	return list, err
}

// A Letter is a dead letter and what led to it.
type Letter struct {
	perdure.DeadLetter
	Run    perdure.Run // without its input, where that is kept by reference
	Kept   bool        // the run is still there
	Parent perdure.Run
	// ParentChangedAt is when something last happened to the parent.
	ParentChangedAt perdure.Instant
	Attempts        []perdure.Attempt
	Events          []perdure.Line // the last of its log
}

// How much a letter tells.
const (
	letterEvents   = 20
	letterAttempts = 50
	letterLines    = 1000
)

// Get reads a dead letter and what led to it.
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
