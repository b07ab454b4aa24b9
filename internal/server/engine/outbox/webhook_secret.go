package outbox

import (
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// RotateWebhook gives an endpoint a new secret. The previous one signs as well for RotationGrace.
// With a Key it counts once.
type RotateWebhook struct {
	Tenant perdure.TenantID
	ID     perdure.WebhookID
	Key    string

	Webhook perdure.Webhook
	Secret  string
}

func (*RotateWebhook) Needs() []store.Ref { return nil }

// Do rotates the secret.
func (op *RotateWebhook) Do(tx *kernel.Tx) error {
	_, err := kernel.UnderKey(tx, op.Tenant, "rotate:"+string(op.ID), op.Key, nil, func() (string, error) {
		w, err := readWebhook(tx, op.Tenant, op.ID)
		if err != nil {
			return "", err
		}
		w.SecretVersion, w.RotatedAt = w.SecretVersion+1, tx.Now
		PutWebhook(tx, w)
		op.Webhook, op.Secret = w, Webhooks{tx.Engine}.secret(&w, w.SecretVersion)
		return strconv.Itoa(w.SecretVersion), tx.Audit(op.Tenant, perdure.AuditWebhookRotate, string(w.ID),
			"secret_version", w.SecretVersion)
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

// Secrets gives the secrets that sign what is sent to an endpoint: the current one and, for
// RotationGrace after a rotation, the previous one.
func (q Webhooks) Secrets(w *perdure.Webhook, now perdure.Instant) []string {
	out := []string{q.secret(w, w.SecretVersion)}
	if w.RotatedAt != 0 && now < w.RotatedAt.Add(perdure.RotationGrace) {
		// It is not stored when the previous version was made. It is derived from one of the
		// generations up to the rotation, so all of them sign.
		for _, g := range access.RootSecret(q.e).Until(w.RotatedAt) {
			out = append(out, webhookSecretOf(g, w, w.SecretVersion-1))
		}
	}
	return out
}

// FirstSecret gives the secret of a run's endpoint to a repeated submission, if the first one
// created the endpoint. After a rotation it gives none.
func FirstSecret(tx *kernel.Tx, r *perdure.Run) (string, error) {
	if !strings.HasPrefix(string(r.Options.Webhook), "wh_") {
		return "", nil
	}
	w, ok, err := tx.DB.Webhooks.Get(r.Tenant, perdure.WebhookID(r.Options.Webhook))
	if err != nil || !ok || w.DeletedAt != 0 || w.RotatedAt != 0 || w.CreatedAt != r.CreatedAt {
		return "", err
	}
	return Webhooks{tx.Engine}.secret(&w, w.SecretVersion), nil
}
