package store

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
)

// waitersTogether is how many microseconds the watchdog waits after a waiter has expired. There may
// be hundreds of them in a second, and one sweep handles them together.
const waitersTogether = 250_000

// maxDueTenants bounds how many tenants a round examines. The next round begins where it ended.
const maxDueTenants = 512

// rung chooses runs whose alarm is due. A bare parameter would have SQLite plan the statement anew
// for every value, because a partial index of runs has a condition on the same column.
const rung = "alarm_at IS NOT NULL AND alarm_at<=CAST(? AS BIGINT)"

// Due says which parts of a sweep have something to do.
type Due struct{ Runs, Cascades, Items, Groups, Waiters, Workers, Letters, Keys, Schedules, Limits bool }

// ownersFirst reads the runs that a query names. Records that are found without their run have to
// be read after it. Then a change in between also changes the run's version, and the batch
// conflicts. In the other order it would go unnoticed.
//
// The runs are read without the cache. A cached run has to be verified, and a busy run would then
// fail the whole sweep although the sweep does not write it.
func (tx *Tx) ownersFirst(query string, args []any) error {
	owners := make(map[perdure.TenantID][]perdure.RunID)
	err := tx.sess.Query(query, args, func(scan func(...any) error) error {
		var k runKey
		err := scan(&k.t, &k.r)
		owners[k.t] = append(owners[k.t], k.r)
		return err
	})
	remembered := tx.cache
	tx.cache = nil
	defer func() { tx.cache = remembered }()
	for _, t := range slices.Sorted(maps.Keys(owners)) {
		if err == nil {
			err = tx.Runs.Load(t, owners[t])
		}
	}
	return err
}

// NextAlarm gives when the watchdog has something to do next, or zero.
func (v *View) NextAlarm() (perdure.Instant, error) {
	var first perdure.Instant
	err := v.sess.Query("SELECT min(at) FROM (SELECT min(alarm_at) AS at FROM runs WHERE alarm_at IS NOT NULL "+
		"UNION ALL "+
		"SELECT min(alarm_at) FROM inbox WHERE alarm_at IS NOT NULL UNION ALL SELECT min(alarm_at) FROM gatherings "+
		"WHERE alarm_at IS NOT NULL UNION ALL "+
		"SELECT min(alarm_at) FROM schedules WHERE alarm_at IS NOT NULL UNION ALL "+
		"SELECT min(alarm_at) FROM limits WHERE alarm_at IS NOT NULL UNION ALL "+
		"SELECT min(alarm_at) FROM limit_keys WHERE alarm_at IS NOT NULL UNION ALL "+
		"SELECT min(expires_at)+"+strconv.Itoa(waitersTogether)+" FROM waiters) AS alarms", nil,
		func(scan func(...any) error) error { return scan(nullable[perdure.Instant]{&first}) })
	return first, err
}

// Due asks in one query which parts of a sweep have something to do. Most have nothing.
func (tx *Tx) Due(workersSince perdure.Instant) (due Due, err error) {
	if !tx.empty() { // staged rows may be due
		limited, err := tx.limited()
		return Due{true, true, true, true, true, true, true, true, true, limited}, err
	}
	type part struct {
		from string // begins with the table
		at   perdure.Instant
		flag *bool
	}
	parts := []part{
		{"runs WHERE " + rung, tx.Now, &due.Runs},
		// Every question has a parameter. Beside a literal PostgreSQL would take it for a 4-byte integer.
		{"runs WHERE cascade=1 AND 0<=CAST(? AS BIGINT)", tx.Now, &due.Cascades},
		{"inbox WHERE alarm_at IS NOT NULL AND alarm_at<=?", tx.Now, &due.Items},
		{"gatherings WHERE alarm_at IS NOT NULL AND alarm_at<=?", tx.Now, &due.Groups},
		{"waiters WHERE expires_at<=?", tx.Now, &due.Waiters},
		{"workers WHERE offline=0 AND seen_at<=?", workersSince, &due.Workers},
		{"dead_letters WHERE expires_at<=?", tx.Now, &due.Letters},
		{"idempotency WHERE expires_at<=?", tx.Now, &due.Keys},
		{"schedules WHERE alarm_at IS NOT NULL AND alarm_at<=?", tx.Now, &due.Schedules},
		{"limit_keys WHERE alarm_at IS NOT NULL AND alarm_at<=?", tx.Now, &due.Limits},
		{"limits WHERE alarm_at IS NOT NULL AND alarm_at<=?", tx.Now, &due.Limits},
	}
	parts = slices.DeleteFunc(parts, func(p part) bool { // one that is locked as a whole can't be asked
		table, _, _ := strings.Cut(p.from, " ")
		return tx.TableLocked(table)
	})
	questions, args := make([]string, len(parts)), make([]any, len(parts))
	for i, p := range parts {
		questions[i] = fmt.Sprintf("SELECT %d FROM (SELECT 1 FROM %s LIMIT 1) AS q%d", i, p.from, i)
		args[i] = int64(p.at)
	}
	err = tx.sess.Query(strings.Join(questions, " UNION ALL "), args, func(scan func(...any) error) error {
		i := 0
		err := scan(&i)
		*parts[i].flag = true
		if due.Limits {
			tx.s.limited.Store(true)
		}
		return err
	})
	return due, err
}

// limited tells whether the store has a limit. A store that never had one is not asked for more. An alarm may be that
// of a limit which this process has not met, because another one has set it.
func (tx *Tx) limited() (bool, error) {
	if tx.s.limited.Load() || tx.TableLocked("limit_keys") || tx.TableLocked("limits") {
		return tx.s.limited.Load(), nil
	}
	n := 0
	err := tx.count(&n, "SELECT count(*) FROM (SELECT 1 FROM limits UNION ALL SELECT 1 FROM limit_keys LIMIT 1) AS met")
	if n > 0 {
		tx.s.limited.Store(true)
	}
	return n > 0, err
}

// dueTenants gives tenants with an alarm that has passed, from the one after a given one on, then
// from the beginning. It skips along the index of live rows, one step per tenant.
func (tx *Tx) dueTenants(table string, after perdure.TenantID) (out []perdure.TenantID, err error) {
	for _, from := range []perdure.TenantID{after, ""} {
		query := "WITH RECURSIVE live(tenant) AS (" +
			"SELECT (SELECT tenant FROM " + table +
			" WHERE alarm_at IS NOT NULL AND tenant>? ORDER BY tenant LIMIT 1) UNION ALL " +
			"SELECT (SELECT x.tenant FROM " + table +
			" x WHERE x.alarm_at IS NOT NULL AND x.tenant>live.tenant ORDER BY x.tenant LIMIT 1) FROM live " +
			"WHERE live.tenant IS NOT NULL) " +
			"SELECT tenant FROM (SELECT tenant FROM live WHERE tenant IS NOT NULL LIMIT " +
			strconv.Itoa(maxDueTenants) + ") AS page " +
			"WHERE (SELECT min(x.alarm_at) FROM " + table +
			" x WHERE x.tenant=page.tenant AND x.alarm_at IS NOT NULL)<=?"
		err := tx.sess.Query(query, []any{string(from), int64(tx.Now)}, func(scan func(...any) error) error {
			var t perdure.TenantID
			err := scan(&t)
			if from != "" || after == "" || t <= after { // the second query ends at the given tenant
				out = append(out, t)
			}
			return err
		})
		if err != nil || after == "" {
			return out, err
		}
	}
	return out, nil
}
