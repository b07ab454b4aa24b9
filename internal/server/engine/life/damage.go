package life

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
)

// EndDamaged ends a run whose stored row is damaged. The dead letter holds what can be read of it.
func EndDamaged(tx *kernel.Tx, r *perdure.Run) (Repair, error) {
	why := perdure.Failure{Code: perdure.CodeDamaged, Message: "the run is damaged: " + r.Damage.What}
	signed, err := rules.RequiresSigned(tx, r.Tenant)
	if err != nil {
		return Repair{}, err
	}
	if signed {
		why = perdure.Failure{Code: perdure.CodeSignatureInvalid,
			Message: "the run is not what was accepted: " + r.Damage.What}
	}
	tx.DB.After(func() {
		tx.Engine.Log.Warn("a run is damaged and ends", "tenant", r.Tenant, "run", r.ID, "why", why.Message)
	})
	did := Repair{Rule: "damaged", What: "failed/" + string(why.Code), Why: why.Message}
	if err := freeKeysOf(tx, r.Tenant, r.ID); err != nil {
		return Repair{}, err
	}
	return did, Finish(tx, r, perdure.Corrupted{Failure: why})
}

// leaveLimits gives back what a damaged run has at its limits, as its row doesn't say any more what that is. Its
// column says where it waits. Slots are counted again.
func leaveLimits(tx *kernel.Tx, r *perdure.Run) error {
	was, err := tx.DB.LimitLines.Stored(r.Tenant, r.ID)
	switch {
	case err != nil:
		return err
	case was.Held:
		tx.DB.LimitKeys.Recount(r.Tenant)
		tx.WakeAt(tx.Now)
	case was.Waits.Limit != "":
		row, err := countsOf(tx, r.Tenant, was.Waits)
		if err != nil {
			return err
		}
		row.Waiting = max(0, row.Waiting-1)
		tx.DB.LimitKeys.Put(row)
		touchLimit(tx, r.Tenant, was.Waits)
	}
	return nil
}

// A Repair describes what was repaired: the watchdog's rule, the action and the reason. An empty
// Rule means that nothing was repaired.
type Repair struct{ Rule, What, Why string }
