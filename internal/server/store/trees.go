package store

import "github.com/perdure/perdure"

// Threads that were made for children go with their root.
//
// Such a thread has a row from its creation on, which names the root of its tree. When the root is
// removed, a row without a thread is added. It stands for the threads that are still to be removed,
// a few in each step. A thread that is in use is kept. When all others are gone, the tree is looked
// at again later.
//
// The threads are looked at in rounds: one that was kept in this round has a greater number than the
// row without a thread.

// A Tree is a root that was removed, with threads that were made for children of it.
type Tree struct {
	Tenant perdure.TenantID
	Root   perdure.RunID
	// Aged is set if retention removed the root, and not a call.
	Aged bool

	thread perdure.ThreadID
	due    perdure.Instant
	round  int64
}

var treeTable = register(&table[Tree]{
	name: "tree_threads", quiet: true, keys: []string{"tenant", "root_id", "thread_id"},
	columns: func(c *columns, x *Tree) {
		text(c, "tenant", &x.Tenant)
		text(c, "root_id", &x.Root)
		text(c, "thread_id", &x.thread)
		number(c, "due_at", &x.due)
		number(c, "round", &x.round)
		flag(c, "aged", &x.Aged)
	},
})

// Trees holds the threads that were made for children.
type Trees struct {
	in   *base
	rows added[Tree]
}

func (repo *Trees) open(in *base) {
	repo.in = in
	openAdded(&repo.rows, in, treeTable)
}

// Add stages that a thread was made for a child of a tree.
func (repo *Trees) Add(t perdure.TenantID, root perdure.RunID, id perdure.ThreadID) {
	addRows(&repo.rows, Tree{Tenant: t, Root: root, thread: id})
}

// Drop stages the removal of the threads that were made for children of some roots, which are being
// removed. Most have none.
func (repo *Trees) Drop(t perdure.TenantID, roots []perdure.RunID, aged bool) error {
	return eachPart(repo.in.dialect, texts(roots), func(part []string) error {
		cond, args := repo.in.dialect.anyOf("root_id", part)
		return repo.in.sess.Query("SELECT DISTINCT root_id FROM tree_threads WHERE tenant=? AND "+cond,
			append([]any{string(t)}, args...), func(scan func(...any) error) error {
				x := Tree{Tenant: t, Aged: aged, due: max(1, repo.in.Now)}
				err := scan(&x.Root)
				addRows(&repo.rows, x)
				return err
			})
	})
}

// Due gives the tree whose threads are to be removed next, if there is one.
func (repo *Trees) Due() (Tree, bool, error) {
	return repo.first("WHERE due_at>0 AND due_at<=? ORDER BY due_at, tenant, root_id LIMIT 1", int64(repo.in.Now))
}

// Of gives the tree of a root, if its threads are being removed.
func (repo *Trees) Of(t perdure.TenantID, root perdure.RunID) (Tree, bool, error) {
	return repo.first("WHERE tenant=? AND root_id=? AND thread_id='' AND due_at<=?", string(t), string(root),
		int64(repo.in.Now))
}

func (repo *Trees) first(where string, args ...any) (x Tree, ok bool, err error) {
	err = treeTable.query(repo.in.sess, where, args, func(found *Tree) error {
		x, ok = *found, true
		return nil
	})
	return x, ok, err
}

// Threads gives some threads of a tree that were not looked at in this round.
func (repo *Trees) Threads(x *Tree, limit int) (out []perdure.ThreadID, err error) {
	err = repo.in.sess.Query("SELECT thread_id FROM tree_threads WHERE tenant=? AND root_id=? AND thread_id<>'' "+
		"AND round<=? ORDER BY thread_id"+atMost,
		[]any{string(x.Tenant), string(x.Root), x.round, int64(limit)}, func(scan func(...any) error) error {
			var id perdure.ThreadID
			err := scan(&id)
			out = append(out, id)
			return err
		})
	return out, err
}

// Keep stages that a thread of a tree is kept in this round.
func (repo *Trees) Keep(x *Tree, id perdure.ThreadID) {
	repo.in.tx.Stage("UPDATE tree_threads SET round=? WHERE tenant=? AND root_id=? AND thread_id=?", x.round+1,
		string(x.Tenant), string(x.Root), string(id))
}

// Forget stages that a thread of a tree is gone.
func (repo *Trees) Forget(x *Tree, id perdure.ThreadID) {
	repo.in.tx.Stage("DELETE FROM tree_threads WHERE tenant=? AND root_id=? AND thread_id=?", string(x.Tenant),
		string(x.Root), string(id))
}

// EndRound stages the end of a round. If threads were kept, the next one begins at an instant.
func (repo *Trees) EndRound(x *Tree, kept bool, next perdure.Instant) error {
	key := []any{string(x.Tenant), string(x.Root)}
	err := repo.in.sess.Query("SELECT 1 FROM tree_threads WHERE tenant=? AND root_id=? AND thread_id<>'' "+
		"AND round>? LIMIT 1", append(key, x.round), func(func(...any) error) error {
		kept = true
		return nil
	})
	switch {
	case err != nil:
	case kept:
		repo.in.tx.Stage("UPDATE tree_threads SET round=?, due_at=? WHERE tenant=? AND root_id=? AND thread_id=''",
			append([]any{x.round + 1, int64(next)}, key...)...)
	default:
		repo.in.tx.Stage("DELETE FROM tree_threads WHERE tenant=? AND root_id=? AND thread_id=''", key...)
	}
	return err
}
