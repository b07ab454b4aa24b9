package life

import (
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// maxCopied bounds the messages of a thread that is copied, and perdure.MaxCommitBytes what they have in their rows:
// the copy is one write. Large content is shared.
const maxCopied = perdure.MaxList

// CreateThread creates a thread, empty or with the messages of another one (Of). With a Key it is
// idempotent. If there is a thread of its Name, it gives that one.
type CreateThread struct {
	Tenant   perdure.TenantID
	Metadata json.RawMessage
	Name     string
	Of       perdure.ThreadID
	Key      string

	Thread perdure.Thread
	// Created is false if the key or the name was known.
	Created bool

	// invalid is the result of prepare.
	invalid error
}

// prepare validates the metadata.
func (op *CreateThread) Prepare() {
	if op.invalid = nil; len(op.Metadata) > 0 {
		op.invalid = perdure.CheckValue("metadata", op.Metadata)
	}
	if op.invalid == nil && op.Name != "" {
		op.invalid = perdure.CheckChosenName("name", op.Name)
	}
}

func (*CreateThread) Needs() []store.Ref { return nil }

// Slow tells whether other operations should not wait for this one.
func (op *CreateThread) Slow() bool { return op.Of != "" }

// Do creates the thread.
func (op *CreateThread) Do(tx *kernel.Tx) error {
	if op.invalid != nil {
		return op.invalid
	}
	var body any = op.Metadata
	switch {
	case op.Of != "":
		body = []any{op.Metadata, op.Name, op.Of}
	case op.Name != "":
		body = []any{op.Metadata, op.Name}
	}
	named := false
	created, err := kernel.UnderKey(tx, op.Tenant, "thread", op.Key, body, func() (string, error) {
		name, known, err := findName(tx, op.Tenant, store.NamedThread, op.Name)
		if err != nil {
			return "", err
		}
		if named = known; known {
			op.Thread, err = ReadThread(tx, op.Tenant, perdure.ThreadID(name.Owner))
			return name.Owner, err
		}
		if err := tx.DB.RefuseIfFull(); err != nil {
			return "", err
		}
		id, err := tx.NewID()
		if err != nil {
			return "", err
		}
		op.Thread = perdure.Thread{Tenant: op.Tenant, ID: perdure.ThreadID(id),
			Metadata: tx.DB.Values.Intern(op.Tenant, id, op.Metadata), CreatedAt: tx.Now}
		if op.Of != "" {
			if err := op.copy(tx); err != nil {
				return "", err
			}
		} else if op.Thread.Title, err = tx.DB.Threads.MetadataTitle(op.Tenant, op.Thread.Metadata); err != nil {
			return "", err
		}
		tx.DB.Threads.Put(op.Thread)
		if op.Name == "" {
			return id, nil
		}
		name.Owner = id
		return id, addName(tx, name)
	}, func(id string) (err error) {
		op.Thread, err = ReadThread(tx, op.Tenant, perdure.ThreadID(id))
		return err
	})
	op.Created = created && !named
	return err
}

// copy takes over the messages, the title and the metadata of another thread, those of the request first. The
// messages of users are not new ones: no run of the copy is told of them.
func (op *CreateThread) copy(tx *kernel.Tx) error {
	of, err := ReadThread(tx, op.Tenant, op.Of)
	if perdure.CodeOf(err) == perdure.CodeNotFound {
		return perdure.Invalid("copy_of", "names no thread of this tenant")
	}
	if err != nil {
		return err
	}
	if of.Seq > maxCopied {
		return perdure.OverBound("copy_of", "the thread has had %d messages; at most %d are copied", of.Seq, maxCopied)
	}
	list, err := tx.DB.Threads.Messages(op.Tenant, op.Of, 0, maxCopied)
	if err != nil {
		return err
	}
	th := &op.Thread
	share := func(v perdure.Value) perdure.Value { return tx.DB.Values.Share(op.Tenant, string(th.ID), v) }
	if th.Title = of.Title; len(op.Metadata) == 0 {
		th.Metadata = share(of.Metadata)
	}
	size := 0
	for _, m := range list {
		if size += len(m.Content) + len(m.Metadata); size > perdure.MaxCommitBytes {
			return perdure.OverBound("copy_of", "the messages of the thread have over %d bytes; no more are copied",
				perdure.MaxCommitBytes)
		}
		th.Seq++
		m.ThreadID, m.Seq, m.Content, m.Metadata = th.ID, th.Seq, share(m.Content), share(m.Metadata)
		tx.DB.Threads.AddMessage(m)
	}
	th.TakenSeq = th.Seq
	return nil
}

// ChangeThread merges an object into the metadata of a thread: a key replaces the one of its name, and
// null removes it. With a Key it is idempotent.
type ChangeThread struct {
	Tenant   perdure.TenantID
	ThreadID perdure.ThreadID
	Metadata json.RawMessage
	Key      string

	invalid error
}

// Prepare validates the metadata.
func (op *ChangeThread) Prepare() { op.invalid = perdure.CheckValue("metadata", op.Metadata) }

// Needs names no run.
func (*ChangeThread) Needs() []store.Ref { return nil }

// Do changes the thread.
func (op *ChangeThread) Do(tx *kernel.Tx) error {
	if op.invalid != nil {
		return op.invalid
	}
	_, err := kernel.UnderKey(tx, op.Tenant, "thread.change:"+string(op.ThreadID), op.Key, op.Metadata,
		func() (string, error) { return "", op.change(tx) }, func(string) error { return nil })
	return err
}

func (op *ChangeThread) change(tx *kernel.Tx) error {
	if err := tx.DB.RefuseIfFull(); err != nil {
		return err
	}
	th, err := ReadThread(tx, op.Tenant, op.ThreadID)
	if err != nil {
		return err
	}
	old, err := tx.DB.Values.Resolve(op.Tenant, th.Metadata)
	if err != nil {
		return err
	}
	merged, err := perdure.MergeMetadata(json.RawMessage(old), op.Metadata)
	if err != nil {
		return err
	}
	if string(merged) == string(old) {
		return nil
	}
	th.Metadata = tx.DB.Values.Intern(op.Tenant, string(th.ID), merged)
	title, err := tx.DB.Threads.MetadataTitle(op.Tenant, th.Metadata)
	if err != nil {
		return err
	}
	if title != "" {
		th.Title = title
	}
	tx.DB.Threads.Guard(th) // it moves no thread up the list
	return nil
}

// NameThread gives a thread one more name. Repeating it changes nothing.
type NameThread struct {
	Tenant   perdure.TenantID
	ThreadID perdure.ThreadID
	Name     string
	Key      string

	Created bool
}

// Needs names no run.
func (*NameThread) Needs() []store.Ref { return nil }

// Do gives the name.
func (op *NameThread) Do(tx *kernel.Tx) error {
	if err := perdure.CheckChosenName("name", op.Name); err != nil {
		return err
	}
	th, err := ReadThread(tx, op.Tenant, op.ThreadID)
	if err != nil {
		return err
	}
	op.Created, err = putName(tx, op.Key, store.NameRow{Tenant: op.Tenant, Of: store.NamedThread, Name: op.Name,
		Owner: string(op.ThreadID)})
	if op.Created {
		tx.DB.Threads.Guard(th)
	}
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
