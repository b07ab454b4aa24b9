package store

import (
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// A Published is the latest value of a named view of a run.
type Published struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Name   string
	Value  perdure.Value // not set in a list
	Size   int64
	// Version rises by one with each value.
	Version int64
	At      perdure.Instant
}

var publishedTable = register(&table[Published]{
	name: "run_views", keys: []string{"tenant", "run_id", "name"},
	columns: func(c *columns, p *Published) {
		text(c, "tenant", &p.Tenant)
		text(c, "run_id", &p.RunID)
		text(c, "name", &p.Name)
		text(c, "value", &p.Value)
		number(c, "size", &p.Size)
		number(c, "version", &p.Version)
		number(c, "at", &p.At)
	},
})

// publishedHeads are views without their values.
var publishedHeads = register(&table[Published]{
	name: "run_views", keys: []string{"tenant", "run_id", "name"},
	columns: func(c *columns, p *Published) {
		text(c, "tenant", &p.Tenant)
		text(c, "run_id", &p.RunID)
		text(c, "name", &p.Name)
		number(c, "size", &p.Size)
		number(c, "version", &p.Version)
		number(c, "at", &p.At)
	},
})

type publishedKey struct {
	runKey
	name string
}

// Views holds the named values that runs publish. A run has few of them, and a value stands in its
// row. A transaction reads rows without their values, because it only replaces them.
type Views struct {
	in   *base
	rows stagedOfRuns[publishedKey, Published]
}

func (repo *Views) open(in *base) {
	repo.in = in
	openRows(&repo.rows.staged, in, publishedTable)
}

// List gives the views of a run in the order of their names, without the values.
func (repo *Views) List(t perdure.TenantID, run perdure.RunID) ([]Published, error) {
	k := runKey{t, run}
	err := publishedHeads.query(repo.in.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)},
		func(p *Published) error {
			absorbOfRun(&repo.rows, publishedKey{k, p.Name}, *p, true)
			return nil
		})
	var out []Published
	for p := range rowsOf(&repo.rows, k) {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b Published) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

// Get reads a view with its value, as it is committed.
func (repo *Views) Get(t perdure.TenantID, run perdure.RunID, name string) (Published, bool, error) {
	return publishedTable.one(repo.in.sess, "WHERE tenant=? AND run_id=? AND name=?", string(t), string(run), name)
}

// Put stages a view.
func (repo *Views) Put(p Published) {
	repo.in.tx.bytes += len(p.Value)
	putOfRun(&repo.rows, publishedKey{runKey{p.Tenant, p.RunID}, p.Name}, p)
}
