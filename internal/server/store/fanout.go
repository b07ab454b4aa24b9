package store

import (
	"fmt"

	"github.com/perdure/perdure"
)

// A FanOut is an event whose notifications are not all written yet. It has the line of the run's
// log, and how far its endpoints have their notifications.
type FanOut struct {
	Tenant   perdure.TenantID
	RunID    perdure.RunID
	Seq      int64 // the number of the line
	Type     perdure.LineType
	ThreadID perdure.ThreadID
	// Own is the endpoint of the run itself, until it has its notification.
	Own perdure.WebhookID
	// At is the instant of the event. Endpoints that were created later are not notified.
	At perdure.Instant
	// After is the last registered endpoint that has its notification.
	After   perdure.WebhookID
	Version int64
}

var fanOutTable = register(&table[FanOut]{
	name: "fanouts", versioned: true, version: func(f *FanOut) *int64 { return &f.Version },
	keys: []string{"tenant", "run_id", "seq"},
	columns: func(c *columns, f *FanOut) {
		text(c, "tenant", &f.Tenant)
		text(c, "run_id", &f.RunID)
		number(c, "seq", &f.Seq)
		text(c, "type", &f.Type)
		text(c, "thread_id", &f.ThreadID)
		text(c, "own", &f.Own)
		number(c, "at", &f.At)
		text(c, "after", &f.After)
		number(c, "version", &f.Version)
	},
})

type fanOutKey struct {
	runKey
	seq int64
}

func keyOfFanOut(f *FanOut) fanOutKey { return fanOutKey{runKey{f.Tenant, f.RunID}, f.Seq} }

// FanOuts holds events that wait to become notifications for many webhooks.
type FanOuts struct {
	in   *base
	rows staged[fanOutKey, FanOut]
}

func (repo *FanOuts) open(in *base) {
	repo.in = in
	openRows(&repo.rows, in, fanOutTable)
}

// Tenants gives tenants after one that have waiting events, in order. It takes one step per tenant,
// however many events each has.
func (repo *FanOuts) Tenants(after perdure.TenantID, limit int) (out []perdure.TenantID, err error) {
	const next = "(SELECT f.tenant FROM fanouts f WHERE f.tenant>%s ORDER BY f.tenant LIMIT 1)"
	err = repo.in.sess.Query("WITH RECURSIVE t(tenant) AS (SELECT "+fmt.Sprintf(next, "?")+" UNION ALL SELECT "+
		fmt.Sprintf(next, "t.tenant")+
		" FROM t WHERE t.tenant IS NOT NULL) SELECT tenant FROM t WHERE tenant IS NOT NULL"+atMost,
		[]any{string(after), int64(limit)}, func(scan func(...any) error) error {
			var t perdure.TenantID
			err := scan(&t)
			out = append(out, t)
			return err
		})
	return out, err
}

// List gives a tenant's waiting events, the oldest first. full says that there may be more.
func (repo *FanOuts) List(t perdure.TenantID, limit int) (out []FanOut, full bool, err error) {
	rows := 0
	err = fanOutTable.query(repo.in.sess, "WHERE tenant=? ORDER BY at, run_id, seq"+atMost,
		[]any{string(t), int64(limit)}, func(f *FanOut) error {
			rows++
			k := keyOfFanOut(f)
			absorbRow(&repo.rows, k, *f, true)
			if cur, ok, _ := getRow(&repo.rows, k); ok { // the batch may have dropped it
				out = append(out, cur)
			}
			return nil
		})
	return out, rows == limit, err
}

// Notified gives the endpoints that already have a notification of an event.
func (repo *FanOuts) Notified(f *FanOut) (map[perdure.WebhookID]bool, error) {
	out := make(map[perdure.WebhookID]bool)
	err := repo.in.sess.Query("SELECT target FROM outbox WHERE tenant=? AND run_id=? AND seq=?",
		[]any{string(f.Tenant), string(f.RunID), f.Seq}, func(scan func(...any) error) error {
			var w perdure.WebhookID
			err := scan(&w)
			out[w] = true
			return err
		})
	return out, err
}

// maxFanOutsCounted is the limit of Count in a Census.
const maxFanOutsCounted = 10_000

// Count counts the waiting events, up to a limit.
func (repo *FanOuts) Count(limit int) (n int, err error) {
	err = repo.in.sess.Query(fmt.Sprintf("SELECT count(*) FROM (SELECT 1 FROM fanouts LIMIT %d) waiting", limit), nil,
		func(scan func(...any) error) error { return scan(&n) })
	return n, err
}

// Put stages a waiting event. Its version is incremented when the batch is written.
func (repo *FanOuts) Put(f FanOut) { putRow(&repo.rows, keyOfFanOut(&f), f) }

// Drop stages the removal of an event that has all its notifications. If another node was faster,
// the batch is decided again.
func (repo *FanOuts) Drop(f *FanOut) {
	dropRow(&repo.rows, keyOfFanOut(f))
	addRows(&repo.in.tx.later, statement{"DELETE FROM fanouts WHERE tenant=? AND run_id=? AND seq=? AND version=?",
		[]any{string(f.Tenant), string(f.RunID), f.Seq, f.Version}, 1})
}
