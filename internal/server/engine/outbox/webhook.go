package outbox

import (
	"cmp"
	"encoding/base64"
	"math"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// CreateWebhook registers an endpoint for a tenant's runs, or for those of a thread. Its secret is
// given here and when it is rotated. With a Key it is idempotent, and gives the secret again until
// that is rotated.
type CreateWebhook struct {
	Tenant perdure.TenantID
	URL    string
	// ThreadID is empty for all runs of the tenant.
	ThreadID perdure.ThreadID
	// Events default to perdure.NotifiedLines, or to those that the format tells of.
	Events      []string
	Format      perdure.WebhookFormat
	Description string
	Key         string

	Webhook perdure.Webhook
	Secret  string
	// Created is false if the key was known.
	Created bool
}

func (*CreateWebhook) Needs() []store.Ref { return nil }

// Do registers the endpoint.
func (op *CreateWebhook) Do(tx *kernel.Tx) error {
	w := perdure.Webhook{Tenant: op.Tenant, Scope: perdure.OfTenant, ThreadID: op.ThreadID, URL: op.URL,
		Events: op.Events, Format: op.Format, Description: op.Description, SecretVersion: 1, CreatedAt: tx.Now}
	if err := checkWebhook(&w); err != nil {
		return err
	}
	if op.ThreadID != "" {
		w.Scope = perdure.OfThread
		if err := perdure.CheckName("thread_id", string(op.ThreadID)); err != nil {
			return err
		}
	}
	body := []any{op.URL, op.ThreadID, op.Events, op.Description}
	if op.Format != "" {
		body = append(body, op.Format)
	}
	var err error
	op.Created, err = kernel.UnderKey(tx, op.Tenant, "webhook", op.Key, body, func() (string, error) {
		err := op.register(tx, w)
		return string(op.Webhook.ID), err
	}, func(id string) (err error) {
		op.Webhook, op.Secret, err = showWebhookAgain(tx, op.Tenant, perdure.WebhookID(id), 1)
		return err
	})
	return err
}

// register creates the endpoint within the tenant's quota.
func (op *CreateWebhook) register(tx *kernel.Tx, w perdure.Webhook) error {
	if err := requireFormat(tx, w.Format); err != nil {
		return err
	}
	if err := checkWebhookQuota(tx, op.Tenant); err != nil {
		return err
	}
	id, err := tx.NewID()
	if err != nil {
		return err
	}
	w.ID = perdure.WebhookID("wh_" + id)
	op.Webhook, op.Secret = w, Webhooks{tx.Engine}.secret(&w, 1)
	PutWebhook(tx, w)
	return tx.Audit(op.Tenant, perdure.AuditWebhookCreate, string(w.ID), "scope", w.Scope,
		"thread_id", string(op.ThreadID), "format", string(w.Format))
}

// checkWebhookQuota refuses an endpoint above the tenant's quota. It writes the quota's row, so
// that concurrent registrations conflict.
func checkWebhookQuota(tx *kernel.Tx, t perdure.TenantID) error {
	q, err := tx.DB.Webhooks.Quota(t, perdure.OfTenant)
	if err != nil {
		return err
	}
	have, err := tx.DB.Webhooks.CountRegistered(t)
	if err != nil {
		return err
	}
	if have >= perdure.MaxWebhooks {
		return perdure.Errorf(perdure.CodeQuota, "a tenant may have %d webhooks, and this one has them",
			perdure.MaxWebhooks)
	}
	tx.DB.Webhooks.PutQuota(q)
	return nil
}

// CheckRunWebhookQuota refuses a submission with a new URL above the tenant's quota of new URLs per
// hour.
func CheckRunWebhookQuota(tx *kernel.Tx, t perdure.TenantID) error {
	q, err := tx.DB.Webhooks.Quota(t, perdure.OfRun)
	if err != nil {
		return err
	}
	if tx.Now.Sub(q.Since) >= perdure.RunWebhooksIn {
		q.Since, q.Made = tx.Now, 0
	}
	if q.Made >= perdure.MaxRunWebhooks {
		return perdure.Errorf(perdure.CodeQuota,
			"the runs of a tenant may name %d new webhook URLs an hour: "+
				"name one URL for many, every message says which run it is about",
			perdure.MaxRunWebhooks)
	}
	q.Made++
	tx.DB.Webhooks.PutQuota(q)
	return nil
}

// checkWebhook validates the fields of an endpoint, and fills in what its format says.
func checkWebhook(w *perdure.Webhook) (err error) {
	if err := perdure.CheckURL("url", w.URL); err != nil {
		return err
	}
	if w.Format, w.Events, err = perdure.CheckFormat("format", w.Format, "events", w.Events); err != nil {
		return err
	}
	return perdure.CheckText("description", w.Description)
}

// requireFormat refuses a format while a node is connected that does not know it.
func requireFormat(tx *kernel.Tx, f perdure.WebhookFormat) error {
	if f == "" {
		return nil
	}
	return tx.Requires(kernel.WebhookFormats)
}

// UpdateWebhook changes the fields of an endpoint that are not nil. With a Key it counts once, so
// that a repeated call does not undo later changes.
type UpdateWebhook struct {
	Tenant perdure.TenantID
	ID     perdure.WebhookID
	URL    *string
	Events *[]string
	// Format sets the events that it tells of, unless they are given beside it.
	Format      *perdure.WebhookFormat
	Description *string
	// Disabled disables the endpoint, or enables it. Disabling gives up its pending notifications, which
	// can be redelivered later. Reason says why it is disabled. Repeating it is no error.
	Disabled *bool
	Reason   string
	Key      string

	Webhook perdure.Webhook
}

func (*UpdateWebhook) Needs() []store.Ref { return nil }

// Do changes the endpoint.
func (op *UpdateWebhook) Do(tx *kernel.Tx) error {
	w, err := readWebhook(tx, op.Tenant, op.ID)
	if err != nil {
		return err
	}
	body := []any{op.URL, op.Events, op.Description, op.Disabled}
	if op.Format != nil {
		body = append(body, op.Format)
	}
	_, err = kernel.UnderKey(tx, op.Tenant, "change:"+string(w.ID), op.Key, body, func() (string, error) {
		return "", op.change(tx, &w)
	}, func(string) error { return nil })
	op.Webhook = w
	return err
}

// change sets the fields and stages the endpoint.
func (op *UpdateWebhook) change(tx *kernel.Tx, w *perdure.Webhook) error {
	if w.Scope == perdure.OfRun && (op.URL != nil || op.Events != nil || op.Format != nil) {
		return perdure.Errorf(perdure.CodeWrongState,
			"the webhook of runs: its URL, its events and its format come with each of them")
	}
	if op.URL != nil {
		w.URL = *op.URL
	}
	if op.Format != nil && *op.Format != cmp.Or(w.Format, perdure.FormatPerdure) && *op.Format != w.Format {
		w.Format, w.Events = *op.Format, nil
	}
	if op.Events != nil {
		w.Events = *op.Events
	}
	if op.Description != nil {
		w.Description = *op.Description
	}
	if err := checkChange(tx, op, w); err != nil {
		return err
	}
	if op.Disabled != nil {
		if err := enableWebhook(tx, w, !*op.Disabled, op.Reason); err != nil {
			return err
		}
	}
	PutWebhook(tx, *w)
	return tx.Audit(op.Tenant, perdure.AuditWebhookChange, string(w.ID), "url", op.URL != nil,
		"events", op.Events != nil, "format", string(w.Format), "disabled", w.DisabledAt != 0)
}

// checkChange validates a changed endpoint. That it has a format needs nodes that know it only if the change
// is about what it is told: an endpoint can be disabled and enabled at any time.
func checkChange(tx *kernel.Tx, op *UpdateWebhook, w *perdure.Webhook) error {
	if op.Format == nil && op.Events == nil && op.URL == nil {
		return perdure.CheckText("description", w.Description)
	}
	if err := checkWebhook(w); err != nil {
		return err
	}
	return requireFormat(tx, w.Format)
}

// enableWebhook enables or disables an endpoint, and gives up the pending notifications of a
// disabled one.
func enableWebhook(tx *kernel.Tx, w *perdure.Webhook, on bool, reason string) error {
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

// DeleteWebhook deletes an endpoint. Its pending notifications are dropped, and its history stays
// readable. With a Key, repeating it is no error.
type DeleteWebhook struct {
	Tenant perdure.TenantID
	ID     perdure.WebhookID
	Key    string
}

func (*DeleteWebhook) Needs() []store.Ref { return nil }

// Do deletes the endpoint.
func (op *DeleteWebhook) Do(tx *kernel.Tx) error {
	_, err := kernel.UnderKey(tx, op.Tenant, "delete:"+string(op.ID), op.Key, nil, func() (string, error) {
		w, err := readWebhook(tx, op.Tenant, op.ID)
		if err != nil {
			return "", err
		}
		w.DeletedAt = tx.Now
		PutWebhook(tx, w)
		if _, _, err = settlePending(tx, &w, settledAtOnce); err != nil {
			return "", err
		}
		return "", tx.Audit(op.Tenant, perdure.AuditWebhookDelete, string(w.ID))
	}, func(string) error { return nil })
	return err
}

// readWebhook reads an endpoint that is not deleted.
func readWebhook(tx *kernel.Tx, t perdure.TenantID, id perdure.WebhookID) (perdure.Webhook, error) {
	w, ok, err := tx.DB.Webhooks.Get(t, id)
	if err == nil && (!ok || w.DeletedAt != 0) {
		err = kernel.NotFound("webhook")
	}
	return w, err
}

// PutWebhook stages an endpoint. This node uses it before the operation is answered, other nodes
// after Webhooks.Delay.
func PutWebhook(tx *kernel.Tx, w perdure.Webhook) {
	tx.DB.Webhooks.Put(w)
	postTo(tx, w.Tenant, w.ID, true)
	tx.DB.After(func() {
		cachedHooks.Of(tx.Engine).forget(w.Tenant)
		// Other lanes may have decided without the change.
		tx.Engine.Store().Outdate(w.Tenant)
	})
}

// Delay gives how long other nodes may not use a changed webhook: the age of their cache, and of
// decisions that they have made with it.
func (q Webhooks) Delay() time.Duration {
	if !q.e.Store().Shared() || q.e.Alone {
		return 0
	}
	// 250 ms allow for differences between the nodes' clocks.
	return HookTTL + store.MaxAge + 250*time.Millisecond
}

// CreateRunWebhook gives the id of the endpoint for runs that are submitted with a URL and a format. It creates
// the endpoint if there is none, and then gives its secret. checkQuota refuses a new one above the
// quota.
func CreateRunWebhook(
	tx *kernel.Tx, t perdure.TenantID, url string, f perdure.WebhookFormat,
	checkQuota func(*kernel.Tx, perdure.TenantID) error,
) (id perdure.WebhookID, secret string, err error) {
	if err := requireFormat(tx, f); err != nil {
		return "", "", err
	}
	id = perdure.RunWebhookID(t, url, f)
	tx.DB.DependsOn(t)
	begun := cachedHooks.Of(tx.Engine).runHooks.Begin()
	if _, there := cachedHooks.Of(tx.Engine).runHooks.Peek(kernel.LookOf(tx), id); there {
		return id, "", nil
	}
	w, ok, err := tx.DB.Webhooks.Get(t, id)
	if err != nil {
		return id, "", err
	}
	if !ok || w.DeletedAt != 0 {
		if err := checkQuota(tx, t); err != nil {
			return id, "", err
		}
		// An endpoint that was deleted, and perhaps removed, is created again with another secret:
		// the receiver that knows the old one did not ask for this endpoint.
		q, err := tx.DB.Webhooks.Quota(t, perdure.OfRun)
		if err != nil {
			return id, "", err
		}
		version := max(w.SecretVersion, int(q.Removed)) + 1
		w = perdure.Webhook{Tenant: t, ID: id, Scope: perdure.OfRun, URL: url, Format: f,
			SecretVersion: version,
			CreatedAt:     tx.Now, Version: w.Version}
		tx.DB.Webhooks.Put(w)
		return id, Webhooks{tx.Engine}.secret(&w, w.SecretVersion), nil
	}
	tx.DB.After(func() { cachedHooks.Of(tx.Engine).runHooks.Fill(kernel.LookOf(tx), id, w.UnusedAt, begun) })
	return id, "", nil
}

// NeedWebhook keeps the webhook that came with a run until the run's deadline.
func NeedWebhook(tx *kernel.Tx, t perdure.TenantID, id perdure.WebhookID, until perdure.Instant) error {
	tx.DB.DependsOn(t)
	if needed, ok := cachedHooks.Of(tx.Engine).runHooks.Peek(kernel.LookOf(tx), id); ok && needed >= until {
		return nil
	}
	w, ok, err := tx.DB.Webhooks.Get(t, id)
	if err != nil || !ok || w.DeletedAt != 0 || w.Scope != perdure.OfRun || w.UnusedAt >= until {
		return err
	}
	w.UnusedAt = until.Add(neededAhead)
	tx.DB.Webhooks.Put(w)
	return nil
}

// neededAhead is added to the instant until which a run's webhook is kept, so that not every run
// writes it.
const neededAhead = time.Hour

// settlePending gives up at most so many pending notifications of a deleted or disabled endpoint,
// and tells whether there may be more.
func settlePending(tx *kernel.Tx, w *perdure.Webhook, limit int) (n int, more bool, err error) {
	if w.DeletedAt != 0 {
		return settleNotifications(tx, w, math.MaxInt64, limit, perdure.NoteDropped, "the webhook was deleted")
	}
	return settleNotifications(tx, w, math.MaxInt64, limit, perdure.NoteDead, "the webhook was disabled")
}

const settledAtOnce = 64

// showWebhookAgain gives an endpoint and its secret of a version to a caller that repeats its call.
// After a rotation, the secret of an older version is not given any more.
func showWebhookAgain(
	tx *kernel.Tx, t perdure.TenantID, id perdure.WebhookID, version int,
) (w perdure.Webhook, secret string, err error) {
	if w, err = readWebhook(tx, t, id); err == nil && w.SecretVersion == version {
		secret = Webhooks{tx.Engine}.secret(&w, version)
	}
	return w, secret, err
}

// secret derives an endpoint's secret of a version from the root secret that was the newest when
// the version was made. It is not stored.
func (q Webhooks) secret(w *perdure.Webhook, version int) string {
	return webhookSecretOf(access.RootSecret(q.e).Of(cmp.Or(w.RotatedAt, w.CreatedAt)), w, version)
}

// webhookSecretOf derives a secret from one generation of the root secret.
func webhookSecretOf(g access.Generation, w *perdure.Webhook, version int) string {
	text := "webhook\x00" + string(w.Tenant) + "\x00" + string(w.ID) + "\x00" + strconv.Itoa(version)
	return "whsec_" + base64.StdEncoding.EncodeToString(g.Derive(text))
}

// settleNotifications gives up at most so many pending notifications of an endpoint that are due
// until an instant.
func settleNotifications(
	tx *kernel.Tx, w *perdure.Webhook, until perdure.Instant, limit int, state, why string,
) (n int, more bool, err error) {
	list, more, err := tx.DB.Outbox.Pending(w.Tenant, w.ID, until, limit)
	if err != nil {
		return 0, false, err
	}
	for _, n := range list {
		n.State, n.AlarmAt, n.Error = state, 0, why
		tx.DB.Outbox.Put(n)
	}
	return len(list), more, nil
}
