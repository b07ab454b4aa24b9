package reads

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// DeadLetters reads dead letters.
type DeadLetters struct{ e *kernel.Engine }

// A LetterFilter selects dead letters; see the store's.
type LetterFilter = store.LetterFilter

// Find names the dead letters that match a filter. It runs before PickLetters, outside of the lane:
// a filter that matches few of very many letters reads for long, and would hold up writes.
func (q DeadLetters) Find(ctx context.Context, t perdure.TenantID, f LetterFilter) (ids []perdure.RunID, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
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
	err = q.e.Store().View(ctx, func(v *store.View) error {
		list, next, err = v.DeadLetters.Page(t, f)
		return err
	})
	return list, next, err
}

// A LetterGroup counts the dead letters of one kind and cause; see the store's.
type LetterGroup = store.LetterGroup

// Groups counts a tenant's dead letters by cause and kind, the largest groups first.
func (q DeadLetters) Groups(ctx context.Context, t perdure.TenantID, f LetterFilter) (list []LetterGroup, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
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

// Get reads a dead letter with its run, its attempts and the end of its log.
func (q DeadLetters) Get(ctx context.Context, t perdure.TenantID, id perdure.RunID) (l Letter, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		var ok bool
		if l.DeadLetter, ok, err = v.DeadLetters.Get(t, id); err != nil {
			return err
		}
		if !ok {
			return kernel.NotFound("dead letter")
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

// These bound the events and attempts of a Letter, and the log lines that are read for them.
const (
	letterEvents   = 20
	letterAttempts = 50
	letterLines    = 1000
)
