package life

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// A run that completes may go on as a new one, with an empty journal: continue_with of its outcome. The
// new run is a continuation like others. It differs in four ways. Its input is the one that the outcome
// names. The run needs no thread. The signals and messages that nobody has taken go with it, because
// their senders can't know that the run was about to end. And it is the root of a tree of its own: a run
// is kept as long as one of its tree lives, and an agent that goes on for years would keep them all.

// maxCarried bounds the items of the inbox that go with a run, because its end writes all of them in one
// operation.
const maxCarried = perdure.MaxList

// continueAnew creates the run that continues one which is about to complete.
func continueAnew(tx *kernel.Tx, r *perdure.Run, with *perdure.ContinueWith) error {
	if r.Cancel.RequestedAt != 0 {
		return perdure.Errorf(perdure.CodeCancelRequested, "the run is asked to stop, and does not go on as a new one")
	}
	if err := checkContinuable(r); err != nil {
		return err
	}
	if r.ParentID != "" && !r.MayOutlive() {
		return perdure.Errorf(perdure.CodeNotContinuable, "the run is a child of run %s and ends with it: a run that "+
			"continues it would be no child any more; spawn it with on_parent_end continue", r.ParentID)
	}
	if r.ThreadID != "" {
		if _, ok, err := tx.DB.Threads.Get(r.Tenant, r.ThreadID); err != nil {
			return err
		} else if !ok {
			return perdure.Errorf(perdure.CodeNotContinuable, "the run's thread was deleted")
		}
	}
	items, err := tx.DB.Inbox.Untaken(r, maxCarried+1)
	if err != nil {
		return err
	}
	if len(items) > maxCarried {
		return perdure.Errorf(perdure.CodeOverBound, "the run has more than %d signals, messages and reports in its "+
			"inbox that it has not taken: it takes some of them before it goes on as a new run", maxCarried)
	}
	next := continuationOf(tx, r)
	next.Options.Anew, next.RootID = true, ""
	next.InboxSeq, next.InboxOpen = int64(len(items)), len(items)
	if err := passKey(tx, &next, r); err != nil {
		return err
	}
	if err := acceptRun(tx, &next, with.Input, nil, nil, perdure.MultitaskEnqueue); err != nil {
		return err
	}
	for n, i := range items {
		tx.DB.Inbox.Put(perdure.Item{Tenant: next.Tenant, RunID: next.ID, Seq: int64(n + 1), Type: i.Type,
			Status: perdure.ItemPending, Name: i.Name, MessageSeq: i.MessageSeq,
			Data:      tx.DB.Values.Share(next.Tenant, string(next.ID), i.Data),
			CreatedAt: i.CreatedAt, AlarmAt: tx.Now.Add(tx.Engine.Policy().PendingWakeup)})
		if i.Type == perdure.ItemContinue {
			tx.DB.Idempotency.Put(store.IdempotencyRow{Tenant: r.Tenant, Key: unacknowledgedKey(r, i.Name),
				Ref: string(next.ID), ExpiresAt: tx.Now.Add(tx.Engine.Policy().IdempotencyTTL)})
		}
		i.Status, i.AlarmAt = perdure.ItemDone, 0
		tx.DB.Inbox.Put(i)
	}
	if *r, err = tx.Run(r.Tenant, r.ID); err != nil {
		return err
	}
	if len(items) > 0 {
		if err := tx.Apply(r, perdure.ItemsContinued{Count: len(items)}); err != nil {
			return err
		}
	}
	return tx.Apply(r, perdure.Continued{By: next.ID, Trigger: "anew", Items: len(items)})
}

// anewBy gives the run that goes on for an ended one, if it has completed with continue_with.
func anewBy(tx *kernel.Tx, r *perdure.Run) (perdure.RunID, bool, error) {
	if r.State.Live() || r.ContinuedBy == "" {
		return "", false, nil
	}
	next, ok, err := tx.DB.Runs.Get(r.Tenant, r.ContinuedBy)
	return next.ID, ok && next.Options.Anew, err
}

// endedAndContinued is the refusal of something for an ended run that another one continues.
func endedAndContinued(r *perdure.Run, by perdure.RunID, why string) error {
	e := perdure.Errorf(perdure.CodeRunEnded, "the run is %s: %s", r.State, why)
	if by != "" {
		e.Message += fmt.Sprintf("; run %s continues it", by)
		e.ContinuedBy = by
	}
	return e
}
