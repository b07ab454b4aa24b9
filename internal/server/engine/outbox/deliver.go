package outbox

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// A Want asks for at most Most due notifications of an endpoint. With zero it only gives up those
// of an endpoint that is deleted or disabled.
type Want struct {
	Tenant  perdure.TenantID
	Webhook perdure.WebhookID
	Most    int
}

// An Outgoing is a notification that was leased for sending, and its endpoint.
type Outgoing struct {
	perdure.Notification
	To perdure.Webhook
}

// A Sent is the result of sending a notification that was leased.
type Sent struct {
	// Notification is the row as it was leased.
	perdure.Notification

	At   perdure.Instant
	Took time.Duration
	// Status is the HTTP status of the answer. Zero: there was no answer.
	Status   int
	Error    string
	Response string
	// RetryAfter is the delay that the receiver asked for.
	RetryAfter time.Duration
	// Stopped says that this node aborted the request. It says nothing about the receiver.
	Stopped bool
	// Unsent says that the notification could not be read, so nothing was sent.
	Unsent bool
	// Gone says that the notification's content no longer exists.
	Gone bool
	// Silent says that the webhook's format has nothing to tell of the event.
	Silent bool
}

// OK tells whether the receiver accepted the notification.
func (s *Sent) OK() bool { return s.Status >= 200 && s.Status < 300 && s.Error == "" }

// Down tells whether the receiver is unreachable or overloaded, as opposed to refusing this
// notification.
func (s *Sent) Down() bool {
	switch {
	case s.Stopped || s.Unsent:
		return false
	case s.Status == 0, s.Status == 408, s.Status == 425, s.Status == 429:
		return true
	}
	return s.Status >= 500
}

// Deliver records the results of sent notifications, and leases others that are due. Nobody else
// sends a leased notification until its lease expires. Then it is due again, unless its result was
// recorded.
type Deliver struct {
	Sent []Sent
	Want []Want

	// Taken are the notifications that were leased.
	Taken []Outgoing
	// Again says when notifications become due that are not due yet.
	Again []store.Mailbox
	// More names endpoints with more notifications to give up. The caller asks again.
	More []Want

	// left is how many more notifications this operation gives up.
	left int
}

func (*Deliver) Needs() []store.Ref { return nil }

// Lane keeps deliveries apart from work on runs, because nodes conflict about the same
// notifications.
func (*Deliver) Lane() store.Lane { return store.LaneNotify }

const (
	// SendLease is how long a node that leased a notification has for sending it.
	SendLease = time.Minute
	// maxSettled bounds the notifications that a delivery gives up. settledAtOnce bounds those that
	// the deletion or disabling of an endpoint gives up; the deliverer continues with the rest.
	maxSettled = 500
	// MaxRetryAfter bounds the delay that a receiver can ask for.
	MaxRetryAfter = 24 * time.Hour
	// giveUpAfter is how long after the start of its schedule a notification is given up. It is the
	// longest that the schedule takes. A receiver's Retry-After does not extend it.
	giveUpAfter = 29 * time.Hour
	jitter      = 0.2
)

// resend holds the delay after each failed attempt, which gets 20 % jitter. Counted from the first
// attempt, the others come after 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h and a day.
var resend = []time.Duration{5 * time.Second, 295 * time.Second, 25 * time.Minute, 90 * time.Minute,
	3 * time.Hour, 5 * time.Hour, 4 * time.Hour,
	6 * time.Hour, 4 * time.Hour}

// Do records results, then leases.
func (op *Deliver) Do(tx *kernel.Tx) error {
	op.Taken, op.Again, op.More, op.left = nil, nil, nil, maxSettled
	for i := range op.Sent {
		again, err := recordAttempt(tx, &op.Sent[i])
		if err != nil {
			return err
		}
		if again != 0 {
			op.Again = append(op.Again, store.Mailbox{Tenant: op.Sent[i].Tenant, Webhook: op.Sent[i].Webhook,
				Due: again})
		}
	}
	for _, want := range op.Want {
		if err := op.take(tx, want); err != nil {
			return err
		}
	}
	return nil
}

// take leases the due notifications of an endpoint, or gives up those of one that is deleted or
// disabled.
func (op *Deliver) take(tx *kernel.Tx, want Want) error {
	w, ok, err := tx.DB.Webhooks.Get(want.Tenant, want.Webhook)
	if err != nil {
		return err
	}
	if !ok {
		w = perdure.Webhook{Tenant: want.Tenant, ID: want.Webhook, DeletedAt: tx.Now}
	}
	if !w.Active() {
		return op.giveUp(tx, want, func(limit int) (int, bool, error) { return settlePending(tx, &w, limit) })
	}
	due, full, err := tx.DB.Outbox.Pending(want.Tenant, want.Webhook, tx.Now, want.Most)
	if err != nil {
		return err
	}
	again := store.Mailbox{Tenant: want.Tenant, Webhook: want.Webhook, Due: tx.Now}
	if len(due) > 0 && tx.Now.Sub(due[0].AlarmAt) > giveUpAfter {
		return op.giveUp(tx, want, func(limit int) (int, bool, error) {
			n, _, err := settleNotifications(tx, &w, tx.Now.Add(-giveUpAfter), limit, perdure.NoteDead,
				"the receiver was not reached for more than a day")
			return n, true, err
		})
	}
	took := 0
	for _, n := range due {
		over, err := deliveryOver(tx, &n, tx.Now)
		if err != nil {
			return err
		}
		if over {
			n.State, n.AlarmAt = perdure.NoteDead, 0
			tx.DB.Outbox.Put(n)
			continue
		}
		n.Attempts, n.Tries, n.AlarmAt = n.Attempts+1, n.Tries+1, tx.Now.Add(SendLease)
		tx.DB.Outbox.Put(n)
		op.Taken = append(op.Taken, Outgoing{n, w})
		took++
	}
	if full {
		if took < want.Most {
			op.Again = append(op.Again, again)
		}
		// The deliverer asks again, since there may be more.
		return nil
	}
	next, err := tx.DB.Outbox.NextAlarm(want.Tenant, want.Webhook)
	if next != 0 {
		op.Again = append(op.Again, store.Mailbox{Tenant: want.Tenant, Webhook: want.Webhook, Due: next})
	}
	return err
}

// giveUp gives up some of an endpoint's notifications, and asks for another call if there are more.
// All endpoints of a delivery share one bound, because a hundred of them may be disabled at once.
func (op *Deliver) giveUp(tx *kernel.Tx, want Want, settle func(limit int) (n int, more bool, err error)) error {
	more := true
	if op.left > 0 {
		n, rest, err := settle(op.left)
		if err != nil {
			return err
		}
		op.left, more = op.left-n, rest
	}
	if more {
		op.More = append(op.More, want)
	}
	return nil
}

// deliveryOver tells whether a notification's schedule is over at an instant. The schedule starts
// with the first attempt since the notification was created or redelivered. Without an attempt, it
// starts when the notification was due.
func deliveryOver(tx *kernel.Tx, n *perdure.Notification, at perdure.Instant) (bool, error) {
	if at.Sub(n.CreatedAt) <= giveUpAfter {
		return false, nil
	}
	began := n.AlarmAt
	if n.Tries > 0 {
		first, err := tx.DB.Outbox.FirstAttempt(n, n.Attempts-n.Tries)
		if err != nil || first == 0 {
			return false, err
		}
		began = first
	}
	return at.Sub(began) > giveUpAfter, nil
}

// recordAttempt writes an attempt and decides what follows from it. It gives the instant of the
// next attempt, or zero.
func recordAttempt(tx *kernel.Tx, s *Sent) (again perdure.Instant, err error) {
	n, ok, err := tx.DB.Outbox.Get(s.Tenant, s.RunID, s.Seq, s.Webhook)
	if err != nil {
		return 0, err
	}
	if !s.Unsent {
		countAttempt(tx, s)
	}
	if !ok {
		// The run was deleted meanwhile: write nothing of it back.
		return 0, nil
	}
	if !s.Unsent {
		// Writing the row makes this conflict with an operation that deletes the run.
		tx.DB.Outbox.Put(n)
		tx.DB.Outbox.AddAttempt(perdure.WebhookAttempt{Tenant: s.Tenant, RunID: s.RunID, Seq: s.Seq,
			Webhook: s.Webhook, N: s.Attempts, At: s.At, Took: s.Took,
			Status: s.Status, Error: s.Error, Response: s.Response})
	}
	if n.Attempts != s.Attempts {
		// The lease expired, and another node leased the notification.
		return 0, nil
	}
	switch {
	// The row is as it was leased.
	case n.State == perdure.NotePending && n.AlarmAt == s.AlarmAt:
	// It was given up while it was being sent, and has arrived.
	case n.State == perdure.NoteDead && s.OK():
	default:
		// It was redelivered meanwhile, or its result is recorded already.
		return 0, nil
	}
	w, ok, err := tx.DB.Webhooks.Get(s.Tenant, s.Webhook)
	if err != nil || !ok {
		return 0, err
	}
	n.Status, n.Error = s.Status, s.Error
	switch {
	case s.Stopped:
		n.Tries, n.AlarmAt = n.Tries-1, tx.Now
	case s.OK():
		n.State, n.AlarmAt = perdure.NoteDelivered, 0
	case s.Silent:
		n.State, n.AlarmAt = perdure.NoteDropped, 0
	case s.Gone || s.Status == 410 || n.Tries > int64(len(resend)):
		n.State, n.AlarmAt = perdure.NoteDead, 0
	default:
		wait := float64(resend[n.Tries-1]) * (1 - jitter + 2*jitter*tx.Roll())
		n.AlarmAt = tx.Now.Add(max(time.Duration(wait), min(s.RetryAfter, MaxRetryAfter)))
		over, err := deliveryOver(tx, &n, n.AlarmAt)
		if err != nil {
			return 0, err
		}
		if over {
			n.State, n.AlarmAt = perdure.NoteDead, 0
		}
	}
	tx.DB.Outbox.Put(n)
	return n.AlarmAt, endpointAnswered(tx, &w, s)
}

// GoneReason is recorded when an endpoint is disabled because it answered 410.
const GoneReason = "the receiver answered 410"

// endpointAnswered records since when an endpoint fails, and disables one that answers 410.
func endpointAnswered(tx *kernel.Tx, w *perdure.Webhook, s *Sent) error {
	switch {
	case !w.Active():
	case s.OK():
		if w.FailingAt != 0 {
			w.FailingAt = 0
			tx.DB.Webhooks.Put(*w)
		}
	case s.Status == 410:
		w.DisabledAt, w.DisabledReason = tx.Now, GoneReason
		PutWebhook(tx, *w)
		_, _, err := settlePending(tx, w, settledAtOnce)
		return err
	case s.Down() && w.FailingAt == 0:
		w.FailingAt = s.At
		tx.DB.Webhooks.Put(*w)
	}
	return nil
}

// countAttempt collects the result of sending a notification.
func countAttempt(tx *kernel.Tx, s *Sent) {
	c := kernel.Change{What: kernel.WebhookAttempt, Reason: "refused"}
	switch {
	case s.Stopped:
		c.Reason = "stopped"
	case s.OK():
		c.Reason = "delivered"
	case s.Status == 0:
		c.Reason = "unreachable"
	}
	tx.Count(c)
}
