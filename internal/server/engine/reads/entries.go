package reads

import (
	"context"
	"errors"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// The journal and the inbox of a run, for people.
//
// A worker gets them with its lease, whole. Here anybody who may read the run gets them, also of a run
// that has ended. A page has no value of more than maxShownValue: of a longer one it has the beginning.
// So a page is bounded however large its values are, and one entry alone can be had whole.

const (
	// MaxEntries bounds the entries of a page.
	MaxEntries = 200
	// maxShownValue is the size up to which a page has a value whole, in bytes.
	maxShownValue = 4 << 10
	// shownHead is how much of a longer value it has, in characters.
	shownHead = 1 << 10
	// wholeValue is above the size of every value. An item with a child's result has some bytes around it.
	wholeValue = 2 * perdure.MaxValue
)

// A ShownValue is a value as a page has it.
type ShownValue struct {
	// Value is empty if it is too large for the page, or damaged.
	Value perdure.Value
	// Head is the beginning of a value that is too large.
	Head string
	// Size is the number of its bytes.
	Size    int
	Damaged bool
}

// A Step is an entry of a run's journal.
type Step struct {
	Seq int64
	Key string
	At  perdure.Instant
	ShownValue
}

// An InboxItem is an item of a run's inbox. Its Data is in the ShownValue.
type InboxItem struct {
	perdure.Item
	ShownValue
}

// Steps reads a page of a run's journal after a number. next is the number to go on from; zero: there
// is no more.
func (q Runs) Steps(
	ctx context.Context, t perdure.TenantID, id perdure.RunID, after int64, limit int,
) (list []Step, next int64, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		if _, err := existing(v, t, id); err != nil {
			return err
		}
		list, next, err = stepsAfter(v, t, id, after, limit)
		return err
	})
	return list, next, err
}

// NewestSteps lists the last entries of a run's journal, the oldest of them first.
func (q Runs) NewestSteps(
	ctx context.Context, t perdure.TenantID, id perdure.RunID, limit int,
) (list []Step, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		r, err := existing(v, t, id)
		if err == nil {
			list, _, err = stepsAfter(v, t, id, max(0, r.JournalSeq-int64(limit)), limit)
		}
		return err
	})
	return list, err
}

// stepsAfter reads a page of a journal, and where the next one begins.
func stepsAfter(
	v *store.View, t perdure.TenantID, id perdure.RunID, after int64, limit int,
) (list []Step, next int64, err error) {
	rows, err := v.Journal.After(t, id, after, limit+1)
	if len(rows) > limit {
		rows, next = rows[:limit], rows[limit-1].Seq
	}
	for i := 0; i < len(rows) && err == nil; i++ {
		j := &rows[i]
		var value ShownValue
		value, err = showValue(v, t, j.Value, maxShownValue)
		list = append(list, Step{j.Seq, j.Key, j.At, value})
	}
	return list, next, err
}

// Step reads an entry of a run's journal with its whole value.
func (q Runs) Step(ctx context.Context, t perdure.TenantID, id perdure.RunID, seq int64) (s Step, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		if _, err := existing(v, t, id); err != nil {
			return err
		}
		rows, err := v.Journal.After(t, id, seq-1, 1)
		if err == nil && (len(rows) == 0 || rows[0].Seq != seq) {
			err = kernel.NotFound("entry of the journal")
		}
		if err != nil {
			return err
		}
		s = Step{Seq: rows[0].Seq, Key: rows[0].Key, At: rows[0].At}
		s.ShownValue, err = showValue(v, t, rows[0].Value, wholeValue)
		return err
	})
	return s, err
}

// Items reads a page of a run's inbox after a number: items of every status. next is the number to go on
// from; zero: there is no more.
func (q Runs) Items(
	ctx context.Context, t perdure.TenantID, id perdure.RunID, after int64, limit int,
) (list []InboxItem, next int64, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		r, err := existing(v, t, id)
		if err != nil {
			return err
		}
		rows, err := v.Inbox.Page(&r, after, limit+1)
		if len(rows) > limit {
			rows, next = rows[:limit], rows[limit-1].Seq
		}
		for i := 0; i < len(rows) && err == nil; i++ {
			x := InboxItem{Item: rows[i]}
			x.ShownValue, err = showValue(v, t, x.Data, maxShownValue)
			list = append(list, x)
		}
		return err
	})
	return list, next, err
}

// Item reads an item of a run's inbox with its whole value.
func (q Runs) Item(ctx context.Context, t perdure.TenantID, id perdure.RunID, seq int64) (x InboxItem, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		r, err := existing(v, t, id)
		if err != nil {
			return err
		}
		rows, err := v.Inbox.Page(&r, seq-1, 1)
		if err == nil && (len(rows) == 0 || rows[0].Seq != seq) {
			err = kernel.NotFound("item of the inbox")
		}
		if err != nil {
			return err
		}
		x.Item = rows[0]
		x.ShownValue, err = showValue(v, t, x.Data, wholeValue)
		return err
	})
	return x, err
}

// existing reads a run, and refuses one that does not exist.
func existing(v *store.View, t perdure.TenantID, id perdure.RunID) (perdure.Run, error) {
	r, ok, err := v.Runs.Get(t, id)
	if err == nil && !ok {
		err = kernel.NotFound("run")
	}
	return r, err
}

// showValue gives a value up to a size, and else its beginning. A value that can't be read is marked:
// the entries beside it are shown all the same.
func showValue(v *store.View, t perdure.TenantID, value perdure.Value, most int) (out ShownValue, err error) {
	_, size, ref := value.Ref()
	if out.Size = len(value); ref {
		out.Size = size
	}
	if out.Size > most {
		out.Head, err = v.Values.Head(t, value, shownHead)
		return out, err
	}
	out.Value, err = v.Values.Resolve(t, value)
	var broken *perdure.Error
	if errors.As(err, &broken) || err == nil && !life.Readable(out.Value) {
		return ShownValue{Size: out.Size, Damaged: true}, nil
	}
	return out, err
}
