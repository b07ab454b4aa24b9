package store

import (
	"errors"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// A Page says which part of a list is wanted: the entries after a key, so many of them, and no more than so many bytes unless it is one.
type Page struct {
	After        string
	Limit, Bytes int // zero bytes: PageBytes
}

// paged reads a page of a table whose rows are in the order of a key. next is the key of the last entry, if there may be more. Rows are
// read a few at a time, so that large ones are not read for nothing.
func paged[T any](p Page, read func(after string, n int, row func(*T) error) error, key func(*T) string, size func(*T) int) (out []T, next string, err error) {
	if p.Bytes == 0 {
		p.Bytes = PageBytes
	}
	for after := p.After; ; {
		n := 0
		err := read(after, rowsAtFirst, func(x *T) error {
			n++
			bytes := size(x)
			if len(out) > 0 && bytes > p.Bytes {
				next = after
				return errEnough
			}
			out, after, p.Bytes = append(out, *x), key(x), p.Bytes-bytes
			if len(out) == p.Limit {
				next = after
				return errEnough
			}
			return nil
		})
		if errors.Is(err, errEnough) {
			return out, next, nil
		}
		if err != nil || n < rowsAtFirst {
			return out, "", err
		}
	}
}

// Page lists a tenant's workers by id.
func (repo *Workers) Page(t perdure.TenantID, p Page) ([]perdure.Worker, string, error) {
	return paged(p, func(after string, n int, row func(*perdure.Worker) error) error {
		return workerTable.query(repo.in.sess, "WHERE tenant=? AND id>? ORDER BY id"+atMost, []any{string(t), after, int64(n)}, row)
	}, func(w *perdure.Worker) string { return w.ID }, func(w *perdure.Worker) int { return 200 + quoted(w.ID) + len(w.Queues) })
}

// Page lists a tenant's keys by id, those of the platform only if they are wanted.
func (repo *Keys) Page(t perdure.TenantID, platform bool, p Page) ([]perdure.Key, string, error) {
	return paged(p, func(after string, n int, row func(*perdure.Key) error) error {
		return keysTable.query(repo.in.sess, "WHERE tenant=? AND id>? AND platform<=? ORDER BY id"+atMost, []any{string(t), after, toBit(platform), int64(n)}, row)
	}, func(k *perdure.Key) string { return k.ID }, func(k *perdure.Key) int { return 1024 + quoted(k.Name) })
}

// Page lists a tenant's registered webhooks by id.
func (repo *Webhooks) Page(t perdure.TenantID, p Page) ([]perdure.Webhook, string, error) {
	return paged(p, func(after string, n int, row func(*perdure.Webhook) error) error {
		return webhookTable.query(repo.in.sess, "WHERE tenant=? AND id>? AND scope<>'run' AND deleted_at=0 ORDER BY id"+atMost,
			[]any{string(t), after, int64(n)}, row)
	}, func(w *perdure.Webhook) string { return string(w.ID) }, func(w *perdure.Webhook) int {
		bytes := 1024 + quoted(w.URL) + quoted(w.Description) + quoted(w.DisabledReason)
		for _, e := range w.Events {
			bytes += quoted(e) + 1
		}
		return bytes
	})
}

// ---- queues

// A QueueDepth is what there is in a queue.
type QueueDepth struct {
	Name                                  string
	Queued, Claimable, Running, Suspended int
	Oldest                                perdure.Instant // the oldest that is claimable
	AtLeast                               bool            // there are too many runs to count: there may be more than that
}

// List lists a tenant's queues and what is in them: those of one page.
func (repo *Queues) List(t perdure.TenantID) ([]QueueDepth, error) {
	out, _, err := repo.Page(t, Page{Limit: PageRows}, PageRows)
	return out, err
}

// Page lists a tenant's queues by name, and counts what is in them. No more than so many of the tenant's live runs are counted, those
// whose alarms ring first.
func (repo *Queues) Page(t perdure.TenantID, p Page, most int) (out []QueueDepth, next string, err error) {
	out, next, err = paged(p, func(after string, n int, row func(*QueueDepth) error) error {
		return repo.in.sess.Query("SELECT name FROM queues WHERE tenant=? AND name>? ORDER BY name"+atMost, []any{string(t), after, int64(n)}, func(scan func(...any) error) error {
			var q QueueDepth
			if err := scan(&q.Name); err != nil {
				return err
			}
			return row(&q)
		})
	}, func(q *QueueDepth) string { return q.Name }, func(q *QueueDepth) int { return 200 + quoted(q.Name) })
	if err != nil || len(out) == 0 {
		return out, next, err
	}
	// The tenant's live runs are ordered by their alarm, so that they are found by the index of alarms.
	const live = " FROM runs WHERE tenant=? AND alarm_at IS NOT NULL ORDER BY alarm_at, id" + atMost
	all := 0
	err = repo.in.sess.Query("SELECT count(*) FROM (SELECT id"+live+") AS live", []any{string(t), int64(most + 1)}, func(scan func(...any) error) error { return scan(&all) })
	if err != nil {
		return nil, "", err
	}
	for i := range out {
		out[i].AtLeast = all > most
	}
	err = repo.in.sess.Query("SELECT queue, state, ready, count(*), min(ready_at) FROM (SELECT queue, state, ready, ready_at"+live+") AS live WHERE queue>=? AND queue<=? GROUP BY queue, state, ready",
		[]any{string(t), int64(most), out[0].Name, out[len(out)-1].Name}, func(scan func(...any) error) error {
			var name string
			var state perdure.State
			var ready, n int
			var oldest perdure.Instant
			if err := scan(&name, &state, &ready, &n, &oldest); err != nil {
				return err
			}
			i, ok := slices.BinarySearchFunc(out, name, func(q QueueDepth, name string) int { return strings.Compare(q.Name, name) })
			if ok {
				out[i].count(state, ready == 1, n, oldest)
			}
			return nil
		})
	return out, next, err
}

// count adds runs of a state.
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
