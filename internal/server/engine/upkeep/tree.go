package upkeep

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/store"
)

// Threads that were made for children are removed when the root of their tree is: see store/trees.go.
// They are the children's scratch paper; conversations of people stay.

const (
	// treeThreads bounds the threads that one step removes.
	treeThreads = 16
	// treeLook is how long after a round the threads that were kept are looked at again.
	treeLook = time.Hour
)

// removeTreeThreads removes some threads of a tree. A thread is kept while a live run or a pending
// chord is on it. After retention it is also kept while something has happened on it within the
// retention: somebody may have gone on talking there. more tells that the next step should follow at
// once.
func removeTreeThreads(tx *kernel.Tx, find func() (store.Tree, bool, error)) (more bool, err error) {
	x, ok, err := find()
	if err != nil || !ok {
		return false, err
	}
	list, err := tx.DB.Trees.Threads(&x, treeThreads)
	if err != nil {
		return false, err
	}
	kept := false
	for _, id := range list {
		keep, err := removeTreeThread(tx, &x, id)
		if err != nil {
			return false, err
		}
		if kept = kept || keep; keep {
			tx.DB.Trees.Keep(&x, id)
		} else {
			tx.DB.Trees.Forget(&x, id)
		}
	}
	if len(list) == treeThreads {
		return true, nil
	}
	return false, tx.DB.Trees.EndRound(&x, kept, tx.Now.Add(treeLook))
}

// removeTreeThread removes a thread of a tree, or tells that it has to be kept.
func removeTreeThread(tx *kernel.Tx, x *store.Tree, id perdure.ThreadID) (keep bool, err error) {
	th, ok, err := tx.DB.Threads.Get(x.Tenant, id) // before its runs, as DeleteThread does
	if err != nil || !ok {
		return false, err
	}
	if x.Aged && th.UpdatedAt > tx.Now.Add(-tx.Engine.Policy().Retention) {
		return true, nil
	}
	why, err := tx.DB.Threads.InUse(x.Tenant, id)
	if err != nil || why != "" {
		return true, err
	}
	tx.DB.Threads.Drop(&th)
	return false, removeThread(tx, x.Tenant, id)
}

// removeThread deletes the webhooks of a thread that was deleted.
func removeThread(tx *kernel.Tx, t perdure.TenantID, id perdure.ThreadID) error {
	have, err := tx.DB.Webhooks.List(t)
	if err != nil {
		return err
	}
	for _, w := range have {
		if w.Scope == perdure.OfThread && w.ThreadID == id && w.DeletedAt == 0 {
			w.DeletedAt = tx.Now
			outbox.PutWebhook(tx, w)
		}
	}
	return nil
}
