package store

import "github.com/perdure/perdure"

// A commitRow is a commit that is not its run's last one.
type commitRow struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	perdure.Taken
	At perdure.Instant
}

var commitTable = register(&table[commitRow]{
	name: "commits", once: true, keys: []string{"tenant", "run_id", "commit_id"},
	columns: func(c *columns, r *commitRow) {
		text(c, "tenant", &r.Tenant)
		text(c, "run_id", &r.RunID)
		text(c, "commit_id", &r.ID)
		text(c, "digest", &r.Digest)
		text(c, "answer", &r.Answer)
		number(c, "at", &r.At)
	},
})

type commitKey struct {
	runKey
	id string
}

// Commits holds the commits of runs that were answered. The last one of each run is in the run's
// row.
type Commits struct {
	in   *base
	runs *Runs
	rows staged[commitKey, commitRow]
}

func (repo *Commits) open(in *base, runs *Runs) {
	repo.runs = runs
	repo.in = in
	openRows(&repo.rows, in, commitTable)
}

// Answer gives the answer of an earlier commit of a run, if it has that commit.
func (repo *Commits) Answer(r *perdure.Run, id string) (c perdure.Taken, ok bool, err error) {
	if r.LastCommit.ID == id {
		return r.LastCommit, true, nil
	}
	if err := repo.in.tx.lookUp([]Lookup{{Ref: Ref{r.Tenant, r.ID}, Commit: id}}); err != nil {
		return c, false, err
	}
	row, ok, _ := getRow(&repo.rows, commitKey{runKey{r.Tenant, r.ID}, id})
	return row.Taken, ok, nil
}

// load reads commits.
func (repo *Commits) load(keys []commitKey) error {
	rows := make([][]any, len(keys))
	for i, k := range keys {
		rows[i] = []any{string(k.t), string(k.r), k.id}
	}
	err := repo.in.tx.among("commits", []string{"tenant", "run_id", "commit_id"}, rows,
		func(given string, args []any) error {
			return commitTable.query(repo.in.sess, given, args, func(c *commitRow) error {
				absorbRow(&repo.rows, commitKey{runKey{c.Tenant, c.RunID}, c.ID}, *c, true)
				return nil
			})
		})
	if err == nil {
		for _, k := range keys {
			absorbRow(&repo.rows, k, commitRow{}, false)
		}
	}
	return err
}

// maxAnswer is the maximal length of an answer in a run's row, which is written with every change
// of the run.
const maxAnswer = 512

// Put stages the last commit of a run. The one before it moves to the table of commits, and so does
// a commit with a long answer.
func (repo *Commits) Put(t perdure.TenantID, id perdure.RunID, c perdure.Taken) error {
	r, ok, err := repo.runs.Get(t, id)
	if err != nil || !ok {
		return err
	}
	apart := func(c perdure.Taken) {
		putRow(&repo.rows, commitKey{runKey{t, id}, c.ID}, commitRow{Tenant: t, RunID: id, Taken: c, At: repo.in.Now})
		r.Commits++
	}
	if r.LastCommit.ID != "" {
		apart(r.LastCommit)
	}
	if r.LastCommit = c; len(c.Answer) > maxAnswer {
		apart(c)
		r.LastCommit = perdure.Taken{}
	}
	repo.runs.Put(r, nil)
	return nil
}
