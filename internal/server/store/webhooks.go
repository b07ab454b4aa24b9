package store

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure"
)

var webhookTable = register(&table[perdure.Webhook]{
	name: "webhooks", versioned: true, version: func(w *perdure.Webhook) *int64 { return &w.Version },
	keys: []string{"tenant", "id"},
	columns: func(c *columns, w *perdure.Webhook) {
		text(c, "tenant", &w.Tenant)
		text(c, "id", &w.ID)
		text(c, "scope", &w.Scope)
		text(c, "thread_id", &w.ThreadID)
		text(c, "url", &w.URL)
		packed(c, "events", wordList{&w.Events})
		text(c, "format", &w.Format)
		text(c, "description", &w.Description)
		number(c, "secret_version", &w.SecretVersion)
		number(c, "rotated_at", &w.RotatedAt)
		number(c, "created_at", &w.CreatedAt)
		number(c, "disabled_at", &w.DisabledAt)
		text(c, "disabled_reason", &w.DisabledReason)
		number(c, "failing_at", &w.FailingAt)
		number(c, "deleted_at", &w.DeletedAt)
		packed(c, "unused_at", unusedSince{w})
		number(c, "version", &w.Version)
	},
})

// wordList is a column with words that are separated by spaces.
type wordList struct{ words *[]string }

func (l wordList) value() any { return strings.Join(*l.words, " ") }

func (l wordList) Scan(v any) error {
	text, _ := v.(string)
	*l.words = strings.Fields(text)
	return nil
}

// unusedSince is the column with the instant since which a webhook is unused. A deleted one is unused
// at least since then.
type unusedSince struct{ w *perdure.Webhook }

func (x unusedSince) value() any { return int64(max(x.w.UnusedAt, x.w.DeletedAt)) }

func (x unusedSince) Scan(v any) error { return nullable[perdure.Instant]{&x.w.UnusedAt}.Scan(v) }

type webhookKey struct {
	t  perdure.TenantID
	id perdure.WebhookID
}

// A WebhookQuota is a row that every operation writes that creates a webhook of the tenant. If two
// create one at once, one of them is decided again and counts the other's. Made is the number of
// webhooks since an instant, where the rate is limited.
type WebhookQuota struct {
	Tenant perdure.TenantID
	Scope  string
	Since  perdure.Instant
	Made   int64
	// Removed is the greatest secret version of removed endpoints of runs.
	Removed int64
	Version int64
}

var quotaTable = register(&table[WebhookQuota]{
	name: "webhook_quota", versioned: true, version: func(q *WebhookQuota) *int64 { return &q.Version },
	keys: []string{"tenant", "scope"},
	columns: func(c *columns, q *WebhookQuota) {
		text(c, "tenant", &q.Tenant)
		text(c, "scope", &q.Scope)
		number(c, "since", &q.Since)
		number(c, "made", &q.Made)
		number(c, "removed_version", &q.Removed)
		number(c, "version", &q.Version)
	},
})

type quotaKey struct {
	t     perdure.TenantID
	scope string
}

// Webhooks holds the endpoints of a tenant, and its quota of them.
type Webhooks struct {
	in     *base
	rows   staged[webhookKey, perdure.Webhook]
	quotas staged[quotaKey, WebhookQuota]
}

func (repo *Webhooks) open(in *base) {
	repo.in = in
	openRows(&repo.rows, in, webhookTable)
	openRows(&repo.quotas, in, quotaTable)
}

// Get gives an endpoint, also one that was deleted.
func (repo *Webhooks) Get(t perdure.TenantID, id perdure.WebhookID) (perdure.Webhook, bool, error) {
	return loadRow(&repo.rows, webhookKey{t, id}, "WHERE tenant=? AND id=?", string(t), string(id))
}

// List gives the registered endpoints of a tenant, as the database has them.
func (repo *Webhooks) List(t perdure.TenantID) ([]perdure.Webhook, error) {
	return webhookTable.list(repo.in.sess, "WHERE tenant=? AND scope<>'run' AND deleted_at=0 ORDER BY id",
		[]any{string(t)})
}

// Page lists a tenant's registered webhooks by id.
func (repo *Webhooks) Page(t perdure.TenantID, p Page) ([]perdure.Webhook, string, error) {
	return paged(p, func(after string, n int, row func(*perdure.Webhook) error) error {
		return webhookTable.query(repo.in.sess,
			"WHERE tenant=? AND id>? AND scope<>'run' AND deleted_at=0 ORDER BY id"+atMost,
			[]any{string(t), after, int64(n)}, row)
	}, func(w *perdure.Webhook) string { return string(w.ID) }, func(w *perdure.Webhook) int {
		bytes := 1024 + quoted(w.URL) + quoted(w.Description) + quoted(w.DisabledReason)
		for _, e := range w.Events {
			bytes += quoted(e) + 1
		}
		return bytes
	})
}

// All lists at most limit webhooks of all tenants that are not deleted.
func (repo *Webhooks) All(limit int) (out []perdure.Webhook, err error) {
	return webhookTable.list(repo.in.sess, "WHERE deleted_at=0 ORDER BY tenant, id"+atMost, []any{int64(limit)})
}

// Tenants gives tenants with registered endpoints, in order. It takes one step per tenant, however
// many endpoints each has.
func (repo *Webhooks) Tenants(limit int) (out []perdure.TenantID, err error) {
	const next = "(SELECT w.tenant FROM webhooks w WHERE w.scope<>'run' AND w.deleted_at=0%s ORDER BY w.tenant LIMIT 1)"
	err = repo.in.sess.Query("WITH RECURSIVE t(tenant) AS (SELECT "+fmt.Sprintf(next, "")+" UNION ALL SELECT "+
		fmt.Sprintf(next, " AND w.tenant>t.tenant")+
		" FROM t WHERE t.tenant IS NOT NULL) SELECT tenant FROM t WHERE tenant IS NOT NULL"+atMost,
		[]any{int64(limit)}, func(scan func(...any) error) error {
			var t perdure.TenantID
			err := scan(&t)
			out = append(out, t)
			return err
		})
	return out, err
}

// A WebhookRef names a webhook.
type WebhookRef struct {
	Tenant perdure.TenantID
	ID     perdure.WebhookID
}

func (r WebhookRef) String() string { return string(r.Tenant) + "/" + string(r.ID) }

// secretMade is the SQL expression for when the secret of a webhook was created.
const secretMade = "CASE WHEN rotated_at<>0 THEN rotated_at ELSE created_at END"

// LastSecretMade gives when the newest secret of a webhook was created. It reads all webhooks, for
// a store without a running server.
func (repo *Webhooks) LastSecretMade() (at perdure.Instant, err error) {
	err = repo.in.sess.Query("SELECT COALESCE(MAX("+secretMade+"),0) FROM webhooks", nil,
		func(scan func(...any) error) error { return scan(&at) })
	return at, err
}

// SecretsMadeBefore gives webhooks whose secret was created before an instant. It reads all
// webhooks, for a store without a running server.
func (repo *Webhooks) SecretsMadeBefore(at perdure.Instant, limit int) (out []WebhookRef, err error) {
	err = repo.in.sess.Query("SELECT tenant, id FROM webhooks WHERE deleted_at=0 AND "+secretMade+
		"<? ORDER BY tenant, id"+atMost, []any{int64(at), int64(limit)},
		func(scan func(...any) error) error {
			var r WebhookRef
			err := scan(&r.Tenant, &r.ID)
			out = append(out, r)
			return err
		})
	return out, err
}

// CountRegistered counts a tenant's registered endpoints, including the changes of the batch.
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
		w := repo.rows.byKey[k]
		if k.t != t || w.val.Scope == perdure.OfRun {
			continue
		}
		if delete(there, k.id); w.exists && w.val.DeletedAt == 0 {
			there[k.id] = true
		}
	}
	return len(there), nil
}

// A HookCursor is a position in the order of unused webhooks.
type HookCursor struct {
	At     perdure.Instant
	Tenant perdure.TenantID
	ID     perdure.WebhookID
}

// Unused gives webhooks after a position that have been unused since an instant or before. Those
// with deliveries are left out; deliveries are removed with their runs. It reads at most limit
// rows. next is where to continue, or zero at the end.
func (repo *Webhooks) Unused(after HookCursor, before perdure.Instant, limit int) (
	out []perdure.Webhook, next HookCursor, err error,
) {
	// A column, not a condition: it is evaluated for the rows of this page only, along the index.
	const told = "coalesce((SELECT 1 FROM outbox o WHERE o.tenant=webhooks.tenant AND o.target=webhooks.id " +
		"ORDER BY o.created_at LIMIT 1), 0)"
	rows := 0
	err = repo.in.sess.Query("SELECT "+strings.Join(webhookTable.cols, ",")+", "+told+
		" FROM webhooks WHERE unused_at>0 AND unused_at<=? "+
		"AND (unused_at,tenant,id)>(?,?,?) ORDER BY unused_at, tenant, id"+atMost,
		[]any{int64(before), int64(after.At), string(after.Tenant), string(after.ID), int64(limit)},
		func(scan func(...any) error) error {
			var w perdure.Webhook
			used := int64(0)
			if err := scan(append(webhookTable.scan(&w), &used)...); err != nil {
				return err
			}
			if rows++; rows == limit {
				next = HookCursor{w.UnusedAt, w.Tenant, w.ID}
			}
			// The batch may have changed it.
			if _, _, known := getRow(&repo.rows, webhookKey{w.Tenant, w.ID}); used == 0 && !known {
				out = append(out, w)
			}
			return nil
		})
	return out, next, err
}

// Put stages an endpoint. Its version is incremented when the batch is written.
func (repo *Webhooks) Put(w perdure.Webhook) { putRow(&repo.rows, webhookKey{w.Tenant, w.ID}, w) }

// Drop stages the removal of a webhook, provided that its row has not changed.
func (repo *Webhooks) Drop(w *perdure.Webhook) {
	k := webhookKey{w.Tenant, w.ID}
	absorbRow(&repo.rows, k, *w, true)
	dropRow(&repo.rows, k)
	addRows(&repo.in.tx.later, statement{"DELETE FROM webhooks WHERE tenant=? AND id=? AND version=?",
		[]any{string(w.Tenant), string(w.ID), w.Version}, 1})
}

// Quota gives a tenant's quota row. It has to be read before the webhooks are counted.
func (repo *Webhooks) Quota(t perdure.TenantID, scope string) (WebhookQuota, error) {
	k := quotaKey{t, scope}
	if q, _, known := getRow(&repo.quotas, k); known {
		return q, nil
	}
	err := quotaTable.query(repo.in.sess, "WHERE tenant=? AND scope=?", []any{string(t), scope},
		func(q *WebhookQuota) error {
			absorbRow(&repo.quotas, k, *q, true)
			return nil
		})
	if err == nil {
		absorbRow(&repo.quotas, k, WebhookQuota{Tenant: t, Scope: scope}, false)
	}
	q, _, _ := getRow(&repo.quotas, k)
	return q, err
}

// PutQuota stages a tenant's quota row. Its version is incremented when the batch is written.
func (repo *Webhooks) PutQuota(q WebhookQuota) { putRow(&repo.quotas, quotaKey{q.Tenant, q.Scope}, q) }
