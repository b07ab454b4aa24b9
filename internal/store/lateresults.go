package store

import (
	"slices"

	"github.com/perdure/perdure"
)

var lateTable = &table[perdure.LateResult]{
	name: "late_results", keys: []string{"tenant", "run_id", "n"},
	cols: []string{"tenant", "run_id", "n", "commit_id", "epoch", "from_run", "result", "summary", "state", "at",
		"attempt", "worker"},
	bind: func(l *perdure.LateResult) []any {
		return []any{string(l.Tenant), string(l.RunID), int64(l.N), l.CommitID, l.Epoch, string(l.FromRun),
			string(l.Result), l.Summary, l.State, int64(l.At), int64(l.Attempt), l.Worker}
	},
	scan: func(l *perdure.LateResult) []any {
		return []any{&l.Tenant, &l.RunID, &l.N, &l.CommitID, &l.Epoch, &l.FromRun, &l.Result, &l.Summary, &l.State,
			&l.At, &l.Attempt, &l.Worker}
	},
}

type lateKey struct {
	runKey
	n int
}

// LateResults holds results that arrived after the end of their runs.
type LateResults struct {
	in   *Records
	rows stagedOfRuns[lateKey, perdure.LateResult]
}

func (repo *LateResults) open(in *Records) {
	repo.in = in
	repo.rows.over(in, lateTable)
}

// List gives the late results of a run, in order.
func (repo *LateResults) List(t perdure.TenantID, run perdure.RunID) ([]perdure.LateResult, error) {
	k := runKey{t, run}
	err := lateTable.query(repo.in.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)},
		func(l *perdure.LateResult) error {
			repo.rows.absorb(lateKey{k, l.N}, *l, true)
			return nil
		})
	var out []perdure.LateResult
	for l := range repo.rows.of(k) {
		out = append(out, *l)
	}
	slices.SortFunc(out, func(a, b perdure.LateResult) int { return a.N - b.N })
	return out, err
}

// Put stages a late result.
func (repo *LateResults) Put(l perdure.LateResult) {
	repo.rows.put(lateKey{runKey{l.Tenant, l.RunID}, l.N}, l)
}
