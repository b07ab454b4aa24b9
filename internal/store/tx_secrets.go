package store

import "github.com/perdure/perdure"

// endWithin is how many of a log's last lines are looked at for its end. Few lines follow an end: a dead letter, late results,
// callbacks that came too late.
const endWithin = 64

// Ended tells whether the last lines of a run's log have its end. It reads the database, and not what the batch has staged:
// it is for runs that are live by their row.
func (repo *Events) Ended(t perdure.TenantID, run perdure.RunID) (ended bool, err error) {
	err = repo.in.sess.Query("SELECT COUNT(*) FROM (SELECT type FROM events WHERE tenant=? AND run_id=? ORDER BY seq DESC"+atMost+") AS last WHERE type IN (?,?,?,?)",
		[]any{string(t), string(run), int64(endWithin), perdure.LineCompleted, perdure.LineFailed, perdure.LineTimedOut, perdure.LineCancelled},
		func(scan func(...any) error) error {
			var n int64
			err := scan(&n)
			ended = n > 0
			return err
		})
	return ended, err
}

// A WebhookRef names a webhook.
type WebhookRef struct {
	Tenant perdure.TenantID
	ID     perdure.WebhookID
}

func (r WebhookRef) String() string { return string(r.Tenant) + "/" + string(r.ID) }

// secretMade is when the secret of a row of webhooks was made.
const secretMade = "CASE WHEN rotated_at<>0 THEN rotated_at ELSE created_at END"

// LastSecretMade is when the newest secret of a webhook was made. It reads all webhooks: for a store that nobody works on.
func (repo *Webhooks) LastSecretMade() (at perdure.Instant, err error) {
	err = repo.in.sess.Query("SELECT COALESCE(MAX("+secretMade+"),0) FROM webhooks", nil, func(scan func(...any) error) error { return scan(&at) })
	return at, err
}

// SecretsMadeBefore gives webhooks whose secret was made before an instant. It reads all webhooks: for a store that nobody works on.
func (repo *Webhooks) SecretsMadeBefore(at perdure.Instant, limit int) (out []WebhookRef, err error) {
	err = repo.in.sess.Query("SELECT tenant, id FROM webhooks WHERE deleted_at=0 AND "+secretMade+"<? ORDER BY tenant, id"+atMost, []any{int64(at), int64(limit)},
		func(scan func(...any) error) error {
			var r WebhookRef
			err := scan(&r.Tenant, &r.ID)
			out = append(out, r)
			return err
		})
	return out, err
}
