package life

import (
	"encoding/json"
	"errors"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine/kernel"
	"github.com/perdure/perdure/internal/store"
)

// CreateThread creates a thread. With a Key it is idempotent.
type CreateThread struct {
	Tenant   perdure.TenantID
	Metadata json.RawMessage
	Key      string

	Thread perdure.Thread
	// Created is false if the key was known.
	Created bool

	// invalid is the result of prepare.
	invalid error
}

// prepare validates the metadata.
func (op *CreateThread) Prepare() {
	if op.invalid = nil; len(op.Metadata) > 0 {
		op.invalid = perdure.CheckValue("metadata", op.Metadata)
	}
}

func (*CreateThread) Needs() []store.Ref { return nil }

// Do creates the thread.
func (op *CreateThread) Do(tx *kernel.Tx) error {
	if op.invalid != nil {
		return op.invalid
	}
	var err error
	op.Created, err = kernel.UnderKey(tx, op.Tenant, "thread", op.Key, op.Metadata, func() (string, error) {
		if err := tx.DB.RefuseIfFull(); err != nil {
			return "", err
		}
		id, err := tx.NewID()
		if err != nil {
			return "", err
		}
		op.Thread = perdure.Thread{Tenant: op.Tenant, ID: perdure.ThreadID(id),
			Metadata: tx.DB.Values.Intern(op.Tenant, id, op.Metadata), CreatedAt: tx.Now}
		if op.Thread.Title, err = tx.DB.Threads.MetadataTitle(op.Tenant, op.Thread.Metadata); err != nil {
			return "", err
		}
		tx.DB.Threads.Put(op.Thread)
		return id, nil
	}, func(id string) (err error) {
		op.Thread, err = ReadThread(tx, op.Tenant, perdure.ThreadID(id))
		return err
	})
	return err
}

// ReadThread reads a thread. If there is none, the error is CodeNotFound.
func ReadThread(tx *kernel.Tx, t perdure.TenantID, id perdure.ThreadID) (perdure.Thread, error) {
	th, ok, err := tx.DB.Threads.Get(t, id)
	if err == nil && !ok {
		err = kernel.NotFound("thread")
	}
	return th, err
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

// addMessage appends a message to a thread, with secrets redacted. The first message of a user
// gives the thread its title, unless its metadata has one.
func addMessage(
	tx *kernel.Tx, th *perdure.Thread, run perdure.RunID, m perdure.Message,
) (added perdure.ThreadMessage, err error) {
	content := tx.DB.Values.Intern(th.Tenant, string(th.ID), tx.Engine.Secrets.Values(m.Content))
	if th.Title == "" && m.Role == perdure.RoleUser {
		if err := setTitle(tx, th, content); err != nil {
			return added, err
		}
	}
	th.Seq++
	tx.DB.Threads.Put(*th)
	added = perdure.ThreadMessage{Tenant: th.Tenant, ThreadID: th.ID, Seq: th.Seq,
		Role: m.Role, RunID: run, At: tx.Now,
		Content: content, Metadata: tx.DB.Values.Intern(th.Tenant, string(th.ID), m.Metadata)}
	tx.DB.Threads.AddMessage(added)
	return added, nil
}

// setTitle sets a thread's title from a new message, as it is stored, without secrets. A thread
// from before titles takes the title from its first messages.
func setTitle(tx *kernel.Tx, th *perdure.Thread, content perdure.Value) error {
	if th.Seq > 0 {
		if err := tx.DB.Threads.FindTitle(th); err != nil || th.Title != "" {
			return err
		}
	}
	text, err := tx.DB.Values.Resolve(th.Tenant, content)
	th.Title = perdure.Excerpt(string(text), perdure.MaxThreadTitle)
	return err
}

// addMessagesOf appends messages of a run to its thread, and gives the log lines about them. If the
// thread was deleted, it does nothing.
func addMessagesOf(tx *kernel.Tx, r *perdure.Run, ms []perdure.Message) ([]perdure.Line, error) {
	if r.ThreadID == "" || len(ms) == 0 {
		return nil, nil
	}
	th, ok, err := tx.DB.Threads.Get(r.Tenant, r.ThreadID)
	if err != nil || !ok {
		return nil, err
	}
	var lines []perdure.Line
	for _, m := range ms {
		added, err := addMessage(tx, &th, r.ID, m)
		if err != nil {
			return nil, err
		}
		lines = append(lines, perdure.Line{Type: perdure.LineMessage,
			Data: perdure.Object("thread_id", string(r.ThreadID), "message_seq", added.Seq, "role", m.Role)})
	}
	return lines, nil
}

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
