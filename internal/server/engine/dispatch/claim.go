package dispatch

import (
	"cmp"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// Bounds of one poll.
const (
	// MaxSlots bounds the runs of one poll.
	MaxSlots = 1000
	// PollMax bounds the bytes of inputs, journals and inboxes of one poll.
	PollMax = 8 << 20

	// pollRows bounds the rows that are read or written for the grants of one poll.
	pollRows = 2000
)

func (*Claim) Needs() []store.Ref { return nil }

// Lane keeps polls in a lane of their own.
func (*Claim) Lane() store.Lane { return store.LaneClaim }

// Do finds runs and grants them.
func (op *Claim) Do(tx *kernel.Tx) error {
	op.Grants, op.More = nil, false
	if err := access.CheckWorker(tx.Engine, op.Worker); err != nil {
		return err
	}
	if op.Slots < 1 || op.Slots > MaxSlots {
		return perdure.Invalid("slots", "%d does not lie between 1 and %d", op.Slots, MaxSlots)
	}
	if op.Build != "" {
		if err := perdure.CheckName("build", op.Build); err != nil {
			return err
		}
	}
	if op.Release != "" {
		if err := perdure.CheckName("release", op.Release); err != nil {
			return err
		}
	}
	budget := pollBudget{rows: pollRows, bytes: cmp.Or(op.Room, PollMax)}
	if len(op.Runs) > 0 {
		return op.takeNamed(tx, &budget)
	}
	if len(op.Queues) == 0 {
		op.Queues = []string{perdure.DefaultQueue}
	}
	// A queue that is named twice would have its runs granted twice.
	op.Queues, op.Kinds = distinct(op.Queues), distinct(op.Kinds)
	err := recordPoll(tx, op.Tenant, op.Worker, op.Release, op.Slots,
		perdure.WorkerPoll{Queues: op.Queues, Kinds: op.Kinds, AllTenants: op.AnyTenant,
			Node: access.NodeOf(tx.Engine, op.Worker)})
	if err != nil {
		return err
	}
	s := op.begin(tx)
	full, err := op.takeHeld(tx, s, &budget)
	if err != nil {
		return err
	}
	for looked := len(op.Grants); looked < op.Slots && !full; {
		found, err := s.next(op.Slots - looked)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			break
		}
		looked += len(found)
		if full, err = s.grant(found, &budget); err != nil {
			return err
		}
	}
	return s.finish()
}

// maxNamed bounds the runs that a poll names.
const maxNamed = 100

// takeNamed grants the runs that the poll names.
func (op *Claim) takeNamed(tx *kernel.Tx, budget *pollBudget) error {
	if len(op.Runs) > maxNamed {
		return perdure.Invalid("run_ids", "names %d runs; a poll takes %d", len(op.Runs), maxNamed)
	}
	if err := life.RecordWorkerSeen(tx, op.Tenant, op.Worker); err != nil {
		return err
	}
	if c, err := op.enter(tx, op.Tenant); c == nil {
		return err
	}
	var found []store.Claimable
	for _, id := range op.Runs {
		r, err := tx.Run(op.Tenant, id)
		if err != nil {
			return err
		}
		twice := slices.ContainsFunc(found, func(f store.Claimable) bool { return f.ID == id })
		if r.Ready && !twice && len(found) < op.Slots {
			found = append(found, store.ClaimableOf(&r))
		}
	}
	_, err := op.grantFound(tx, found, budget)
	return err
}

// Weight counts slots, and what is read to find runs. Most polls find fewer runs.
func (op *Claim) Weight() (rows, bytes int) {
	reads := 0
	if places := len(op.Queues) * max(1, len(op.Kinds)); places > 1 {
		reads = min(maxReads/2, 4*places) // to read a row costs less than to write one
	}
	return min(pollRows, 4+2*max(1, op.Slots)+reads), min(PollMax, (4<<10)*max(1, op.Slots))
}
