package life

import (
	"cmp"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine/kernel"
)

// Waits for messages.
//
// A message wait is satisfied by a message of a user that is appended to the run's thread while the
// run is the active one. A run's own messages do not count. One wait takes one message, the oldest
// that no wait has taken.
//
// A message that comes while no wait is open leaves nothing in the inbox. The thread has it already,
// and the thread's row says up to where waits have looked (TakenSeq). A new wait looks for the next
// message after that. So a run that never waits for messages pays nothing for them.
//
// Opening a wait and appending a message both write the thread's row. Of two nodes that do so at the
// same moment, one conflicts and decides again, so that no message is missed.

// offerMessage satisfies the oldest open wait for messages of a thread's active run by a new message.
// If there is none, the message stays for the next such wait.
func offerMessage(tx *kernel.Tx, th *perdure.Thread, m perdure.ThreadMessage) error {
	if m.Role != perdure.RoleUser || th.Active == "" || !th.Listening {
		return nil
	}
	open, err := tx.DB.Waits.Open(th.Tenant, th.Active)
	if err != nil {
		return err
	}
	w, ok := oldestWait(open, perdure.WaitMessage, "")
	if !ok {
		return nil
	}
	r, err := tx.Run(th.Tenant, th.Active)
	if err != nil {
		return err
	}
	return takeMessage(tx, &r, w, m)
}

// matchMessage satisfies a new wait by the oldest message that no wait has taken: one that a closed
// wait gave back, or the next one of the thread.
func matchMessage(tx *kernel.Tx, r *perdure.Run, w perdure.Wait) error {
	i, ok, err := tx.DB.Inbox.NextMessage(r)
	if err != nil {
		return err
	}
	if ok {
		return EndWait(tx, r, w, perdure.WaitSatisfied, &i)
	}
	th, err := ReadThread(tx, r.Tenant, r.ThreadID)
	if err != nil {
		return err
	}
	m, ok, err := tx.DB.Threads.NextOfUser(&th)
	if err != nil {
		return err
	}
	if ok {
		return takeMessage(tx, r, w, m)
	}
	th.TakenSeq, th.Listening = th.Seq, true
	tx.DB.Threads.Put(th)
	return nil
}

// takeMessage delivers a message to a run's inbox as the one that satisfies a wait.
func takeMessage(tx *kernel.Tx, r *perdure.Run, w perdure.Wait, m perdure.ThreadMessage) error {
	th, err := ReadThread(tx, r.Tenant, r.ThreadID)
	if err != nil {
		return err
	}
	th.TakenSeq, th.Listening = m.Seq, true
	tx.DB.Threads.Put(th)
	item, err := putItem(tx, r, perdure.Item{Type: perdure.ItemMessage, MessageSeq: m.Seq,
		Data: tx.DB.Values.Share(r.Tenant, string(r.ID), m.Content)})
	if err != nil {
		return err
	}
	return EndWait(tx, r, w, perdure.WaitSatisfied, &item)
}

// oldestWait finds the wait of a type and name that was opened first.
func oldestWait(open []perdure.Wait, typ perdure.WaitType, name string) (w perdure.Wait, ok bool) {
	fits := slices.DeleteFunc(slices.Clone(open), func(w perdure.Wait) bool { return w.Type != typ || w.Name != name })
	if len(fits) == 0 {
		return w, false
	}
	return slices.MinFunc(fits, func(a, b perdure.Wait) int {
		return cmp.Or(cmp.Compare(a.OpenedAt, b.OpenedAt), cmp.Compare(a.ID, b.ID))
	}), true
}
