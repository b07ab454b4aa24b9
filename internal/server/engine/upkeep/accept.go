package upkeep

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// AcceptServer records that an operator has accepted another PostgreSQL as the store's. Epochs go on
// above a new floor.
type AcceptServer struct{ Offer *store.Offer }

func (*AcceptServer) Needs() []store.Ref { return nil }

func (op *AcceptServer) Do(tx *kernel.Tx) error {
	o := op.Offer
	if err := tx.DB.Accept(o); err != nil {
		return err
	}
	return tx.Audit("", perdure.AuditFailoverAccept, o.System, "timeline", o.Timeline, "floor", o.Floor,
		"before", o.Before.System, "before_timeline", o.Before.Timeline, "seen", o.Seen.System,
		"seen_timeline", o.Seen.Timeline)
}
