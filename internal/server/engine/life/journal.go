package life

import (
	"encoding/json"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/plant"
	"github.com/perdure/perdure/internal/server/store"
)

// A JournalRow is an entry of a run's journal.
type JournalRow = store.JournalRow

// Journal reads entries of a leased run's journal for which its grant had no room.
type Journal struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Epoch  int64
	After  int64

	Page []JournalRow
	Next int64
}

func (op *Journal) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do reads a page.
func (op *Journal) Do(tx *kernel.Tx) error {
	r, err := heldRun(tx, op.Tenant, op.RunID, op.Epoch)
	if err != nil {
		return err
	}
	bytesLeft := GrantMax
	op.Page, op.Next, err = JournalPage(&tx.DB.Records, &r, op.After, &bytesLeft)
	return err
}

// Weight counts a page.
func (op *Journal) Weight() (rows, bytes int) { return 2 + MaxItems, GrantMax }

// Inbox hands over items of a leased run's inbox: those for which its grant had no room, and those
// that arrived since.
type Inbox struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Epoch  int64
	After  int64

	Page []perdure.Item
	Next int64
}

func (op *Inbox) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do hands over a page.
func (op *Inbox) Do(tx *kernel.Tx) error {
	r, err := heldRun(tx, op.Tenant, op.RunID, op.Epoch)
	if err != nil {
		return err
	}
	// Writing the run's row makes this conflict with an operation that takes the lease away.
	if err := tx.Apply(&r, perdure.ItemsHandedOver{}); err != nil {
		return err
	}
	bytesLeft := GrantMax
	op.Page, op.Next, err = HandOverItems(tx, &r, op.After, &bytesLeft)
	return err
}

// Weight counts a page.
func (op *Inbox) Weight() (rows, bytes int) { return 2 + MaxItems, GrantMax }

// JournalPage reads journal entries after a cursor, as many as fit into bytesLeft but at least one.
// next is the cursor for more.
func JournalPage(
	db *store.Records, r *perdure.Run, after int64, bytesLeft *int,
) (page []JournalRow, next int64, err error) {
	for after < r.JournalSeq {
		rows, err := db.Journal.After(r.Tenant, r.ID, after, 256)
		if err != nil {
			return nil, 0, err
		}
		for _, j := range rows {
			if j.Value, err = db.Values.Resolve(r.Tenant, j.Value); err != nil {
				return nil, 0, err
			}
			if j.Seq <= after || !Readable(j.Value) {
				return nil, 0, perdure.Errorf(perdure.CodeDamaged, "entry %d of its journal can't be read", j.Seq)
			}
			if *bytesLeft -= len(j.Key) + len(j.Value); *bytesLeft < 0 && len(page) > 0 {
				return page, after, nil
			}
			page = append(page, j)
			after = j.Seq
		}
		if len(rows) == 0 {
			break
		}
	}
	return page, 0, nil
}

// MaxItems bounds the inbox items of one page.
const MaxItems = 256

// HandOverItems reads inbox items after a cursor, as many as fit into bytesLeft but at least one.
// It marks them as processed by the current epoch.
func HandOverItems(
	tx *kernel.Tx, r *perdure.Run, after int64, bytesLeft *int,
) (page []perdure.Item, next int64, err error) {
	items, err := tx.DB.Inbox.After(r, after, MaxItems+1)
	if err != nil {
		return nil, 0, err
	}
	answers := func(i perdure.Item) bool { return i.WaitID != "" }
	for n, i := range items {
		if plant.Is("older-answers-left-out") && answers(i) && slices.ContainsFunc(items[n+1:], answers) {
			continue
		}
		if len(page) == MaxItems {
			return page, page[len(page)-1].Seq, nil
		}
		data, err := tx.DB.Values.Resolve(r.Tenant, i.Data)
		if err != nil {
			return nil, 0, err
		}
		if !Readable(data) {
			return nil, 0, perdure.Errorf(perdure.CodeDamaged, "item %d of its inbox can't be read", i.Seq)
		}
		if *bytesLeft -= len(data) + 64; *bytesLeft < 0 && len(page) > 0 {
			return page, page[len(page)-1].Seq, nil
		}
		if i.Status != perdure.ItemProcessing || i.Epoch != r.Epoch {
			i.Status, i.Epoch = perdure.ItemProcessing, r.Epoch
			i.AlarmAt = tx.Now.Add(tx.Engine.Policy().InboxProcessingTimeout)
			tx.DB.Inbox.Put(i)
		}
		i.Data = data
		page = append(page, i)
	}
	return page, 0, nil
}

// GrantMax bounds the bytes of journal and inbox in a grant. The worker fetches the rest.
const GrantMax = 1 << 20

// Readable tells whether a value is valid JSON, or a reference.
func Readable(v perdure.Value) bool {
	_, _, ref := v.Ref()
	return ref || v == "" || json.Valid([]byte(v))
}
