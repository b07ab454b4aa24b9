package reads

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// Group reads a group that a caller created, and the ends of its runs in their order.
func (q Runs) Group(
	ctx context.Context, t perdure.TenantID, id perdure.GroupID,
) (g perdure.Gathering, ends []life.End, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		if g, err = life.GroupOfCaller(v, t, id); err == nil {
			ends, err = v.Runs.Ends(t, g.Members)
		}
		return err
	})
	return g, ends, err
}

// A GroupFilter selects groups; see the store's.
type GroupFilter = store.GroupFilter

// Groups reads a page of the groups that a tenant's callers created, newest first, without their runs.
func (q Runs) Groups(ctx context.Context, t perdure.TenantID, f GroupFilter) (p store.GroupPage, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		p, err = v.Groups.Page(t, f)
		return err
	})
	return p, err
}

// GroupHead reads a group that a caller created, without its runs.
func (q Runs) GroupHead(
	ctx context.Context, t perdure.TenantID, id perdure.GroupID,
) (g perdure.Gathering, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		var ok bool
		if g, ok, err = v.Groups.Get(t, id); err == nil && (!ok || g.Kind != perdure.GatheringGroup) {
			err = kernel.NotFound("group")
		}
		return err
	})
	return g, err
}

// GroupEnded tells whether a group that a caller created has ended. It does not read the group's
// runs.
func (q Runs) GroupEnded(ctx context.Context, t perdure.TenantID, id perdure.GroupID) (ended bool, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		g, err := life.GroupOfCaller(v, t, id)
		ended = g.State != perdure.GatheringOpen
		return err
	})
	return ended, err
}
