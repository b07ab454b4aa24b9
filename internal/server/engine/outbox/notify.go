package outbox

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// maxNotified bounds the notifications that an operation stages by itself. An event that would
// exceed it is stored as one row for FanOut. An event for one endpoint needs one row either way, so
// it is always staged.
const maxNotified = 64

// notify stages notifications of new log lines for the endpoints that match them: the run's own,
// those of its thread and those of its tenant.
func notify(tx *kernel.Tx, r *perdure.Run, lines []perdure.Line) error {
	worth := false
	for i := range lines {
		worth = worth || lines[i].Type != perdure.LineDelta
	}
	if !worth {
		return nil
	}
	hooks, err := cachedHooks.Of(tx.Engine).routesOf(tx, r.Tenant)
	if err != nil || (len(hooks.list) == 0 && r.Options.Webhook == "") {
		return err
	}
	own, err := ownWebhook(tx, r)
	if err != nil {
		return err
	}
	events, staged := strings.Fields(r.Options.WebhookLines), &stagedIn.Of(tx).notified
	for i := range lines {
		l := &lines[i]
		to, mine := slices.DeleteFunc(hooks.match(r.ThreadID, l.Type), func(k int) bool {
			return !hooks.list[k].Tells(r)
		}), own
		if mine != "" && !perdure.WantsLine(events, l.Type) {
			mine = ""
		}
		n := len(to)
		if mine != "" {
			n++
		}
		if n > 1 && *staged+n > maxNotified {
			tx.DB.FanOuts.Put(store.FanOut{Tenant: r.Tenant, RunID: r.ID, Seq: l.Seq, Type: l.Type,
				ThreadID: r.ThreadID, Own: mine, At: tx.Now})
			postTo(tx, r.Tenant, "", false)
			continue
		}
		*staged += n
		if mine != "" {
			addNotification(tx, r, l, mine)
		}
		for _, k := range to {
			addNotification(tx, r, l, hooks.list[k].ID)
		}
	}
	return nil
}

// addNotification stages one notification, due now.
func addNotification(tx *kernel.Tx, r *perdure.Run, l *perdure.Line, w perdure.WebhookID) {
	tx.DB.Outbox.Put(perdure.Notification{Tenant: r.Tenant, RunID: r.ID, Seq: l.Seq, Webhook: w, Type: l.Type,
		State: perdure.NotePending, CreatedAt: tx.Now, AlarmAt: tx.Now})
	postTo(tx, r.Tenant, w, false)
}

// ownWebhook gives the endpoint that a run was submitted with. A run from before endpoints has a
// URL instead.
func ownWebhook(tx *kernel.Tx, r *perdure.Run) (perdure.WebhookID, error) {
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
		// Such an old URL was not validated when the run was submitted.
		return "", nil
	}
	// The run was accepted, so the quota does not apply.
	id, _, err := CreateRunWebhook(tx, r.Tenant, url, "", func(*kernel.Tx, perdure.TenantID) error { return nil })
	if err == nil {
		err = NeedWebhook(tx, r.Tenant, id, r.DeadlineAt)
	}
	return id, err
}

// Redeliver sends a notification again, now, with the same id and body. Its schedule starts again.
// With a Key it counts once.
type Redeliver struct {
	Tenant     perdure.TenantID
	DeliveryID string
	Key        string

	Notification perdure.Notification
}

func (*Redeliver) Needs() []store.Ref { return nil }

// Do makes the notification due.
func (op *Redeliver) Do(tx *kernel.Tx) error {
	run, seq, id, ok := perdure.ParseNotificationID(op.DeliveryID)
	if !ok {
		return kernel.NotFound("delivery")
	}
	n, ok, err := tx.DB.Outbox.Get(op.Tenant, run, seq, id)
	if err != nil {
		return err
	}
	if !ok {
		return kernel.NotFound("delivery")
	}
	_, err = kernel.UnderKey(tx, op.Tenant, "redeliver:"+op.DeliveryID, op.Key, nil, func() (string, error) {
		if err := sendAgain(tx, &n); err != nil {
			return "", err
		}
		return "", tx.Audit(op.Tenant, perdure.AuditDeliveryRepeat, op.DeliveryID, "webhook_id", string(n.Webhook))
	},
		func(string) error { return nil })
	op.Notification = n
	return err
}

// sendAgain makes a notification of an active endpoint due now.
func sendAgain(tx *kernel.Tx, n *perdure.Notification) error {
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
	postTo(tx, n.Tenant, n.Webhook, true)
	return nil
}
