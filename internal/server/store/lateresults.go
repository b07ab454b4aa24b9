package store

import (
	"slices"

	"github.com/perdure/perdure"
)

var lateTable = register(&table[perdure.LateResult]{
	name: "late_results", keys: []string{"tenant", "run_id", "n"},
	columns: func(c *columns, l *perdure.LateResult) {
		text(c, "tenant", &l.Tenant)
		text(c, "run_id", &l.RunID)
		number(c, "n", &l.N)
		text(c, "commit_id", &l.CommitID)
		number(c, "epoch", &l.Epoch)
		text(c, "from_run", &l.FromRun)
		text(c, "result", &l.Result)
		text(c, "summary", &l.Summary)
		text(c, "state", &l.State)
		number(c, "at", &l.At)
		number(c, "attempt", &l.Attempt)
		text(c, "worker", &l.Worker)
	},
})

type lateKey struct {
	runKey
	n int
}

// LateResults holds results that arrived after the end of their runs.
type LateResults struct {
	in   *base
	rows stagedOfRuns[lateKey, perdure.LateResult]
}

func (repo *LateResults) open(in *base) {
	repo.in = in
	openRows(&repo.rows.staged, in, lateTable)
}

// List gives the late results of a run, in order.
func (repo *LateResults) List(t perdure.TenantID, run perdure.RunID) ([]perdure.LateResult, error) {
	k := runKey{t, run}
	err := lateTable.query(repo.in.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)},
		func(l *perdure.LateResult) error {
			absorbOfRun(&repo.rows, lateKey{k, l.N}, *l, true)
			return nil
		})
	var out []perdure.LateResult
	for l := range rowsOf(&repo.rows, k) {
		out = append(out, *l)
	}
	slices.SortFunc(out, func(a, b perdure.LateResult) int { return a.N - b.N })
	return out, err
}

// Put stages a late result.
func (repo *LateResults) Put(l perdure.LateResult) {
	putOfRun(&repo.rows, lateKey{runKey{l.Tenant, l.RunID}, l.N}, l)
}
