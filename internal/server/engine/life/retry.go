package life

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
)

// Retry makes a new run of an ended one: same input, new deadline, no parent. The original stays as
// it is. The new run's result becomes a late result of the original. With a Key it is idempotent.
type Retry struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	// From says with which part of the original's journal the new run begins; see resolveFrom.
	From string
	// Local says that the caller has a runner for the new run. Otherwise a run of perdure exec is not
	// retried: nobody else may take it.
	Local bool
	Key   string

	Run     perdure.Run
	Created bool
}

func (op *Retry) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do creates the new run.
func (op *Retry) Do(tx *kernel.Tx) error {
	op.Created = false
	orig, err := tx.Run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	key, digest := "retry:"+string(op.RunID)+":"+op.Key, ""
	if op.From != "" { // keys from before From have no digest
		digest = store.Digest(op.From)
	}
	if op.Local {
		digest = store.Digest(op.From + "\x00local")
	}
	if op.Key != "" {
		known, ok, err := tx.DB.Idempotency.Get(op.Tenant, key)
		if err != nil {
			return err
		}
		if ok && known.Digest != digest {
			return perdure.Errorf(perdure.CodeReused, "this idempotency key was used with another body")
		}
		if ok {
			op.Run, err = tx.Run(op.Tenant, perdure.RunID(known.Ref))
			return err
		}
	}
	if orig.State.Live() {
		return perdure.Errorf(perdure.CodeWrongState, "the run is %s: wait for it, or cancel it first", orig.State)
	}
	if err := rules.MayRepeat(tx, &orig); err != nil {
		return err
	}
	if err := CheckTakers(&orig, op.Local); err != nil {
		return err
	}
	if op.Run, err = RepeatRun(tx, &orig, op.From); err != nil {
		return err
	}
	op.Created = true
	if op.Key != "" {
		tx.DB.Idempotency.Put(store.IdempotencyRow{Tenant: op.Tenant, Key: key, Digest: digest, Ref: string(op.Run.ID),
			ExpiresAt: tx.Now.Add(tx.Engine.Policy().IdempotencyTTL)})
	}
	// Writing the original's row makes this conflict with an operation that removes the original.
	return tx.Apply(&orig, perdure.Repeated{})
}

// CheckTakers refuses to repeat a run that nobody could take. A run of perdure exec has a runner of its
// own, on its host; local says that the caller brings one. Other runs are taken by those who poll their
// queue.
func CheckTakers(orig *perdure.Run, local bool) error {
	switch {
	case orig.Local() && !local:
		return perdure.Errorf(perdure.CodeNoRunner, "the run was started by perdure exec, and no pool may take it: "+
			"start it again on its host with: perdure exec --again %s", orig.ID)
	case local && !orig.Local():
		return perdure.Invalid("local", "the run is none of perdure exec: retry it without local, and a worker of the "+
			"queue %s takes it", orig.Queue)
	}
	return nil
}

// RepeatRun creates a new run with the input of an ended one, and with the part of its journal that
// from names. A short journal is copied at once. The watchdog copies the rest of a long one.
func RepeatRun(tx *kernel.Tx, orig *perdure.Run, from string) (perdure.Run, error) {
	copyTo, err := resolveFrom(tx, orig, from)
	if err != nil {
		return perdure.Run{}, err
	}
	input, err := tx.DB.Values.Resolve(orig.Tenant, orig.Input)
	if err != nil {
		return perdure.Run{}, err
	}
	r := perdure.Run{
		Tenant: orig.Tenant, Kind: orig.Kind, Class: orig.Class, Queue: orig.Queue, Priority: orig.Priority,
		ThreadID: orig.ThreadID, RetryOf: orig.ID, OriginID: orig.Origin(),
		MaxAttempts: orig.MaxAttempts, Metadata: orig.Metadata,
		Options: perdure.Options{Timeout: orig.Options.Timeout, Process: orig.Options.Process, Chat: orig.Options.Chat,
			Webhook: orig.Options.Webhook, WebhookLines: orig.Options.WebhookLines,
			Limits: orig.Options.Limits},
	}
	if orig.Options.Open { // it ended before any worker had leased it
		r.Class = perdure.Task
		if err := takeFromKind(tx, &r, false); err != nil {
			return perdure.Run{}, err
		}
	}
	// A timeout that was accepted while the class was open may be above the greatest of its class.
	r.Options.Timeout = min(r.Options.Timeout, perdure.Duration(tx.Engine.Policy().Timeouts.Of(r.Class).Max))
	if err := repeatKey(tx, &r, orig); err != nil {
		return r, err
	}
	if copyTo > 0 {
		// Epochs and inbox numbers continue those of the original, which its entries refer to.
		r.CopyTo, r.Epoch, r.FirstEpoch = copyTo, orig.Epoch, orig.Epoch+1
		r.InboxSeq, r.InboxFrom = orig.InboxSeq, orig.InboxSeq
	}
	if err := acceptRun(tx, &r, json.RawMessage(input), nil, nil, perdure.MultitaskEnqueue); err != nil {
		return r, err
	}
	if copyTo > 0 {
		err = copyJournal(tx, &r, copyFirst)
	}
	return r, err
}

// The values of from that are not keys of journal entries.
const (
	FromJournal = "journal"
	FromStart   = "start"
)

// resolveFrom gives the number of the last journal entry that a retry begins with. Zero: it begins
// with an empty journal.
//
// from is FromStart, FromJournal for all entries, or the key of an entry for those before it. The
// default is the journal for an agent and the start for others. If the failure of the run is itself
// an entry of its journal, the default ends before that entry, and FromJournal is refused.
func resolveFrom(tx *kernel.Tx, orig *perdure.Run, from string) (copyTo int64, err error) {
	cause, causeSeq := "", int64(0)
	if orig.Failure != nil && orig.Failure.CauseKey != "" {
		cause = orig.Failure.CauseKey
		if causeSeq, err = tx.DB.Journal.SeqOf(orig.Tenant, orig.ID, cause); err != nil {
			return 0, err
		}
	}
	switch {
	case from == FromStart, from == "" && orig.Class == perdure.Process:
		return 0, nil
	case orig.Class == perdure.Process:
		return 0, invalidFrom("a process begins at the start")
	case from == "" && causeSeq == 0 && orig.Class != perdure.Agent:
		return 0, nil
	case orig.Copying():
		return 0, perdure.Errorf(perdure.CodeWrongState,
			"the run ended before the journal of run %s was copied to it: "+
				"retry that one, or this one from the start", orig.RetryOf)
	case from == "" && causeSeq > 0:
		return causeSeq - 1, nil
	case from == FromJournal && causeSeq > 0:
		return 0, perdure.Errorf(perdure.CodeWouldRepeat, "the journal has the failure, under %q: "+
			"leave from out to begin before that entry, or name another", cause)
	case from == "" || from == FromJournal:
		return orig.JournalSeq, nil
	}
	if err := perdure.CheckName("from", from); err != nil {
		return 0, err
	}
	// The mark of a step that can be undone is committed with the step. Without it nothing would tell the
	// server that a cancelled run has the step to undo.
	if step, ok := strings.CutPrefix(from, perdure.UndoPrefix); ok {
		return 0, invalidFrom("%q says that the step %q can be undone, and belongs to it: give the key of the step",
			from, step)
	}
	seq, err := tx.DB.Journal.SeqOf(orig.Tenant, orig.ID, from)
	if err == nil && seq == 0 {
		err = invalidFrom("the journal of the run has no entry %q: give the key of one, %q or %q",
			from, FromJournal, FromStart)
	}
	return seq - 1, err
}

// invalidFrom is the error of a retry that can't begin where it is asked to.
func invalidFrom(format string, args ...any) error {
	e := perdure.Errorf(perdure.CodeFrom, format, args...)
	e.Field = "from"
	return e
}

// copyFirst bounds the entries that a retry copies itself. There may be many retries at once, while the
// watchdog copies one part at a time. copyPart bounds the entries of such a part, and copyBytes the
// bytes of their values. Values that are stored by their hash are shared and not copied.
const (
	copyFirst = 16
	copyPart  = 128
	copyBytes = 1 << 20
)

// CopyJournal copies the next entries of the original's journal to a retry. It ends a run whose
// original no longer has them.
func CopyJournal(tx *kernel.Tx, r *perdure.Run) error { return copyJournal(tx, r, copyPart) }

func copyJournal(tx *kernel.Tx, r *perdure.Run, most int) error {
	if _, ok, err := tx.DB.Runs.Get(r.Tenant, r.RetryOf); err != nil {
		return err
	} else if !ok {
		return Finish(tx, r, perdure.Orphaned{Missing: "original, whose journal was being copied,"})
	}
	limit := max(1, min(most, int(r.CopyTo-r.JournalSeq), tx.DB.OpRows()/16))
	rows, err := tx.DB.Journal.After(r.Tenant, r.RetryOf, r.JournalSeq, limit)
	if err != nil {
		return err
	}
	copied, bytes := 0, 0
	for _, j := range rows {
		bytes += len(j.Key) + len(j.Value)
		if j.Seq != r.JournalSeq+int64(copied)+1 || bytes > copyBytes && copied > 0 {
			break
		}
		tx.DB.Journal.Copy(j, r.ID)
		copied++
	}
	if copied == 0 {
		return Finish(tx, r, perdure.Corrupted{Failure: perdure.Failure{Code: perdure.CodeDamaged,
			Message: fmt.Sprintf("entry %d of the journal of run %s, which it continues, is missing",
				r.JournalSeq+1, r.RetryOf)}})
	}
	return tx.Apply(r, perdure.JournalCopied{Entries: copied})
}

// Weight counts the entries that are copied at once.
func (op *Retry) Weight() (rows, bytes int) { return WeighRetry(op.From) }

// WeighRetry estimates the cost of a retry from its From.
func WeighRetry(from string) (rows, bytes int) {
	if from == FromStart {
		return 8, 1 << 10
	}
	return 8 + copyFirst, 16 << 10
}
