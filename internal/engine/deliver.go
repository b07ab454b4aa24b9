package engine

import (
	"math"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// A Want asks for notifications of an endpoint that are due, or with none only that those of one that is gone are
// given up.
type Want struct {
	Tenant  perdure.TenantID
	Webhook perdure.WebhookID
	Most    int
}

// An Outgoing is a notification that was taken to be sent, and where to.
type Outgoing struct {
	perdure.Notification
	To perdure.Webhook
}

// A Sent is what became of a notification that was taken.
type Sent struct {
	perdure.Notification // as it was taken

	At         perdure.Instant
	Took       time.Duration
	Status     int // of the answer; 0: there was none
	Error      string
	Response   string
	RetryAfter time.Duration // what the receiver asked for
	Stopped    bool          // it was this node that gave up: that says nothing about the receiver
	Unsent     bool          // it could not be read: nothing was sent
	Gone       bool          // and there is nothing to read any more
}

// OK tells whether the receiver has it.
func (s *Sent) OK() bool { return s.Status >= 200 && s.Status < 300 && s.Error == "" }

// Down tells whether it is the receiver that can't be reached or takes nothing now, rather than that it does not want this.
func (s *Sent) Down() bool {
	switch {
	case s.Stopped || s.Unsent:
		return false
	case s.Status == 0, s.Status == 408, s.Status == 425, s.Status == 429:
		return true
	}
	return s.Status >= 500
}

// Deliver writes down what became of notifications, and takes others that are due. Nobody else sends what was
// taken until its lease has passed; then it is due again, unless it is known what became of it.
type Deliver struct {
	Sent []Sent
	Want []Want

	Taken []Outgoing
	Again []store.Mailbox // when there is something to send that is not due yet
	More  []Want          // those with more that is only to be given up: ask again

	left int // how many more notifications are given up
}

func (*Deliver) Needs() []store.Ref { return nil }

// Lane keeps nodes that are after the same notifications out of everybody else's way.
func (*Deliver) Lane() store.Lane { return store.LaneNotify }

const (
	// SendLease is how long a notification is in the hands of who took it.
	SendLease = time.Minute
	// maxSettled bounds how many notifications a delivery gives up, and settledAtOnce those that an operation does which deletes or
	// disables an endpoint: the deliverer goes on with the rest.
	maxSettled    = 500
	settledAtOnce = 64
	// MaxRetryAfter bounds what a receiver can ask for.
	MaxRetryAfter = 24 * time.Hour
	// giveUpAfter is how long after its schedule began a notification is given up: as long as the schedule lasts at
	// most, whatever the receiver asked for and whether it was tried or not.
	giveUpAfter = 29 * time.Hour
	jitter      = 0.2
)

// resend is the time from one failed attempt to the next: 5 s after the first one, 5 min, 30 min, 2 h, 5 h, 10 h,
// 14 h, 20 h and a day, each give or take a fifth.
var resend = []time.Duration{5 * time.Second, 295 * time.Second, 25 * time.Minute, 90 * time.Minute, 3 * time.Hour, 5 * time.Hour, 4 * time.Hour,
	6 * time.Hour, 4 * time.Hour}

// Do delivers.
func (op *Deliver) Do(tx *Tx) error {
	op.Taken, op.Again, op.More, op.left = nil, nil, nil, maxSettled
	for i := range op.Sent {
		again, err := recordAttempt(tx, &op.Sent[i])
		if err != nil {
			return err
		}
		if again != 0 {
			op.Again = append(op.Again, store.Mailbox{Tenant: op.Sent[i].Tenant, Webhook: op.Sent[i].Webhook, Due: again})
		}
	}
	for _, want := range op.Want {
		if err := op.take(tx, want); err != nil {
			return err
		}
	}
	return nil
}

// take takes what is due of an endpoint, or gives up what is pending for one that is gone.
func (op *Deliver) take(tx *Tx, want Want) error {
	w, ok, err := tx.DB.Webhooks.Get(want.Tenant, want.Webhook)
	if err != nil {
		return err
	}
	if !ok {
		w = perdure.Webhook{Tenant: want.Tenant, ID: want.Webhook, DeletedAt: tx.Now}
	}
	if !w.Active() {
		return op.giveUp(tx, want, func(most int) (int, bool, error) { return settlePending(tx, &w, most) })
	}
	due, full, err := tx.DB.Outbox.Pending(want.Tenant, want.Webhook, tx.Now, want.Most)
	if err != nil {
		return err
	}
	again := store.Mailbox{Tenant: want.Tenant, Webhook: want.Webhook, Due: tx.Now}
	if len(due) > 0 && tx.Now.Sub(due[0].AlarmAt) > giveUpAfter {
		return op.giveUp(tx, want, func(most int) (int, bool, error) {
			n, _, err := settleNotifications(tx, &w, tx.Now.Add(-giveUpAfter), most, perdure.NoteDead, "the receiver was not reached for more than a day")
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
		return nil // there may be more
	}
	next, err := tx.DB.Outbox.NextAlarm(want.Tenant, want.Webhook)
	if next != 0 {
		op.Again = append(op.Again, store.Mailbox{Tenant: want.Tenant, Webhook: want.Webhook, Due: next})
	}
	return err
}

// giveUp has a portion of what is pending for an endpoint given up, and asks for another turn if there is more. All endpoints of a
// delivery share one bound: a hundred of them may be disabled at once.
func (op *Deliver) giveUp(tx *Tx, want Want, settle func(most int) (n int, more bool, err error)) error {
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

// deliveryOver tells whether a notification's schedule is over at an instant. It began with the first attempt since the notification
// was made or redelivered, or when it was due, if there was none.
func deliveryOver(tx *Tx, n *perdure.Notification, at perdure.Instant) (bool, error) {
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

// recordAttempt writes an attempt down and decides what follows from it: when it is sent again, or zero.
func recordAttempt(tx *Tx, s *Sent) (again perdure.Instant, err error) {
	n, ok, err := tx.DB.Outbox.Get(s.Tenant, s.RunID, s.Seq, s.Webhook)
	if err != nil {
		return 0, err
	}
	if !s.Unsent && tx.e.observer != nil {
		countAttempt(tx, s)
	}
	if !ok {
		return 0, nil // its run was deleted meanwhile: nothing of it is written back
	}
	if !s.Unsent {
		tx.DB.Outbox.Put(n) // whoever deletes the run at this moment sees the attempt, or this is decided again
		tx.DB.Outbox.AddAttempt(perdure.WebhookAttempt{Tenant: s.Tenant, RunID: s.RunID, Seq: s.Seq, Webhook: s.Webhook, N: s.Attempts, At: s.At, Took: s.Took,
			Status: s.Status, Error: s.Error, Response: s.Response})
	}
	if n.Attempts != s.Attempts {
		return 0, nil // its lease passed, and somebody else has it
	}
	switch {
	case n.State == perdure.NotePending && n.AlarmAt == s.AlarmAt: // as it was taken
	case n.State == perdure.NoteDead && s.OK(): // given up while it was on its way, and it has arrived
	default:
		return 0, nil // it is wanted again, or this is known already
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

// goneReason is why an endpoint is disabled that says itself that it is gone.
const goneReason = "the receiver answered 410"

// endpointAnswered notes whether an endpoint can be reached, and that it wants no more.
func endpointAnswered(tx *Tx, w *perdure.Webhook, s *Sent) error {
	switch {
	case !w.Active():
	case s.OK():
		if w.FailingAt != 0 {
			w.FailingAt = 0
			tx.DB.Webhooks.Put(*w)
		}
	case s.Status == 410:
		w.DisabledAt, w.DisabledReason = tx.Now, goneReason
		putWebhook(tx, *w)
		_, _, err := settlePending(tx, w, settledAtOnce)
		return err
	case s.Down() && w.FailingAt == 0:
		w.FailingAt = s.At
		tx.DB.Webhooks.Put(*w)
	}
	return nil
}

// settlePending gives up a portion of what is pending for an endpoint that is sent nothing any more, and says whether there may be more.
func settlePending(tx *Tx, w *perdure.Webhook, most int) (n int, more bool, err error) {
	if w.DeletedAt != 0 {
		return settleNotifications(tx, w, math.MaxInt64, most, perdure.NoteDropped, "the webhook was deleted")
	}
	return settleNotifications(tx, w, math.MaxInt64, most, perdure.NoteDead, "the webhook was disabled")
}

// settleNotifications gives up a portion of what is pending for an endpoint and is due until an instant.
func settleNotifications(tx *Tx, w *perdure.Webhook, until perdure.Instant, most int, state, why string) (n int, more bool, err error) {
	list, more, err := tx.DB.Outbox.Pending(w.Tenant, w.ID, until, most)
	if err != nil {
		return 0, false, err
	}
	for _, n := range list {
		n.State, n.AlarmAt, n.Error = state, 0, why
		tx.DB.Outbox.Put(n)
	}
	return len(list), more, nil
}
