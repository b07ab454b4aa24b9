package store

import "github.com/perdure/perdure"

// endWithin is how many of a log's last lines are looked at for its end. Few lines follow an end: a dead letter, late results,
// callbacks that came too late.
const endWithin = 64

// LogEnded tells whether the last lines of a run's log have its end. It reads the database, and not what the batch has staged:
// it is for runs that are live by their row.
func (tx *Tx) LogEnded(t perdure.TenantID, run perdure.RunID) (ended bool, err error) {
	err = tx.sess.Query("SELECT COUNT(*) FROM (SELECT type FROM events WHERE tenant=? AND run_id=? ORDER BY seq DESC"+atMost+") AS last WHERE type IN (?,?,?,?)",
		[]any{string(t), string(run), int64(endWithin), perdure.LineCompleted, perdure.LineFailed, perdure.LineTimedOut, perdure.LineCancelled},
		func(scan func(...any) error) error {
			var n int64
			err := scan(&n)
			ended = n > 0
			return err
		})
	return ended, err
}
