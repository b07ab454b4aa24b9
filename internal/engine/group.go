package engine

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// CreateGroup gathers runs under one of the four modes, with a deadline of its own: what a wait is inside
// an agent, as a resource for callers outside.
type CreateGroup struct {
	Tenant   perdure.TenantID
	Mode     string
	RunIDs   []perdure.RunID
	Timeout  perdure.Duration
	OnLosers string // "continue" (default) or "cancel": what happens to the rest once it is satisfied

	Group perdure.Group
	Ends  []store.End // of those that have ended, the first first
}

func (op *CreateGroup) Needs() []store.Ref { return refs(op.Tenant, op.RunIDs...) }

// Do gathers.
func (op *CreateGroup) Do(tx *Tx) error {
	op.Ends = nil
	if op.Mode == "" {
		op.Mode = perdure.ModeAll
	}
	if !perdure.ValidMode(op.Mode) {
		return perdure.Invalid("mode", "%q is none of all, all_ok, any, any_ok", op.Mode)
	}
	switch op.OnLosers {
	case "", "continue", "cancel":
	default:
		return perdure.Invalid("on_losers", "%q is neither continue nor cancel", op.OnLosers)
	}
	if len(op.RunIDs) == 0 {
		return perdure.Invalid("run_ids", "a group has at least one run")
	}
	if len(op.RunIDs) > perdure.MaxBatch {
		return &perdure.Error{Code: perdure.CodeTooLarge, Field: "run_ids", Message: "a group has at most 1000 runs"}
	}
	if op.Timeout < 0 || time.Duration(op.Timeout) > perdure.MaxWait {
		return perdure.Invalid("timeout", "must lie between 0 and %s", perdure.MaxWait)
	}
	if err := tx.Room(); err != nil {
		return err
	}
	if err := tx.Prefetch(op.Tenant, op.RunIDs); err != nil {
		return err
	}
	var members []perdure.Run
	for _, id := range op.RunIDs {
		r, err := tx.run(op.Tenant, id)
		if err != nil {
			return fieldOf(err, "run_ids")
		}
		members = append(members, r)
	}
	id, err := tx.newID()
	if err != nil {
		return err
	}
	g := perdure.Group{Tenant: op.Tenant, ID: perdure.GroupID(id), Kind: perdure.GroupOfCaller, Mode: op.Mode, OnLosers: op.OnLosers}
	if op.Timeout > 0 {
		g.AlarmAt = tx.Now.Add(time.Duration(op.Timeout))
	}
	if err := tx.gather(&g, members, perdure.Noted{Watched: true}); err != nil {
		return err
	}
	if g.AlarmAt != 0 && (tx.alarm == 0 || g.AlarmAt < tx.alarm) {
		tx.alarm = g.AlarmAt
	}
	op.Group = g
	for _, id := range g.Members {
		r, err := tx.run(op.Tenant, id)
		if err != nil {
			return err
		}
		if r.State.Terminal() {
			op.Ends = append(op.Ends, store.End{ID: id, State: r.State, At: r.FinishedAt})
		}
	}
	store.SortEnds(op.Ends, g.Members)
	return nil
}

// TimeOutGroup ends a group at its deadline. Its runs go on: a timeout stops waiting, not working.
func (tx *Tx) TimeOutGroup(g *perdure.Group) error {
	g.State, g.EndedAt, g.AlarmAt = perdure.GroupTimedOut, tx.Now, 0
	tx.PutGathering(*g)
	tx.ringGroup(g)
	return nil
}
