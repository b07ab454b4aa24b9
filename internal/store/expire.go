package store

import (
	"fmt"
	"strconv"
)

// Expire removes what has outlived its time: dead letters, and idempotency keys whose run has ended, about a thousand at a time. It gives
// how many there are; another node that removes the same ones at this moment has this batch decided again.
func (tx *Tx) Expire() (letters, keys int, err error) {
	// The last of the first thousand is a value that is looked up once, whatever the database knows of its tables.
	const upTo = "expires_at<=(SELECT max(expires_at) FROM (SELECT expires_at FROM %s WHERE expires_at<=? ORDER BY expires_at LIMIT 1000) AS due)"
	const live = "EXISTS (SELECT 1 FROM runs WHERE runs.tenant=idempotency.tenant AND runs.id=idempotency.ref AND runs.alarm_at IS NOT NULL)"
	dead, due := "FROM dead_letters WHERE "+fmt.Sprintf(upTo, "dead_letters"), fmt.Sprintf(upTo, "idempotency")
	over := "FROM idempotency WHERE " + due + " AND NOT " + live
	if !tx.first(&tx.expired) {
		return 0, 0, nil
	}
	if err := tx.count(&letters, "SELECT count(*) "+dead, int64(tx.Now)); err != nil {
		return 0, 0, err
	}
	if err := tx.count(&keys, "SELECT count(*) "+over, int64(tx.Now)); err != nil {
		return 0, 0, err
	}
	if letters+keys > 0 {
		if err := tx.alone("expired"); err != nil {
			return 0, 0, err
		}
	}
	push(tx, &tx.later,
		statement{"DELETE " + dead, []any{int64(tx.Now)}, anyNumber},
		statement{"DELETE " + over, []any{int64(tx.Now)}, anyNumber},
		// A key of a live run is looked at again later: it lasts at least as long as its run.
		statement{"UPDATE idempotency SET expires_at=? WHERE " + due + " AND " + live, []any{int64(tx.Now) + 3600*1e6, int64(tx.Now)}, anyNumber})
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
	last, err := tx.Meta(name)
	if err != nil {
		return err
	}
	n, _ := strconv.ParseInt(last, 10, 64)
	push(tx, &tx.later, statement{"INSERT INTO meta (name,value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value WHERE meta.value=?",
		[]any{name, strconv.FormatInt(n+1, 10), last}, 1})
	return nil
}

func (tx *Tx) count(n *int, query string, args ...any) error {
	return tx.sess.Query(query, args, func(scan func(...any) error) error { return scan(n) })
}
