package store

import (
	"strconv"

	"github.com/perdure/perdure"
)

// Reads for a search among threads. The engine decides which of them match.

// Scan reads the next threads after a cursor, in the order of Page and without titles that have to be derived.
func (repo *Threads) Scan(t perdure.TenantID, cursor string, limit int) ([]perdure.Thread, error) {
	at, id, ok := threadPlace(cursor)
	if !ok {
		return nil, perdure.Invalid("cursor", "takes the next_cursor of the page before")
	}
	return threadHeads.list(repo.in.sess,
		"WHERE tenant=? AND (updated_at,id)<(?,?) ORDER BY updated_at DESC, id DESC"+atMost,
		[]any{string(t), at, id, int64(limit)})
}

// ThreadCursor is the cursor of what comes after a thread.
func ThreadCursor(th *perdure.Thread) string {
	return strconv.FormatInt(int64(th.UpdatedAt), 10) + "." + string(th.ID)
}

// threadSize estimates the bytes of a thread in a list.
func threadSize(th *perdure.Thread) int {
	return 512 + quoted(string(th.ID)) + quoted(th.Title) + 6*4*perdure.MaxThreadText
}

// Metadata gives the metadata of some threads, with references instead of large ones.
func (repo *Threads) Metadata(
	t perdure.TenantID, threads []perdure.ThreadID,
) (map[perdure.ThreadID]perdure.Value, error) {
	out := make(map[perdure.ThreadID]perdure.Value, len(threads))
	err := eachPart(repo.in.dialect, texts(threads), func(part []string) error {
		cond, args := repo.in.dialect.anyOf("id", part)
		return repo.in.sess.Query("SELECT id, metadata FROM threads WHERE tenant=? AND "+cond,
			append([]any{string(t)}, args...), func(scan func(...any) error) error {
				var id perdure.ThreadID
				var v perdure.Value
				err := scan(&id, &v)
				out[id] = v
				return err
			})
	})
	return out, err
}

// NewestStates gives the state of the newest run of each of some threads. It is empty for a thread without
// a run.
func (repo *Threads) NewestStates(
	t perdure.TenantID, threads []perdure.ThreadID,
) (map[perdure.ThreadID]perdure.State, error) {
	out := make(map[perdure.ThreadID]perdure.State, len(threads))
	err := eachPart(repo.in.dialect, texts(threads), func(part []string) error {
		cond, args := repo.in.dialect.anyOf("t.id", part)
		return repo.in.sess.Query("SELECT t.id, coalesce((SELECT r.state FROM runs r WHERE r.tenant=t.tenant "+
			"AND r.thread_id=t.id AND r.thread_id<>'' ORDER BY r.thread_id DESC, r.id DESC LIMIT 1),'') "+
			"FROM threads t WHERE t.tenant=? AND "+cond,
			append([]any{string(t)}, args...), func(scan func(...any) error) error {
				var id perdure.ThreadID
				var state perdure.State
				err := scan(&id, &state)
				out[id] = state
				return err
			})
	})
	return out, err
}

// Asking gives those of some runs that have an open wait which a person ends.
func (repo *Waits) Asking(t perdure.TenantID, runs []perdure.RunID) (map[perdure.RunID]bool, error) {
	out := make(map[perdure.RunID]bool)
	err := eachPart(repo.in.dialect, texts(runs), func(part []string) error {
		cond, args := repo.in.dialect.anyOf("run_id", part)
		return repo.in.sess.Query("SELECT DISTINCT run_id FROM waits WHERE tenant=? AND "+cond+
			" AND state='open' AND type IN ('approval','callback','message','signal')",
			append([]any{string(t)}, args...), func(scan func(...any) error) error {
				var id perdure.RunID
				err := scan(&id)
				out[id] = true
				return err
			})
	})
	return out, err
}

// AskingTrees gives the roots of the trees in which a run asks for an approval, of the tenant's oldest open
// approvals up to PageRows.
func (repo *Approvals) AskingTrees(t perdure.TenantID) (map[perdure.RunID]bool, error) {
	out := make(map[perdure.RunID]bool)
	err := repo.in.sess.Query("SELECT DISTINCT r.root_id FROM (SELECT tenant, run_id FROM approvals WHERE tenant=? "+
		"AND state='open' ORDER BY opened_at, id"+atMost+") a JOIN runs r ON r.tenant=a.tenant AND r.id=a.run_id",
		[]any{string(t), int64(PageRows)}, func(scan func(...any) error) error {
			var id perdure.RunID
			err := scan(&id)
			out[id] = true
			return err
		})
	return out, err
}
