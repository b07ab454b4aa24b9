package engine

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// CreateWebhook registers an endpoint for a tenant's runs, or for those of a thread. Its secret is shown here, and
// when it is rotated. With a Key it is idempotent, and the secret is shown to whoever has the key until it is rotated.
type CreateWebhook struct {
	Tenant      perdure.TenantID
	URL         string
	ThreadID    perdure.ThreadID // empty: all runs of the tenant
	Events      []string         // empty: perdure.NotifiedLines
	Description string
	Key         string

	Webhook perdure.Webhook
	Secret  string
	Created bool // false: the key was known
}

func (*CreateWebhook) Needs() []store.Ref { return nil }

// Do registers it.
func (op *CreateWebhook) Do(tx *Tx) error {
	if err := checkWebhook(op.URL, op.Events, op.Description); err != nil {
		return err
	}
	scope := perdure.OfTenant
	if op.ThreadID != "" {
		scope = perdure.OfThread
		if err := perdure.CheckName("thread_id", string(op.ThreadID)); err != nil {
			return err
		}
	}
	var err error
	op.Created, err = underKey(tx, op.Tenant, "webhook", op.Key, []any{op.URL, op.ThreadID, op.Events, op.Description}, func() (string, error) {
		err := op.register(tx, scope)
		return string(op.Webhook.ID), err
	}, func(id string) (err error) {
		op.Webhook, op.Secret, err = showWebhookAgain(tx, op.Tenant, perdure.WebhookID(id), 1)
		return err
	})
	return err
}

func (op *CreateWebhook) register(tx *Tx, scope string) error {
	if err := roomForWebhook(tx, op.Tenant); err != nil {
		return err
	}
	id, err := tx.newID()
	if err != nil {
		return err
	}
	op.Webhook = perdure.Webhook{Tenant: op.Tenant, ID: perdure.WebhookID("wh_" + id), Scope: scope, ThreadID: op.ThreadID, URL: op.URL, Events: op.Events,
		Description: op.Description, SecretVersion: 1, CreatedAt: tx.Now}
	op.Secret = tx.e.Webhooks.secret(&op.Webhook, 1)
	putWebhook(tx, op.Webhook)
	return tx.audit(op.Tenant, perdure.AuditWebhookCreate, string(op.Webhook.ID), "scope", scope, "thread_id", string(op.ThreadID))
}

// roomForWebhook refuses one more registered endpoint than a tenant may have. The quota's row is written, so that whatever registers
// another one at this moment is decided again.
func roomForWebhook(tx *Tx, t perdure.TenantID) error {
	q, err := tx.DB.Webhooks.Quota(t, perdure.OfTenant)
	if err != nil {
		return err
	}
	have, err := tx.DB.Webhooks.CountRegistered(t)
	if err != nil {
		return err
	}
	if have >= perdure.MaxWebhooks {
		return perdure.Errorf(perdure.CodeQuota, "a tenant may have %d webhooks, and this one has them", perdure.MaxWebhooks)
	}
	tx.DB.Webhooks.PutQuota(q)
	return nil
}

// roomForRunWebhook refuses a submission that names one more unknown URL than a tenant's may within an hour.
func roomForRunWebhook(tx *Tx, t perdure.TenantID) error {
	q, err := tx.DB.Webhooks.Quota(t, perdure.OfRun)
	if err != nil {
		return err
	}
	if tx.Now.Sub(q.Since) >= perdure.RunWebhooksIn {
		q.Since, q.Made = tx.Now, 0
	}
	if q.Made >= perdure.MaxRunWebhooks {
		return perdure.Errorf(perdure.CodeQuota, "the runs of a tenant may name %d new webhook URLs an hour: name one URL for many, every message says which run it is about",
			perdure.MaxRunWebhooks)
	}
	q.Made++
	tx.DB.Webhooks.PutQuota(q)
	return nil
}

func checkWebhook(url string, events []string, description string) error {
	if err := perdure.CheckURL("url", url); err != nil {
		return err
	}
	if err := perdure.CheckEvents("events", events); err != nil {
		return err
	}
	return perdure.CheckText("description", description)
}

// UpdateWebhook changes what is set of an endpoint. With a Key it counts once, whatever others change meanwhile.
type UpdateWebhook struct {
	Tenant      perdure.TenantID
	ID          perdure.WebhookID
	URL         *string
	Events      *[]string
	Description *string
	Disabled    *bool // as EnableWebhook has it
	Reason      string
	Key         string

	Webhook perdure.Webhook
}

func (*UpdateWebhook) Needs() []store.Ref { return nil }

// Do changes it.
func (op *UpdateWebhook) Do(tx *Tx) error {
	w, err := tx.webhook(op.Tenant, op.ID)
	if err != nil {
		return err
	}
	_, err = underKey(tx, op.Tenant, "change:"+string(w.ID), op.Key, []any{op.URL, op.Events, op.Description, op.Disabled}, func() (string, error) {
		return "", op.change(tx, &w)
	}, func(string) error { return nil })
	op.Webhook = w
	return err
}

func (op *UpdateWebhook) change(tx *Tx, w *perdure.Webhook) error {
	if w.Scope == perdure.OfRun && (op.URL != nil || op.Events != nil) {
		return perdure.Errorf(perdure.CodeWrongState, "the webhook of runs: its URL and its events come with each of them")
	}
	if op.URL != nil {
		w.URL = *op.URL
	}
	if op.Events != nil {
		w.Events = *op.Events
	}
	if op.Description != nil {
		w.Description = *op.Description
	}
	if err := checkWebhook(w.URL, w.Events, w.Description); err != nil {
		return err
	}
	if op.Disabled != nil {
		if err := enableWebhook(tx, w, !*op.Disabled, op.Reason); err != nil {
			return err
		}
	}
	putWebhook(tx, *w)
	return tx.audit(op.Tenant, perdure.AuditWebhookChange, string(w.ID), "url", op.URL != nil, "events", op.Events != nil, "disabled", w.DisabledAt != 0)
}

// EnableWebhook has an endpoint told of things again, or, with Disabled, no longer: what was pending for it is dead
// then, and can be redelivered.
type EnableWebhook struct {
	Tenant   perdure.TenantID
	ID       perdure.WebhookID
	Disabled bool
	Reason   string // why it is disabled

	Webhook perdure.Webhook
}

func (*EnableWebhook) Needs() []store.Ref { return nil }

// Do enables or disables. Doing it again is no error.
func (op *EnableWebhook) Do(tx *Tx) error {
	w, err := tx.webhook(op.Tenant, op.ID)
	if err != nil {
		return err
	}
	if err := enableWebhook(tx, &w, !op.Disabled, op.Reason); err != nil {
		return err
	}
	putWebhook(tx, w)
	op.Webhook = w
	return nil
}

// enableWebhook has an endpoint told of things again, or no longer.
func enableWebhook(tx *Tx, w *perdure.Webhook, on bool, reason string) error {
	if err := perdure.CheckText("reason", reason); err != nil {
		return err
	}
	if on == (w.DisabledAt == 0) {
		return nil
	}
	w.DisabledAt, w.DisabledReason, w.FailingAt = 0, "", 0
	if on {
		return nil
	}
	w.DisabledAt, w.DisabledReason = tx.Now, reason
	_, _, err := settlePending(tx, w, settledAtOnce)
	return err
}

// DeleteWebhook has an endpoint forgotten: what was pending for it is dropped, and its history stays readable. With a
// Key, saying it again is no error.
type DeleteWebhook struct {
	Tenant perdure.TenantID
	ID     perdure.WebhookID
	Key    string
}

func (*DeleteWebhook) Needs() []store.Ref { return nil }

// Do deletes.
func (op *DeleteWebhook) Do(tx *Tx) error {
	_, err := underKey(tx, op.Tenant, "delete:"+string(op.ID), op.Key, nil, func() (string, error) {
		w, err := tx.webhook(op.Tenant, op.ID)
		if err != nil {
			return "", err
		}
		w.DeletedAt = tx.Now
		putWebhook(tx, w)
		if _, _, err = settlePending(tx, &w, settledAtOnce); err != nil {
			return "", err
		}
		return "", tx.audit(op.Tenant, perdure.AuditWebhookDelete, string(w.ID))
	}, func(string) error { return nil })
	return err
}

// webhook gives an endpoint that is not deleted.
func (tx *Tx) webhook(t perdure.TenantID, id perdure.WebhookID) (perdure.Webhook, error) {
	w, ok, err := tx.DB.Webhooks.Get(t, id)
	if err == nil && (!ok || w.DeletedAt != 0) {
		err = notFound("webhook")
	}
	return w, err
}

// putWebhook stages an endpoint. This node knows of it before the operation is answered, others after WebhookDelay.
func putWebhook(tx *Tx, w perdure.Webhook) {
	tx.DB.Webhooks.Put(w)
	tx.post(w.Tenant, w.ID, true)
	tx.DB.After(func() {
		tx.e.hooks.forget(w.Tenant)
		tx.e.store.Outdate() // what another lane has decided without it
	})
}

// Delay is how long other nodes may not know of a webhook that was changed: what they remember, and what they have
// decided by it. What they begin to write later knows of it.
func (q Webhooks) Delay() time.Duration {
	if !q.e.store.Shared() {
		return 0
	}
	return hookTTL + store.MaxAge + 250*time.Millisecond // clocks of nodes differ by less than that
}

// createRunWebhook gives the id of the endpoint of runs that are submitted with a URL, which is made if there is none;
// secret is set if it is. room refuses one more of them.
func createRunWebhook(tx *Tx, t perdure.TenantID, url string, room func(*Tx, perdure.TenantID) error) (id perdure.WebhookID, secret string, err error) {
	id = perdure.RunWebhookID(t, url)
	there, changes := tx.e.hooks.exists(tx, id)
	if there {
		return id, "", nil
	}
	w, ok, err := tx.DB.Webhooks.Get(t, id)
	if err != nil {
		return id, "", err
	}
	if !ok || w.DeletedAt != 0 {
		if err := room(tx, t); err != nil {
			return id, "", err
		}
		// One that was deleted comes back with another secret, also after its row was removed: whoever had the first one was not asked.
		q, err := tx.DB.Webhooks.Quota(t, perdure.OfRun)
		if err != nil {
			return id, "", err
		}
		version := max(w.SecretVersion, int(q.Removed)) + 1
		w = perdure.Webhook{Tenant: t, ID: id, Scope: perdure.OfRun, URL: url, SecretVersion: version, CreatedAt: tx.Now, Version: w.Version}
		tx.DB.Webhooks.Put(w)
		return id, tx.e.Webhooks.secret(&w, w.SecretVersion), nil
	}
	tx.DB.After(func() { tx.e.hooks.remember(id, tx.Now, w.UnusedAt, changes) })
	return id, "", nil
}
