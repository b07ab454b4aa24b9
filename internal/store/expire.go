package store

import "strconv"

// Expire removes what has outlived its time: dead letters, and idempotency keys whose run has ended, a thousand at a time. It gives
// how many there are; another node that removes the same ones at this moment has this batch decided again.
func (repo *Removals) Expire() (letters, keys int, err error) {
	// What is due is made out once, whatever the database knows, or believes to know, of its tables.
	const letter = "WITH due AS MATERIALIZED (SELECT tenant,run_id FROM dead_letters WHERE expires_at<=? ORDER BY expires_at, tenant, run_id LIMIT 1000) "
	const dead = "FROM dead_letters WHERE (tenant,run_id) IN (SELECT tenant,run_id FROM due)"
	const key = "WITH due AS MATERIALIZED (SELECT tenant,key FROM idempotency WHERE expires_at<=? ORDER BY expires_at, tenant, key LIMIT 1000) "
	const due = "(tenant,key) IN (SELECT tenant,key FROM due)"
	const live = "EXISTS (SELECT 1 FROM runs WHERE runs.tenant=idempotency.tenant AND runs.id=idempotency.ref AND runs.alarm_at IS NOT NULL)"
	const over = "FROM idempotency WHERE " + due + " AND NOT " + live
	if !repo.in.tx.first(&repo.expired) {
		return 0, 0, nil
	}
	if err := repo.in.tx.count(&letters, letter+"SELECT count(*) "+dead, int64(repo.in.Now)); err != nil {
		return 0, 0, err
	}
	if err := repo.in.tx.count(&keys, key+"SELECT count(*) "+over, int64(repo.in.Now)); err != nil {
		return 0, 0, err
	}
	if letters+keys > 0 {
		if err := repo.in.tx.alone("expired"); err != nil {
			return 0, 0, err
		}
	}
	repo.in.tx.later.add(statement{letter + "DELETE " + dead, []any{int64(repo.in.Now)}, anyNumber},
		statement{key + "DELETE " + over, []any{int64(repo.in.Now)}, anyNumber},
		// A key of a live run is looked at again later: it lasts at least as long as its run.
		statement{key + "UPDATE idempotency SET expires_at=? WHERE " + due + " AND " + live, []any{int64(repo.in.Now), int64(repo.in.Now) + 3600*1e6}, anyNumber})
	return letters, keys, nil
}

// first tells whether something is done for the first time in this batch, and notes that it is.
func (tx *Tx) first(done *bool) bool {
	if *done {
		return false
	}
	*done = true
	tx.undo = append(tx.undo, func() { *done = false })
	return true
}

// alone has this batch decided again if another node does the same at this moment: what no version guards is then done, and told,
// by one of them.
func (tx *Tx) alone(name string) error {
	last, err := tx.Meta.Get(name)
	if err != nil {
		return err
	}
	n, _ := strconv.ParseInt(last, 10, 64)
	tx.later.add(statement{"INSERT INTO meta (name,value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value WHERE meta.value=?",
		[]any{name, strconv.FormatInt(n+1, 10), last}, 1})
	return nil
}

func (tx *Tx) count(n *int, query string, args ...any) error {
	return tx.sess.Query(query, args, func(scan func(...any) error) error { return scan(n) })
}
