package life

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Chat passes a message of a user to the agent of a conversation. It starts a thread if there is none. If
// the thread's active run is a live one of this kind, that run gets the message. Otherwise a new run is
// started on the thread, with the message as its first one. With a Key it is idempotent.
//
// No message stays without an answer. A run takes up messages by waiting for them (WaitMessage) or by
// reading the thread, and says at its end how far it has read. If a user has written more, it is
// continued (continueConversation).
type Chat struct {
	Tenant perdure.TenantID
	// ThreadID is empty for a new thread.
	ThreadID perdure.ThreadID
	Message  perdure.Message
	Kind     string
	Timeout  perdure.Duration
	Key      string
	// Foreground, Node and Expects say who waits for a new run, as in Submit.
	Foreground bool
	Node       string
	Expects    bool

	// Run is the one that answers.
	Run perdure.Run
	// Started tells that the run is new.
	Started bool
	// Created is false if the key was known.
	Created bool

	// submission is the request for a new run.
	submission *Submit
	invalid    error
}

// newThread stands for the id of a thread that is not made yet.
const newThread perdure.ThreadID = "new"

// prepare validates the message, and the request for a run that it may become.
func (op *Chat) Prepare() {
	op.Message.Role = perdure.RoleUser
	id := op.ThreadID
	if id == "" {
		id = newThread
	}
	op.submission = &Submit{Tenant: op.Tenant, Node: op.Node, Expects: op.Expects, Submission: perdure.Submission{
		Kind: op.Kind, ThreadID: id, Timeout: op.Timeout, Messages: []perdure.Message{op.Message},
		Foreground: op.Foreground}}
	if op.invalid = op.Message.Validate("message"); op.invalid == nil {
		op.submission.Prepare()
		op.invalid = op.submission.invalid
	}
}

// Needs names no run: which one it is, the thread says.
func (*Chat) Needs() []store.Ref { return nil }

// Do passes the message on.
func (op *Chat) Do(tx *kernel.Tx) error {
	if op.invalid != nil {
		return op.invalid
	}
	var err error
	body := []any{op.ThreadID, op.Message, op.Kind, op.Timeout}
	op.Created, err = kernel.UnderKey(tx, op.Tenant, "chat", op.Key, body, func() (string, error) {
		if err := tx.DB.RefuseIfFull(); err != nil {
			return "", err
		}
		if err := op.pass(tx); err != nil {
			return "", err
		}
		return fmt.Sprintf("%s %t", op.Run.ID, op.Started), nil
	}, func(ref string) (err error) {
		id, started, _ := strings.Cut(ref, " ")
		op.Started = started == "true"
		op.Run, err = tx.Run(op.Tenant, perdure.RunID(id))
		return err
	})
	return err
}

// pass gives the message to the thread's active run, or to a new one.
func (op *Chat) pass(tx *kernel.Tx) error {
	th, err := op.thread(tx)
	if err != nil {
		return err
	}
	if th.Active != "" {
		active, ok, err := tx.DB.Runs.Get(op.Tenant, th.Active)
		if err != nil {
			return err
		}
		if ok && active.Options.Chat && active.Kind == op.Kind && active.Cancel.RequestedAt == 0 {
			m, err := addMessage(tx, &th, "", op.Message)
			if err != nil {
				return err
			}
			op.Run, op.Started = active, false
			return offerMessage(tx, &th, m)
		}
	}
	op.submission.checked.ThreadID = th.ID
	op.submission.chat = true
	if err := op.submission.Do(tx); err != nil {
		return err
	}
	op.Run, op.Started = op.submission.Run, true
	return nil
}

// thread reads the thread, or makes one.
func (op *Chat) thread(tx *kernel.Tx) (perdure.Thread, error) {
	if op.ThreadID != "" {
		return ReadThread(tx, op.Tenant, op.ThreadID)
	}
	id, err := tx.NewID()
	th := perdure.Thread{Tenant: op.Tenant, ID: perdure.ThreadID(id), CreatedAt: tx.Now}
	if err == nil {
		tx.DB.Threads.Put(th)
	}
	return th, err
}

// noteRead notes up to which message a run of a chat has read its thread, so that it is not continued for
// those.
func noteRead(tx *kernel.Tx, r *perdure.Run, seq int64) error {
	if !r.Options.Chat || seq == 0 {
		return nil
	}
	th, ok, err := tx.DB.Threads.Get(r.Tenant, r.ThreadID)
	if err == nil && ok && th.Active == r.ID && seq > th.TakenSeq {
		th.TakenSeq = min(seq, th.Seq)
		tx.DB.Threads.Put(th)
	}
	return err
}

// continueConversation continues a run that ends while its thread has a message which it has not taken
// up. A user who stopped the run wants no answer.
func continueConversation(tx *kernel.Tx, r, ended *perdure.Run) error {
	if !r.Options.Chat || r.ContinuedBy != "" || ended.State == perdure.Cancelled {
		return nil
	}
	th, ok, err := tx.DB.Threads.Get(r.Tenant, r.ThreadID)
	if err != nil || !ok || th.Active != r.ID {
		return err
	}
	if _, ok, err = tx.DB.Threads.NextOfUser(&th); err != nil || !ok {
		return err
	}
	_, err = createContinuation(tx, r, "message", nil)
	return err
}
