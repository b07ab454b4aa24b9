package store

import (
	"github.com/perdure/perdure"
)

// A Removal is something that is on its way out. A run or a thread is gone when its row is: nobody finds it any more.
// What belongs to it follows, a bounded part at a time.
type removal struct {
	Tenant perdure.TenantID
	Kind   string
	ID     string
	Due    perdure.Instant
	Lines  int64 // about how many rows belong to it
}

// What is removed.
const (
	RemoveRun    = "run"
	RemoveThread = "thread"
	RemoveUpload = "upload"
)

var removalTable = &table[removal]{
	name: "removals", quiet: true, keys: []string{"tenant", "kind", "id"},
	cols: []string{"tenant", "kind", "id", "due_at", "lines"},
	bind: func(r *removal) []any { return []any{string(r.Tenant), r.Kind, r.ID, int64(r.Due), r.Lines} },
	scan: func(r *removal) []any { return []any{&r.Tenant, &r.Kind, &r.ID, &r.Due, &r.Lines} },
}

// Removals are things on their way out, and what has outlived its time.
type Removals struct {
	in      *Records
	rows    added[removal]
	expired bool // the batch has removed what has expired
}

func (repo *Removals) open(in *Records) {
	repo.in = in
	repo.rows.over(in, removalTable)
}

// A belonging is a table with what belongs to something, the column that says to what, and one by which its rows are in order. size
// is how many bytes a row has, where that can be many.
type belonging struct{ table, owner, order, size string }

var belongings = map[string][]belonging{
	RemoveRun: {{"events", "run_id", "seq", "octet_length(data)"}, {"journal", "run_id", "seq", "octet_length(value)"},
		{"commits", "run_id", "commit_id", "octet_length(answer)"}, {"waits", "run_id", "id", "octet_length(targets)"},
		{"inbox", "run_id", "seq", "octet_length(data)"}, {"late_results", "run_id", "n", ""}, {"dead_letters", "run_id", "run_id", ""},
		{"approvals", "run_id", "wait_id", "octet_length(action)+octet_length(form)+octet_length(answer)"},
		// In this order: what makes notifications of an event changes its row, and what adds an attempt holds the row in the outbox.
		{"fanouts", "run_id", "seq", ""},
		{"outbox", "run_id", "seq", ""}, {"webhook_attempts", "run_id", "seq", "octet_length(response)"},
		{"waiters", "run_id", "node", ""}, {"members", "run_id", "gathering_id", ""},
		{"gatherings", "id", "id", ""}}, // its chord
	RemoveThread: {{"messages", "thread_id", "seq", "octet_length(content)+octet_length(metadata)"}},
	RemoveUpload: {{"chunks", "upload", "n", "octet_length(data)"}},
}

// How much one part of a removal takes at most: rows, values, and bytes of either. Small runs go together.
const (
	clearRows   = 5000
	clearValues = 64
	clearBytes  = 2 << 20
	clearRuns   = 100
	smallRun    = 100
)

// ---- what has had its time

// A Spent is a run as retention looks at it.
type Spent struct {
	ID, Root   perdure.RunID
	Version    int64
	FinishedAt perdure.Instant // zero: it lives
	Lines      int64
	Metadata   perdure.Value // of one that is dropped
}

// Aged gives a tenant's runs that were made before an instant, oldest first, after one of them. Ids rise with time, so
// that no index is needed to find them. next is where to go on, or empty at the end.
func (repo *Removals) Aged(t perdure.TenantID, after perdure.RunID, before perdure.Instant, limit int) (out []Spent, next perdure.RunID, err error) {
	n := 0
	err = repo.in.sess.Query("SELECT id, root_id, version, CASE WHEN alarm_at IS NULL THEN finished_at ELSE 0 END, seq+journal_seq+inbox_seq FROM runs "+
		"WHERE tenant=? AND id>? AND id<? ORDER BY id"+atMost, []any{string(t), string(after), perdure.FirstID(before), int64(limit)},
		func(scan func(...any) error) error {
			var s Spent
			err := scan(&s.ID, &s.Root, &s.Version, &s.FinishedAt, &s.Lines)
			if n++; n == limit {
				next = s.ID
			}
			if _, dirty := repo.in.Runs.rows.byKey[runKey{t, s.ID}]; err == nil && !dirty { // what this batch has looked at may be different by now
				out = append(out, s)
			}
			return err
		})
	return out, next, err
}

// Wanted tells which of a tenant's ended runs somebody still refers to: a live run of the same tree, a live retry, an open
// group, or with letters a webhook that is still to be told.
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
			return repo.in.sess.Query(query+" AND "+cond+rest, append([]any{string(t)}, args...), func(scan func(...any) error) error {
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
		err = find(ids, "SELECT retry_of FROM runs WHERE tenant=? AND retry_of<>''", "retry_of", live, func(id string) { out[perdure.RunID(id)] = "a retry of it is live" })
	}
	if err == nil {
		err = find(ids, "SELECT m.run_id FROM members m JOIN gatherings g ON g.tenant=m.tenant AND g.id=m.gathering_id AND g.state='open' WHERE m.tenant=?", "m.run_id", "",
			func(id string) { out[perdure.RunID(id)] = "an open group has it" })
	}
	if err == nil && letters {
		err = find(ids, "SELECT run_id FROM outbox WHERE tenant=?", "run_id", " AND alarm_at IS NOT NULL", func(id string) { out[perdure.RunID(id)] = "a webhook is still to be told" })
	}
	if err == nil && letters {
		err = find(ids, "SELECT run_id FROM fanouts WHERE tenant=?", "run_id", "", func(id string) { out[perdure.RunID(id)] = "a webhook is still to be told" })
	}
	repo.in.Runs.eachChanged(func(k runKey, r *perdure.Run) {
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

// DropSpent takes runs out of the store that have had their time, if they still are what was read.
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
	repo.in.Runs.drop(t, runs)
	return nil
}
