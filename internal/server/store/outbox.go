package store

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
)

var noteTable = register(&table[perdure.Notification]{
	name: "outbox", versioned: true, version: func(n *perdure.Notification) *int64 { return &n.Version },
	keys: []string{"tenant", "run_id", "seq", "target"},
	columns: func(c *columns, n *perdure.Notification) {
		text(c, "tenant", &n.Tenant)
		text(c, "run_id", &n.RunID)
		number(c, "seq", &n.Seq)
		text(c, "target", &n.Webhook)
		text(c, "type", &n.Type)
		text(c, "state", &n.State)
		number(c, "attempts", &n.Attempts)
		number(c, "tries", &n.Tries)
		number(c, "created_at", &n.CreatedAt)
		optional(c, "alarm_at", &n.AlarmAt)
		number(c, "status", &n.Status)
		text(c, "error", &n.Error)
		number(c, "version", &n.Version)
	},
})

// millis scans a number of milliseconds.
type millis struct{ d *time.Duration }

func (m millis) value() any { return m.d.Milliseconds() }

func (m millis) Scan(v any) error {
	n, _ := v.(int64)
	*m.d = time.Duration(n) * time.Millisecond
	return nil
}

var attemptTable = register(&table[perdure.WebhookAttempt]{
	// quiet: an attempt whose commit had an unknown outcome is inserted again.
	name: "webhook_attempts", quiet: true, keys: []string{"tenant", "run_id", "seq", "target", "n"},
	columns: func(c *columns, a *perdure.WebhookAttempt) {
		text(c, "tenant", &a.Tenant)
		text(c, "run_id", &a.RunID)
		number(c, "seq", &a.Seq)
		text(c, "target", &a.Webhook)
		number(c, "n", &a.N)
		number(c, "at", &a.At)
		packed(c, "took_ms", millis{&a.Took})
		number(c, "status", &a.Status)
		text(c, "error", &a.Error)
		text(c, "response", &a.Response)
	},
})

type noteKey struct {
	runKey
	seq int64
	w   perdure.WebhookID
}

func keyOfNotification(n *perdure.Notification) noteKey {
	return noteKey{runKey{n.Tenant, n.RunID}, n.Seq, n.Webhook}
}

// Outbox holds notifications for webhooks, and the attempts to deliver them.
type Outbox struct {
	in       *base
	rows     staged[noteKey, perdure.Notification]
	attempts added[perdure.WebhookAttempt]
}

func (repo *Outbox) open(in *base) {
	repo.in = in
	openRows(&repo.rows, in, noteTable)
	openAdded(&repo.attempts, in, attemptTable)
}

// Get gives a notification.
func (repo *Outbox) Get(
	t perdure.TenantID, run perdure.RunID, seq int64, w perdure.WebhookID,
) (perdure.Notification, bool, error) {
	return loadRow(&repo.rows, noteKey{runKey{t, run}, seq, w}, "WHERE tenant=? AND run_id=? AND seq=? AND target=?",
		string(t), string(run), seq, string(w))
}

// Pending gives an endpoint's notifications whose alarm is not later than an instant, the earliest
// first. full says that the query reached its limit, so that there may be more. Notifications that
// the batch has changed may be missing.
func (repo *Outbox) Pending(
	t perdure.TenantID, w perdure.WebhookID, until perdure.Instant, limit int,
) (out []perdure.Notification, full bool, err error) {
	rows := 0
	err = noteTable.query(repo.in.sess, "WHERE tenant=? AND target=? AND alarm_at IS NOT NULL AND alarm_at<=? "+
		"ORDER BY alarm_at, run_id, seq"+atMost,
		[]any{string(t), string(w), int64(until), int64(limit)}, func(n *perdure.Notification) error {
			rows++
			k := keyOfNotification(n)
			absorbRow(&repo.rows, k, *n, true)
			// The batch may have changed it.
			if cur, ok, _ := getRow(&repo.rows, k); ok && cur.AlarmAt != 0 && cur.AlarmAt <= until {
				out = append(out, cur)
			}
			return nil
		})
	return out, rows == limit, err
}

// NextAlarm gives the earliest alarm of an endpoint's notifications that has not passed yet, or
// zero.
func (repo *Outbox) NextAlarm(t perdure.TenantID, w perdure.WebhookID) (at perdure.Instant, err error) {
	err = repo.in.sess.Query("SELECT min(alarm_at) FROM outbox WHERE tenant=? AND target=? AND alarm_at IS NOT NULL "+
		"AND alarm_at>?",
		[]any{string(t), string(w), int64(repo.in.Now)},
		func(scan func(...any) error) error { return scan(nullable[perdure.Instant]{&at}) })
	return at, err
}

// OfRun lists a run's notifications.
func (repo *Outbox) OfRun(t perdure.TenantID, run perdure.RunID) ([]perdure.Notification, error) {
	return repo.where("WHERE tenant=? AND run_id=? ORDER BY seq, target", string(t), string(run))
}

// Deliveries lists the notifications of an endpoint, newest first: in one state, or all if state is
// empty. before is the cursor, the id of the last one of the previous page.
func (repo *Outbox) Deliveries(
	t perdure.TenantID, w perdure.WebhookID, state, before string, limit int,
) ([]perdure.Notification, error) {
	where, args := "WHERE tenant=? AND target=?", []any{string(t), string(w)}
	if state != "" {
		if !slices.Contains(perdure.NoteStates, state) {
			return nil, perdure.Invalid("state", "%.40q is none of %s", state, strings.Join(perdure.NoteStates, ", "))
		}
		where += " AND state='" + state + "'" // not an argument, so that the partial index of dead ones is used
	}
	if before != "" {
		last, ok, err := repo.Delivery(t, before)
		if err != nil {
			return nil, err
		}
		if !ok || last.Webhook != w {
			return nil, perdure.Invalid("cursor", "is not what the last page ended with")
		}
		where += " AND (created_at,run_id,seq)<(?,?,?)"
		args = append(args, int64(last.CreatedAt), string(last.RunID), last.Seq)
	}
	return repo.where(fmt.Sprintf("%s ORDER BY created_at DESC, run_id DESC, seq DESC LIMIT %d", where, limit), args...)
}

// Delivery gives a notification by its id.
func (repo *Outbox) Delivery(t perdure.TenantID, id string) (n perdure.Notification, ok bool, err error) {
	run, seq, w, ok := perdure.ParseNotificationID(id)
	if !ok {
		return n, false, nil
	}
	list, err := repo.where("WHERE tenant=? AND run_id=? AND seq=? AND target=?", string(t), string(run), seq,
		string(w))
	if err != nil || len(list) == 0 {
		return n, false, err
	}
	return list[0], true, nil
}

// where reads notifications as the database has them.
func (repo *Outbox) where(where string, args ...any) ([]perdure.Notification, error) {
	return noteTable.list(repo.in.sess, where, args)
}

// FirstAttempt gives the instant of the first attempt after the nth, or zero.
func (repo *Outbox) FirstAttempt(of *perdure.Notification, n int64) (at perdure.Instant, err error) {
	err = repo.in.sess.Query("SELECT min(at) FROM webhook_attempts WHERE tenant=? AND run_id=? AND seq=? "+
		"AND target=? AND n>?",
		[]any{string(of.Tenant), string(of.RunID), of.Seq, string(of.Webhook), n}, func(scan func(...any) error) error {
			return scan(nullable[perdure.Instant]{&at})
		})
	return at, err
}

// maxAttempts bounds how many attempts are shown. A notification that is redelivered repeatedly has
// any number of them.
const maxAttempts = 100

// Attempts gives the last attempts to deliver a notification, in order, at most maxAttempts.
func (repo *Outbox) Attempts(n *perdure.Notification) ([]perdure.WebhookAttempt, error) {
	var out []perdure.WebhookAttempt
	err := attemptTable.query(repo.in.sess,
		fmt.Sprintf("WHERE tenant=? AND run_id=? AND seq=? AND target=? ORDER BY n DESC LIMIT %d", maxAttempts),
		[]any{string(n.Tenant), string(n.RunID), n.Seq, string(n.Webhook)}, func(a *perdure.WebhookAttempt) error {
			out = append(out, *a)
			return nil
		})
	slices.Reverse(out)
	return out, err
}

// A Mailbox is an endpoint with notifications to send, and the instant when the first one is due.
type Mailbox struct {
	Tenant  perdure.TenantID
	Webhook perdure.WebhookID
	Due     perdure.Instant
}

// MailboxesEach is how many endpoints of a tenant Mailboxes gives before it continues with the next
// tenant.
const MailboxesEach = 100

var (
	mailboxesOfAll = mailboxes(MailboxesEach)
	mailboxesOfOne = mailboxes(math.MaxInt32)
)

// Mailboxes gives the endpoints after one that have something to send, now or later, in order: of
// every tenant at most MailboxesEach.
func (repo *Outbox) Mailboxes(after Mailbox, limit int) (out []Mailbox, err error) {
	err = repo.mailboxes(mailboxesOfAll, after, limit, func(m Mailbox) error {
		out = append(out, m)
		return nil
	})
	return out, err
}

// MailboxesOf gives the endpoints of a tenant after one that have something to send, now or later,
// in order.
func (repo *Outbox) MailboxesOf(after Mailbox, limit int) (out []Mailbox, err error) {
	err = repo.mailboxes(mailboxesOfOne, after, limit, func(m Mailbox) error {
		if m.Tenant != after.Tenant {
			return errEnough
		}
		out = append(out, m)
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return out, err
}

// mailboxes runs one of the mailbox queries after a position.
func (repo *Outbox) mailboxes(query string, after Mailbox, limit int, give func(Mailbox) error) error {
	t, w := string(after.Tenant), string(after.Webhook)
	return repo.in.sess.Query(query, []any{t, w, t, t, w, t, t, w, t, int64(limit)},
		func(scan func(...any) error) error {
			var m Mailbox
			if err := scan(&m.Tenant, &m.Webhook, &m.Due); err != nil {
				return err
			}
			return give(m)
		})
}

// mailboxes is a recursive query that steps from endpoint to endpoint along their index, however
// many rows each has. A step goes to the tenant's next endpoint, or to the next tenant's first one.
//
// The comparison is not written with a pair of columns: in a recursive query SQLite would use only
// half of the index for it. Every column is looked up separately, since not every database can take
// a row from a subquery.
//
// After perTenant endpoints of a tenant it continues with the next tenant; MailboxesOf finds the
// others. '~' is greater than every endpoint id.
func mailboxes(perTenant int) string {
	next := func(tenant, target string) string {
		var cols []string
		for _, col := range []string{"tenant", "target", "alarm_at"} {
			from := "(SELECT o." + col + " FROM outbox o WHERE o.alarm_at IS NOT NULL AND o.tenant"
			cols = append(cols, "coalesce("+from+"="+tenant+" AND o.target>"+target+
				" ORDER BY o.target, o.alarm_at LIMIT 1), "+
				from+">"+tenant+" ORDER BY o.tenant, o.target, o.alarm_at LIMIT 1))")
		}
		return strings.Join(cols, ", ")
	}
	from := fmt.Sprintf("CASE WHEN box.m>=%d THEN '~' ELSE box.target END", perTenant)
	another := "EXISTS (SELECT 1 FROM outbox o WHERE o.alarm_at IS NOT NULL AND o.tenant=box.tenant AND o.target>" +
		from + ")"
	return "WITH RECURSIVE box(tenant, target, alarm_at, n, m) AS (SELECT " + next("?", "?") +
		", 1, 1 UNION ALL SELECT " + next("box.tenant", from) +
		", n+1, CASE WHEN " + another + " THEN m+1 ELSE 1 END FROM box WHERE box.tenant IS NOT NULL " +
		"AND n<CAST(? AS BIGINT)) SELECT tenant, target, alarm_at FROM box WHERE tenant IS NOT NULL"
}

// Put stages a notification. Its version is incremented when the batch is written.
func (repo *Outbox) Put(n perdure.Notification) { putRow(&repo.rows, keyOfNotification(&n), n) }

// AddAttempt stages an attempt to deliver a notification.
func (repo *Outbox) AddAttempt(a perdure.WebhookAttempt) { addRows(&repo.attempts, a) }
