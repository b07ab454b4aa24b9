package store

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// A QueueRow is a queue that runs were submitted to, or that was given limits.
type QueueRow struct {
	Tenant    perdure.TenantID
	Name      string
	CreatedAt perdure.Instant
	// Limits names the limits that its runs are under, as JSON. Concurrency is how many may be leased at once.
	Limits      string
	Concurrency int
}

// LimitNames gives the limits that runs of the queue are under. A text that can't be read means none.
func (q *QueueRow) LimitNames() (names []string) {
	if q.Limits == "" || json.Unmarshal([]byte(q.Limits), &names) != nil {
		return nil
	}
	return names
}

var queueTable = register(&table[QueueRow]{
	name: "queues", quiet: true, keys: []string{"tenant", "name"},
	columns: func(c *columns, q *QueueRow) {
		text(c, "tenant", &q.Tenant)
		text(c, "name", &q.Name)
		number(c, "created_at", &q.CreatedAt)
		text(c, "limits", &q.Limits)
		number(c, "concurrency", &q.Concurrency)
	},
})

type queueKey struct {
	t    perdure.TenantID
	name string
}

// Queues holds the queues that runs were submitted to.
type Queues struct {
	in   *base
	rows staged[queueKey, QueueRow]
}

func (repo *Queues) open(in *base) {
	repo.in = in
	openRows(&repo.rows, in, queueTable)
}

// Get gives a queue of a tenant.
func (repo *Queues) Get(t perdure.TenantID, name string) (QueueRow, bool, error) {
	return loadRow(&repo.rows, queueKey{t, name}, "WHERE tenant=? AND name=?", string(t), name)
}

// SetLimits stages the limits of a queue that is there.
func (repo *Queues) SetLimits(q *QueueRow) {
	addRows(&repo.in.tx.later, statement{"UPDATE queues SET limits=?, concurrency=? WHERE tenant=? AND name=?",
		[]any{q.Limits, int64(q.Concurrency), string(q.Tenant), q.Name}, anyNumber})
}

// Names gives some names of a tenant's queues.
func (repo *Queues) Names(t perdure.TenantID, limit int) (out []string, err error) {
	err = repo.in.sess.Query("SELECT name FROM queues WHERE tenant=? ORDER BY name"+atMost,
		[]any{string(t), int64(limit)}, func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			out = append(out, name)
			return err
		})
	return out, err
}

// A QueueDepth counts the live runs of a queue.
type QueueDepth struct {
	QueueRow
	Queued, Claimable, Running, Suspended int
	Oldest                                perdure.Instant // since when the oldest claimable run has been waiting
	AtLeast                               bool            // not all runs were counted: there may be more
}

// List gives the first page of a tenant's queues.
func (repo *Queues) List(t perdure.TenantID) ([]QueueDepth, error) {
	out, _, err := repo.Page(t, Page{Limit: PageRows}, PageRows)
	return out, err
}

// Page lists a tenant's queues by name, with the number of their runs. It counts at most most live
// runs of the tenant, those with the earliest alarms.
func (repo *Queues) Page(t perdure.TenantID, p Page, most int) (out []QueueDepth, next string, err error) {
	out, next, err = paged(p, func(after string, n int, row func(*QueueDepth) error) error {
		return queueTable.query(repo.in.sess, "WHERE tenant=? AND name>? ORDER BY name"+atMost,
			[]any{string(t), after, int64(n)}, func(q *QueueRow) error { return row(&QueueDepth{QueueRow: *q}) })
	}, func(q *QueueDepth) string { return q.Name },
		func(q *QueueDepth) int { return 200 + quoted(q.Name) + len(q.Limits) })
	if err != nil || len(out) == 0 {
		return out, next, err
	}
	// Ordered by the alarm, so that the index of alarms is used.
	const live = " FROM runs WHERE tenant=? AND alarm_at IS NOT NULL ORDER BY alarm_at, id" + atMost
	all := 0
	err = repo.in.sess.Query("SELECT count(*) FROM (SELECT id"+live+") AS live", []any{string(t), int64(most + 1)},
		func(scan func(...any) error) error { return scan(&all) })
	if err != nil {
		return nil, "", err
	}
	for i := range out {
		out[i].AtLeast = all > most
	}
	err = repo.in.sess.Query("SELECT queue, state, ready, count(*), min(ready_at) FROM "+
		"(SELECT queue, state, ready, ready_at"+live+
		") AS live WHERE queue>=? AND queue<=? GROUP BY queue, state, ready",
		[]any{string(t), int64(most), out[0].Name, out[len(out)-1].Name}, func(scan func(...any) error) error {
			var name string
			var state perdure.State
			var ready, n int
			var oldest perdure.Instant
			if err := scan(&name, &state, &ready, &n, &oldest); err != nil {
				return err
			}
			i, ok := slices.BinarySearchFunc(out, name,
				func(q QueueDepth, name string) int { return strings.Compare(q.Name, name) })
			if ok {
				out[i].count(state, ready == 1, n, oldest)
			}
			return nil
		})
	return out, next, err
}

// count adds n runs of a state.
func (q *QueueDepth) count(state perdure.State, ready bool, n int, oldest perdure.Instant) {
	switch state {
	case perdure.Queued:
		q.Queued += n
	case perdure.Dispatched, perdure.Running:
		q.Running += n
	case perdure.Suspended:
		q.Suspended += n
	}
	if ready {
		if q.Claimable == 0 || oldest < q.Oldest {
			q.Oldest = oldest
		}
		q.Claimable += n
	}
}

// Put stages a new queue.
func (repo *Queues) Put(v QueueRow) { putRow(&repo.rows, queueKey{v.Tenant, v.Name}, v) }
