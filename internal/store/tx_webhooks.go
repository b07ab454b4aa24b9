package store

import (
	"fmt"

	"github.com/perdure/perdure"
)

type (
	webhookKey struct {
		t  perdure.TenantID
		id perdure.WebhookID
	}
	noteKey struct {
		runKey
		seq int64
		w   perdure.WebhookID
	}
)

// Get gives an endpoint, one that was deleted too.
func (repo *Webhooks) Get(t perdure.TenantID, id perdure.WebhookID) (perdure.Webhook, bool, error) {
	k := webhookKey{t, id}
	if w, ok, known := repo.rows.get(k); known {
		return w, ok, nil
	}
	err := webhookTable.query(repo.in.sess, "WHERE tenant=? AND id=?", []any{string(t), string(id)}, func(w *perdure.Webhook) error {
		repo.rows.absorb(k, *w, true)
		return nil
	})
	if err == nil {
		repo.rows.absorb(k, perdure.Webhook{}, false)
	}
	w, ok, _ := repo.rows.get(k)
	return w, ok, err
}

// List gives the registered endpoints of a tenant as they stand in the database.
func (repo *Webhooks) List(t perdure.TenantID) ([]perdure.Webhook, error) {
	return readWebhooks(repo.in.sess, t)
}

// Tenants gives tenants that have registered endpoints, in order. However many each has, it costs one step.
func (repo *Webhooks) Tenants(limit int) (out []perdure.TenantID, err error) {
	const next = "(SELECT w.tenant FROM webhooks w WHERE w.scope<>'run' AND w.deleted_at=0%s ORDER BY w.tenant LIMIT 1)"
	err = repo.in.sess.Query("WITH RECURSIVE t(tenant) AS (SELECT "+fmt.Sprintf(next, "")+" UNION ALL SELECT "+fmt.Sprintf(next, " AND w.tenant>t.tenant")+
		" FROM t WHERE t.tenant IS NOT NULL) SELECT tenant FROM t WHERE tenant IS NOT NULL"+atMost, []any{int64(limit)}, func(scan func(...any) error) error {
		var t perdure.TenantID
		err := scan(&t)
		out = append(out, t)
		return err
	})
	return out, err
}

// Put stages an endpoint. Its version is counted when the batch is written.
func (repo *Webhooks) Put(w perdure.Webhook) { repo.rows.put(repo.in.tx, webhookKey{w.Tenant, w.ID}, w) }

func keyOfNote(n *perdure.Notification) noteKey {
	return noteKey{runKey{n.Tenant, n.RunID}, n.Seq, n.Webhook}
}

// Put stages a notification. Its version is counted when the batch is written.
func (repo *Outbox) Put(n perdure.Notification) { repo.rows.put(repo.in.tx, keyOfNote(&n), n) }

// Get gives a notification.
func (repo *Outbox) Get(t perdure.TenantID, run perdure.RunID, seq int64, w perdure.WebhookID) (perdure.Notification, bool, error) {
	k := noteKey{runKey{t, run}, seq, w}
	if n, ok, known := repo.rows.get(k); known {
		return n, ok, nil
	}
	err := noteTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? AND seq=? AND target=?", []any{string(t), string(run), seq, string(w)},
		func(n *perdure.Notification) error {
			repo.rows.absorb(k, *n, true)
			return nil
		})
	if err == nil {
		repo.rows.absorb(k, perdure.Notification{}, false)
	}
	n, ok, _ := repo.rows.get(k)
	return n, ok, err
}

// Pending gives an endpoint's notifications whose alarm is not later than an instant, the earliest first. There
// may be more: fewer than the limit are given where the batch has changed some, and full says that the limit was reached.
func (repo *Outbox) Pending(t perdure.TenantID, w perdure.WebhookID, until perdure.Instant, limit int) (out []perdure.Notification, full bool, err error) {
	rows := 0
	err = noteTable.query(repo.in.sess, "WHERE tenant=? AND target=? AND alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, run_id, seq"+atMost,
		[]any{string(t), string(w), int64(until), int64(limit)}, func(n *perdure.Notification) error {
			rows++
			k := keyOfNote(n)
			repo.rows.absorb(k, *n, true)
			if cur, ok, _ := repo.rows.get(k); ok && cur.AlarmAt != 0 && cur.AlarmAt <= until { // the batch may have changed it
				out = append(out, cur)
			}
			return nil
		})
	return out, rows == limit, err
}

// NextAlarm is when the first of an endpoint's notifications rings that has not rung yet, or zero.
func (repo *Outbox) NextAlarm(t perdure.TenantID, w perdure.WebhookID) (at perdure.Instant, err error) {
	err = repo.in.sess.Query("SELECT min(alarm_at) FROM outbox WHERE tenant=? AND target=? AND alarm_at IS NOT NULL AND alarm_at>?",
		[]any{string(t), string(w), int64(repo.in.Now)}, func(scan func(...any) error) error { return scan(nullable[perdure.Instant]{&at}) })
	return at, err
}

// FirstAttempt is when the first attempt to send a notification after its nth was made, or zero.
func (repo *Outbox) FirstAttempt(of *perdure.Notification, n int64) (at perdure.Instant, err error) {
	err = repo.in.sess.Query("SELECT min(at) FROM webhook_attempts WHERE tenant=? AND run_id=? AND seq=? AND target=? AND n>?",
		[]any{string(of.Tenant), string(of.RunID), of.Seq, string(of.Webhook), n}, func(scan func(...any) error) error {
			return scan(nullable[perdure.Instant]{&at})
		})
	return at, err
}

// AddAttempt stages an attempt to send a notification.
func (repo *Outbox) AddAttempt(a perdure.WebhookAttempt) { push(repo.in.tx, &repo.attempts, a) }

// A WebhookQuota is the row that every operation writes which makes a webhook of a tenant: of two that do so at once, one is decided
// again, and counts the other's. Made are those since an instant, where that is what is limited.
type WebhookQuota struct {
	Tenant  perdure.TenantID
	Scope   string
	Since   perdure.Instant
	Made    int64
	Removed int64 // the greatest secret version of endpoints of runs that were removed
	Version int64
}

type quotaKey struct {
	t     perdure.TenantID
	scope string
}

var quotaTable = &table[WebhookQuota]{
	name: "webhook_quota", versioned: true, keys: []string{"tenant", "scope"},
	cols: []string{"tenant", "scope", "since", "made", "removed_version", "version"},
	bind: func(q *WebhookQuota) []any {
		return []any{string(q.Tenant), q.Scope, int64(q.Since), q.Made, q.Removed, q.Version}
	},
	scan: func(q *WebhookQuota) []any {
		return []any{&q.Tenant, &q.Scope, &q.Since, &q.Made, &q.Removed, &q.Version}
	},
}

// Quota gives a tenant's row. It is read before the webhooks are counted.
func (repo *Webhooks) Quota(t perdure.TenantID, scope string) (WebhookQuota, error) {
	k := quotaKey{t, scope}
	if q, _, known := repo.quotas.get(k); known {
		return q, nil
	}
	err := quotaTable.query(repo.in.sess, "WHERE tenant=? AND scope=?", []any{string(t), scope}, func(q *WebhookQuota) error {
		repo.quotas.absorb(k, *q, true)
		return nil
	})
	if err == nil {
		repo.quotas.absorb(k, WebhookQuota{Tenant: t, Scope: scope}, false)
	}
	q, _, _ := repo.quotas.get(k)
	return q, err
}

// PutQuota stages a tenant's row. Its version is counted when the batch is written.
func (repo *Webhooks) PutQuota(q WebhookQuota) { repo.quotas.put(repo.in.tx, quotaKey{q.Tenant, q.Scope}, q) }

// CountRegistered counts a tenant's registered endpoints, with those that the batch makes and without those that it deletes.
func (repo *Webhooks) CountRegistered(t perdure.TenantID) (int, error) {
	list, err := repo.List(t)
	if err != nil {
		return 0, err
	}
	there := make(map[perdure.WebhookID]bool, len(list))
	for i := range list {
		there[list[i].ID] = true
	}
	for _, k := range repo.rows.dirty {
		w := repo.rows.slots[k]
		if k.t != t || w.val.Scope == perdure.OfRun {
			continue
		}
		if delete(there, k.id); w.exists && w.val.DeletedAt == 0 {
			there[k.id] = true
		}
	}
	return len(there), nil
}
