package dispatch

import (
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Holds: runs whose worker has reported a defect of the code; see perdure.Hold.
//
// A poll of a build that has not held a run may claim it during the backoff. Such runs are not
// claimable for others, so the ordinary search does not find them. The engine remembers the places,
// queues and kinds of tenants, that have held runs (heldPlaces). A poll searches these before its
// ordinary search, within bounds. While nothing is held, a poll compares two numbers.
//
// Runs that wait for a worker that cleans up after a cancel request are found in the same way, because
// their grants wait for no pause: the ordinary search skips a paused queue.
//
// The memory is a hint; held_places.go has it. A run whose place is not in the memory is claimed when
// its backoff is over.

// maxHeldRows bounds the held runs that one poll looks at, and maxHeldGrants those it claims.
const (
	maxHeldRows   = 64
	maxHeldGrants = 16
)

// takeHeld claims runs that are held back and that the poll's build has not held, and runs that wait for
// their clean-up.
func (op *Claim) takeHeld(tx *kernel.Tx, s *search, budget *pollBudget) (full bool, err error) {
	if err := knownHeld.Of(tx.Engine).refresh(tx); err != nil {
		return false, err
	}
	rows, slots := maxHeldRows, min(op.Slots, maxHeldGrants)
	for _, at := range knownHeld.Of(tx.Engine).matching(op, tx.Now) {
		if rows <= 0 || len(op.Grants) >= slots {
			break
		}
		c, err := op.enter(tx, at.Tenant)
		if err != nil {
			return false, err
		}
		if c == nil || c.shut(at.Queue, at.Kind, true) != nil {
			continue
		}
		// Clean-up waits for no pause.
		only := op.Build == "" || c.closed(at.Queue, at.Kind) != nil
		limit := min(rows, slots-len(op.Grants)+maxHeldRows/2, s.left()-minSearch)
		if limit <= 0 {
			break // the next poll goes on
		}
		ids, next, err := tx.DB.Claims.HeldBack(at.Ready, op.Build, only, at.after, limit)
		if err != nil {
			return false, err
		}
		rows -= limit
		if left := slots - len(op.Grants); len(ids) > left {
			ids = ids[:left]
			next = ids[left-1]
		}
		if len(ids) == 0 {
			knownHeld.Of(tx.Engine).passed(at.Ready, op.Build, next, tx.Now)
			continue
		}
		found := make([]store.Claimable, len(ids))
		for i, id := range ids {
			found[i] = store.Claimable{Tenant: at.Tenant, ID: id}
		}
		if full, err := s.grant(found, budget); err != nil || full {
			return full, err
		}
		knownHeld.Of(tx.Engine).passed(at.Ready, op.Build, next, tx.Now)
	}
	return false, nil
}
