package store

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure"
)

// Rows that nobody needs any more: workers that are gone, keys that are invalid, webhooks that were
// deleted or that came with runs which are over. Each kind has an index by the instant from which
// on it is unused, so that a step reads only rows that are due.

// DropUnused removes workers that are offline and were last heard from at an instant or before, at
// most so many. It gives how many it has staged to go. A worker that comes back at this moment
// stays.
func (repo *Workers) DropUnused(before perdure.Instant, limit int) (n int, err error) {
	const gone = "offline=1 AND seen_at<=?"
	due := fmt.Sprintf("WITH due AS MATERIALIZED (SELECT tenant,id FROM workers WHERE "+gone+
		" ORDER BY seen_at, tenant, id LIMIT %d) ", limit)
	if err := repo.in.tx.count(&n, due+"SELECT count(*) FROM due", int64(before)); err != nil || n == 0 {
		return 0, err
	}
	push(repo.in.tx, &repo.in.tx.later, statement{due + "DELETE FROM workers WHERE (tenant,id) IN (SELECT tenant,id FROM due) AND " + gone,
		[]any{int64(before), int64(before)}, anyNumber})
	return n, repo.in.tx.alone("workers removed")
}

// DropUnused removes keys that were revoked or expired at an instant or before, at most so
// many of either. It gives how many it has staged to go.
func (repo *Keys) DropUnused(before perdure.Instant, limit int) (n int, err error) {
	due := func(column string) string {
		return fmt.Sprintf("SELECT id FROM (SELECT id FROM keys WHERE %[1]s>0 AND %[1]s<=? ORDER BY %[1]s, id LIMIT %[2]d) AS %[1]s",
			column, limit)
	}
	list := "WITH due AS MATERIALIZED (" + due("revoked_at") + " UNION ALL " + due("expires_at") + ") "
	args := []any{int64(before), int64(before)}
	if err := repo.in.tx.count(&n, list+"SELECT count(DISTINCT id) FROM due", args...); err != nil || n == 0 {
		return 0, err
	}
	push(repo.in.tx, &repo.in.tx.later, statement{list + "DELETE FROM keys WHERE id IN (SELECT id FROM due)", args, anyNumber})
	return n, repo.in.tx.alone("keys removed")
}

// A HookCursor is a place in the order of unused webhooks.
type HookCursor struct {
	At     perdure.Instant
	Tenant perdure.TenantID
	ID     perdure.WebhookID
}

// Unused gives webhooks behind a place that are unused since an instant or before and have
// no deliveries left, which go with their runs. It looks at a bounded number of rows; next is where
// to go on, or zero at the end.
func (repo *Webhooks) Unused(after HookCursor, before perdure.Instant, limit int) (
	out []perdure.Webhook, next HookCursor, err error,
) {
	// A column, and no condition: it is looked up for the rows of this page alone, along the index.
	const told = "coalesce((SELECT 1 FROM outbox o WHERE o.tenant=webhooks.tenant AND o.target=webhooks.id " +
		"ORDER BY o.created_at LIMIT 1), 0)"
	rows := 0
	err = repo.in.sess.Query("SELECT "+strings.Join(webhookTable.cols, ",")+", "+told+" FROM webhooks WHERE unused_at>0 AND unused_at<=? "+
		"AND (unused_at,tenant,id)>(?,?,?) ORDER BY unused_at, tenant, id"+atMost,
		[]any{int64(before), int64(after.At), string(after.Tenant), string(after.ID), int64(limit)}, func(scan func(...any) error) error {
			var w perdure.Webhook
			used := int64(0)
			if err := scan(append(webhookTable.scan(&w), &used)...); err != nil {
				return err
			}
			if rows++; rows == limit {
				next = HookCursor{w.UnusedAt, w.Tenant, w.ID}
			}
			if _, _, known := repo.rows.get(webhookKey{w.Tenant, w.ID}); used == 0 && !known { // the batch may have changed it
				out = append(out, w)
			}
			return nil
		})
	return out, next, err
}

// Drop takes a webhook out of the store, if it still is what was read.
func (repo *Webhooks) Drop(w *perdure.Webhook) {
	k := webhookKey{w.Tenant, w.ID}
	repo.rows.absorb(k, *w, true)
	repo.rows.drop(repo.in.tx, k)
	push(repo.in.tx, &repo.in.tx.later, statement{"DELETE FROM webhooks WHERE tenant=? AND id=? AND version=?",
		[]any{string(w.Tenant), string(w.ID), w.Version}, 1})
}
