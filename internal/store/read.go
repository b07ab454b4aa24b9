package store

import (
	"errors"
	"slices"
	"strconv"

	"github.com/perdure/perdure"
)





func readEvents(s Session, t perdure.TenantID, run perdure.RunID, after int64, limit int) ([]perdure.Line, error) {
	var out []perdure.Line
	err := eventTable.query(s, eventsAfter, []any{string(t), string(run), after, int64(limit)}, func(e *EventRow) error {
		out = append(out, e.Line)
		return nil
	})
	return out, err
}

// atMost ends a query after so many rows. With a bare parameter SQLite would plan the statement anew every time one is
// bound, which takes longer than to read a few rows.
const atMost = " LIMIT CAST(? AS BIGINT)"

// errEnough ends a query whose rows are as many as were wanted.
var errEnough = errors.New("enough")

// Within reads a run's log from a cursor on: so many lines, and no more once they hold that many bytes.
func (repo *Events) Within(t perdure.TenantID, run perdure.RunID, after int64, limit, bytes int) ([]perdure.Line, error) {
	var out []perdure.Line
	err := eventTable.query(repo.in.sess, eventsAfter, []any{string(t), string(run), after, int64(limit)}, func(e *EventRow) error {
		out = append(out, e.Line)
		if bytes -= len(e.Data); bytes <= 0 {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return out, err
}

const eventsAfter = "WHERE tenant=? AND run_id=? AND seq>? ORDER BY seq" + atMost



// After reads a run's journal from a cursor on, with what the batch has added to it: a commit and the grant
// that follows it may share a batch, and a step that is missing in a grant is executed again.
func (repo *Journal) After(t perdure.TenantID, run perdure.RunID, after int64, limit int) ([]JournalRow, error) {
	rows, err := readJournal(repo.in.sess, t, run, after, limit)
	if err != nil || len(rows) == limit {
		return rows, err // what is staged comes behind what is stored
	}
	for _, k := range repo.rows.dirty {
		if j := repo.rows.slots[k].val; k.runKey == (runKey{t, run}) && j.Seq > after {
			rows = append(rows, j)
		}
	}
	slices.SortFunc(rows, func(a, b JournalRow) int { return int(a.Seq - b.Seq) })
	return rows[:min(limit, len(rows))], nil
}

func readJournal(s Session, t perdure.TenantID, run perdure.RunID, after int64, limit int) ([]JournalRow, error) {
	var out []JournalRow
	err := journalTable.query(s, "WHERE tenant=? AND run_id=? AND seq>? ORDER BY seq"+atMost, []any{string(t), string(run), after, int64(limit)}, func(j *JournalRow) error {
		out = append(out, *j)
		return nil
	})
	return out, err
}



// Messages reads a thread from a cursor on.
func (repo *Threads) Messages(t perdure.TenantID, id perdure.ThreadID, after int64, limit int) ([]perdure.ThreadMessage, error) {
	var out []perdure.ThreadMessage
	err := messageTable.query(repo.in.sess, "WHERE tenant=? AND thread_id=? AND seq>? ORDER BY seq"+atMost, []any{string(t), string(id), after, int64(limit)},
		func(m *perdure.ThreadMessage) error {
			out = append(out, *m)
			return nil
		})
	return out, err
}

// GetFull gives a chord or a group.
func (repo *Groups) GetFull(t perdure.TenantID, id perdure.GroupID) (perdure.Group, bool, error) {
	return groupTable.one(repo.in.sess, "WHERE tenant=? AND id=?", string(t), string(id))
}

// List gives all waits of a run.
func (repo *Waits) List(t perdure.TenantID, run perdure.RunID) ([]perdure.Wait, error) {
	var out []perdure.Wait
	err := waitTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? ORDER BY opened_at, id", []any{string(t), string(run)}, func(w *perdure.Wait) error {
		out = append(out, *w)
		return nil
	})
	return out, err
}

// List gives all inbox items of a run. The status of each is what it means now, as perdure.Item.StatusOf has it.
func (repo *Inbox) List(t perdure.TenantID, run perdure.RunID) ([]perdure.Item, error) {
	r, ok, err := repo.in.Runs.Get(t, run)
	if err != nil {
		return nil, err
	}
	var out []perdure.Item
	err = itemTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? ORDER BY seq", []any{string(t), string(run)}, func(i *perdure.Item) error {
		if ok {
			i.Status = i.StatusOf(&r)
		}
		out = append(out, *i)
		return nil
	})
	return out, err
}



// TenantOf gives the tenant of a run: the likely one, if it is its run, and otherwise whoever has it. Without
// such a run it is the likely one too.
func (repo *Runs) TenantOf(run perdure.RunID, likely perdure.TenantID) (perdure.TenantID, error) {
	found := false
	err := repo.in.sess.Query("SELECT 1 FROM runs WHERE tenant=? AND id=?", []any{string(likely), string(run)}, func(func(...any) error) error {
		found = true
		return nil
	})
	if err != nil || found {
		return likely, err
	}
	// Tenant by tenant: each is a look into the primary key, and there is no index by id alone.
	err = repo.in.sess.Query("SELECT r.tenant FROM tenants t CROSS JOIN runs r WHERE r.tenant=t.id AND r.id=?", []any{string(run)}, func(scan func(...any) error) error {
		return scan(&likely)
	})
	return likely, err
}

// List lists a tenant's workers.
func (repo *Workers) List(t perdure.TenantID) ([]perdure.Worker, error) {
	var out []perdure.Worker
	err := workerTable.query(repo.in.sess, "WHERE tenant=? ORDER BY id", []any{string(t)}, func(w *perdure.Worker) error {
		out = append(out, *w)
		return nil
	})
	return out, err
}

// waitersTogether is how many microseconds the watchdog lets pass after a waiter has expired. There may be hundreds of them in a
// second: they are swept together, and not each by itself.
const waitersTogether = 250_000

// NextAlarm is when the watchdog has something to do next, or zero.
func (v *View) NextAlarm() (perdure.Instant, error) {
	var first perdure.Instant
	err := v.sess.Query("SELECT min(at) FROM (SELECT min(alarm_at) AS at FROM runs WHERE alarm_at IS NOT NULL UNION ALL "+
		"SELECT min(alarm_at) FROM inbox WHERE alarm_at IS NOT NULL UNION ALL SELECT min(alarm_at) FROM gatherings WHERE alarm_at IS NOT NULL UNION ALL "+
		"SELECT min(expires_at)+"+strconv.Itoa(waitersTogether)+" FROM waiters) AS alarms", nil, func(scan func(...any) error) error { return scan(nullable[perdure.Instant]{&first}) })
	return first, err
}

// RingingRefs names runs whose alarm has rung, oldest alarm first.
func (repo *Runs) RingingRefs(limit int) (out []Ref, err error) {
	err = repo.in.sess.Query("SELECT tenant, id FROM runs WHERE alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, tenant, id"+atMost, []any{int64(repo.in.Now), int64(limit)},
		func(scan func(...any) error) error {
			var r Ref
			err := scan(&r.Tenant, &r.Run)
			out = append(out, r)
			return err
		})
	return out, err
}

// FirstDue names the row that a part of a sweep begins with, without those that are left alone. Parts that are not about rows have
// none.
func (v *View) FirstDue(part string, but map[string]bool) (t perdure.TenantID, id string, err error) {
	query, ok := map[string]string{
		"cascades": "SELECT tenant, id FROM runs WHERE cascade=1 AND 0<=? ORDER BY tenant, id",
		"items":    "SELECT tenant, run_id FROM inbox WHERE alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, tenant, run_id, seq",
		"groups":   "SELECT tenant, id FROM gatherings WHERE alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, tenant, id",
		"waiters":  "SELECT tenant, run_id FROM waiters WHERE expires_at<=? ORDER BY expires_at, tenant, run_id, node",
	}[part]
	if !ok {
		return "", "", nil
	}
	err = v.sess.Query(query+atMost, []any{int64(v.Now), int64(len(but) + 1)}, func(scan func(...any) error) error {
		var a perdure.TenantID
		var b string
		err := scan(&a, &b)
		if id == "" && !but[string(a)+"\x00"+b] {
			t, id = a, b
		}
		return err
	})
	return t, id, err
}

// Rows runs a query of the caller's own, for checks and tests.
func (v *View) Rows(query string, args []any, row func(scan func(...any) error) error) error {
	return v.sess.Query(query, args, row)
}



// List lists a tenant's keys.
func (repo *Keys) List(t perdure.TenantID) ([]perdure.Key, error) {
	var out []perdure.Key
	err := keysTable.query(repo.in.sess, "WHERE tenant=? ORDER BY id", []any{string(t)}, func(k *perdure.Key) error {
		out = append(out, *k)
		return nil
	})
	return out, err
}

// Valid lists the keys of all tenants that count at an instant, at most so many.
func (repo *Keys) Valid(now perdure.Instant, limit int) (out []perdure.Key, err error) {
	err = keysTable.query(repo.in.sess, "WHERE revoked_at=0 AND (expires_at=0 OR expires_at>?) ORDER BY tenant, id"+atMost, []any{int64(now), int64(limit)}, func(k *perdure.Key) error {
		out = append(out, *k)
		return nil
	})
	return out, err
}

// All lists the webhooks of all tenants that are not deleted, at most so many.
func (repo *Webhooks) All(limit int) (out []perdure.Webhook, err error) {
	err = webhookTable.query(repo.in.sess, "WHERE deleted_at=0 ORDER BY tenant, id"+atMost, []any{int64(limit)}, func(w *perdure.Webhook) error {
		out = append(out, *w)
		return nil
	})
	return out, err
}

// CountPlatform tells whether anybody can administer the store.
func (repo *Keys) CountPlatform() (n int, err error) {
	err = repo.in.sess.Query("SELECT count(*) FROM keys WHERE platform=1 AND revoked_at=0", nil, func(scan func(...any) error) error { return scan(&n) })
	return n, err
}

// Ready says of which kinds and in which queues there is something to claim.
type Ready struct {
	Tenant      perdure.TenantID
	Queue, Kind string
}

// A ReadyRound says how far the last look at what is ready came. A tenant with very many kinds has its turn in parts, so
// that it neither delays others nor costs much. The zero value begins a round.
type ReadyRound struct {
	after perdure.TenantID           // the last tenant that was looked at
	rests map[perdure.TenantID]Ready // of tenants with more kinds than one look takes, the last one that was seen
}

// How many kinds one look takes of a tenant and in all, and of how many tenants a rest is remembered.
const (
	readyOfTenant = 64
	readyAtOnce   = 512
	maxRests      = 1000
)

// Ready gives kinds of which there is something to claim, and goes on where the look before ended. Polls fall back on it
// when a ring is lost.
func (repo *Claims) Ready(round *ReadyRound) (out []Ready, err error) {
	if round.rests == nil || len(round.rests) > maxRests {
		round.rests = make(map[perdure.TenantID]Ready)
	}
	for len(out) < readyAtOnce {
		t := perdure.TenantID("")
		err := repo.in.sess.Query("SELECT tenant FROM runs WHERE ready=1 AND tenant>? ORDER BY tenant LIMIT 1", []any{string(round.after)},
			func(scan func(...any) error) error { return scan(&t) })
		if round.after = t; err != nil || t == "" {
			return out, err
		}
		at := round.rests[t]
		delete(round.rests, t)
		for n := 0; ; n++ {
			if n == readyOfTenant {
				round.rests[t] = at
				break
			}
			next := Ready{Tenant: t}
			err := repo.in.sess.Query("SELECT queue, kind FROM runs WHERE ready=1 AND tenant=? AND (queue,kind)>(?,?) ORDER BY queue, kind LIMIT 1",
				[]any{string(t), at.Queue, at.Kind}, func(scan func(...any) error) error { return scan(&next.Queue, &next.Kind) })
			if err != nil {
				return out, err
			}
			if next.Queue == "" {
				break
			}
			out, at = append(out, next), next
		}
	}
	return out, nil
}
