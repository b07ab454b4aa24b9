package store

import (
	"strconv"

	"github.com/perdure/perdure"
)

// Removals.
//
// A run or thread is removed in two phases. The first deletes its row, provided that its version
// has not changed, and inserts a row into removals. From then on the run can't be found. The second
// deletes the records that belonged to it, in bounded parts, so that no transaction becomes large
// (clear.go). The row in removals is deleted with the last part. An upload that has not become an
// artifact is removed by the second phase alone.
//
// Retention finds old runs by their ids, which increase with time (Aged), and keeps those that
// something live refers to (Wanted).

// A removal is a run, thread or upload whose records are being removed.
type removal struct {
	Tenant perdure.TenantID
	Kind   string
	ID     string
	Due    perdure.Instant
	// Lines estimates the number of its rows.
	Lines int64
}

// Kinds of removals.
const (
	RemoveRun    = "run"
	RemoveThread = "thread"
	RemoveUpload = "upload"
)

var removalTable = register(&table[removal]{
	name: "removals", quiet: true, keys: []string{"tenant", "kind", "id"},
	columns: func(c *columns, r *removal) {
		text(c, "tenant", &r.Tenant)
		text(c, "kind", &r.Kind)
		text(c, "id", &r.ID)
		number(c, "due_at", &r.Due)
		number(c, "lines", &r.Lines)
	},
})

// Removals holds what is being removed, and finds what has expired.
type Removals struct {
	in        *base
	values    *Values
	artifacts *Artifacts
	runs      *Runs
	rows      added[removal]
	// expired is set when the batch has removed expired rows.
	expired bool
}

func (repo *Removals) open(in *base, values *Values, artifacts *Artifacts, runs *Runs) {
	repo.values, repo.artifacts, repo.runs = values, artifacts, runs
	repo.in = in
	openAdded(&repo.rows, in, removalTable)
}

// A belonging is a table with rows of a run, thread or upload: the column with the owner, and the
// column that orders the rows. size is an expression for the bytes of a row, where rows can be
// large.
type belonging struct{ table, owner, order, size string }

// belongings are the tables with rows of a run, thread or upload, in the order of their removal.
var belongings = map[string][]belonging{
	RemoveRun: {{"events", "run_id", "seq", "octet_length(data)"}, {"journal", "run_id", "seq", "octet_length(value)"},
		{"commits", "run_id", "commit_id", "octet_length(answer)"}, {"waits", "run_id", "id", "octet_length(targets)"},
		{"inbox", "run_id", "seq", "octet_length(data)"}, {"late_results", "run_id", "n", ""},
		{"dead_letters", "run_id", "run_id", ""},
		{"run_views", "run_id", "name", "octet_length(value)"},
		{"approvals", "run_id", "wait_id", "octet_length(action)+octet_length(form)+octet_length(answer)"},
		// The order matters: a fan-out changes its row before it inserts notifications, and an
		// attempt locks its row in the outbox.
		{"fanouts", "run_id", "seq", ""},
		{"outbox", "run_id", "seq", ""}, {"webhook_attempts", "run_id", "seq", "octet_length(response)"},
		{"waiters", "run_id", "node", ""}, {"names", "owner", "name", ""}, {"members", "run_id", "gathering_id", ""},
		{"gatherings", "id", "id", ""}}, // a run's chord has the run's id
	RemoveThread: {{"messages", "thread_id", "seq", "octet_length(content)+octet_length(metadata)"},
		{"names", "owner", "name", ""}},
	RemoveUpload: {{"chunks", "upload", "n", "octet_length(data)"}},
}

// Limits of one part of a removal: rows, values, and bytes of either. Up to clearRuns runs with at
// most smallRun rows each are removed together.
const (
	clearRows   = 5000
	clearValues = 64
	clearBytes  = 2 << 20
	clearRuns   = 100
	smallRun    = 100
)

// A Spent is a run as retention sees it.
type Spent struct {
	ID, Root   perdure.RunID
	Version    int64
	FinishedAt perdure.Instant // zero if it is live
	Lines      int64
	Metadata   perdure.Value // set by DropSpent
}

// Aged gives a tenant's runs that were created before an instant, oldest first, after one of them.
// Ids increase with time, so that the primary key finds them. next is where to continue, or empty
// at the end.
func (repo *Removals) Aged(
	t perdure.TenantID, after perdure.RunID, before perdure.Instant, limit int,
) (out []Spent, next perdure.RunID, err error) {
	n := 0
	err = repo.in.sess.Query("SELECT id, root_id, version, CASE WHEN alarm_at IS NULL THEN finished_at ELSE 0 END, "+
		"seq+journal_seq+inbox_seq FROM runs WHERE tenant=? AND id>? AND id<? ORDER BY id"+atMost,
		[]any{string(t), string(after), perdure.FirstID(before), int64(limit)}, func(scan func(...any) error) error {
			var s Spent
			err := scan(&s.ID, &s.Root, &s.Version, &s.FinishedAt, &s.Lines)
			if n++; n == limit {
				next = s.ID
			}
			// The batch may have changed it.
			if _, dirty := repo.runs.rows.byKey[runKey{t, s.ID}]; err == nil && !dirty {
				out = append(out, s)
			}
			return err
		})
	return out, next, err
}

// Wanted tells which of a tenant's ended runs are still referred to, and why. References are a live
// run of the same tree, a live retry, and an open group. With letters set, a pending webhook
// notification counts too.
func (repo *Removals) Wanted(t perdure.TenantID, runs []Spent, letters bool) (map[perdure.RunID]string, error) {
	out, trees := make(map[perdure.RunID]string), make(map[string]string)
	byRoot, ids := make(map[string]bool), make([]string, len(runs))
	for i, r := range runs {
		ids[i], byRoot[string(r.Root)] = string(r.ID), true
	}
	roots := make([]string, 0, len(byRoot))
	for _, r := range runs {
		if root := string(r.Root); byRoot[root] {
			roots, byRoot[root] = append(roots, root), false
		}
	}
	find := func(values []string, query, column, rest string, note func(id string)) error {
		return eachPart(repo.in.dialect, values, func(part []string) error {
			cond, args := repo.in.dialect.anyOf(column, part)
			return repo.in.sess.Query(query+" AND "+cond+rest, append([]any{string(t)}, args...),
				func(scan func(...any) error) error {
					var id string
					err := scan(&id)
					note(id)
					return err
				})
		})
	}
	const live = " AND alarm_at IS NOT NULL"
	tree := func(id string) { trees[id] = "a run of its tree is live" }
	err := find(roots, "SELECT DISTINCT root_id FROM runs WHERE tenant=? AND root_id<>id", "root_id", live, tree)
	if err == nil {
		err = find(roots, "SELECT id FROM runs WHERE tenant=?", "id", live, tree)
	}
	if err == nil {
		err = find(ids, "SELECT retry_of FROM runs WHERE tenant=? AND retry_of<>''", "retry_of", live,
			func(id string) { out[perdure.RunID(id)] = "a retry of it is live" })
	}
	if err == nil {
		err = find(ids, "SELECT m.run_id FROM members m JOIN gatherings g ON g.tenant=m.tenant "+
			"AND g.id=m.gathering_id AND g.state='open' WHERE m.tenant=?", "m.run_id", "",
			func(id string) { out[perdure.RunID(id)] = "an open group has it" })
	}
	if err == nil && letters {
		err = find(ids, "SELECT run_id FROM outbox WHERE tenant=?", "run_id", " AND alarm_at IS NOT NULL",
			func(id string) { out[perdure.RunID(id)] = "a webhook is still to be told" })
	}
	if err == nil && letters {
		err = find(ids, "SELECT run_id FROM fanouts WHERE tenant=?", "run_id", "",
			func(id string) { out[perdure.RunID(id)] = "a webhook is still to be told" })
	}
	if err == nil && letters { // a person may delete the run, which frees its key
		err = find(ids, "SELECT run_id FROM unique_runs WHERE tenant=?", "run_id",
			" AND run_id<>'' AND until_at>"+strconv.FormatInt(int64(repo.in.Now), 10),
			func(id string) { out[perdure.RunID(id)] = "it has a unique key" })
	}
	repo.runs.eachChanged(func(k runKey, r *perdure.Run) {
		if k.t == t && r.State.Live() {
			tree(string(r.RootID))
			if r.RetryOf != "" {
				out[r.RetryOf] = "a retry of it is live"
			}
		}
	})
	for _, r := range runs {
		if why := trees[string(r.Root)]; why != "" {
			out[r.ID] = why
		}
	}
	return out, err
}

// DropSpent stages the removal of runs, provided that their rows have not changed.
func (repo *Removals) DropSpent(t perdure.TenantID, runs []Spent) error {
	ids := make([]perdure.RunID, len(runs))
	for i, r := range runs {
		ids[i] = r.ID
	}
	metadata, err := metadataOf(repo.in.sess, repo.in.dialect, t, ids)
	if err != nil {
		return err
	}
	for i := range runs {
		runs[i].Metadata = metadata[runs[i].ID]
	}
	repo.runs.drop(t, runs)
	return nil
}
