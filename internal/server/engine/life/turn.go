package life

import (
	"encoding/json"
	"errors"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// The runs of a thread take turns. One is active; the others wait in the order in which they came, and
// the next one becomes active when it ends. A run can also interrupt the active one.

// queueOnThread gives a new run its turn on its thread: active, waiting, or later if it is delayed.
// It names the active run that the new one interrupts.
func queueOnThread(
	tx *kernel.Tx, r *perdure.Run, strategy perdure.MultitaskStrategy,
) (interrupts perdure.RunID, err error) {
	th, ok, err := tx.DB.Threads.Get(r.Tenant, r.ThreadID)
	if err != nil {
		return "", err
	}
	if !ok {
		return "", kernel.NotFound("thread")
	}
	if err := checkNotAncestor(tx, r, th.Active); err != nil {
		return "", err
	}
	switch {
	case th.Active != "" && strategy == perdure.MultitaskReject:
		return "", perdure.Errorf(perdure.CodeThreadBusy, "the thread has an active run, %s", th.Active)
	case r.ReadyAt > tx.Now:
		r.Turn = perdure.TurnLater
	case th.Active == "":
		r.Turn = perdure.TurnActive
		setActive(&th, r)
	default:
		r.Turn = perdure.TurnWaiting
		if strategy == perdure.MultitaskInterrupt {
			interrupts = th.Active
		}
	}
	// The thread's row is written even if it does not change. The active run may be ending on
	// another node, or the thread be deleted: one of the two operations then conflicts and is
	// decided again.
	tx.DB.Threads.Put(th)
	return interrupts, nil
}

// checkNotAncestor refuses a child on the thread of a live ancestor, because each would wait for
// the other. Only the active run of the thread can be an ancestor: a waiting run has not started,
// and has no children.
func checkNotAncestor(tx *kernel.Tx, r *perdure.Run, active perdure.RunID) error {
	if r.ParentID == "" || active == "" {
		return nil
	}
	a, ok, err := tx.DB.Runs.Get(r.Tenant, active)
	if err != nil || !ok || a.RootID != r.RootID {
		return err
	}
	for id, steps := r.ParentID, 0; id != "" && steps <= perdure.MaxDepth; steps++ {
		if id == active {
			return perdure.Errorf(perdure.CodeThreadBusy, "a live ancestor, %s, is on this thread", active)
		}
		parent, ok, err := tx.DB.Runs.Get(r.Tenant, id)
		if err != nil || !ok {
			return err
		}
		id = parent.ParentID
	}
	return nil
}

// JoinThread gives a delayed run its turn on its thread when its run_at has come.
func JoinThread(tx *kernel.Tx, r *perdure.Run) error {
	th, ok, err := tx.DB.Threads.Get(r.Tenant, r.ThreadID)
	if err != nil {
		return err
	}
	if !ok {
		return Finish(tx, r, perdure.Orphaned{Missing: "thread"})
	}
	if th.Active != "" {
		tx.DB.Threads.Put(th)
		if err := tx.Apply(r, perdure.TurnCame{Turn: perdure.TurnWaiting}); err != nil || !r.Options.First {
			return err
		}
		active, err := tx.Run(r.Tenant, th.Active)
		if err != nil {
			return err
		}
		return RequestCancel(tx, &active, "interrupted by a new run on its thread")
	}
	return activateRun(tx, &th, r)
}

// setActive makes a run the active one of a thread. Waits for messages take those that come from now
// on. A run that goes on for the active one also takes those that it has not taken.
func setActive(th *perdure.Thread, r *perdure.Run) {
	if !r.Options.Anew || th.Active != r.ContinuationOf {
		th.TakenSeq = th.Seq
	}
	th.Active, th.Listening = r.ID, false
}

// activateRun makes a run the active one of its thread.
func activateRun(tx *kernel.Tx, th *perdure.Thread, r *perdure.Run) error {
	setActive(th, r)
	tx.DB.Threads.Put(*th)
	if err := tx.Apply(r, perdure.TurnCame{Turn: perdure.TurnActive}); err != nil {
		return err
	}
	return appendOpening(tx, r)
}

// appendOpening appends the messages that a run was submitted with, now that it is active.
func appendOpening(tx *kernel.Tx, r *perdure.Run) error {
	if r.Options.Opening == "" {
		return nil
	}
	var ms []perdure.Message
	text, err := tx.DB.Values.Resolve(r.Tenant, r.Options.Opening)
	var damaged *perdure.Error
	if err != nil && !errors.As(err, &damaged) {
		return err
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &ms)
	}
	if err != nil {
		// This is part of the end of the previous run, which must not fail.
		tx.Engine.Log.Error("the messages that a run came with can't be read", "tenant", r.Tenant,
			"run", r.ID, "error", err)
		return addNotice(tx, r, "The messages that this run came with can't be read.")
	}
	lines, err := addMessagesOf(tx, r, ms)
	if err != nil || len(lines) == 0 {
		return err
	}
	return tx.Apply(r, perdure.MessagesAppended{Lines: lines})
}

// leaveThread activates the next run of an ended run's thread.
func leaveThread(tx *kernel.Tx, r *perdure.Run) error {
	th, ok, err := tx.DB.Threads.Get(r.Tenant, r.ThreadID)
	if err != nil || !ok || th.Active != r.ID {
		return err
	}
	next, ok, err := tx.DB.Runs.NextOnThread(r.Tenant, r.ThreadID)
	if err != nil {
		return err
	}
	if !ok {
		th.Active = ""
		tx.DB.Threads.Put(th)
		return nil
	}
	return activateRun(tx, &th, &next)
}
