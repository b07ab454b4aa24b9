package store

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// A WaiterRow says that a client on a node waits for a run, until the entry expires.
type WaiterRow struct {
	Tenant    perdure.TenantID
	RunID     perdure.RunID
	Node      string
	ExpiresAt perdure.Instant
}

var waiterTable = register(&table[WaiterRow]{
	name: "waiters", keys: []string{"tenant", "run_id", "node"},
	columns: func(c *columns, w *WaiterRow) {
		text(c, "tenant", &w.Tenant)
		text(c, "run_id", &w.RunID)
		text(c, "node", &w.Node)
		number(c, "expires_at", &w.ExpiresAt)
	},
})

type waiterKey struct {
	runKey
	node string
}

// Waiters holds which nodes have clients that wait for a run.
type Waiters struct {
	in   *base
	runs *Runs
	rows stagedOfRuns[waiterKey, WaiterRow]
	// ended are the runs whose waiters the batch removes.
	ended runsWithoutWaiters
}

func (repo *Waiters) open(in *base, runs *Runs) {
	repo.runs = runs
	repo.in = in
	openRows(&repo.rows.staged, in, waiterTable)
	repo.ended.in = in
	in.write(&repo.ended)
}

// Of gives the waiters of a run, by node.
func (repo *Waiters) Of(t perdure.TenantID, run perdure.RunID) ([]WaiterRow, error) {
	k := runKey{t, run}
	err := waiterTable.query(repo.in.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)},
		func(w *WaiterRow) error {
			absorbOfRun(&repo.rows, waiterKey{k, w.Node}, *w, true)
			return nil
		})
	var out []WaiterRow
	for w := range rowsOf(&repo.rows, k) {
		out = append(out, *w)
	}
	slices.SortFunc(out, func(a, b WaiterRow) int { return strings.Compare(a.Node, b.Node) })
	return out, err
}

// Expired gives waiters that their node has not renewed in time.
func (repo *Waiters) Expired(limit int) ([]WaiterRow, error) {
	where, args := fmt.Sprintf("WHERE expires_at<=? ORDER BY expires_at, tenant, run_id, node LIMIT %d", limit),
		[]any{int64(repo.in.Now)}
	if err := repo.in.tx.ownersFirst("SELECT tenant, run_id FROM waiters "+where, args); err != nil {
		return nil, err
	}
	var out []WaiterRow
	err := waiterTable.query(repo.in.sess, where, args, func(w *WaiterRow) error {
		k := waiterKey{runKey{w.Tenant, w.RunID}, w.Node}
		if _, _, known := getRow(&repo.runs.rows, k.runKey); !known {
			return nil
		}
		absorbOfRun(&repo.rows, k, *w, true)
		if cur, ok, _ := getRow(&repo.rows.staged, k); ok && cur.ExpiresAt <= repo.in.Now {
			out = append(out, cur)
		}
		return nil
	})
	return out, err
}

// Put stages a waiter.
func (repo *Waiters) Put(w WaiterRow) {
	putOfRun(&repo.rows, waiterKey{runKey{w.Tenant, w.RunID}, w.Node}, w)
}

// Renew extends the expiry of a node's waiters that have not expired, and gives their runs. A
// waiter that is dropped meanwhile stays dropped.
func (repo *Waiters) Renew(
	t perdure.TenantID, node string, ids []perdure.RunID, until perdure.Instant,
) (kept map[perdure.RunID]bool, err error) {
	kept = make(map[perdure.RunID]bool, len(ids))
	err = eachPart(repo.in.dialect, texts(ids), func(part []string) error {
		given, args := repo.in.dialect.keyed("waiters", []string{"tenant", "node", "run_id"},
			[]string{string(t), node}, part)
		return waiterTable.query(repo.in.sess, given, args, func(w *WaiterRow) error {
			if w.ExpiresAt > repo.in.Now {
				kept[w.RunID] = true
				repo.in.tx.Stage("UPDATE waiters SET expires_at=? WHERE tenant=? AND run_id=? AND node=? "+
					"AND expires_at>?",
					int64(until), string(t), string(w.RunID), node, int64(repo.in.Now))
			}
			return nil
		})
	})
	return kept, err
}

// Drop stages the removal of a waiter, unless it was renewed since it was read.
func (repo *Waiters) Drop(w WaiterRow) {
	k := waiterKey{runKey{w.Tenant, w.RunID}, w.Node}
	known := repo.rows.byKey[k]
	if known != nil {
		before := *known
		known.exists = false
		repo.in.tx.undo = append(repo.in.tx.undo, func() { *known = before })
	}
	addRows(&repo.in.tx.later, statement{"DELETE FROM waiters WHERE tenant=? AND run_id=? AND node=? AND expires_at<=?",
		[]any{string(w.Tenant), string(w.RunID), w.Node, int64(w.ExpiresAt)}, anyNumber})
}

// DropAll stages the removal of all waiters of a run, which has ended. It reads nothing. Waiters that
// the batch has added are removed too.
func (repo *Waiters) DropAll(t perdure.TenantID, run perdure.RunID) {
	tx := repo.in.tx
	if tx.locked != nil &&
		(tx.locked[ownerLock("waiters", string(t), string(run))] || tx.locked[tableLock("waiters")]) {
		return // they expire by themselves: no end waits for them
	}
	addRows(&repo.ended.added, runKey{t, run})
}

// runsWithoutWaiters are runs whose waiters are removed with one statement for each tenant.
type runsWithoutWaiters struct{ added[runKey] }

func (e *runsWithoutWaiters) pending() int { return len(e.list) }

func (e *runsWithoutWaiters) statements(d *dialect) (out []statement) {
	byTenant := make(map[perdure.TenantID][]string)
	for _, k := range e.list {
		byTenant[k.t] = append(byTenant[k.t], string(k.r))
	}
	for _, t := range slices.Sorted(maps.Keys(byTenant)) {
		_ = eachPart(d, byTenant[t], func(part []string) error {
			some, args := d.anyOf("run_id", part)
			out = append(out, statement{"DELETE FROM waiters WHERE tenant=? AND " + some,
				append([]any{string(t)}, args...), anyNumber})
			return nil
		})
	}
	return out
}
