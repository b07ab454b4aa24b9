package life

import (
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// An End says when and how a run ended.
type End = store.End

// CreateGroup gathers runs under one of the four modes, with a deadline of its own. It gives
// callers outside of an agent what a wait for children is inside of one. With a Key it is
// idempotent.
type CreateGroup struct {
	Tenant  perdure.TenantID
	Mode    perdure.Mode
	RunIDs  []perdure.RunID
	Timeout perdure.Duration
	// OnLosers says what happens to the other runs once the group is satisfied: "continue"
	// (default) or "cancel".
	OnLosers perdure.Disposition
	Key      string

	Group perdure.Gathering
	// Ends are the members that have ended, in the order of their ends.
	Ends []End
	// Created is false if the key was known.
	Created bool
}

func (op *CreateGroup) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunIDs...) }

// Do creates the group.
func (op *CreateGroup) Do(tx *kernel.Tx) error {
	op.Ends = nil
	if op.Mode == "" {
		op.Mode = perdure.ModeAll
	}
	if !perdure.ValidMode(op.Mode) {
		return perdure.Invalid("mode", "%q is none of all, all_ok, any, any_ok", op.Mode)
	}
	if op.OnLosers != "" && !slices.Contains(perdure.Dispositions, op.OnLosers) {
		return perdure.Invalid("on_losers", "%q is neither continue nor cancel", op.OnLosers)
	}
	if len(op.RunIDs) == 0 {
		return perdure.Invalid("run_ids", "a group has at least one run")
	}
	if len(op.RunIDs) > perdure.MaxList {
		return &perdure.Error{Code: perdure.CodeTooLarge, Field: "run_ids", Message: "a group has at most 1000 runs"}
	}
	if op.Timeout < 0 || time.Duration(op.Timeout) > perdure.MaxWait {
		return perdure.Invalid("timeout", "must lie between 0 and %s", perdure.MaxWait)
	}
	var err error
	op.Created, err = kernel.UnderKey(tx, op.Tenant, "group", op.Key, []any{op.Mode, op.RunIDs, op.Timeout,
		op.OnLosers}, func() (string, error) {
		err := op.gather(tx)
		return string(op.Group.ID), err
	}, func(id string) error {
		g, ok, err := tx.DB.Groups.Get(op.Tenant, perdure.GroupID(id))
		if err == nil && !ok {
			err = kernel.NotFound("group")
		}
		if err == nil {
			g.Members, err = tx.DB.Groups.Members(&g)
		}
		op.Group = g
		return err
	})
	if err != nil {
		return err
	}
	for _, id := range op.Group.Members {
		r, ok, err := tx.DB.Runs.Get(op.Tenant, id)
		if err != nil {
			return err
		}
		if ok && r.State.Terminal() {
			op.Ends = append(op.Ends, End{ID: id, State: r.State, At: r.FinishedAt})
		}
	}
	store.SortEnds(op.Ends, op.Group.Members)
	return nil
}

// gather reads the members and creates the group.
func (op *CreateGroup) gather(tx *kernel.Tx) error {
	if err := tx.DB.RefuseIfFull(); err != nil {
		return err
	}
	if err := tx.DB.Runs.Load(op.Tenant, op.RunIDs); err != nil {
		return err
	}
	var members []perdure.Run
	for _, id := range op.RunIDs {
		r, err := tx.Run(op.Tenant, id)
		if err != nil {
			return fieldOf(err, "run_ids")
		}
		members = append(members, r)
	}
	id, err := tx.NewID()
	if err != nil {
		return err
	}
	g := perdure.Gathering{Tenant: op.Tenant, ID: perdure.GroupID(id), Kind: perdure.GatheringGroup, Mode: op.Mode,
		OnLosers: op.OnLosers}
	if op.Timeout > 0 {
		g.AlarmAt = tx.Now.Add(time.Duration(op.Timeout))
	}
	if err := createGathering(tx, &g, members, perdure.Gathered{}); err != nil {
		return err
	}
	tx.WakeAt(g.AlarmAt)
	// A group that is satisfied at once may have released its losers, which changed its row.
	all := g.Members
	op.Group, _, err = tx.DB.Groups.Get(g.Tenant, g.ID)
	op.Group.Members = all
	return err
}

// GroupOfCaller reads a group, and hides chords.
func GroupOfCaller(v *store.View, t perdure.TenantID, id perdure.GroupID) (perdure.Gathering, error) {
	g, ok, err := v.Groups.GetFull(t, id)
	if err == nil && (!ok || g.Kind != perdure.GatheringGroup) {
		err = kernel.NotFound("group")
	}
	return g, err
}
