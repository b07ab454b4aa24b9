package life

import (
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
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

// AppendMessage adds a message to a thread from outside of any run. With a Key it is idempotent.
type AppendMessage struct {
	Tenant   perdure.TenantID
	ThreadID perdure.ThreadID
	Message  perdure.Message
	Key      string

	Seq int64
	// Created is false if the key was known.
	Created bool

	// invalid is the result of prepare.
	invalid error
}

// prepare validates the message.
func (op *AppendMessage) Prepare() { op.invalid = op.Message.Validate("message") }

func (*AppendMessage) Needs() []store.Ref { return nil }

// Do appends the message.
func (op *AppendMessage) Do(tx *kernel.Tx) error {
	if op.invalid != nil {
		return op.invalid
	}
	th, err := ReadThread(tx, op.Tenant, op.ThreadID)
	if err != nil {
		return err
	}
	action := "message:" + string(th.ID)
	op.Created, err = kernel.UnderKey(tx, op.Tenant, action, op.Key, op.Message, func() (string, error) {
		if err := tx.DB.RefuseIfFull(); err != nil {
			return "", err
		}
		m, err := addMessage(tx, &th, "", op.Message)
		if err != nil {
			return "", err
		}
		if err := offerMessage(tx, &th, m); err != nil {
			return "", err
		}
		op.Seq = m.Seq
		return strconv.FormatInt(op.Seq, 10), nil
	}, func(seq string) (err error) {
		op.Seq, err = strconv.ParseInt(seq, 10, 64)
		return err
	})
	return err
}

// Weight counts the message.
func (op *AppendMessage) Weight() (rows, bytes int) {
	return 4, 1<<10 + len(op.Message.Content) + len(op.Message.Metadata)
}
