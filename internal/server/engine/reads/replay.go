package reads

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// A Replay has all that another build needs to replay a run: the parts of a grant, without a lease. It is
// read from one snapshot, and reading it changes nothing.
type Replay struct {
	perdure.Run
	// InputText is the whole input. Only the first part has it, and only it has Waits.
	InputText perdure.Value
	// Waits are the open ones.
	Waits       []perdure.Wait
	Journal     []life.JournalRow
	JournalNext int64
	// Inbox has the items that no execution has taken.
	Inbox     []perdure.Item
	InboxNext int64
}

// ReplayPart says which part of a run to read. The cursors are those of the part before. A part that
// has come to an end is left out.
type ReplayPart struct {
	First                    bool
	Journal, Inbox           bool
	JournalAfter, InboxAfter int64
}

// maxReplayWaits bounds the open waits of a replay. A run with more waits for children, by far.
const maxReplayWaits = 1000

// Replay reads a part of the data that a replay of a run needs.
func (q Runs) Replay(
	ctx context.Context, t perdure.TenantID, id perdure.RunID, part ReplayPart,
) (p Replay, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		r, err := existing(v, t, id)
		if err != nil {
			return err
		}
		p.Run = r
		bytesLeft := life.GrantMax
		if part.First {
			if p.InputText, err = v.Values.Resolve(t, r.Input); err != nil {
				return err
			}
			bytesLeft -= len(p.InputText)
			if r.WaitsOpen > 0 {
				if p.Waits, err = v.Waits.FirstOpen(t, id, maxReplayWaits); err != nil {
					return err
				}
			}
		}
		if part.Journal {
			p.Journal, p.JournalNext, err = life.JournalPage(&v.Records, &r, part.JournalAfter, &bytesLeft)
		}
		if err == nil && part.Inbox {
			p.Inbox, p.InboxNext, err = inboxPage(&v.Records, &r, part.InboxAfter, &bytesLeft)
		}
		return err
	})
	return p, err
}

// inboxPage reads open inbox items after a cursor, as HandOverItems does, and hands over none.
func inboxPage(
	db *store.Records, r *perdure.Run, after int64, bytesLeft *int,
) (page []perdure.Item, next int64, err error) {
	items, err := db.Inbox.After(r, after, life.MaxItems+1)
	if err != nil {
		return nil, 0, err
	}
	for _, i := range items {
		if i.Data, err = db.Values.Resolve(r.Tenant, i.Data); err != nil {
			return nil, 0, err
		}
		if !life.Readable(i.Data) {
			return nil, 0, perdure.Errorf(perdure.CodeDamaged, "item %d of its inbox can't be read", i.Seq)
		}
		*bytesLeft -= len(i.Data) + 64
		if len(page) == life.MaxItems || *bytesLeft < 0 && len(page) > 0 {
			return page, page[len(page)-1].Seq, nil
		}
		page = append(page, i)
	}
	return page, 0, nil
}
