package reads

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// A ListedThread is a thread with its last message and its active run.
type ListedThread struct {
	perdure.Thread
	// Last is nil if the thread has no messages.
	Last *store.LastMessage
	// Live is the active run, or nil.
	Live   *store.LiveRun
	Status perdure.ThreadStatus
	// Names are those that callers chose.
	Names []string
}

// Page reads a page of a tenant's threads. next is the cursor of the next page if there may be one: a page
// of a filter that few threads match may be short, or empty, and have one.
func (q Threads) Page(
	ctx context.Context, t perdure.TenantID, p kernel.Page, f ThreadFilter,
) (list []ListedThread, next string, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		x := threadSearch{v: v, t: t}
		if f.selects() {
			list, next, err = x.find(p, &f)
		} else {
			var rows []perdure.Thread
			if rows, next, err = v.Threads.Page(t, p, !f.WithoutChildren); err == nil {
				list, err = x.withStatus(rows)
			}
		}
		if err != nil {
			return err
		}
		ids := make([]perdure.ThreadID, len(list))
		for i := range list {
			ids[i] = list[i].ID
		}
		names, err := v.Names.OfThreads(t, ids)
		if err != nil {
			return err
		}
		last, err := v.Threads.LastMessages(t, ids)
		for i := range list {
			th := &list[i]
			th.Names = names[th.ID]
			if m, ok := last[th.ID]; ok {
				th.Last = &m
			}
		}
		return err
	})
	return list, next, err
}
