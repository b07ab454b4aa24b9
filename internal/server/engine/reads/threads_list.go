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
	Live *store.LiveRun
	// Names are those that callers chose.
	Names []string
}

// Page reads a page of a tenant's threads, with those of children or without. next is the cursor of
// the next page if there may be one.
func (q Threads) Page(
	ctx context.Context, t perdure.TenantID, p kernel.Page, children bool,
) (list []ListedThread, next string, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		var rows []perdure.Thread
		if rows, next, err = v.Threads.Page(t, p, children); err != nil {
			return err
		}
		var active []perdure.RunID
		ids := make([]perdure.ThreadID, len(rows))
		for i := range rows {
			if ids[i] = rows[i].ID; rows[i].Active != "" {
				active = append(active, rows[i].Active)
			}
		}
		live, err := v.Runs.Live(t, active)
		if err != nil {
			return err
		}
		names, err := v.Names.OfThreads(t, ids)
		if err != nil {
			return err
		}
		last, err := v.Threads.LastMessages(t, ids)
		for _, th := range rows {
			x := ListedThread{Thread: th, Names: names[th.ID]}
			if m, ok := last[th.ID]; ok {
				x.Last = &m
			}
			if r, ok := live[th.Active]; ok {
				x.Live = &r
			}
			list = append(list, x)
		}
		return err
	})
	return list, next, err
}
