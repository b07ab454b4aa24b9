package store

import (
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// A NameRow is a name that a caller chose for a thread or a run.
type NameRow struct {
	Tenant perdure.TenantID
	Of     Named
	Name   string
	// Owner is the id of the thread or run. If it is gone, the row counts as none.
	Owner string
	// Digest is that of the body that made the run under this name. It is empty for a thread, and for a
	// name that was given later.
	Digest    string
	FromSeq   int64 // the name stands for the run from this line of its log on
	CreatedAt perdure.Instant
	Version   int64
}

// Named is what a name stands for.
type Named string

const (
	NamedThread Named = "thread"
	NamedRun    Named = "run"
)

var nameTable = register(&table[NameRow]{
	name: "names", versioned: true, version: func(n *NameRow) *int64 { return &n.Version },
	keys: []string{"tenant", "of_what", "name"},
	columns: func(c *columns, n *NameRow) {
		text(c, "tenant", &n.Tenant)
		text(c, "of_what", &n.Of)
		text(c, "name", &n.Name)
		text(c, "owner", &n.Owner)
		text(c, "digest", &n.Digest)
		number(c, "from_seq", &n.FromSeq)
		number(c, "created_at", &n.CreatedAt)
		number(c, "version", &n.Version)
	},
})

type nameKey struct {
	t    perdure.TenantID
	of   Named
	name string
}

// Names holds the names of threads and runs.
//
// The row of a name is inserted only if there is none, and replaced only in the version that was read.
// Two calls that take the same name therefore conflict, also on two nodes. The rows are removed after
// their owner (removals.go), so that a reader has to look whether the owner is there.
type Names struct {
	in   *base
	rows staged[nameKey, NameRow]
}

func (repo *Names) open(in *base) {
	repo.in = in
	openRows(&repo.rows, in, nameTable)
}

// Get gives a name, also one whose owner is gone.
func (repo *Names) Get(t perdure.TenantID, of Named, name string) (NameRow, bool, error) {
	return loadRow(&repo.rows, nameKey{t, of, name}, "WHERE tenant=? AND of_what=? AND name=?", string(t), string(of),
		name)
}

// Put stages a name. Its version is incremented when the batch is written.
func (repo *Names) Put(n NameRow) { putRow(&repo.rows, nameKey{n.Tenant, n.Of, n.Name}, n) }

// Of lists the names of a thread or run in the order of their letters, with those of the batch.
func (repo *Names) Of(t perdure.TenantID, owner string) (out []NameRow, err error) {
	err = nameTable.query(repo.in.sess, "WHERE tenant=? AND owner=? ORDER BY name"+atMost,
		[]any{string(t), owner, int64(4 * perdure.MaxNames)}, func(n *NameRow) error {
			k := nameKey{n.Tenant, n.Of, n.Name}
			absorbRow(&repo.rows, k, *n, true)
			if cur, ok, _ := getRow(&repo.rows, k); ok && cur.Owner == owner {
				out = append(out, cur)
			}
			return nil
		})
	for _, k := range repo.rows.dirty {
		if r := repo.rows.byKey[k]; k.t == t && r.exists && r.val.Owner == owner &&
			!slices.ContainsFunc(out, func(n NameRow) bool { return n.Name == k.name }) {
			out = append(out, r.val)
		}
	}
	slices.SortFunc(out, func(a, b NameRow) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

// OfThreads gives the names of some threads of a tenant, by thread.
func (repo *Names) OfThreads(t perdure.TenantID, threads []perdure.ThreadID) (map[perdure.ThreadID][]string, error) {
	out := make(map[perdure.ThreadID][]string)
	err := eachPart(repo.in.dialect, texts(threads), func(part []string) error {
		cond, args := repo.in.dialect.anyOf("owner", part)
		return repo.in.sess.Query("SELECT owner, name FROM names WHERE tenant=? AND of_what='thread' AND "+cond+
			" ORDER BY name", append([]any{string(t)}, args...), func(scan func(...any) error) error {
			var id perdure.ThreadID
			var name string
			err := scan(&id, &name)
			out[id] = append(out[id], name)
			return err
		})
	})
	return out, err
}

// CountLasting counts the names of a tenant that are not those of live runs, up to a limit.
func (repo *Names) CountLasting(t perdure.TenantID, limit int) (n int, err error) {
	count := func(more string) error {
		return repo.in.sess.Query("SELECT count(*) FROM (SELECT 1 FROM names n WHERE n.tenant=?"+more+atMost+
			") AS counted", []any{string(t), int64(limit)}, func(scan func(...any) error) error { return scan(&n) })
	}
	// Without a look at the runs the count is cheap, and high enough for nearly every tenant.
	if err = count(""); err != nil || n < limit {
		return n, err
	}
	err = count(" AND NOT (n.of_what='run' AND EXISTS (SELECT 1 FROM runs r WHERE r.tenant=n.tenant AND r.id=n.owner " +
		"AND r.alarm_at IS NOT NULL))")
	return n, err
}
