package engine

import (
	"cmp"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// showWebhookAgain gives an endpoint and its secret of a version to whoever was shown it before. After a rotation that secret is
// nobody's any more.
func showWebhookAgain(tx *Tx, t perdure.TenantID, id perdure.WebhookID, version int) (w perdure.Webhook, secret string, err error) {
	if w, err = tx.webhook(t, id); err == nil && w.SecretVersion == version {
		secret = tx.e.Webhooks.secret(&w, version)
	}
	return w, secret, err
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
