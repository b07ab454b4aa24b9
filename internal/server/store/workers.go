package store

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
)

var workerTable = register(&table[perdure.Worker]{
	name: "workers", keys: []string{"tenant", "id"},
	columns: func(c *columns, w *perdure.Worker) {
		text(c, "tenant", &w.Tenant)
		text(c, "id", &w.ID)
		text(c, "queues", &w.Queues)
		number(c, "slots", &w.Slots)
		number(c, "seen_at", &w.SeenAt)
		flag(c, "offline", &w.Offline)
		packed(c, "polls", pollList{&w.Polls})
		derived(c, "any_tenant", w, pollsAnyTenant)
		text(c, "library", &w.Release)
	},
})

// pollsAnyTenant is 1 for a worker that polls for the runs of all tenants.
func pollsAnyTenant(w *perdure.Worker) any {
	return toBit(slices.ContainsFunc(w.Polls, func(p perdure.WorkerPoll) bool { return p.AllTenants }))
}

// pollList is a column with a worker's polls. A text that can't be read gives none.
type pollList struct{ polls *[]perdure.WorkerPoll }

func (l pollList) value() any {
	if len(*l.polls) == 0 {
		return ""
	}
	b, _ := json.Marshal(*l.polls) // names and instants
	return string(b)
}

func (l pollList) Scan(v any) error {
	*l.polls = nil
	if text, _ := v.(string); text != "" && json.Unmarshal([]byte(text), l.polls) != nil {
		*l.polls = nil
	}
	return nil
}

type workerKey struct {
	t  perdure.TenantID
	id string
}

// Workers holds the workers that have polled for work.
type Workers struct {
	in   *base
	rows staged[workerKey, perdure.Worker]
}

func (repo *Workers) open(in *base) {
	repo.in = in
	openRows(&repo.rows, in, workerTable)
}

// Get gives a worker.
func (repo *Workers) Get(t perdure.TenantID, id string) (perdure.Worker, bool, error) {
	return loadRow(&repo.rows, workerKey{t, id}, "WHERE tenant=? AND id=?", string(t), id)
}

// List lists a tenant's workers.
func (repo *Workers) List(t perdure.TenantID) ([]perdure.Worker, error) {
	return workerTable.list(repo.in.sess, "WHERE tenant=? ORDER BY id", []any{string(t)})
}

// Page lists a tenant's workers by id.
func (repo *Workers) Page(t perdure.TenantID, p Page) ([]perdure.Worker, string, error) {
	return paged(p, func(after string, n int, row func(*perdure.Worker) error) error {
		return workerTable.query(repo.in.sess, "WHERE tenant=? AND id>? ORDER BY id"+atMost,
			[]any{string(t), after, int64(n)}, row)
	}, func(w *perdure.Worker) string { return w.ID },
		func(w *perdure.Worker) int {
			bytes := 200 + quoted(w.ID) + len(w.Queues)
			for i := range w.Polls {
				bytes += 100
				for _, name := range slices.Concat(w.Polls[i].Queues, w.Polls[i].Kinds) {
					bytes += quoted(name) + 1
				}
			}
			return bytes
		})
}

// Serving gives workers that may serve a tenant's runs, its own and those of all tenants, with what
// they poll for. It reads at most limit of each, also those that are offline.
func (repo *Workers) Serving(t perdure.TenantID, limit int) ([]perdure.Worker, error) {
	own, err := workerTable.list(repo.in.sess, "WHERE tenant=? ORDER BY id"+atMost, []any{string(t), int64(limit)})
	if err != nil {
		return nil, err
	}
	others, err := workerTable.list(repo.in.sess, "WHERE any_tenant=1 AND tenant<>? ORDER BY seen_at DESC"+atMost,
		[]any{string(t), int64(limit)})
	return append(own, others...), err
}

// Silent gives workers without a poll or heartbeat since an instant that are not offline yet.
func (repo *Workers) Silent(since perdure.Instant, limit int) ([]perdure.Worker, error) {
	var out []perdure.Worker
	err := workerTable.query(repo.in.sess,
		fmt.Sprintf("WHERE offline=0 AND seen_at<=? ORDER BY seen_at, tenant, id LIMIT %d", limit), []any{int64(since)},
		func(w *perdure.Worker) error {
			k := workerKey{w.Tenant, w.ID}
			absorbRow(&repo.rows, k, *w, true)
			if cur, _, _ := getRow(&repo.rows, k); !cur.Offline && cur.SeenAt <= since {
				out = append(out, cur)
			}
			return nil
		})
	return out, err
}

// Put stages a worker.
func (repo *Workers) Put(w perdure.Worker) { putRow(&repo.rows, workerKey{w.Tenant, w.ID}, w) }

// SetOffline stages that a worker is offline, unless it was seen since it was read.
func (repo *Workers) SetOffline(w perdure.Worker) {
	if known := repo.rows.byKey[workerKey{w.Tenant, w.ID}]; known != nil {
		before := *known
		known.val.Offline = true
		repo.in.tx.undo = append(repo.in.tx.undo, func() { *known = before })
	}
	repo.in.stage("UPDATE workers SET offline=1 WHERE tenant=? AND id=? AND offline=0 AND seen_at=?",
		[]any{string(w.Tenant), w.ID, int64(w.SeenAt)}, 1)
}

// DropUnused stages the removal of workers that are offline and were last seen at an instant or
// before, at most limit. It gives how many. A worker that comes back now stays.
func (repo *Workers) DropUnused(before perdure.Instant, limit int) (n int, err error) {
	const gone = "offline=1 AND seen_at<=?"
	due := fmt.Sprintf("WITH due AS MATERIALIZED (SELECT tenant,id FROM workers WHERE "+gone+
		" ORDER BY seen_at, tenant, id LIMIT %d) ", limit)
	if err := repo.in.tx.count(&n, due+"SELECT count(*) FROM due", int64(before)); err != nil || n == 0 {
		return 0, err
	}
	repo.in.stage(due+"DELETE FROM workers WHERE (tenant,id) IN (SELECT tenant,id FROM due) AND "+gone,
		[]any{int64(before), int64(before)}, anyNumber)
	return n, repo.in.tx.exclusive("workers removed")
}
