package store

import "strconv"

// Expire stages the removal of expired dead letters, and of expired idempotency keys whose run has
// ended, at most a thousand of each. It gives how many. If another node removes the same ones now,
// this batch is decided again.
func (repo *Removals) Expire() (letters, keys int, err error) {
	// MATERIALIZED, so that the due rows are selected once, whatever statistics the planner has.
	const letter = "WITH due AS MATERIALIZED (SELECT tenant,run_id FROM dead_letters WHERE expires_at<=? " +
		"ORDER BY expires_at, tenant, run_id LIMIT 1000) "
	const dead = "FROM dead_letters WHERE (tenant,run_id) IN (SELECT tenant,run_id FROM due)"
	// A live run has an alarm. coalesce keeps the planner from the index of alarms: it would read all
	// live runs for each key instead of the one that the key names.
	const key = "WITH due AS MATERIALIZED (SELECT tenant,key,ref FROM idempotency WHERE expires_at<=? " +
		"ORDER BY expires_at, tenant, key LIMIT 1000), " +
		"known AS MATERIALIZED (SELECT tenant, key, EXISTS (SELECT 1 FROM runs WHERE runs.tenant=due.tenant " +
		"AND runs.id=due.ref AND coalesce(runs.alarm_at,0)<>0) AS live FROM due) "
	const over = "FROM idempotency WHERE (tenant,key) IN (SELECT tenant,key FROM known WHERE NOT live)"
	const live = "(tenant,key) IN (SELECT tenant,key FROM known WHERE live)"
	if !repo.in.tx.onceInBatch(&repo.expired) {
		return 0, 0, nil
	}
	if err := repo.in.tx.count(&letters, letter+"SELECT count(*) "+dead, int64(repo.in.Now)); err != nil {
		return 0, 0, err
	}
	if err := repo.in.tx.count(&keys, key+"SELECT count(*) FROM known WHERE NOT live", int64(repo.in.Now)); err != nil {
		return 0, 0, err
	}
	if letters+keys > 0 {
		if err := repo.in.tx.exclusive("expired"); err != nil {
			return 0, 0, err
		}
	}
	repo.in.tx.later.add(statement{letter + "DELETE " + dead, []any{int64(repo.in.Now)}, anyNumber},
		statement{key + "DELETE " + over, []any{int64(repo.in.Now)}, anyNumber},
		// A key of a live run is checked again later: it lasts at least as long as its run.
		statement{key + "UPDATE idempotency SET expires_at=? WHERE " + live,
			[]any{int64(repo.in.Now), int64(repo.in.Now) + 3600*1e6}, anyNumber})
	return letters, keys, nil
}

// onceInBatch tells whether something is done for the first time in this batch, and records that it
// is.
func (tx *Tx) onceInBatch(done *bool) bool {
	if *done {
		return false
	}
	*done = true
	tx.undo = append(tx.undo, func() { *done = false })
	return true
}

// exclusive increments a counter in meta, so that the batch conflicts with another node's that does
// the same now. It is for work that no version guards and that only one node may do.
func (tx *Tx) exclusive(name string) error {
	last, err := tx.Meta.Get(name)
	if err != nil {
		return err
	}
	n, _ := strconv.ParseInt(last, 10, 64)
	tx.later.add(statement{"INSERT INTO meta (name,value) VALUES (?,?) " +
		"ON CONFLICT (name) DO UPDATE SET value=excluded.value WHERE meta.value=?",
		[]any{name, strconv.FormatInt(n+1, 10), last}, 1})
	return nil
}

// count reads a number.
func (tx *Tx) count(n *int, query string, args ...any) error {
	return tx.sess.Query(query, args, func(scan func(...any) error) error { return scan(n) })
}
