package engine

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
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

// showWebhookAgain gives an endpoint and its secret of a version to whoever was shown it before. After a rotation that secret is
// nobody's any more.
func showWebhookAgain(tx *Tx, t perdure.TenantID, id perdure.WebhookID, version int) (w perdure.Webhook, secret string, err error) {
	if w, err = tx.webhook(t, id); err == nil && w.SecretVersion == version {
		secret = tx.e.Webhooks.secret(&w, version)
	}
	return w, secret, err
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

// RotateWebhook gives an endpoint a new secret. For a day the one before signs as well. With a Key it counts once.
type RotateWebhook struct {
	Tenant perdure.TenantID
	ID     perdure.WebhookID
	Key    string

	Webhook perdure.Webhook
	Secret  string
}

func (*RotateWebhook) Needs() []store.Ref { return nil }

// Do rotates.
func (op *RotateWebhook) Do(tx *Tx) error {
	_, err := underKey(tx, op.Tenant, "rotate:"+string(op.ID), op.Key, nil, func() (string, error) {
		w, err := tx.webhook(op.Tenant, op.ID)
		if err != nil {
			return "", err
		}
		w.SecretVersion, w.RotatedAt = w.SecretVersion+1, tx.Now
		putWebhook(tx, w)
		op.Webhook, op.Secret = w, tx.e.Webhooks.secret(&w, w.SecretVersion)
		return strconv.Itoa(w.SecretVersion), tx.audit(op.Tenant, perdure.AuditWebhookRotate, string(w.ID), "secret_version", w.SecretVersion)
	}, func(version string) error {
		n, err := strconv.Atoi(version)
		if err != nil {
			return err
		}
		op.Webhook, op.Secret, err = showWebhookAgain(tx, op.Tenant, op.ID, n)
		return err
	})
	return err
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

// Redeliver has a notification sent again, now: the same id and the same body, its schedule from the start. With a Key
// it counts once.
type Redeliver struct {
	Tenant     perdure.TenantID
	DeliveryID string
	Key        string

	Notification perdure.Notification
}

func (*Redeliver) Needs() []store.Ref { return nil }

// Do sends again.
func (op *Redeliver) Do(tx *Tx) error {
	run, seq, id, ok := perdure.ParseNotificationID(op.DeliveryID)
	if !ok {
		return notFound("delivery")
	}
	n, ok, err := tx.DB.Outbox.Get(op.Tenant, run, seq, id)
	if err != nil {
		return err
	}
	if !ok {
		return notFound("delivery")
	}
	_, err = underKey(tx, op.Tenant, "redeliver:"+op.DeliveryID, op.Key, nil, func() (string, error) {
		if err := sendAgain(tx, &n); err != nil {
			return "", err
		}
		return "", tx.audit(op.Tenant, perdure.AuditDeliveryRepeat, op.DeliveryID, "webhook_id", string(n.Webhook))
	},
		func(string) error { return nil })
	op.Notification = n
	return err
}

func sendAgain(tx *Tx, n *perdure.Notification) error {
	w, ok, err := tx.DB.Webhooks.Get(n.Tenant, n.Webhook)
	switch {
	case err != nil:
		return err
	case !ok || w.DeletedAt != 0:
		return perdure.Errorf(perdure.CodeWrongState, "its webhook is deleted")
	case w.DisabledAt != 0:
		return perdure.Errorf(perdure.CodeWrongState, "its webhook is disabled: enable it first")
	}
	n.State, n.Tries, n.AlarmAt = perdure.NotePending, 0, tx.Now
	tx.DB.Outbox.Put(*n)
	tx.post(n.Tenant, n.Webhook, true)
	return nil
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

// secret is an endpoint's secret of its version. It follows from the root secret that was the newest when the version was
// made: there is nothing to keep.
func (q Webhooks) secret(w *perdure.Webhook, version int) string {
	return webhookSecretOf(q.e.ring.of(cmp.Or(w.RotatedAt, w.CreatedAt)), w, version)
}

func webhookSecretOf(g generation, w *perdure.Webhook, version int) string {
	return "whsec_" + base64.StdEncoding.EncodeToString(g.derive("webhook\x00"+string(w.Tenant)+"\x00"+string(w.ID)+"\x00"+strconv.Itoa(version)))
}

// Secrets are the secrets that sign what is sent to an endpoint: its own, and for a day after a rotation the
// one before.
func (q Webhooks) Secrets(w *perdure.Webhook, now perdure.Instant) []string {
	out := []string{q.secret(w, w.SecretVersion)}
	if w.RotatedAt != 0 && now < w.RotatedAt.Add(perdure.RotationGrace) {
		// When the version before was made is not stored. It follows from one of the root secrets until then: all of them sign.
		for _, g := range q.e.ring.until(w.RotatedAt) {
			out = append(out, webhookSecretOf(g, w, w.SecretVersion-1))
		}
	}
	return out
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

// firstSecret gives the secret that a run's submission was answered with, if it made the run's endpoint: the answer may have
// been lost. After a rotation it is nobody's any more.
func firstSecret(tx *Tx, r *perdure.Run) (string, error) {
	if !strings.HasPrefix(string(r.Options.Webhook), "wh_") {
		return "", nil
	}
	w, ok, err := tx.DB.Webhooks.Get(r.Tenant, perdure.WebhookID(r.Options.Webhook))
	if err != nil || !ok || w.DeletedAt != 0 || w.RotatedAt != 0 || w.CreatedAt != r.CreatedAt {
		return "", err
	}
	return tx.e.Webhooks.secret(&w, w.SecretVersion), nil
}

// maxNotified is how many notifications an operation writes by itself. Events that would exceed it wait as one row each for FanOut. An
// event for one endpoint is a row either way, and never waits.
const maxNotified = 64

// notify stages a notification for every line that somebody asked to be told of: with the run, or for its thread
// or its tenant.
func (tx *Tx) notify(r *perdure.Run, lines []perdure.Line) error {
	worth := false
	for i := range lines {
		worth = worth || lines[i].Type != perdure.LineDelta
	}
	if !worth {
		return nil
	}
	hooks, err := tx.e.hooks.routesOf(tx, r.Tenant)
	if err != nil || (len(hooks.list) == 0 && r.Options.Webhook == "") {
		return err
	}
	own, err := ownWebhook(tx, r)
	if err != nil {
		return err
	}
	events := strings.Fields(r.Options.WebhookLines)
	for i := range lines {
		l := &lines[i]
		to, mine := hooks.match(r.ThreadID, l.Type), own
		if mine != "" && !perdure.WantsLine(events, l.Type) {
			mine = ""
		}
		n := len(to)
		if mine != "" {
			n++
		}
		if n > 1 && tx.notified+n > maxNotified {
			tx.DB.FanOuts.Put(store.FanOut{Tenant: r.Tenant, RunID: r.ID, Seq: l.Seq, Type: l.Type, ThreadID: r.ThreadID, Own: mine, At: tx.Now})
			tx.post(r.Tenant, "", false)
			continue
		}
		tx.notified += n
		if mine != "" {
			addNotification(tx, r, l, mine)
		}
		for _, k := range to {
			addNotification(tx, r, l, hooks.list[k].ID)
		}
	}
	return nil
}

func addNotification(tx *Tx, r *perdure.Run, l *perdure.Line, w perdure.WebhookID) {
	tx.DB.Outbox.Put(perdure.Notification{Tenant: r.Tenant, RunID: r.ID, Seq: l.Seq, Webhook: w, Type: l.Type, State: perdure.NotePending, CreatedAt: tx.Now, AlarmAt: tx.Now})
	tx.post(r.Tenant, w, false)
}

// ownWebhook gives the endpoint that a run was submitted with. A run from before there were endpoints has a URL.
func ownWebhook(tx *Tx, r *perdure.Run) (perdure.WebhookID, error) {
	asked := string(r.Options.Webhook)
	if asked == "" || strings.HasPrefix(asked, "wh_") {
		return perdure.WebhookID(asked), nil
	}
	var url string
	var object struct{ URL string }
	if json.Unmarshal([]byte(asked), &url) != nil && json.Unmarshal([]byte(asked), &object) == nil {
		url = object.URL
	}
	if perdure.CheckURL("webhook", url) != nil {
		return "", nil // nobody looked at what was asked for then
	}
	// A run that was accepted is told of, whatever the quota is.
	id, _, err := createRunWebhook(tx, r.Tenant, url, func(*Tx, perdure.TenantID) error { return nil })
	if err == nil {
		err = needWebhook(tx, r.Tenant, id, r.DeadlineAt)
	}
	return id, err
}
