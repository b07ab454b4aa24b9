package store

import (
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

var waitTable = register(&table[perdure.Wait]{
	name: "waits", keys: []string{"tenant", "run_id", "id"},
	columns: func(c *columns, w *perdure.Wait) {
		text(c, "tenant", &w.Tenant)
		text(c, "run_id", &w.RunID)
		text(c, "id", &w.ID)
		text(c, "type", &w.Type)
		text(c, "mode", &w.Mode)
		text(c, "name", &w.Name)
		packed(c, "targets", idList{&w.Targets})
		flag(c, "on_stall", &w.OnStall)
		text(c, "state", &w.State)
		flag(c, "named", &w.Named)
		number(c, "opened_at", &w.OpenedAt)
		number(c, "timeout_at", &w.TimeoutAt)
		number(c, "ended_at", &w.EndedAt)
		number(c, "ended", &w.Ended)
		number(c, "ok", &w.OK)
		number(c, "item", &w.Item)
	},
	validate: func(w *perdure.Wait) { clampCounts(&w.Ended, &w.OK) },
})

// A waitKey names a wait of a run.
type waitKey struct {
	runKey
	id string
}

// Waits holds what runs wait for: signals, children, timers, callbacks, approvals,
// messages.
type Waits struct {
	in   *base
	rows stagedOfRuns[waitKey, perdure.Wait]
	// complete has the runs whose open waits are all among the rows.
	complete map[runKey]bool
}

func (repo *Waits) open(in *base) {
	repo.in = in
	openRows(&repo.rows.staged, in, waitTable)
}

// Get gives one wait of a run, open or not.
func (repo *Waits) Get(t perdure.TenantID, run perdure.RunID, id string) (perdure.Wait, bool, error) {
	return loadOfRun(&repo.rows, waitKey{runKey{t, run}, id}, "WHERE tenant=? AND run_id=? AND id=?", string(t),
		string(run), id)
}

// List gives all waits of a run.
func (repo *Waits) List(t perdure.TenantID, run perdure.RunID) ([]perdure.Wait, error) {
	return waitTable.list(repo.in.sess, "WHERE tenant=? AND run_id=? ORDER BY opened_at, id",
		[]any{string(t), string(run)})
}

// Open gives a run's open waits, in the order of their ids.
func (repo *Waits) Open(t perdure.TenantID, id perdure.RunID) ([]perdure.Wait, error) {
	k := runKey{t, id}
	if !repo.complete[k] {
		err := waitTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? AND state='open'",
			[]any{string(t), string(id)}, func(w *perdure.Wait) error {
				absorbOfRun(&repo.rows, waitKey{k, w.ID}, *w, true)
				return nil
			})
		if err != nil {
			return nil, err
		}
		if repo.complete == nil {
			repo.complete = make(map[runKey]bool)
		}
		repo.complete[k] = true
	}
	var out []perdure.Wait
	for w := range rowsOf(&repo.rows, k) {
		if w.State == perdure.WaitOpen {
			out = append(out, *w)
		}
	}
	slices.SortFunc(out, func(a, b perdure.Wait) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// FirstOpen gives at most limit open waits of a run, in the order of their ids.
func (repo *Waits) FirstOpen(t perdure.TenantID, run perdure.RunID, limit int) (out []perdure.Wait, err error) {
	return waitTable.list(repo.in.sess, "WHERE tenant=? AND run_id=? AND state='open' ORDER BY id"+atMost,
		[]any{string(t), string(run), int64(limit)})
}

// Missed gives the id of a wait that has ended without resuming the suspended run that named it. It
// is empty if there is none.
func (repo *Waits) Missed(t perdure.TenantID, run perdure.RunID) (id string, err error) {
	err = repo.in.sess.Query("SELECT id FROM waits WHERE tenant=? AND run_id=? AND named=1 "+
		"AND state NOT IN ('open','closed') ORDER BY id LIMIT 1",
		[]any{string(t), string(run)}, func(scan func(...any) error) error { return scan(&id) })
	if err != nil || id == "" {
		return "", err
	}
	w, _, err := repo.Get(t, run, id)
	if !w.Named {
		id = ""
	}
	return id, err
}

// Put stages a wait.
func (repo *Waits) Put(w perdure.Wait) {
	putOfRun(&repo.rows, waitKey{runKey{w.Tenant, w.RunID}, w.ID}, w)
}
